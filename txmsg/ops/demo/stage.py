"""Starts the processes of a demo, kills them, and starts them again; of most also a PostgreSQL and a broker.

    postgres/      one embedded PostgreSQL with a database for the broker ("notify") and those that the demo names
    logs/          the logs of the processes
    health.json    the state of the processes, for a live page

Knows how to start them, not when to kill them (director).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

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


class DemoProcesses:
    """Processes by name. Leaving the context ends all of them in any case, the last started first."""

    ending: ClassVar[Collection[str]] = ()
    """Names of programs that end by themselves when they have done their work."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: dict[str, Child] = {}
        """Those that `start` started, by name: of each the last one."""
        self.on_wait: Callable[[str], object] = lambda name: None
        """Called with the name of the process that is waited for next."""
        self.kills: Counter[str] = Counter()
        """Kills of each by `kill_and_restart`."""
        self._stopped: set[str] = set()
        self._makers: dict[str, Callable[[], Child]] = {}
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
        """Start what the demo needs from the beginning; all of it ends if this raises."""

    def start(self, name: str, *arguments: str, ready: str = LISTENING, **env: str) -> Child:
        """Start `python -m ARGUMENTS`; again, if it was killed or has ended."""
        return self.start_child(name, partial(self.child, name, *arguments, ready=ready, **env))

    def start_child(self, name: str, make: Callable[[], Child]) -> Child:
        """Start the process that `make` starts; again, if it was killed or has ended. It ends with this context."""
        before = self.children.get(name)
        if before is None:
            self._exits.callback(self.stop, name)
        else:
            before.stop()
        self._makers[name] = make
        self.children[name] = make()
        self._stopped.discard(name)
        return self.children[name]

    def start_program(self, name: str, module: str, *arguments: str, **ready: str) -> Child:
        """Start a module that does not end by itself when its parent is gone."""
        return self.start(name, "txmsg.runtime.child", module, *arguments, **ready)

    def start_command(self, name: str, *command: str, **ready: str) -> Child:
        """Start `txmsg COMMAND`."""
        return self.start_program(name, "txmsg.ops.cli.main", *command, **ready)

    def child(self, name: str, *arguments: str, ready: str = LISTENING, **env: str) -> Child:
        """Start `python -m ARGUMENTS`; the caller ends it."""
        env = {**self.credentials(name), **env}
        return Child(name, arguments, env=env, log=self._logs / f"{name}.log", ready=ready)

    def credentials(self, name: str) -> dict[str, str]:
        """Return the variables with a process's credentials: here none, even if this shell has some."""
        return dict.fromkeys((CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE), "")

    def await_ready(self, *names: str) -> None:
        """Return when these are ready, or all that were started. Raises ChildFailed."""
        for name in names or self.children:
            if not self.children[name].is_ready:
                self.on_wait(name)
            self.children[name].wait_ready()

    def run(self, name: str, *arguments: str, **env: str) -> None:
        """Run a program to its end. Raises ChildFailed when it fails, or takes too long."""
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
        """Return the findings of an example's verifier, which shares no code with the demo. Raises ChildFailed."""
        command = [sys.executable, "-P", "-m", f"txmsg.ops.demo.examples.{example}.verify", *where]
        run = subprocess.run(command, capture_output=True, timeout=600, check=False)
        if run.returncode not in (0, 1) or not run.stdout:  # 1 only says that something is wrong
            raise ChildFailed(f"the verifier failed:\n{run.stderr.decode(errors='replace')}")
        verdict: dict[str, Any] = json.loads(run.stdout)
        return verdict

    def require_running(self) -> None:
        """Raise ChildFailed if one has ended that was neither killed nor stopped here."""
        for name, child in self.children.items():
            status = child.returncode  # read once: it may end now
            if status is not None and name not in self._stopped and not (status == 0 and name in self.ending):
                child.require_running()

    def last_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object that a process printed last; empty before the first."""
        line = self.children[name].last_line
        found: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        return found

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL. Return when it has ended."""
        self._stopped.add(name)
        self.children[name].kill()
        self.children[name].stop()

    def stop(self, name: str) -> None:
        """Ask a process to end, with SIGTERM. Return when it has ended."""
        self._stopped.add(name)
        self.children[name].stop()

    def restart(self, name: str) -> Child:
        """Start a process again as it was started last."""
        return self.start_child(name, self._makers[name])

    def kill_and_restart(self, name: str) -> None:
        """Kill a process with SIGKILL, start it again, and count that. Does not wait until it is ready."""
        self.children[name].kill()
        self.restart(name)
        self.kills[name] += 1

    def ready_by_name(self) -> dict[str, bool]:
        """Return for each process that has not been stopped if it is ready. Callable from any thread."""
        return {
            name: child.is_ready and child.returncode is None
            for name, child in list(self.children.items())
            if name not in self.ending and name not in self._stopped
        }


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
        self.health = directory / "health.json"

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
        """Return the conninfo of a database, for psycopg and psql."""
        return self._postgres.url(database)

    def sqlalchemy_url(self, database: str) -> str:
        """Return the same for SQLAlchemy."""
        return self.url(database).replace("postgresql:", "postgresql+psycopg:", 1)

    # ---- the brokers

    def child(self, name: str, *arguments: str, ready: str = LISTENING, **env: str) -> Child:
        return super().child(name, *arguments, ready=ready, **{"TXMSG_BROKERS": self.broker_addresses, **env})

    @property
    def broker_addresses(self) -> str:
        """Return the brokers' addresses as clients take them."""
        return ",".join(self.brokers.values())

    def start_broker(self, name: str = "broker", *options: str) -> Child:
        """Start a broker; always on the same address, so that clients find it again."""
        where = ("--storage", self.url("notify"), "--listen", self.brokers[name])
        checks = ("--first-check-s", str(FIRST_CHECK_S), "--check-interval-s", str(CHECK_INTERVAL_S))
        return self.start_command(name, "broker", *where, *checks, *options)

    def start_tailer(self, log: str, *options: str) -> Child:
        """Start the tailer that mirrors the Notify database into this log."""
        where = ("--storage", self.url("notify"), "--metaq", log)
        return self.start_command("tailer", "tailer", "run", *where, *options, ready="tailing ")

    def start_console(self, *options: str) -> str:
        """Start the console, which shows the Notify database. Return its address when it is ready."""
        where = ("--broker", self.broker_addresses, "--listen", f"{loopback()}:0")
        return f"{self.page_scheme}://{self.start_command('console', 'console', *where, *options).wait_ready()}"

    def start_page(self, module: str, *options: str) -> Child:
        """Start a live page that shows the figures of an example, and the state of the processes."""
        where = ("--listen", f"{loopback()}:0", "--health", str(self.health))
        return self.start_program("page", module, *options, *where)

    @property
    def page_url(self) -> str:
        """Return the address of the live page."""
        return f"http://{self.children['page'].address}/"

    def write_health(self, measures: Mapping[str, float]) -> None:
        """Replace the file that the live page reads: a reader gets the old text or the new one."""
        parts = {name: is_ready for name, is_ready in self.ready_by_name().items() if name != "page"}
        new = self.health.with_suffix(".new")
        new.write_text(json.dumps({"parts": parts, "measures": measures}))
        new.replace(self.health)

    def channel(self, broker: str = "broker") -> BlockingChannel:
        """Return a channel to a broker, with this process's credentials."""
        return BlockingChannel(self.brokers[broker], tls=False, token="")

    def broker_stats(self, broker: str = "broker") -> Stats:
        """Return the figures of a broker since it was started."""
        with self.channel(broker) as channel:
            return channel.call(AdminService.stats, Nothing(), timeout_s=10)

    def is_drained(self) -> bool:
        """Return True if no transaction is undecided, and no message waits: nothing changes any more."""
        stats = self.broker_stats()
        return not stats.halves and not any(lag.waiting or lag.retrying for lag in stats.groups)
