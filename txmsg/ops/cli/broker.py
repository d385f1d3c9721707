"""`txmsg broker`: one broker process, on a database of yours or on the embedded one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import click

from txmsg.broker.config import BrokerConfig
from txmsg.broker.server import serve
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import print_address
from txmsg.ops.cli.settings import read_settings, settings_options, take_again
from txmsg.ops.cli.user import make_first_user
from txmsg.runtime import loops
from txmsg.runtime.logs import name_process, set_log_level
from txmsg.runtime.signals import call_on_hangup, stop_on_signals
from txmsg.settings.live import GivenSettings


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg broker                                 # on the embedded database\n"
    "  txmsg broker --storage postgresql://notify@db/notify --listen 0.0.0.0:7700 "
    "\\\n      --auth --tls-cert server.pem --tls-key server.key\n\n"
    "Prints `listening on HOST:PORT` when it is ready. SIGTERM and Ctrl-C stop it gracefully: pending requests are "
    "answered, and cursors are written. SIGHUP has it read its file again. Each option is also a variable and a key of "
    "the file; `txmsg config explain broker` lists them, with settings that have no option."
)
@settings_options(BrokerConfig, "broker")
@json_option
def broker(*, config: Path | None, as_json: bool, **options: object) -> None:
    """Run a broker, which accepts and delivers messages, and checks back half messages."""
    settings = read_settings(BrokerConfig, "broker", config, options)
    set_log_level("error", of="psycopg")  # each attempt, while the broker says what it means
    if settings["storage"] and settings["data_dir"] is not None:
        raise click.UsageError("--data-dir is where the embedded database lives: leave it out with --storage")
    made = settings.make()
    name_process(f"broker {made.broker_id}")
    with ExitStack() as stack:
        if not made.storage:  # only now: a mistake in an option is told before a server is started
            # On the stack: the embedded server ends after the broker, whatever ends that one.
            made = dataclasses.replace(made, storage=stack.enter_context(_embedded(made)))
        given = GivenSettings(made, settings.sources())
        loops.run(_serve(given, partial(take_again, given, "broker", config, options), as_json=as_json))


@contextmanager
def _embedded(config: BrokerConfig) -> Iterator[str]:
    """Yield the URL of an upgraded Notify database in the embedded PostgreSQL, which runs as long as it is used."""
    from txmsg.broker import migrate
    from txmsg.broker.embedded import EmbeddedPostgres
    from txmsg.broker.embedded.place import default_data_dir
    from txmsg.broker.embedded.watch import watched

    with EmbeddedPostgres(None if config.data_dir is None else config.data_dir / "pg") as postgres, watched(postgres):
        url = postgres.create_database("txmsg")
        migrate.upgrade(url)
        if config.authentication:
            make_first_user(url, (config.data_dir or default_data_dir()) / "admin.token")
        yield url


async def _serve(given: GivenSettings[BrokerConfig], read_again: Callable[[], None], *, as_json: bool) -> None:
    call_on_hangup(read_again)
    await serve(given, partial(print_address, as_json=as_json), stop_on_signals())
