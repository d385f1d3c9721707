"""`txmsg half`: half messages as a broker sees them, and a person's decision. Talks to the service Admin."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.errors import BrokerUnavailable, OutcomeExpired, TxmsgError

if TYPE_CHECKING:
    from rich.table import Table

    from txmsg.wire.v1 import txmsg_pb2 as pb

__all__ = ["half"]

Reply = TypeVar("Reply")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_CALL_TIMEOUT_S = 10.0
_BODY_SHOWN_BYTES = 2000

_broker: Decorator = click.option(
    "--broker",
    metavar="HOST:PORT",
    envvar="TXMSG_BROKER",
    default="localhost:7700",
    show_default=True,
    help="Any broker of the Notify database.",
)
_as_json: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_transaction: Decorator = click.argument("transaction_id", type=click.UUID)
_yes: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group()
def half() -> None:
    """Look at half messages, and decide those that nobody could answer for.

    A half message waits for the outcome of a local transaction. After too many checks without an answer it is
    parked, in doubt, until its client tells the outcome after all or a person decides.
    """


@half.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg half list --parked --group user-service")
@click.option("--group", default="", metavar="NAME", help="Only of this producer group.")
@click.option("--parked", is_flag=True, help="Only those that are parked in doubt.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Messages at most.")
@_broker
@_as_json
def list_(*, group: str, parked: bool, limit: int, broker: str, as_json: bool) -> None:
    """List half messages, the oldest first."""
    from txmsg.wire.v1 import txmsg_pb2 as pb

    request = pb.ListHalvesRequest(group=group, parked_only=parked, limit=limit)
    reply = _call(broker, lambda admin: admin.ListHalves(request, timeout=_CALL_TIMEOUT_S))
    halves = reply.halves
    if as_json:
        click.echo(json.dumps({"halves": [_values(each) for each in halves]}))
        return
    if not halves:
        click.echo("no half message" + (" is in doubt" if parked else " waits for its outcome"))
        return
    from rich.table import Table

    table = Table(box=None)
    table.add_column("Transaction", no_wrap=True, min_width=36)  # an id cut short cannot be copied
    for name in ("Group", "Topic", "Key", "Stored", "Checks", "State"):
        table.add_column(name)
    for each in halves:
        values = _values(each)
        state = f"parked: {each.parked_reason}" if each.parked_reason else f"next check {values['next_check_at']}"
        where = f"{each.topic} #{each.n}" if each.n else each.topic
        table.add_row(
            str(values["transaction_id"]),
            each.group,
            where,
            each.key,
            str(values["stored_at"]),
            str(each.checks),
            state,
        )
    _print(table)
    if reply.more:
        click.echo(f"only the first {len(halves)}: raise --limit to see more, or name a --group", err=True)


@half.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg half show 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01")
@_transaction
@_broker
@_as_json
def show(*, transaction_id: UUID, broker: str, as_json: bool) -> None:
    """Show the half messages of one transaction, with headers and bodies."""
    halves = _find(broker, transaction_id)
    if as_json:
        click.echo(json.dumps({"halves": [_values(each, with_body=True) for each in halves]}))
        return
    from rich.table import Table
    from rich.text import Text

    for each in halves:
        table = Table(show_header=False, box=None)
        for name, value in _values(each, with_body=True).items():
            table.add_row(name, Text(json.dumps(value) if isinstance(value, dict) else str(value)))
        _print(table)


@half.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg half commit 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01")
@_transaction
@_broker
@_yes
def commit(*, transaction_id: UUID, broker: str, yes: bool) -> None:
    """Decide that the local transaction committed: its messages are delivered. This is final."""
    _decide(broker, transaction_id, committed=True, yes=yes)


@half.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg half rollback 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01 --yes")
@_transaction
@_broker
@_yes
def rollback(*, transaction_id: UUID, broker: str, yes: bool) -> None:
    """Decide that the local transaction did not commit: its messages are dropped. This is final."""
    _decide(broker, transaction_id, committed=False, yes=yes)


def _print(table: Table) -> None:
    """In a terminal as wide as it is; in a pipe without folding what somebody may search for."""
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else 250).print(table)


def _decide(broker: str, transaction_id: UUID, *, committed: bool, yes: bool) -> None:
    from txmsg.wire.v1 import txmsg_pb2 as pb

    if not yes:
        halves = _find(broker, transaction_id)
        topics = ", ".join(sorted({each.topic for each in halves}))
        fate = "deliver" if committed else "drop"
        click.confirm(f"{fate} {len(halves)} message(s) of {halves[0].group} to {topics}, for good?", abort=True)
    request = pb.ResolveHalfRequest(transaction_id=transaction_id.bytes, commit=committed)
    _call(broker, lambda admin: admin.ResolveHalf(request, timeout=_CALL_TIMEOUT_S))
    click.echo(f"{transaction_id} {'committed' if committed else 'rolled back'}")


def _find(broker: str, transaction_id: UUID) -> list[pb.Half]:
    from txmsg.wire.v1 import txmsg_pb2 as pb

    request = pb.ListHalvesRequest(transaction_id=transaction_id.bytes, with_bodies=True)
    halves = list(_call(broker, lambda admin: admin.ListHalves(request, timeout=_CALL_TIMEOUT_S)).halves)
    if not halves:
        raise OutcomeExpired(
            f"there is no half message of transaction {transaction_id}: it was decided, or never stored here; "
            "`txmsg half list` shows what waits"
        )
    return halves


def _call(broker: str, method: Callable[[Any], Awaitable[Reply]]) -> Reply:
    """Runs one call of the service Admin and gives its errors as those of errors.py."""
    import grpc

    from txmsg.wire.codec import CHANNEL_OPTIONS, error_of_rpc
    from txmsg.wire.v1 import txmsg_pb2_grpc as rpc

    async def call() -> Reply:
        async with grpc.aio.insecure_channel(broker, options=CHANNEL_OPTIONS) as channel:
            return await method(rpc.AdminStub(channel))

    try:
        return asyncio.run(call())
    except grpc.aio.AioRpcError as exc:
        error: TxmsgError = error_of_rpc(exc, broker=broker) or BrokerUnavailable(
            f"no answer from a broker at {broker} ({exc.code().name.lower()}): is `txmsg broker` running there? "
            "Name another one with --broker"
        )
        raise error from exc


def _values(message: pb.Half, *, with_body: bool = False) -> dict[str, object]:
    """A half message for people and for JSON: ids and times as text, what is not set as None."""
    from txmsg.wire.codec import datetime_of_us, unpack_headers

    def moment(us: int) -> str | None:
        return datetime_of_us(us).isoformat(timespec="seconds") if us else None

    values: dict[str, object] = {
        "transaction_id": str(UUID(bytes=message.transaction_id)),
        "n": message.n,
        "group": message.group,
        "topic": message.topic,
        "key": message.key or None,
        "tag": message.tag or None,
        "born_at": moment(message.born_at_us),
        "stored_at": moment(message.stored_at_us),
        "next_check_at": moment(message.next_check_at_us),
        "checks": message.checks,
        "parked_reason": message.parked_reason or None,
        "fence_id": str(UUID(bytes=message.fence_id)) if message.fence_id else None,
    }
    if with_body:
        values["headers"] = dict(unpack_headers(message.headers))
        values["body_size_bytes"] = len(message.body)
        # Bytes that are no text show as \\xNN; the beginning is enough to recognise a message.
        values["body"] = message.body[:_BODY_SHOWN_BYTES].decode(errors="backslashreplace")
    return values
