"""What every benchmark runs on: a fresh Notify database, and a broker as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from txmsg.broker import migrate
from txmsg.embedded import EmbeddedPostgres, binaries_dir

__all__ = ["broker_process", "notify_database", "pgbench_path", "progress_of"]

_STOP_TIMEOUT_S = 30


def pgbench_path() -> str:
    """The pgbench that comes with the embedded PostgreSQL."""
    return str(binaries_dir() / "pgbench")


@contextmanager
def notify_database(storage: str | None) -> Iterator[str]:
    """The URL of an upgraded Notify database: yours, or a fresh embedded one that is removed afterwards."""
    if storage is not None:
        migrate.upgrade(storage)
        yield storage
        return
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        with EmbeddedPostgres(Path(directory)) as server:
            url = server.create_database("bench")
            migrate.upgrade(url)
            yield url


@contextmanager
def broker_process(url: str) -> Iterator[str]:
    """The address of a broker on this database."""
    command = [sys.executable, "-m", "txmsg.cli.main", "broker", "--storage", url, "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"the broker did not start; it printed {line!r}")
        yield line.removeprefix("listening on ").strip()
    finally:
        process.terminate()
        process.wait(_STOP_TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def progress_of(what: str, steps: int) -> Iterator[Callable[[], None]]:
    """A progress bar over the measurements, on stderr; what it gives moves it on by one."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=steps)
        yield lambda: progress.advance(task)
