"""`txmsg metaq tail`: the messages of a topic of a log, for people and for pipes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.metaq_check import require_metaq
from txmsg.cli.quantities import START
from txmsg.cli.showing import moment, say
from txmsg.runtime.start import Start

if TYPE_CHECKING:
    from txmsg.errors import UnknownTopic
    from txmsg.message import ReceivedMessage
    from txmsg.metaq.access import LogAccess

__all__ = ["message_values", "tail"]

_WAIT_S = 1.0
_SHOWN_BYTES = 200


@click.command(
    short_help="Print the messages of a topic, or follow it.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq tail /var/lib/metaq trade --follow --tag paid\n"
    "  txmsg metaq tail metaq:7720 trade --queue 3 --from 1200 --json",
)
@click.argument("log")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    type=START,
    help="Start position: earliest, latest, an offset, or a time (2026-05-01T10:00:00Z, or 2h for two hours ago).  "
    "[default: earliest; with --follow latest]",
)
@click.option("--queue", type=click.IntRange(0, 9999), help="Only this queue.  [default: all]")
@click.option("--tag", metavar="TAG", help="Only messages with this tag.")
@click.option("--key", metavar="KEY", help="Only messages with this key.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of messages.  [default: all]")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def tail(
    *,
    log: str,
    topic: str,
    start: Start | None,
    queue: int | None,
    tag: str | None,
    key: str | None,
    limit: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print messages of a topic. LOG is a directory, or the address of a server. Does not affect groups.

    Each queue is printed in order. Missing offsets are reported on stderr and skipped.
    """
    require_metaq()
    from txmsg.metaq.location import open_log

    if start is None:
        start = Start.latest() if follow else Start.earliest()
    count = 0
    with open_log(log) as access:
        try:
            for message in _messages(access, topic, queue, start, follow=follow):
                if (tag is not None and message.tag != tag) or (key is not None and message.key != key):
                    continue
                say(json.dumps(message_values(message)) if as_json else _line(message))
                if (count := count + 1) == limit:
                    break
        except KeyboardInterrupt:
            return


def _messages(
    access: LogAccess, topic: str, queue: int | None, start: Start, *, follow: bool
) -> Iterator[ReceivedMessage]:
    """All messages from there on; queues that come later are followed from their begin."""
    from txmsg.errors import OffsetOutOfRange, OffsetsMissing
    from txmsg.metaq.access import QueueId, offsets_of

    at: dict[QueueId, int] = {}
    while True:
        there = access.queues_of(topic)
        numbers = there if queue is None or queue in there else []
        if not numbers and not follow:
            raise _unknown(access, topic, there)
        numbers = numbers if queue is None else [queue]
        new = [each for number in numbers if (each := QueueId(topic, number)) not in at]
        at |= offsets_of(access, new, start)
        start = Start.earliest()  # of queues that come later
        if not at:
            time.sleep(_WAIT_S)  # for the topic
            continue
        found = access.fetch(at, wait_s=_WAIT_S if follow else 0.0)
        if not found and not follow:
            return
        for fetched in found:
            error, of = fetched.error, fetched.queue
            if isinstance(error, OffsetsMissing):
                say(str(error), err=True)
                at[of] = error.end
            elif isinstance(error, OffsetOutOfRange):
                say(str(error), err=True)
                at[of] = error.begin if at[of] < error.begin else error.end
            elif error is not None:
                raise error
            for batch in fetched.batches:
                yield from batch.messages()
                at[of] = batch.end_offset


def _unknown(access: LogAccess, topic: str, queues: list[int]) -> UnknownTopic:
    from txmsg.errors import UnknownTopic

    if queues:
        return UnknownTopic(f"topic {topic!r} has no such queue: its queues are {', '.join(map(str, queues))}")
    there = ", ".join(sorted(access.topics())) or "none"
    return UnknownTopic(f"topic {topic!r} is not in this log: its topics are {there}")


def message_values(message: ReceivedMessage) -> dict[str, Any]:
    """A message of a log, whole, for JSON."""
    return {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "id": message.id,
        "key": message.key,
        "tag": message.tag,
        "ordering_key": message.ordering_key,
        "headers": dict(message.headers),
        "stored_at": moment(message.stored_at_us),
        "born_at": moment(message.born_at_us),
        "body_size_bytes": len(message.body),
        "body": message.body.decode(errors="backslashreplace"),
    }


def _line(message: ReceivedMessage) -> str:
    """A message on one line: where it stands, when it was stored, what it is about, how its body begins."""
    about = "".join(
        f" {name}={value}"
        for name, value in (("tag", message.tag), ("key", message.key), ("order", message.ordering_key))
        if value
    )
    body = message.body[:_SHOWN_BYTES].decode(errors="backslashreplace").replace("\n", "\\n")
    more = f"... ({len(message.body)} bytes)" if len(message.body) > _SHOWN_BYTES else ""
    return f"{message.queue}:{message.offset} {moment(message.stored_at_us)}{about} {body}{more}"
