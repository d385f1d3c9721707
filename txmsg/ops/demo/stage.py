"""What a demo stands on: processes, which can be killed and started again; of most a PostgreSQL and a broker, too.

    postgres/      one embedded PostgreSQL with a database for the broker ("notify") and those that the demo names
    logs/          what each process said

Knows how to start them, not why.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from txmsg.administration.ask import Nothing
from txmsg.administration.halves import AdminService, Stats
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.watch import watched
from txmsg.broker.migrate import upgrade
from txmsg.runtime.child import LISTENING, Child, ChildFailed
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.credential import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from txmsg.wire.listening import loopback
from txmsg.wire.ports import own_port
from txmsg.wire.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

FIRST_CHECK_S = 1.0
CHECK_INTERVAL_S = 2.0
_RUN_S_MAX = 240.0


class Audience(Protocol):
    """Is told how the demo goes on. Called from the supervisor's main thread only."""

    def phase(self, title: str, steps: int) -> None:
        """A phase of so many steps begins."""

    def progress(self, steps: int, note: str) -> None:
        """So many steps of the phase are done."""

    def say(self, text: str) -> None:
        """Something that stays to be read."""


class DemoProcesses:
    """Leaving the context ends all its processes, whatever happened inside: the last started first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: dict[str, Child] = {}
        """Those that `start` started, by name, as they were started last."""
        self.on_wait: Callable[[str], object] = lambda name: None
        """Is called with the name of what is waited for next."""
        self._logs = directory / "logs"
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self._exits.close)
            self._logs.mkdir(parents=True, exist_ok=True)
            self._set_up()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _set_up(self) -> None:
        """What a demo starts before anything else; all of it ends if this raises."""

    def start(self, name: str, *arguments: str, ready: str = LISTENING, **env: str) -> Child:
        """Starts `python -m ARGUMENTS`; again, if it has been killed or has ended."""
        before = self.children.get(name)
        if before is None:
            self._exits.callback(self._stop, name)
        else:
            before.stop()
        self.children[name] = self.child(name, *arguments, ready=ready, **env)
        return self.children[name]

    def start_program(self, name: str, module: str, *arguments: str, **ready: str) -> Child:
        """The same for a module that does not end by itself when its parent is gone."""
        return self.start(name, "txmsg.runtime.child", module, *arguments, **ready)

    def child(self, name: str, *arguments: str, ready: str = LISTENING, **env: str) -> Child:
        """The same, but the caller ends it."""
        env = {**self.credentials(name), **env}
        return Child(name, arguments, env=env, log=self._logs / f"{name}.log", ready=ready)

    def credentials(self, name: str) -> dict[str, str]:
        """Variables with what a process has to show to servers: here nothing, whatever this shell has."""
        return dict.fromkeys((CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE), "")

    def await_ready(self, *names: str) -> None:
        """Returns when these are ready, or all that were started. Raises ChildFailed."""
        for name in names or self.children:
            if not self.children[name].is_ready:
                self.on_wait(name)
            self.children[name].wait_ready()

    def run(self, name: str, *arguments: str, **env: str) -> None:
        """Runs a program to its end. Raises ChildFailed when it fails, or takes too long."""
        self.on_wait(name)
        child = self.child(name, *arguments, **env)
        try:
            if child.wait(timeout_s=_RUN_S_MAX) != 0:
                raise ChildFailed(f"{name} failed:\n{child.log_tail()}")
        except subprocess.TimeoutExpired as exc:
            raise ChildFailed(f"{name} did not end within {_RUN_S_MAX:g} s:\n{child.log_tail()}") from exc
        finally:
            child.stop()

    def verdict(self, example: str, *where: str) -> dict[str, Any]:
        """What the verifier of an example finds, which shares no code with the demo. Raises ChildFailed."""
        command = [sys.executable, "-P", "-m", f"txmsg.ops.demo.examples.{example}.verify", *where]
        run = subprocess.run(command, capture_output=True, timeout=600, check=False)
        if run.returncode not in (0, 1) or not run.stdout:  # 1 only says that something is wrong
            raise ChildFailed(f"the verifier failed:\n{run.stderr.decode(errors='replace')}")
        verdict: dict[str, Any] = json.loads(run.stdout)
        return verdict

    def kill(self, name: str) -> None:
        """SIGKILL; returns when it is gone."""
        self.children[name].kill()
        self.children[name].stop()

    def _stop(self, name: str) -> None:
        self.children[name].stop()


class DemoStage(DemoProcesses):
    """Processes with a PostgreSQL and a broker."""

    page_scheme = "http"
    broker_names: ClassVar[Sequence[str]] = ("broker",)

    def __init__(self, directory: Path, *databases: str) -> None:
        super().__init__(directory)
        self._databases = ("notify", *databases)
        self._postgres = EmbeddedPostgres(directory / "postgres")
        self.brokers = {name: f"{loopback()}:{own_port()}" for name in self.broker_names}
        """Their addresses."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self._exits.close)
            self.on_wait("PostgreSQL")
            self._exits.enter_context(self._postgres)
            self._exits.enter_context(watched(self._postgres))
            for database in self._databases:
                self._postgres.create_database(database)
            upgrade(self.url("notify"))
            super().__enter__()
            undo.pop_all()
        return self

    def url(self, database: str) -> str:
        """Conninfo of a database, for psycopg and psql."""
        return self._postgres.url(database)

    def sqlalchemy_url(self, database: str) -> str:
        """The same for SQLAlchemy."""
        return self.url(database).replace("postgresql:", "postgresql+psycopg:", 1)

    # ---- the brokers

    def child(self, name: str, *arguments: str, ready: str = LISTENING, **env: str) -> Child:
        return super().child(name, *arguments, ready=ready, **{"TXMSG_BROKERS": self.broker_addresses, **env})

    @property
    def broker_addresses(self) -> str:
        """As clients take them."""
        return ",".join(self.brokers.values())

    def start_broker(self, name: str = "broker", *options: str) -> Child:
        """Starts a broker; always on the same address, so that clients find it again."""
        where = ("--storage", self.url("notify"), "--listen", self.brokers[name])
        checks = ("--first-check-s", str(FIRST_CHECK_S), "--check-interval-s", str(CHECK_INTERVAL_S))
        return self.start_program(name, "txmsg.ops.cli.main", "broker", *where, *checks, *options)

    def start_console(self, *options: str) -> str:
        """Starts the console, which shows the Notify database; its address."""
        where = ("--broker", self.broker_addresses, "--listen", f"{loopback()}:0")
        child = self.start_program("console", "txmsg.ops.cli.main", "console", *where, *options)
        child.wait_ready()
        return f"{self.page_scheme}://{child.address}"

    def channel(self, broker: str = "broker") -> BlockingChannel:
        """To a broker, with what this process has to show."""
        return BlockingChannel(self.brokers[broker], tls=False, token="")

    def broker_stats(self, broker: str = "broker") -> Stats:
        """What a broker counted since it started."""
        with self.channel(broker) as channel:
            return channel.call(AdminService.stats, Nothing(), timeout_s=10)


def write_health(path: Path, parts: Mapping[str, bool], measures: Mapping[str, float]) -> None:
    """Replaces the file that a page reads: it finds what was there, or this."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"parts": parts, "measures": measures}))
    new.replace(path)
