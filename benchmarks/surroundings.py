"""Common parts of all benchmarks: the machine, options, fresh Notify databases, and brokers as processes."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import Progress

from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.programs import binaries_dir
from txmsg.runtime.child import Child

_STOP_TIMEOUT_S = 30
_QUIET = ("--log-level", "warning")


def parser_of(doc: str | None, quick: str) -> argparse.ArgumentParser:
    """Return the options of all benchmarks; `quick` describes the short form."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick}: about a minute in all")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def this_machine() -> dict[str, int | float | str | None]:
    """Return the properties of this machine that figures depend on. load: average of the last minute."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3),
        "system": platform.system(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def pgbench_path() -> str:
    """Return the path of the pgbench in the embedded PostgreSQL."""
    return str(binaries_dir() / "pgbench")


@contextmanager
def private_server() -> Iterator[EmbeddedPostgres]:
    """Yield a fresh embedded PostgreSQL that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        with EmbeddedPostgres(Path(directory)) as server:
            yield server


def fresh_database(server: EmbeddedPostgres, name: str) -> str:
    """Return the URL of an empty, upgraded Notify database; replaces one of this name."""
    server.drop_database(name)
    url = server.create_database(name)
    migrate.upgrade(url)
    return url


@contextmanager
def notify_database(storage: str | None) -> Iterator[str]:
    """Yield the URL of an upgraded Notify database: the given one, or a fresh embedded one, removed afterwards."""
    if storage is not None:
        migrate.upgrade(storage)
        yield storage
        return
    with private_server() as server:
        yield fresh_database(server, "bench")


class Broker:
    """A broker process that listens on `address`."""

    def __init__(self, child: Child) -> None:
        self.address = child.address
        self.process = psutil.Process(child.pid)
        self._child = child

    def rss_mib(self) -> float:
        """Return its resident memory."""
        return float(self.process.memory_info().rss) / 1024**2

    def end(self, how: signal.Signals) -> None:
        """Send SIGKILL, or SIGTERM so that it hands over its work first; return once it has exited."""
        self._child.stop(_STOP_TIMEOUT_S, how)


@contextmanager
def broker_process(url: str, *options: str, listen: str = "127.0.0.1:0") -> Iterator[Broker]:
    """Run a broker on this database. Afterwards it is stopped, unless it has exited."""
    with _command("listening on ", "broker", "--storage", url, "--listen", listen, *options, *_QUIET) as child:
        yield Broker(child)


@contextmanager
def tailer_process(url: str, log: Path | str, *options: str) -> Iterator[psutil.Process]:
    """Run a tailer that mirrors this database into a log, once it is ready. Afterwards it is stopped."""
    with _command("tailing ", "tailer", "run", "--storage", url, "--metaq", str(log), *options, *_QUIET) as child:
        yield psutil.Process(child.pid)


@contextmanager
def metaq_process(log: Path, *options: str, leader: str | None = None) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server of the log in this directory, or of a copy; yields its address. Afterwards it is stopped."""
    command = ("metaq", "serve") if leader is None else ("metaq", "follow", leader)
    of = ("--data-dir", str(log), "--listen", "127.0.0.1:0", *options)
    with _command("listening on ", *command, *of, *_QUIET) as child:
        yield child.address, psutil.Process(child.pid)


@contextmanager
def console_process(broker: str, *options: str) -> Iterator[str]:
    """Run a console for the database of this broker; yields its address. Afterwards it is stopped."""
    with _command("listening on ", "console", "--broker", broker, "--listen", "127.0.0.1:0", *options) as child:
        yield child.address


@contextmanager
def gateway_process(brokers: str, *options: str) -> Iterator[str]:
    """Run a gateway for RocketMQ clients; yields its address. Afterwards it is stopped."""
    command = ("rocketmq", "--broker", brokers, "--listen", "127.0.0.1:0", *options)
    with _command("listening on ", *command) as child:
        yield child.address


@contextmanager
def _command(ready: str, *command: str) -> Iterator[Child]:
    """Run a `txmsg` command until the block ends, once it is ready."""
    program = ["txmsg.runtime.child", "txmsg.ops.cli.main", *command]
    child = Child(f"`txmsg {command[0]}`", program, log=lambda line: print(line, file=sys.stderr), ready=ready)
    try:
        child.wait_ready()
        yield child
    finally:
        child.stop(_STOP_TIMEOUT_S)


@contextmanager
def progress_of(what: str, steps: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar over the measurements on stderr; yields a function that advances it by one."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=steps)
        yield lambda: progress.advance(task)
