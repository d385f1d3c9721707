"""Run `txmsg up` of any installation."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_START_S_MAX = 200.0
_STOP_S_MAX = 120.0


@contextmanager
def running_up(
    data: Path, *options: str, environment: Mapping[str, str], python: Path | str = sys.executable
) -> Iterator[dict[str, str]]:
    """Run from ready to SIGTERM and yield the ready line; fails unless the exit status is 0."""
    addresses = ["--listen", "127.0.0.1:0", "--metaq-listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [str(python), "-m", "txmsg.ops.cli.main", "up", "--data-dir", str(data), "--json", *addresses, *options],
        cwd=data.parent,
        env=environment,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(_START_S_MAX), "it is not ready in time"
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(_STOP_S_MAX) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
