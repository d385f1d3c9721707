"""`txmsg half`: half messages as a broker sees them, and a person's decision. Talks to the service Admin."""

from __future__ import annotations

import json
from uuid import UUID

import click
from rich.table import Table

from txmsg.cli.connections import ask_broker, broker_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import Decorator, json_option, yes_option
from txmsg.cli.output import content, moment, print_facts, print_table
from txmsg.errors import MisuseError, OutcomeExpired
from txmsg.message import MESSAGES_PER_TRANSACTION_MAX
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Admin

_transaction: Decorator = click.argument("transaction_id", type=click.UUID)


@click.group()
def half() -> None:
    """Show half messages, and decide those that no client could answer.

    A half message waits for the outcome of a local transaction. After too many checks without an answer it is parked
    until its client reports the outcome, or an operator resumes or decides it.
    """


@half.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg half list --parked --group user-service")
@click.option("--group", default="", metavar="NAME", help="Only half messages of this producer group.")
@click.option("--parked", is_flag=True, help="Only parked ones.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of messages."
)
@broker_option
@json_option
def list_(*, group: str, parked: bool, limit: int, broker: str, as_json: bool) -> None:
    """List half messages, the oldest first."""
    request = pb.ListHalvesRequest(group=group, parked_only=parked, limit=limit)
    reply = ask_broker(broker, Admin.list_halves, request)
    halves = reply.halves
    if as_json:
        click.echo(json.dumps({"halves": [_values(half) for half in halves], "more": reply.more}))
        return
    if not halves:
        click.echo("no half messages" + (" are parked" if parked else ""))
        return
    table = Table(box=None)
    table.add_column("Transaction", no_wrap=True, min_width=36)  # an id cut short cannot be copied
    for name in ("Group", "Topic", "Key", "Stored", "Checks", "State"):
        table.add_column(name)
    for half in halves:
        values = _values(half)
        state = f"parked: {half.parked_reason}" if half.parked_reason else f"next check {values['next_check_at']}"
        if half.decided:
            state = f"committed; waits for {values['held_back_by'] or 'its turn'}"
        where = f"{half.topic} #{half.n}" if half.n else half.topic
        table.add_row(
            str(values["transaction_id"]),
            half.group,
            where,
            half.key,
            str(values["stored_at"]),
            str(half.checks),
            state,
        )
    print_table(table)
    if reply.more:
        click.echo(f"only the first {len(halves)}: raise --limit to see more, or name a --group", err=True)


@half.command(
    short_help="Show the half messages of one transaction.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half show 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01",
)
@_transaction
@broker_option
@json_option
def show(*, transaction_id: UUID, broker: str, as_json: bool) -> None:
    """Show the half messages of one transaction, with headers and bodies."""
    found = _find(broker, transaction_id, with_bodies=True)
    if as_json:
        halves = [_values(half, with_body=True) for half in found.halves]
        click.echo(json.dumps({"halves": halves, "more": found.more}))
        return
    for half in found.halves:
        print_facts(_values(half, with_body=True))
    if found.more:
        click.echo(
            f"only the first {len(found.halves)} of its messages are shown: the others would make the reply too large",
            err=True,
        )


@half.command(
    short_help="Commit: deliver its messages.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half commit 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01",
)
@_transaction
@broker_option
@yes_option
@json_option
def commit(*, transaction_id: UUID, broker: str, yes: bool, as_json: bool) -> None:
    """Commit: deliver the messages of the transaction. This is final."""
    _decide(broker, transaction_id, committed=True, yes=yes, as_json=as_json)


@half.command(
    short_help="Roll back: drop its messages.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half rollback 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01 --yes",
)
@_transaction
@broker_option
@yes_option
@json_option
def rollback(*, transaction_id: UUID, broker: str, yes: bool, as_json: bool) -> None:
    """Roll back: drop the messages of the transaction. This is final."""
    _decide(broker, transaction_id, committed=False, yes=yes, as_json=as_json)


