"""What every benchmark runs on: its options, fresh Notify databases, and brokers as processes of their own."""

from __future__ import annotations

import argparse
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
    """The options that all benchmarks have; `quick` says what the short form does."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick}: about a minute in all")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser


def pgbench_path() -> str:
    """The pgbench that comes with the embedded PostgreSQL."""
    return str(binaries_dir() / "pgbench")


@contextmanager
def private_server() -> Iterator[EmbeddedPostgres]:
    """A fresh embedded PostgreSQL that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        with EmbeddedPostgres(Path(directory)) as server:
            yield server


def fresh_database(server: EmbeddedPostgres, name: str) -> str:
    """The URL of an empty, upgraded Notify database; one of this name is dropped before."""
    server.drop_database(name)
    url = server.create_database(name)
    migrate.upgrade(url)
    return url


@contextmanager
def notify_database(storage: str | None) -> Iterator[str]:
    """The URL of an upgraded Notify database: yours, or a fresh embedded one that is removed afterwards."""
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
        """The memory it holds now."""
        return float(self.process.memory_info().rss) / 1024**2

    def end(self, how: signal.Signals) -> None:
        """SIGKILL, or SIGTERM to have it hand over its work first; returns when it has ended."""
        self._child.stop(_STOP_TIMEOUT_S, how)


@contextmanager
def broker_process(url: str, *options: str, listen: str = "127.0.0.1:0") -> Iterator[Broker]:
    """A broker on this database. Afterwards it is stopped, unless it has ended meanwhile."""
    with _command("listening on ", "broker", "--storage", url, "--listen", listen, *options, *_QUIET) as child:
        yield Broker(child)


@contextmanager
def tailer_process(url: str, log: Path | str, *options: str) -> Iterator[psutil.Process]:
    """A tailer that mirrors this database into a log, from when it says that it does. Afterwards it is stopped."""
    with _command("tailing ", "tailer", "run", "--storage", url, "--metaq", str(log), *options, *_QUIET) as child:
        yield psutil.Process(child.pid)


@contextmanager
def metaq_process(log: Path, *options: str, leader: str | None = None) -> Iterator[tuple[str, psutil.Process]]:
    """A server of the log in this directory, or of a copy, and its address. Afterwards it is stopped."""
    command = ("metaq", "serve") if leader is None else ("metaq", "follow", leader)
    of = ("--data-dir", str(log), "--listen", "127.0.0.1:0", *options)
    with _command("listening on ", *command, *of, *_QUIET) as child:
        yield child.address, psutil.Process(child.pid)


@contextmanager
def console_process(broker: str, *options: str) -> Iterator[str]:
    """A console that shows the database of this broker, and its address. Afterwards it is stopped."""
    with _command("listening on ", "console", "--broker", broker, "--listen", "127.0.0.1:0", *options) as child:
        yield child.address


@contextmanager
def gateway_process(brokers: str, *options: str) -> Iterator[str]:
    """A gateway for RocketMQ's clients, and its address. Afterwards it is stopped."""
    command = ("rocketmq", "--broker", brokers, "--listen", "127.0.0.1:0", *options)
    with _command("listening on ", *command) as child:
        yield child.address


@contextmanager
def _command(ready: str, *command: str) -> Iterator[Child]:
    """A `txmsg` command that runs until it is stopped, from when it is ready."""
    program = ["txmsg.runtime.child", "txmsg.ops.cli.main", *command]
    child = Child(f"`txmsg {command[0]}`", program, log=lambda line: print(line, file=sys.stderr), ready=ready)
    try:
        child.wait_ready()
        yield child
    finally:
        child.stop(_STOP_TIMEOUT_S)


@contextmanager
def progress_of(what: str, steps: int) -> Iterator[Callable[[], None]]:
    """A progress bar over the measurements, on stderr; what it gives moves it on by one."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=steps)
        yield lambda: progress.advance(task)
