"""`txmsg fence`: the fence of a business database, for the operator. The work is in txmsg.checker.fence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import click
from sqlalchemy import Engine, make_url

from txmsg.checker.fence import Fence
from txmsg.checker.fence.engines import on_engine
from txmsg.checker.fence.identity import fence_id, renew_fence_id
from txmsg.client.flows.undecided import held_by
from txmsg.ops.cli.business import database_option, with_engine
from txmsg.ops.cli.connections import token_file_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option, yes_option

T = TypeVar("T")

_DAY_S = 86_400


@click.group()
def fence() -> None:
    """Manage the fence of a business database."""


@fence.command(
    short_help="Delete rows of decided transactions; run it daily.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg fence purge --database postgresql+psycopg://shop@db/shop "
    "\\\n      --broker notify:7700",
)
@database_option
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
    help="Minimum age of the rows to delete. It must be longer than any of your processes can be paused.",
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
@database_option
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
@database_option
@yes_option
@json_option
def renew_id(*, database: str, yes: bool, as_json: bool) -> None:
    """Give a copy of a business database its own fence id, before its services start.

    Never use it on the original: its undecided half messages could not be checked any more. Messages that wait in the
    outbox of the copy would be sent again: delete them, too (`txmsg outbox delete --all`).
    """

    def renew(engine: Engine) -> tuple[UUID, UUID]:
        old = on_engine(engine, fence_id)
        if not yes:
            click.confirm(
                f"replace the fence id {old} of {make_url(database)}? Only in a copy", abort=True, err=as_json
            )
        return old, on_engine(engine, renew_fence_id)

    old, new = with_engine(database, renew)
    click.echo(json.dumps({"old": str(old), "fence_id": str(new)}) if as_json else f"{old} is now {new}")


def _with_fence(database: str, work: Callable[[Fence], T]) -> T:
    """Run `work` on the fence of a business database. Returns its result."""
    return with_engine(database, lambda engine: work(Fence(engine)))
