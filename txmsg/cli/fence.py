"""`txmsg fence`: the fence of a business database, for the operator. What it does is in txmsg.checker.fence."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import click
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from txmsg.checker.fence import Fence
from txmsg.cli.connections import token_file_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import Decorator, json_option, yes_option
from txmsg.client.undecided import held_by
from txmsg.errors import StorageError

T = TypeVar("T")

_DAY_S = 86_400

_database: Decorator = click.option(
    "--database",
    metavar="URL",
    envvar="TXMSG_FENCE_DATABASE",
    show_envvar=True,
    required=True,
    help="The business database, as the application names it to SQLAlchemy: postgresql+psycopg://user@host/shop.",
)


@click.group()
def fence() -> None:
    """Manage the fence of a business database."""


@fence.command(
    short_help="Delete rows of decided transactions; run it daily.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg fence purge --database postgresql+psycopg://shop@db/shop --broker notify:7700",
)
@_database
@click.option(
    "--broker",
    "brokers",
    metavar="HOST:PORT",
    multiple=True,
    required=True,
    help="A broker of each Notify database that services of this database send to; repeatable.",
)
@click.option(
    "--older-than-days",
    type=float,
    default=7.0,
    show_default=True,
    help="Age of the rows to delete. Choose it longer than any of your processes is ever paused.",
)
@token_file_option
@json_option
def purge(*, database: str, brokers: tuple[str, ...], older_than_days: float, as_json: bool) -> None:
    """Delete rows of transactions that no Notify database holds any more. Run it daily.

    If a Notify database cannot be reached, it stops with an error and deletes nothing more.
    """
    deleted = _with_fence(database, lambda fence: fence.purge(older_than_days * _DAY_S, held_by(*brokers)))
    click.echo(json.dumps({"deleted": deleted}) if as_json else f"fence rows deleted: {deleted}")


@fence.command("id", epilog=f"{EXAMPLE_FORMAT}\n  txmsg fence id --database postgresql+psycopg://shop@db/shop")
@_database
@json_option
def id_(*, database: str, as_json: bool) -> None:
    """Print the fence id. No two databases may have the same one: see `renew-id`."""
    found = _with_fence(database, Fence.fence_id)
    click.echo(json.dumps({"fence_id": str(found)}) if as_json else str(found))


@fence.command(
    "renew-id",
    short_help="Give a copy of a database its own fence id.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg fence renew-id --database postgresql+psycopg://shop@staging/shop",
)
@_database
@yes_option
@json_option
def renew_id(*, database: str, yes: bool, as_json: bool) -> None:
    """Give a copy of a business database its own fence id, before its services start.

    Never use it on the original: its undecided half messages could not be checked any more.
    """

    def renew(fence: Fence) -> tuple[UUID, UUID]:
        old = fence.fence_id()
        if not yes:
            click.confirm(
                f"replace the fence id {old} of {make_url(database)}? Only in a copy", abort=True, err=as_json
            )
        return old, fence.renew_fence_id()

    old, new = _with_fence(database, renew)
    click.echo(json.dumps({"old": str(old), "fence_id": str(new)}) if as_json else f"{old} is now {new}")


def _with_fence(database: str, work: Callable[[Fence], T]) -> T:
    """What `work` makes of the fence of a business database."""
    engine = _engine_of(database)
    _check_file(engine)

    def call() -> T:
        try:
            return work(Fence(engine))
        finally:
            engine.dispose()

    try:
        # The application's own URL may name an asyncio driver, with arguments that another driver does not take.
        return asyncio.run(greenlet_spawn(call)) if engine.dialect.is_async else call()
    except SQLAlchemyError as exc:
        raise StorageError(f"{engine.url} cannot be used: {getattr(exc, 'orig', None) or exc}") from exc
    except OSError as exc:  # asyncpg tells of a server that is away as the socket does
        raise StorageError(f"{engine.url} cannot be used: {exc}") from exc


def _engine_of(database: str) -> Engine:
    try:
        return create_engine(database)
    except ModuleNotFoundError as exc:
        package = {"MySQLdb": "mysqlclient"}.get(exc.name or "", exc.name)
        raise StorageError(
            f"the driver of --database is not installed ({exc}): run `pip install {package}`, or name one that is, "
            "as in postgresql+psycopg://user@host/shop"
        ) from exc
    except (ArgumentError, ValueError) as exc:  # ValueError: a port that is not a number
        without_password = re.sub(r":(?!//).*@", ":***@", database)
        raise StorageError(
            f"--database {without_password!r} is not a database URL: write it as SQLAlchemy does, such as "
            "postgresql+psycopg://user@host/shop"
        ) from exc


def _check_file(engine: Engine) -> None:
    """SQLite would make an empty file of a name that is misspelt."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name.startswith((":memory:", "file:")) or Path(name).exists():
        return
    raise StorageError(
        f"there is no SQLite database {name}: check the path; sqlite:///shop.db is in the working directory, "
        "sqlite:////var/lib/shop.db is absolute"
    )