@half.command(
    short_help="Check parked half messages again.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half resume 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01\n"
    "  txmsg half resume --group user-service",
)
@click.argument("transaction_id", type=click.UUID, required=False)
@click.option("--group", default="", metavar="NAME", help="All parked half messages of this producer group.")
@broker_option
@json_option
def resume(*, transaction_id: UUID | None, group: str, broker: str, as_json: bool) -> None:
    """Check parked half messages again, starting now, as if they were new.

    Use it when a client that can answer is back: parked half messages are not checked by themselves.
    """
    if (transaction_id is None) == (not group):
        raise click.UsageError("name one transaction, or a producer group with --group")
    request = pb.ResumeHalvesRequest(transaction_id=transaction_id.bytes if transaction_id else b"", group=group)
    resumed: int = ask_broker(broker, Admin.resume_halves, request).resumed
    if transaction_id and not resumed:
        first = _values(_find(broker, transaction_id, with_bodies=False).halves[0])
        raise MisuseError(
            f"transaction {transaction_id} is not parked: its next check comes at {first['next_check_at']}"
        )
    if as_json:
        click.echo(json.dumps({"resumed": resumed}))
    elif transaction_id:
        click.echo(f"{transaction_id} is checked again")
    else:
        click.echo(f"transactions of {group} that are checked again: {resumed}")


def _decide(broker: str, transaction_id: UUID, *, committed: bool, yes: bool, as_json: bool) -> None:
    if not yes:
        found = _find(broker, transaction_id, with_bodies=False)
        count = f"more than {len(found.halves)}" if found.more else f"{len(found.halves)}"
        topics = ", ".join(sorted({half.topic for half in found.halves}))
        fate = "deliver" if committed else "drop"
        question = f"{fate} {count} message(s) of {found.halves[0].group} to {topics}, for good?"
        click.confirm(question, abort=True, err=as_json)  # stdout is for the JSON then
    request = pb.ResolveHalfRequest(transaction_id=transaction_id.bytes, commit=committed)
    ask_broker(broker, Admin.resolve_half, request)
    outcome = "committed" if committed else "rolled back"
    if as_json:
        click.echo(json.dumps({"transaction_id": str(transaction_id), "outcome": outcome}))
    else:
        click.echo(f"{transaction_id} {outcome}")


def _find(broker: str, transaction_id: UUID, *, with_bodies: bool) -> pb.ListHalvesReply:
    """The half messages of a transaction, at least one: all of them, unless `more` says that they are too large."""
    request = pb.ListHalvesRequest(
        transaction_id=transaction_id.bytes, with_bodies=with_bodies, limit=MESSAGES_PER_TRANSACTION_MAX
    )
    found: pb.ListHalvesReply = ask_broker(broker, Admin.list_halves, request)
    if not found.halves:
        raise OutcomeExpired(
            f"there is no half message of transaction {transaction_id}: it was decided, or never stored here; `txmsg "
            "half list` shows undecided ones"
        )
    return found


def _values(message: pb.Half, *, with_body: bool = False) -> dict[str, object]:
    """A half message for people and for JSON: ids and times as text, what is not set as None."""
    values: dict[str, object] = {
        "transaction_id": str(UUID(bytes=message.transaction_id)),
        "n": message.n,
        "group": message.group,
        "topic": message.topic,
        "key": message.key or None,
        "ordering_key": message.ordering_key or None,
        "tag": message.tag or None,
        "born_at": moment(message.born_at_us),
        "stored_at": moment(message.stored_at_us),
        "next_check_at": moment(message.next_check_at_us),
        "checks": message.checks,
        "parked_reason": message.parked_reason or None,
        "deliver_at": moment(message.deliver_at_us),
        "committed": message.decided,
        "held_back_by": str(UUID(bytes=message.held_back_by)) if message.held_back_by else None,
        "fence_id": str(UUID(bytes=message.fence_id)) if message.fence_id else None,
    }
    if with_body:
        values |= content(message.headers, message.body)
    return values
