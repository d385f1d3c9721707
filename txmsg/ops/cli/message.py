"""`txmsg message`: single messages, found, traced, recalled and erased. Talks to the services Messages and Notify."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from txmsg.administration.life import message_life
from txmsg.administration.messages import ErasedMessages, Erasure, FoundMessage, MessageQuery, MessagesService, place_of
from txmsg.errors import MisuseError, OutcomeExpired, printable
from txmsg.message import TransactionId, message_id, parse_message_id
from txmsg.ops.cli.connections import ask_broker, asker, broker_option
from txmsg.ops.cli.life import life_values, print_life
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import START, json_option, table_options, yes_option
from txmsg.ops.cli.output import content, json_text, print_facts, print_rows, seconds
from txmsg.wire.start import Start
from txmsg.wire.v1 import txmsg_pb2
from txmsg.wire.v1.txmsg_rpc import Notify

_DECISIONS = {"sender": "plain send", "client": "client", "check": "check-back", "person": "operator"}
_NAMED_MAX = 5


@click.group()
def message() -> None:
    """Find messages by key, id or place, trace them, recall delayed ones, erase bodies."""


@message.command(
    short_help="Find messages by key, id or place.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg message find --key 42 --topic order.placed\n"
    "  txmsg message find --topic order.placed --queue 3 --from 1200 --limit 1\n"
    "  txmsg message find --topic order.placed --from 2h\n"
    "  txmsg message find --id 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01 --bodies",
)
@click.option("--key", default="", metavar="KEY", help="Messages with this key, in any state.")
@click.option("--id", "id_", default="", metavar="ID", help="This message, or all of this transaction.")
@click.option("--topic", default="", metavar="NAME", help="With --key: only in this topic. With --from: the topic.")
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    type=START,
    help="Stored messages from here on: earliest, an offset, or a time (2026-05-01T10:00:00Z, or 2h for two hours "
    "ago).",
)
@click.option("--queue", type=click.IntRange(0, 9999), help="With --from: only in this queue.")
@click.option("--bodies", is_flag=True, help="Also print headers and bodies.")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number of messages."
)
@broker_option
@json_option
@table_options
def find(
    *,
    key: str,
    id_: str,
    topic: str,
    start: Start | None,
    queue: int | None,
    bodies: bool,
    limit: int,
    broker: str,
    as_json: bool,
) -> None:
    """Find messages by key, id or place, and show their topic, queue and offset, or what they wait for.

    The state of a message is "retrying" if a group has it in retry, "dead" if it is a dead letter. Newest first, and
    uncommitted messages last; with --from in the order in which they were stored. Messages of dropped segments are not
    found, except for retries and dead letters. Messages that were rolled back are not found.
    """
    if (bool(key), bool(id_), start is not None).count(True) != 1:
        raise click.UsageError("look for a --key, for an --id, or --from a position in a --topic")
    if id_ and topic:
        raise click.UsageError("--topic goes with --key or --from: an id says all")
    if start is None and queue is not None:
        raise click.UsageError("--queue goes with --from")
    if start is not None and not topic:
        raise click.UsageError("--from is a position in a --topic: name it")
    place = None if start is None else place_of(start, queue)
    query = MessageQuery(key=key, id=id_, topic=topic, place=place, limit=limit, with_bodies=bodies)
    found = ask_broker(broker, MessagesService.find, query)
    if as_json:
        messages = [_values(message, with_body=bodies) for message in found.messages]
        click.echo(json_text({"messages": messages, "more": found.more}))
        return
    if not found.messages:
        click.echo("no such message")
        return
    if bodies:
        for message in found.messages:
            print_facts(_values(message, with_body=True))
    else:
        print_rows(map(_row, found.messages))
    if found.more:
        click.echo(f"only the first {len(found.messages)}: raise --limit to see more", err=True)


def _row(found: FoundMessage) -> dict[str, object]:
    values = _values(found)
    names = ("id", "state", "topic", "queue", "offset", "key")
    stored_at = values["stored_at"] or values["half_stored_at"]
    groups = [text for text, count in (("retrying", found.groups_retrying), ("dead", found.groups_dead)) if count]
    row = {**{name: values[name] for name in names}, "stored": stored_at, "size": found.body_size_bytes}
    return {**row, "state": ", ".join([str(row["state"]), *groups])}


@message.command(
    short_help="Show the life of a message.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg message trace 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0\n"
    "  txmsg message trace order-42 --topic order.placed",
)
@click.argument("which", metavar="ID|KEY")
@click.option("--topic", default="", metavar="NAME", help="With a key: only in this topic.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Maximum number of messages with this key.",
)
@broker_option
@json_option
def trace(*, which: str, topic: str, limit: int, broker: str, as_json: bool) -> None:
    """Show the life of a message, of each message of a transaction, or of those with a key.

    When its half message was stored, when it was checked, who decided it, its queue and offset, and its state in each
    group: waiting or in flight, done, in retry, or dead, with the error of each attempt. Each delivery, acknowledgement
    and check is recorded only while its topic has a journal: `txmsg topic alter NAME --journal on`. The last lines list
    unknown facts, with the reason.
    """
    lives = message_life(asker(broker), which, topic=topic, limit=limit)
    if as_json:
        values = {"messages": [life_values(life) for life in lives.lives], "more": lives.more}
        click.echo(json_text(values))
        return
    for life in lives.lives:
        print_life(life)
    if lives.more:
        click.echo(f"only the first {len(lives.lives)} messages", err=True)


@message.command(
    short_help="Recall a delayed message that is not due yet.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg message recall 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0",
)
@click.argument("id_", metavar="ID")
@broker_option
@yes_option
@json_option
def recall(*, id_: str, broker: str, yes: bool, as_json: bool) -> None:
    """Recall a delayed message that is not due yet: it is not delivered. This is final.

    ID is the message id that `send` returned. Idempotent. Exit status 1 if it is too late.
    """
    transaction_id, n = parse_message_id(id_)
    if not yes:
        _confirm_recall(broker, id_, err=as_json)
    request = txmsg_pb2.RecallRequest(transaction_ids=transaction_id.bytes, n=[n])
    (result,) = ask_broker(broker, Notify.recall, request).results
    match result:
        case txmsg_pb2.RecallReply.ENTERED:
            raise MisuseError(
                f"message {id_} has entered its queue, so it cannot be recalled: `txmsg message trace {id_}` shows "
                "its state"
            )
        case txmsg_pb2.RecallReply.UNDECIDED:
            raise MisuseError(
                f"message {id_} waits for the outcome of its transaction: recall it after the commit, or roll the "
                f"transaction back: `txmsg half rollback {transaction_id}`"
            )
        case txmsg_pb2.RecallReply.UNKNOWN:
            raise OutcomeExpired(
                f"message {id_} is not waiting for its time: `txmsg message trace {id_}` looks in all segments"
            )
    click.echo(json.dumps({"id": id_, "recalled": True}) if as_json else f"{id_} is not delivered")


@message.command(
    short_help="Make bodies of an erasable topic unreadable for good.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg message erase --topic user.registered "
    "\\\n      0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0",
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--topic", required=True, metavar="NAME", help="The topic of the messages.")
@broker_option
@yes_option
@json_option
def erase(*, ids: tuple[str, ...], topic: str, broker: str, yes: bool, as_json: bool) -> None:
    """Make bodies of an erasable topic unreadable for good: in queues, retries, dead letters and mirrored logs.

    ID is a message id, or a transaction id for all of its messages. Undelivered messages are skipped. Keys, tags
    and headers stay. Idempotent. Exit status 1 if a body was not encrypted, and so cannot be erased.
    """
    if not yes:
        names = ", ".join(ids[:_NAMED_MAX]) + (f" and {len(ids) - _NAMED_MAX} more" if len(ids) > _NAMED_MAX else "")
        click.confirm(printable(f"erase the bodies of {names}, for good?"), abort=True, err=as_json)
    results = ask_broker(broker, MessagesService.erase, Erasure(topic=topic, ids=ids)).results
    if as_json:
        click.echo(json.dumps({"messages": [asdict(result) for result in results]}))
    else:
        for result in results:
            click.echo(f"{result.id}: {_erased(result)}")
    if missing := [result.id for result in results if not result.found]:
        raise MisuseError(
            f"topic {topic!r} has no key for {', '.join(missing[:_NAMED_MAX])}: unknown, no longer kept, or stored "
            "before the topic was erasable"
        )


def _erased(result: ErasedMessages) -> str:
    if not result.found:
        return "nothing to erase"
    return "erased" if result.erased else "was erased before"


def _confirm_recall(broker: str, id_: str, *, err: bool) -> None:
    """Ask about a message that waits for its time. Does not ask about others: the broker's answer gives the reason."""
    for found in ask_broker(broker, MessagesService.find, MessageQuery(id=id_, limit=1)).messages:
        if found.state == "scheduled":
            key = f" with key {found.key}" if found.key else ""
            question = f"take back the message to {found.topic}{key}, due at {seconds(found.deliver_at)}, for good?"
            click.confirm(printable(question), abort=True, err=err)  # stdout is for the JSON then


def _values(found: FoundMessage, *, with_body: bool = False) -> dict[str, object]:
    """Return a message for people and for JSON: ids and times as text, values that are unset or do not
    apply as None.
    """
    values: dict[str, object] = {
        "id": message_id(TransactionId(found.transaction_id), found.n),
        "state": found.state,
        "topic": found.topic,
        "queue": found.queue,
        "offset": found.offset,
        "segment": found.segment,
        "key": found.key,
        "tag": found.tag,
        "ordering_key": found.ordering_key,
        "born_at": found.born_at,
        "half_stored_at": found.half_stored_at,
        "stored_at": found.stored_at,
        "decided_by": found.decided_by and _DECISIONS[found.decided_by],
        "deliver_at": found.deliver_at,
        "body_size_bytes": found.body_size_bytes,
        "groups_retrying": found.groups_retrying,
        "groups_dead": found.groups_dead,
    }
    if found.state == "half":
        values |= {
            "producer_group": found.producer_group,
            "checks": found.checks,
            "next_check_at": found.next_check_at,
            "parked_reason": found.parked_reason,
        }
    if with_body:
        values |= content(found.headers, found.body, topic=found.topic, is_withheld=found.is_withheld)
    return values
