"""`txmsg half`: half messages as a broker reports them, and an operator's decision."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from txmsg.administration.halves import (
    AdminService,
    HalfDecision,
    HalfMessage,
    HalfPage,
    HalfQuery,
    ResumeHalves,
    found_of,
    of_transaction,
)
from txmsg.errors import MisuseError, printable
from txmsg.ops.cli.connections import ask_broker, broker_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import TRANSACTION, Decorator, json_option, page_option, table_options, yes_option
from txmsg.ops.cli.output import content, json_text, print_facts, print_rows, seconds

_transaction: Decorator = click.argument("transaction_id", type=TRANSACTION)
_reason: Decorator = click.option("--reason", default="", metavar="TEXT", help="The reason, for the broker's log.")


@click.group()
def half() -> None:
    """Show half messages, and decide those that no client can answer.

    A half message waits for the outcome of a local transaction. After too many checks without an answer it is parked
    until its client reports the outcome, or an operator resumes or decides it.
    """


@half.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg half list --parked --group user-service")
@click.option("--group", default="", metavar="NAME", help="Only half messages of this producer group.")
@click.option("--parked", is_flag=True, help="Only parked ones.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number per page."
)
@page_option
@broker_option
@json_option
@table_options
def list_(*, group: str, parked: bool, limit: int, page: str, broker: str, as_json: bool) -> None:
    """List half messages, the oldest first.

    Clients: the number of clients attached to the broker that can answer the check.
    """
    query = HalfQuery(group=group, parked_only=parked, limit=limit, after=page or None)
    found = ask_broker(broker, AdminService.list_halves, query)
    if as_json:
        click.echo(json_text({"halves": [_values(half) for half in found.halves], "next": found.next}))
        return
    if not found.halves:
        click.echo("no half messages" + (" are parked" if parked else ""))
        return
    print_rows(
        {
            "transaction": half.transaction_id,
            "group": half.group,
            "topic": f"{half.topic} #{half.n}" if half.n else half.topic,
            "key": half.key,
            "stored": half.stored_at,
            "checks": half.checks,
            "clients": half.clients,
            "state": _state(half),
        }
        for half in found.halves
    )
    if found.next:
        click.echo(f"only the first {len(found.halves)}: go on with --page {found.next}", err=True)


def _state(half: HalfMessage) -> str:
    if half.committed:
        return f"committed; waits for {half.held_back_by or 'its turn'}"
    if half.parked_reason:
        return f"parked: {half.parked_reason}"
    assert half.next_check_at is not None
    if half.is_unanswerable(datetime.now(UTC)):
        return f"not checked since {seconds(half.next_check_at)}: no client can answer"
    next_check = f"next check {seconds(half.next_check_at)}"
    return next_check if half.clients else f"{next_check}, no client can answer"


@half.command(
    short_help="Show the half messages of one transaction.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half show 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01",
)
@_transaction
@broker_option
@json_option
def show(*, transaction_id: UUID, broker: str, as_json: bool) -> None:
    """Show the half messages of one transaction, with headers and bodies."""
    found = _found(broker, transaction_id, with_bodies=True)
    if as_json:
        halves = [_values(half, with_body=True) for half in found.halves]
        click.echo(json_text({"halves": halves, "next": found.next}))
        return
    for half in found.halves:
        print_facts(_values(half, with_body=True))
    if found.next:
        click.echo(
            f"only the first {len(found.halves)} of its messages are shown: the others would make the reply too large",
            err=True,
        )


@half.command(
    short_help="Commit: deliver its messages.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half commit 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01",
)
@_transaction
@_reason
@broker_option
@yes_option
@json_option
def commit(*, transaction_id: UUID, reason: str, broker: str, yes: bool, as_json: bool) -> None:
    """Commit: deliver the messages of the transaction. This is final."""
    _decide(broker, transaction_id, reason, committed=True, yes=yes, as_json=as_json)


@half.command(
    short_help="Roll back: drop its messages.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half rollback 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01 --yes",
)
@_transaction
@_reason
@broker_option
@yes_option
@json_option
def rollback(*, transaction_id: UUID, reason: str, broker: str, yes: bool, as_json: bool) -> None:
    """Roll back: drop the messages of the transaction. This is final."""
    _decide(broker, transaction_id, reason, committed=False, yes=yes, as_json=as_json)


@half.command(
    short_help="Check parked half messages again.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg half resume 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01\n"
    "  txmsg half resume --group user-service",
)
@click.argument("transaction_id", type=TRANSACTION, required=False)
@click.option("--group", default="", metavar="NAME", help="All parked half messages of this producer group.")
@broker_option
@json_option
def resume(*, transaction_id: UUID | None, group: str, broker: str, as_json: bool) -> None:
    """Check parked half messages again, starting now, as if they were new.

    Use it when a client that can answer is back: parked half messages are not checked by themselves.
    """
    if (transaction_id is None) == (not group):
        raise click.UsageError("name one transaction, or a producer group with --group")
    resumed = ask_broker(
        broker, AdminService.resume_halves, ResumeHalves(transaction_id=transaction_id, group=group)
    ).resumed
    if transaction_id and not resumed:
        # Nothing was resumed: the transaction is either unknown, which `_found` raises, or simply not parked.
        next_check_at = _found(broker, transaction_id).halves[0].next_check_at
        raise MisuseError(
            f"transaction {transaction_id} is not parked: its next check comes at {seconds(next_check_at)}"
        )
    if as_json:
        click.echo(json_text({"resumed": resumed}))
    elif transaction_id:
        click.echo(f"{transaction_id} is checked again")
    else:
        click.echo(f"transactions of {group} that are checked again: {resumed}")


def _decide(broker: str, transaction_id: UUID, reason: str, *, committed: bool, yes: bool, as_json: bool) -> None:
    if not yes:
        # Looked up before the question, so that the operator sees what is decided for good.
        found = _found(broker, transaction_id)
        count = f"more than {len(found.halves)}" if found.next else f"{len(found.halves)}"
        topics = ", ".join(sorted({half.topic for half in found.halves}))
        fate = "deliver" if committed else "drop"
        question = f"{fate} {count} message(s) of {found.halves[0].group} to {topics}, for good?"
        click.confirm(printable(question), abort=True, err=as_json)  # stdout is for the JSON then
    decision = HalfDecision(transaction_id=transaction_id, commit=committed, reason=reason)
    ask_broker(broker, AdminService.resolve_half, decision)
    outcome = "committed" if committed else "rolled back"
    if as_json:
        click.echo(json_text({"transaction_id": str(transaction_id), "outcome": outcome}))
    else:
        click.echo(f"{transaction_id} {outcome}")


def _found(broker: str, transaction_id: UUID, *, with_bodies: bool = False) -> HalfPage:
    query = of_transaction(transaction_id, with_bodies=with_bodies)
    return found_of(transaction_id, ask_broker(broker, AdminService.list_halves, query))


def _values(half: HalfMessage, *, with_body: bool = False) -> dict[str, Any]:
    """Return a half message for people and for JSON."""
    values = asdict(half)
    for name in ("transaction_id", "held_back_by", "fence_id"):
        values[name] = values[name] and str(values[name])
    headers, body, is_withheld = (values.pop(name) for name in ("headers", "body", "is_withheld"))
    return values | (content(headers, body, topic=half.topic, is_withheld=is_withheld) if with_body else {})
