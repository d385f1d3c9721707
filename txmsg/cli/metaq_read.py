"""`txmsg metaq topics`, `dump` and `tail`: what stands in a log, for people."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from txmsg.cli.admin import json_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.metaq_check import LOG_DIRECTORY, require_metaq
from txmsg.cli.quantities import MOMENT, shown_duration
from txmsg.cli.showing import moment, print_table

if TYPE_CHECKING:
    from txmsg.message import ReceivedMessage
    from txmsg.metaq.access import LogAccess
    from txmsg.metaq.format.frame import Header

__all__ = ["PLACE", "dump", "tail", "topics"]

_WAIT_S = 1.0
_SHOWN_BYTES = 200


class _Place(click.ParamType):  # type: ignore[type-arg]
    """Where to begin: earliest, latest, an offset, or a time."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int | datetime:
        if not isinstance(value, str) or value in {"earliest", "latest"}:
            return value  # type: ignore[no-any-return]
        if re.fullmatch(r"\d{1,18}", value):
            return int(value)
        return MOMENT.convert(value, param, ctx)


PLACE = _Place()


@click.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq topics /var/lib/metaq")
@click.argument("directory", type=LOG_DIRECTORY)
@json_option
def topics(*, directory: Path, as_json: bool) -> None:
    """List the topics of a log: their queues, what is kept of each, and the topics' settings."""
    require_metaq()
    from txmsg.errors import CorruptLog
    from txmsg.metaq.store.reader import LogReader
    from txmsg.metaq.store.topics import TopicSettings, read_topics

    reader, settings = LogReader(directory), read_topics(directory)
    rows: list[dict[str, Any]] = []
    for topic, queues in reader.topics().items():
        own = settings.get(topic, TopicSettings())
        for number in queues:
            row: dict[str, Any] = {"topic": topic, "queue": number, "begin": None, "end": None, "holes": []}
            try:
                queue = reader.queue(topic, number)
                row["begin"], row["end"] = queue.range()
                row["holes"] = queue.holes()
            except CorruptLog as exc:
                row["error"] = str(exc)
            row |= {"flush": own.flush.value, "compression": own.compression.name.lower()}
            row["retention_s"] = own.retention_s
            rows.append(row)
    if as_json:
        size_bytes = reader.commit_log.end() - reader.commit_log.begin()
        click.echo(json.dumps({"queues": rows, "size_bytes": size_bytes}))
        return
    if not rows:
        click.echo("the log holds no topic yet")
        return
    from rich.table import Table

    table = Table(
        "Topic", "Queue", "Begin", "End", "Messages", "Missing", "Flush", "Compression", "Retention", box=None
    )
    for row in rows:
        if "error" in row:
            table.add_row(row["topic"], str(row["queue"]), row["error"])
            continue
        missing = sum(min(end, row["end"]) - max(begin, row["begin"]) for begin, end in row["holes"])
        kept = shown_duration(row["retention_s"]) if row["retention_s"] else "as the log"
        counts = (row["begin"], row["end"], row["end"] - row["begin"] - missing, missing)
        table.add_row(row["topic"], str(row["queue"]), *map(str, counts), row["flush"], row["compression"], kept)
    print_table(table)


@click.command(
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq dump /var/lib/metaq --position 1073741824 --limit 20 --bodies",
)
@click.argument("directory", type=LOG_DIRECTORY)
@click.option("--position", type=click.IntRange(0), default=0, help="Where a frame begins.  [default: the first one]")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Frames at most.")
@click.option("--topic", metavar="TOPIC", help="Only frames of this topic.")
@click.option("--queue", type=click.IntRange(0, 9999), help="Only frames of this queue.")
@click.option("--bodies", is_flag=True, help="Print the messages, too.")
@json_option
def dump(
    *, directory: Path, position: int, limit: int, topic: str | None, queue: int | None, bodies: bool, as_json: bool
) -> None:
    """Print the frames of a log as they stand in it, one by one: what their headers say, and where one is damaged."""
    require_metaq()
    shown = 0
    printed: list[dict[str, Any]] = []
    for values in _frames(directory, position, bodies=bodies):
        if "damaged" not in values and (topic not in {None, values["topic"]} or queue not in {None, values["queue"]}):
            continue
        if as_json:
            printed.append(values)
        else:
            messages = values.pop("messages", [])
            click.echo("  ".join(f"{name}={value}" for name, value in values.items() if value not in {None, ""}))
            for each in messages:
                click.echo(f"    {json.dumps(each)}")
        if (shown := shown + 1) == limit:
            break
    if as_json:
        click.echo(json.dumps({"frames": printed}))


