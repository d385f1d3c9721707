"""`txmsg up`: the embedded database, a broker, MetaQ and the tailer between them, for development."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.place import default_data_dir
from txmsg.broker.embedded.watch import watched
from txmsg.errors import MisuseError
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option, log_format_option
from txmsg.ops.cli.settings import config_option
from txmsg.runtime.child import Child, ChildFailed, with_name
from txmsg.runtime.logs import StderrLines, log_to_stderr, name_process
from txmsg.runtime.signals import stopped_by_signals
from txmsg.wire.address import check_reach, host_and_port
from txmsg.wire.listening import loopback

WATCH_INTERVAL_S: Final = 0.1
START_S_MAX: Final = 240.0  # one core, shared
STOP_S_MAX: Final = 30.0
"""Maximum seconds for all parts together; then they are killed."""
_PORT_MAX: Final = 65_535


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg up\n"
    "  txmsg up --data-dir /tmp/try --json \\\n"
    "      --listen 127.0.0.1:0 --metaq-listen 127.0.0.1:0\n\n"
    "Prints the addresses when all parts are ready, and then only problems. Ctrl-C and SIGTERM stop broker, tailer, "
    "MetaQ and database, in this order. If a part exits by itself, the others are stopped, and the exit status is 1. "
    "The database is started again."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=f"{loopback()}:7700",
    show_default=True,
    help="Address of the broker. Port 0 picks a free port.",
)
@click.option(
    "--metaq-listen",
    metavar="HOST:PORT",
    default=f"{loopback()}:7720",
    show_default=True,
    help="Address of MetaQ. Port 0 picks a free port.",
)
@click.option(
    "--http-listen",
    metavar="HOST:PORT",
    default="",
    help="Address of the broker's /metrics, /livez and /readyz, on loopback. MetaQ's and the tailer's are at the next "
    "two ports. Default: not served.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    help="Data directory: the database in DIR/pg, the log in DIR/metaq. Default: the user's data directory.",
)
@click.option(
    "--console", "with_console", is_flag=True, help="Also run `txmsg console`, for a browser on this machine."
)
@click.option(
    "--console-listen",
    metavar="HOST:PORT",
    default=f"{loopback()}:7790",
    show_default=True,
    help="Address of the console. Port 0 picks a free port.",
)
@click.option(
    "--alerts",
    metavar="FILE",
    help="TOML file with receivers of alerts and custom rules. Default: alerts are logged and listed.",
)
@config_option
@log_format_option
@json_option
def up(
    *,
    listen: str,
    metaq_listen: str,
    http_listen: str,
    data_dir: Path | None,
    with_console: bool,
    console_listen: str,
    alerts: str | None,
    config: Path | None,
    log_format: str | None,
    as_json: bool,
) -> None:
    """Run a database, a broker, MetaQ and a tailer, for development."""
    http = _http_addresses(http_listen) if http_listen else {}
    log_to_stderr("warning", log_format or "text")
    name_process("up")
    root = (data_dir or default_data_dir()).expanduser().resolve()
    stop = threading.Event()
    with EmbeddedPostgres(root / "pg") as postgres, watched(postgres), stopped_by_signals(stop.set):
        storage = postgres.create_database("txmsg")
        migrate.upgrade(storage)
        as_logs = () if log_format is None else ("--log-format", log_format)
        options = (*(() if config is None else ("--config", str(config))), *as_logs, "--log-level", "warning")
        parts = _Parts(stop, http)
        problem: str | None = None
        try:
            told = () if alerts is None else ("--alerts", alerts)
            parts.start("broker", "broker", "--storage", storage, "--listen", listen, *told, *options)
            parts.start(
                "metaq", "metaq", "serve", "--data-dir", str(root / "metaq"), "--listen", metaq_listen, *options
            )
            facts = {name: parts.await_ready(name)["listening"] for name in ("broker", "metaq")}
            # After the log's server: with --metaq-listen port 0 its address is known only now.
            parts.start("tailer", "tailer", "run", "--storage", storage, "--metaq", facts["metaq"], *options)
            parts.await_ready("tailer")
            if with_console:
                addresses = ("--broker", facts["broker"], "--log", facts["metaq"], "--listen", console_listen)
                parts.start("console", "console", *addresses, *as_logs)
                facts["console"] = f"http://{parts.await_ready('console')['listening']}"
            facts |= {"storage": storage, "log": str(root / "metaq")}
            _print(facts | {f"{name}_http": address for name, address in http.items()}, as_json=as_json)
            while True:
                parts.watch()
        except ChildFailed as exc:
            problem = str(exc)
        except _Stopped:
            pass
        finally:
            slow = parts.stop()
    if problem or slow:
        raise click.ClickException(problem or slow)


def _http_addresses(listen: str) -> dict[str, str]:
    """Return the address of each part, from that of the broker. Raises MisuseError."""
    check_reach("--http-listen", listen, "this is for development", "give 127.0.0.1:PORT", is_guarded=False)
    _, port = host_and_port(listen)
    if port == 0 or port + 2 > _PORT_MAX:
        raise MisuseError(f"--http-listen {listen}: three ports are used from this one on, so give one such as 9700")
    host = listen.rpartition(":")[0]
    return {name: f"{host}:{port + n}" for n, name in enumerate(("broker", "metaq", "tailer"))}


class _Stopped(Exception):
    """Raised when a signal ends all parts."""


class _Parts:
    """The servers: `txmsg` commands in processes of their own, which run until one ends or `stop` is set."""

    def __init__(self, stop: threading.Event, http: Mapping[str, str]) -> None:
        self._stop = stop
        self._http = http
        self._children: dict[str, Child] = {}
        self._log = StderrLines()

    def start(self, name: str, *command: str) -> None:
        if name in self._http:
            command = (*command, "--http-listen", self._http[name])
        self._children[name] = Child(
            name,
            ["txmsg.runtime.child", "txmsg.ops.cli.main", *command, "--json"],
            log=lambda line: self._log(with_name(name, line)),
            ready="",
        )

    def await_ready(self, name: str) -> dict[str, Any]:
        """Return the line of JSON that a part prints when it is ready. Raises as `watch` does."""
        child, deadline = self._children[name], time.monotonic() + START_S_MAX
        while not child.is_ready:
            if time.monotonic() >= deadline:
                raise ChildFailed(f"{name} was not ready after {START_S_MAX:g} s")
            self.watch()
        facts: dict[str, Any] = json.loads(child.address)
        return facts

    def watch(self) -> None:
        """Wait a moment, and check all parts. Raises ChildFailed when one has ended, and _Stopped."""
        if self._stop.wait(WATCH_INTERVAL_S):
            raise _Stopped
        for child in self._children.values():
            child.require_running()

    def stop(self) -> str:
        """End senders first, then the parts that pass messages on, then those that store them.

        Returns a sentence about parts that had to be killed; "" if all ended by themselves.
        """
        deadline = time.monotonic() + STOP_S_MAX
        order = ("console", "broker", "tailer", "metaq")
        children = [self._children[name] for name in order if name in self._children]
        slow = [child.name for child in children if not child.stop(max(0.1, deadline - time.monotonic()))]
        return f"{', '.join(slow)} did not end within {STOP_S_MAX:g} s, and was killed" if slow else ""


def _print(facts: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts))
    else:
        for name, value in facts.items():
            click.echo(f"{name:11} {value}")
        click.echo("ready; Ctrl-C stops all of them")
    sys.stdout.flush()
