"""`txmsg outbox`: messages that wait in a business database. The work is in txmsg.client.outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

import click
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from txmsg.checker.fence import FenceCheckListener
from txmsg.client import AsyncProducer
from txmsg.client.outbox import rows
from txmsg.client.outbox.packed import unpacked
from txmsg.errors import ProtocolError
from txmsg.message import now_us
from txmsg.ops.cli.business import database_option, engine_of, usable, with_engine
from txmsg.ops.cli.connections import token_file_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option, table_options, yes_option
from txmsg.ops.cli.output import json_text, print_rows, say
from txmsg.wire.brokers import BROKERS_VARIABLE

T = TypeVar("T")

_group = click.option("--group", metavar="NAME", help="Only of this producer group.")


@click.group()
def outbox() -> None:
    """Show, relay or delete messages that wait in a business database for a broker.

    Calls decorated with when_away="outbox" store them there. Any process with such a call relays them by itself.
    """


@outbox.command(
    "list",
    short_help="List what waits, oldest first.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg outbox list --database postgresql+psycopg://shop@db/shop",
)
@database_option
@_group
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of transactions."
)
@json_option
@table_options
def list_(*, database: str, group: str | None, limit: int, as_json: bool) -> None:
    """List waiting transactions, the oldest first, and their number for each producer group."""
    waiting = [each for each in _on(database, rows.waiting) if group in {None, each.group}]
    listed = [_shown(each) for each in _on(database, lambda c: rows.listed(c, group, limit))]
    if as_json:
        click.echo(json_text({"waiting": [asdict(each) for each in waiting], "rows": listed}))
        return
    if not listed:
        click.echo("nothing waits")
        return
    print_rows(listed)
    for each in waiting:
        say(
            f"group {each.group}: {each.rows} transactions of {each.size_bytes} bytes, {each.refused} refused, "
            f"the oldest for {each.oldest_s:.0f} s"
        )


@outbox.command(
    short_help="Relay what waits now, also what was refused.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg outbox relay --database postgresql+psycopg://shop@db/shop "
    "\\\n      --broker notify:7700 --group shop",
)
@database_option
@click.option("--group", metavar="NAME", required=True, help="The producer group whose messages are relayed.")
@click.option(
    "--broker",
    "brokers",
    metavar="HOST:PORT[;HOST:PORT]",
    envvar=BROKERS_VARIABLE,
    show_envvar=True,
    required=True,
    help="Brokers, the same as for the producers of the group.",
)
@token_file_option
@json_option
def relay(*, database: str, group: str, brokers: str, as_json: bool) -> None:
    """Relay waiting messages now, including refused ones. Other processes may relay at the same time.

    If no broker accepts messages, it stops with an error that gives the reason.
    """
    engine = engine_of(database)
    with usable(engine):
        relayed = asyncio.run(
            # With the kind of driver that the URL names: it may be the only one that is installed.
            _relayed(create_async_engine(database) if engine.dialect.is_async else engine, group, brokers)
        )
    left = next((each for each in _on(database, rows.waiting) if each.group == group), None)
    if as_json:
        click.echo(json_text({"relayed": relayed, "waiting": None if left is None else asdict(left)}))
        return
    click.echo(f"transactions relayed: {relayed}")
    if left is not None:
        say(f"{left.rows} wait still, {left.refused} of them refused: `txmsg outbox list` says why")


async def _relayed(engine: Engine | AsyncEngine, group: str, brokers: str) -> int:
    try:
        async with AsyncProducer(brokers, group=group, check_listener=FenceCheckListener(engine)) as producer:
            return await producer.relay_outbox()
    finally:
        if isinstance(engine, AsyncEngine):
            await engine.dispose()
        else:
            engine.dispose()


@outbox.command(
    short_help="Delete messages that are never to be delivered.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg outbox delete 17 --database postgresql+psycopg://shop@db/shop",
)
@click.argument("seqs", metavar="[SEQ...]", type=int, nargs=-1)
@click.option(
    "--all", "is_all", is_flag=True, help="All rows. Use it in a copy of a database, before its services start."
)
@database_option
@yes_option
@json_option
def delete(*, seqs: tuple[int, ...], is_all: bool, database: str, yes: bool, as_json: bool) -> None:
    """Delete the messages of transactions that have committed: they are never delivered.

    SEQ is a number of `txmsg outbox list`.
    """
    if is_all == bool(seqs):
        raise click.UsageError("give the numbers of rows, as `txmsg outbox list` shows them, or --all")
    if not yes:
        what = "all rows" if is_all else f"{len(seqs)} rows"
        click.confirm(f"delete {what}? Their messages are never delivered", abort=True, err=as_json)
    deleted = _on(database, lambda c: rows.remove(c, None if is_all else seqs))
    click.echo(json_text({"deleted": deleted}) if as_json else f"rows deleted: {deleted}")


def _shown(row: rows.ListedOutboxRow) -> dict[str, object]:
    refused = row.refused
    try:
        messages, _ = unpacked(row.messages, now_us())
    except ProtocolError as exc:  # one damaged row does not hide the others
        messages, refused = [], f"damaged: {exc}"
    return {
        "seq": row.seq,
        "group": row.group,
        "written_at": row.written_at,
        "topics": ", ".join(sorted({message.topic for message in messages})),
        "messages": len(messages),
        "ordering_key": row.ordering_key,
        "size_bytes": len(row.messages),
        "refused": refused,
    }


def _on(database: str, step: Callable[[Connection], T]) -> T:
    def call(engine: Engine) -> T:
        with engine.connect() as connection:
            return step(connection)

    return with_engine(database, call)