def _frames(directory: Path, start: int, *, bodies: bool) -> Iterator[dict[str, Any]]:
    """What stands at each position from this one on."""
    from txmsg.metaq.format.batch import LogBatch
    from txmsg.metaq.format.frame import BadFrame, verify
    from txmsg.metaq.store.commit_log import CommitLogReader
    from txmsg.metaq.store.recovery import next_frame, whole_frame
    from txmsg.metaq.store.state import identity_of

    log, log_id = CommitLogReader(directory / "commitlog"), identity_of(directory, create=False).log_id
    firsts = log.files()
    for first, end in zip(firsts, [*firsts[1:], log.end()], strict=True):
        position = max(first, start)
        while position < end:
            try:
                header = whole_frame(log, log_id, position, end)
            except BadFrame as exc:
                following = next_frame(log, log_id, position + 1, end)
                size = (following.position if following else end) - position
                yield {"position": position, "damaged": str(exc), "size": size}
                position += size
                continue
            values = _header_values(header)
            if bodies and header.count:
                data = log.read(position, header.size_bytes)
                values["messages"] = [_values(each) for each in LogBatch(header, verify(header, data)).messages()]
            yield values
            position = header.end


def _header_values(header: Header) -> dict[str, Any]:
    return {
        "position": header.position,
        "size": header.size_bytes,
        "kind": header.kind.name.lower(),
        "topic": header.topic,
        "queue": header.queue,
        "base_offset": header.base_offset,
        "count": header.count,
        "generation": header.generation,
        "synced": header.synced,
        "compression": header.compression.name.lower(),
        "payload_size": header.payload_size_bytes,
        "raw_size": header.raw_size_bytes,
        "first_stored_at": moment(header.first_stored_at_us),
        "last_stored_at": moment(header.last_stored_at_us),
    }


@click.command(
    short_help="Print the messages of a topic, and follow it.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq tail /var/lib/metaq trade --follow --tag paid\n"
    "  txmsg metaq tail metaq:7720 trade --queue 3 --from 1200 --json",
)
@click.argument("log")
@click.argument("topic")
@click.option(
    "--from",
    "place",
    metavar="PLACE",
    type=PLACE,
    help="Where to begin: earliest, latest, an offset, or a time (2026-05-01T10:00:00Z, or 2h ago as 2h).  "
    "[default: earliest; with --follow latest]",
)
@click.option("--queue", type=click.IntRange(0, 9999), help="Only this queue.  [default: all]")
@click.option("--tag", metavar="TAG", help="Only messages with this tag.")
@click.option("--key", metavar="KEY", help="Only messages with this key.")
@click.option("--limit", type=click.IntRange(1), help="Messages at most.  [default: all]")
@click.option("-f", "--follow", is_flag=True, help="Wait for what is appended, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per message.")
def tail(
    *,
    log: str,
    topic: str,
    place: str | int | datetime | None,
    queue: int | None,
    tag: str | None,
    key: str | None,
    limit: int | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print messages of a topic, from a log's directory or the address of its server. Reading moves no group.

    Queues are in order each, and printed as they are found. What is missing is said on stderr, and passed.
    """
    require_metaq()
    from txmsg.metaq.location import open_log

    count = 0
    with open_log(log) as access:
        try:
            for message in _messages(
                access, topic, queue, place or ("latest" if follow else "earliest"), follow=follow
            ):
                if (tag is not None and message.tag != tag) or (key is not None and message.key != key):
                    continue
                click.echo(json.dumps(_values(message)) if as_json else _line(message))
                if (count := count + 1) == limit:
                    break
        except KeyboardInterrupt:
            return


def _messages(
    access: LogAccess, topic: str, queue: int | None, place: str | int | datetime, *, follow: bool
) -> Iterator[ReceivedMessage]:
    """All messages from there on; queues that come later are followed from their begin."""
    from txmsg.errors import OffsetOutOfRange, OffsetsMissing, UnknownTopic
    from txmsg.metaq.access import QueueId

    at: dict[QueueId, int] = {}
    is_first = True
    while True:
        numbers = access.topics().get(topic, []) if queue is None else [queue]
        new = [each for number in numbers if (each := QueueId(topic, number)) not in at]
        if not numbers and not follow:
            there = ", ".join(sorted(access.topics())) or "none"
            raise UnknownTopic(f"topic {topic!r} is not in this log: its topics are {there}")
        at |= _begins(access, new, place if is_first else "earliest")
        is_first = False
        found = access.fetch(at, wait_s=_WAIT_S if follow else 0.0) if at else []
        if follow and not at:
            time.sleep(_WAIT_S)
        if not found and not follow:
            return
        for fetched in found:
            error, of = fetched.error, fetched.queue
            if isinstance(error, OffsetsMissing):
                click.echo(str(error), err=True)
                at[of] = error.end
            elif isinstance(error, OffsetOutOfRange):
                click.echo(str(error), err=True)
                at[of] = error.begin if at[of] < error.begin else error.end
            elif error is not None:
                raise error
            for batch in fetched.batches:
                yield from batch.messages()
                at[of] = batch.end_offset


def _begins(access: LogAccess, queues: list[Any], place: str | int | datetime) -> dict[Any, int]:
    if not queues:
        return {}
    if isinstance(place, datetime):
        return access.offsets_at(queues, int(place.timestamp() * 1_000_000))
    if isinstance(place, int):
        return dict.fromkeys(queues, place)
    return {queue: kept.end if place == "latest" else kept.begin for queue, kept in access.ranges(queues).items()}


def _values(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "id": f"{message.id_bytes.hex()}.{message.n}",
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
