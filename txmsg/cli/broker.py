"""`txmsg broker`: one broker process, on a database of yours or on the embedded one."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from txmsg.broker.config import BrokerConfig, new_broker_id
from txmsg.broker.server import serve
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import duration, http_listen_option, json_option, log_level_option, size
from txmsg.cli.output import print_address
from txmsg.message import BODY_SIZE_BYTES_CEILING, BODY_SIZE_BYTES_MAX, QUEUES_MAX
from txmsg.runtime import loops
from txmsg.runtime.logs import log_to_stderr
from txmsg.runtime.signals import stop_on_signals


class _Seconds(click.FloatRange):
    """A range of seconds without nan, which is in every range, and inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n"
    "  txmsg broker                                 # on the embedded database\n"
    "  txmsg broker --storage postgresql://notify@db/notify --listen 0.0.0.0:7700\n\n"
    "Prints `listening on HOST:PORT` when it is ready. SIGTERM and Ctrl-C stop it gracefully: pending requests are "
    "answered, and cursors are written."
)
@click.option(
    "--storage",
    metavar="URL",
    envvar="TXMSG_STORAGE",
    show_envvar=True,
    help="The Notify database; run `txmsg db upgrade` first. Default: the embedded PostgreSQL, which the broker "
    "upgrades itself.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7700",
    show_default=True,
    help="Address to listen on. Port 0 picks a free port.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    default="",
    help="Address at which clients reach this broker, if not --listen: behind a proxy, or in a container. "
    "Default: --listen, with the host name in place of 0.0.0.0.",
)
@click.option(
    "--id",
    "broker_id",
    metavar="NAME",
    help="Name of this broker, unique in its database.  [default: host, process id and a random part]",
)
@click.option(
    "--storage-wait-s",
    type=_Seconds(min=0),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the database at the start.",
)
@click.option(
    "--data-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the embedded PostgreSQL (in DIR/pg). Default: the user's data directory.",
)
@click.option(
    "--first-check-s",
    type=_Seconds(min=0),
    default=6.0,
    show_default=True,
    help="Seconds before the first check of a half message.",
)
@click.option(
    "--check-interval-s",
    type=_Seconds(min=0, min_open=True, max=86_400, max_open=True),  # a group without a client is given up after a day
    default=30.0,
    show_default=True,
    help="Seconds between checks of a half message.",
)
@click.option(
    "--checks-max",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    help="Number of checks after which a half message is parked.",
)
@click.option(
    "--check-timeout-s",
    type=_Seconds(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds a client has to answer a check; at most 0.9 of --check-interval-s.",
)
@click.option(
    "--no-client-park-s",
    type=_Seconds(min=0, min_open=True),
    default=86_400.0,
    show_default=True,
    help="Seconds without a client of its group after which a half message is parked.",
)
@click.option(
    "--topic-auto-create/--no-topic-auto-create",
    default=True,
    show_default=True,
    help="Create unknown topics on the first send or subscription. Otherwise use `txmsg topic create`.",
)
@click.option(
    "--topic-queues",
    type=click.IntRange(1, QUEUES_MAX),
    default=4,
    show_default=True,
    help="Number of queues of a new topic, unless it is given at creation.",
)
@click.option(
    "--body-size-max",
    metavar="BYTES",
    type=click.IntRange(1, BODY_SIZE_BYTES_CEILING),
    default=BODY_SIZE_BYTES_MAX,
    show_default=True,
    help="Largest body accepted. Use the same value for all brokers of a database.",
)
@click.option(
    "--retention",
    metavar="TIME",
    type=duration,
    default="7d",
    show_default=True,
    help="How long to keep messages that every group has read.",
)
@click.option(
    "--retention-size",
    metavar="SIZE",
    type=size,
    default="100GiB",
    show_default=True,
    help="Total size above which the oldest messages that every group has read are dropped. 0: unlimited.",
)
@click.option(
    "--retention-max",
    metavar="TIME",
    type=duration,
    default="30d",
    show_default=True,
    help="How long to keep messages that a group has not read, in topics with unread=drop.",
)
@http_listen_option
@log_level_option
@json_option
def broker(
    *,
    storage: str | None,
    listen: str,
    advertise: str,
    broker_id: str | None,
    storage_wait_s: float,
    data_dir: Path | None,
    first_check_s: float,
    check_interval_s: float,
    checks_max: int,
    check_timeout_s: float,
    no_client_park_s: float,
    topic_auto_create: bool,
    topic_queues: int,
    body_size_max: int,
    retention: float,
    retention_size: int,
    retention_max: float,
    http_listen: str,
    log_level: str,
    as_json: bool,
) -> None:
    """Run a broker, which accepts messages, checks back half messages, and delivers."""
    if storage is not None and data_dir is not None:
        raise click.UsageError("--data-dir is where the embedded database lives: leave it out with --storage")
    if retention_max < retention:
        raise click.UsageError(
            "--retention-max is shorter than --retention: what is unread is kept longer than the rest"
        )
    log_to_stderr(log_level)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells each start of its plugins
    logging.getLogger("psycopg").setLevel(logging.ERROR)  # each attempt, while the broker says what it means
    config = BrokerConfig(
        storage=storage or "",
        listen=listen,
        advertise=advertise,
        http_listen=http_listen,
        broker_id=new_broker_id() if broker_id is None else broker_id,
        storage_wait_s=storage_wait_s,
        first_check_s=first_check_s,
        check_interval_s=check_interval_s,
        checks_max=checks_max,
        check_timeout_s=check_timeout_s,
        no_client_park_s=no_client_park_s,
        topic_auto_create=topic_auto_create,
        topic_queues=topic_queues,
        body_size_bytes_max=body_size_max,
        retention_s=retention,
        retention_size_bytes=retention_size,
        retention_max_s=retention_max,
    )
    with ExitStack() as stack:
        if storage is None:  # only now: a mistake in an option is told before a server is started
            config = dataclasses.replace(config, storage=stack.enter_context(_embedded(data_dir)))
        loops.run(_serve(config, as_json=as_json))


@contextmanager
def _embedded(data_dir: Path | None) -> Iterator[str]:
    """The URL of an upgraded Notify database in the embedded PostgreSQL, which this process uses meanwhile."""
    from txmsg.broker import migrate
    from txmsg.embedded import EmbeddedPostgres

    with EmbeddedPostgres(None if data_dir is None else data_dir / "pg") as postgres:
        url = postgres.create_database("txmsg")
        migrate.upgrade(url)
        yield url


async def _serve(config: BrokerConfig, *, as_json: bool) -> None:
    await serve(config, partial(print_address, as_json=as_json), stop_on_signals())
