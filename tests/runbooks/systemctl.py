"""`systemctl` of a machine that is a directory: it asks the test, which owns the processes, to start and stop them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """#!/bin/sh
echo "$@" > asked
read answer < answered
echo "$answer"
test "$answer" = done
"""
_OFF = "power off"


@contextmanager
def systemctl_in(directory: Path, act: Callable[[str], None]) -> Iterator[None]:
    """Return the program for commands that run in this directory. act: called with a request such as "start NAME"."""
    program = directory / "systemctl"
    program.write_text(_PROGRAM)
    program.chmod(0o755)
    for name in ("asked", "answered"):
        os.mkfifo(directory / name)

    def serve() -> None:
        while (asked := (directory / "asked").read_text().strip()) != _OFF:
            try:
                act(asked)
                answer = "done"
            except Exception as exc:  # noqa: BLE001 - a thread's root: the run-book fails with it
                answer = f"{type(exc).__name__}: {str(exc)!r}"
            (directory / "answered").write_text(f"{answer}\n")

    thread = threading.Thread(target=serve, name=f"systemctl of {directory.name}")
    thread.start()
    try:
        yield
    finally:
        (directory / "asked").write_text(f"{_OFF}\n")
        thread.join()
