"""`txmsg metaq tail`, `dump` and `check`: the contents of a log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from txmsg.errors import OffsetOutOfRange, UnknownTopic
from txmsg.message import ReceivedMessage, moment
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import BadFrame, Header
from txmsg.metaq.fsck.groups import check_with_groups, repair_with_groups, size_bytes_with_groups
from txmsg.metaq.fsck.report import LogCheckReport
from txmsg.metaq.interface import LogAccess, LogQueue, offset_after, offsets_of
from txmsg.metaq.location import open_log
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.frames import next_frame, whole_frame
from txmsg.metaq.store.state import identity_of
from txmsg.ops.cli.connections import LogDirectory, log_option, token_file_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import START, json_option
from txmsg.ops.cli.output import json_text, say, seconds
from txmsg.wire.start import Start

if TYPE_CHECKING:
    from txmsg.binlog.mirror.repair import MissingMessages

_LOG_DIRECTORY = LogDirectory()
_WAIT_S = 1.0
_SHOWN_BYTES = 200
_PROBLEMS_SHOWN_MAX = 100


@click.command(
    short_help="Print the messages of a topic, or follow it.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq tail trade --log /var/lib/metaq --follow --tag paid\n"
    "  txmsg metaq tail trade --log metaq:7720 --queue 3 --from 1200 --json",
)
@log_option
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
    """Print messages of a topic. Does not affect groups.

    Each queue is printed in order. What is missing or cannot be read is reported on stderr and skipped.
    """
    if start is None:
        start = Start.latest() if follow else Start.earliest()
    count = 0
    with open_log(log) as access:
        try:
            for message in _messages(access, topic, queue, start, follow=follow):
                if (tag is not None and message.tag != tag) or (key is not None and message.key != key):
                    continue
                say(json_text(message_values(message)) if as_json else message_line(message))
                if (count := count + 1) == limit:
                    break
        except KeyboardInterrupt:
            if not follow:
                raise


def _messages(
    access: LogAccess, topic: str, queue: int | None, start: Start, *, follow: bool
) -> Iterator[ReceivedMessage]:
    """Yield all messages from these offsets on; queues that are created later are followed from their begin."""
    at: dict[LogQueue, int] = {}
    while True:
        there = access.queues_of(topic)
        numbers = there if queue is None or queue in there else []
        if not numbers and not follow:
            raise _unknown(access, topic, there)
        numbers = numbers if queue is None else [queue]
        new = [added for number in numbers if (added := LogQueue(topic, number)) not in at]
        if new:
            at |= offsets_of(access, new, start)
        start = Start.earliest()  # of queues that come later
        if not at:
            time.sleep(_WAIT_S)  # for the topic
            continue
        found = access.fetch(at, wait_s=_WAIT_S if follow else 0.0)
        if not found and not follow:
            return
        for fetched in (each.readable() for each in found):
            error, of = fetched.error, fetched.queue
            if error is not None:
                following = offset_after(error, at[of])
                # A gap with a known end is skipped; any other error, such as a log that is away, ends the command.
                if following is None:
                    if not isinstance(error, OffsetOutOfRange):
                        raise error
                    following = error.end
                say(str(error), err=True)
                at[of] = following
            for batch in fetched.batches:
                yield from batch.messages()
                at[of] = batch.end_offset


def _unknown(access: LogAccess, topic: str, queues: list[int]) -> UnknownTopic:
    if queues:
        return UnknownTopic(f"topic {topic!r} has no such queue: its queues are {', '.join(map(str, queues))}")
    there = ", ".join(sorted(access.topics())) or "none"
    return UnknownTopic(f"topic {topic!r} is not in this log: its topics are {there}")


def message_values(message: ReceivedMessage) -> dict[str, Any]:
    """Return a whole message of a log for JSON."""
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


def message_line(message: ReceivedMessage) -> str:
    """Return a message on one line: position, time of storage, key and tag, and the beginning of its body."""
    about = "".join(
        f" {name}={value}"
        for name, value in (("tag", message.tag), ("key", message.key), ("order", message.ordering_key))
        if value
    )
    body = message.body[:_SHOWN_BYTES].decode(errors="backslashreplace").replace("\n", "\\n")
    more = f"... ({len(message.body)} bytes)" if len(message.body) > _SHOWN_BYTES else ""
    return f"{message.queue}:{message.offset} {seconds(moment(message.stored_at_us))}{about} {body}{more}"


@click.command(
    short_help="Print the frames of a log.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq dump /var/lib/metaq --position 1073741824 --limit 20 --bodies",
)
@click.argument("directory", type=_LOG_DIRECTORY)
@click.option(
    "--position",
    type=click.IntRange(0),
    default=0,
    help="Position of the first frame to print.  [default: the first one]",
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of frames.")
@click.option("--topic", metavar="TOPIC", help="Only frames of this topic.")
@click.option("--queue", type=click.IntRange(0, 9999), help="Only frames of this queue.")
@click.option("--bodies", is_flag=True, help="Also print the messages.")
@token_file_option
@json_option
def dump(
    *, directory: Path, position: int, limit: int, topic: str | None, queue: int | None, bodies: bool, as_json: bool
) -> None:
    """Print the frames of a log in the order of the file, with their headers, and the positions of damaged ones."""
    shown = 0
    printed: list[dict[str, Any]] = []
    for values in _frames(directory, position, bodies=bodies):
        if "damaged" not in values and (topic not in {None, values["topic"]} or queue not in {None, values["queue"]}):
            continue
        if as_json:
            printed.append(values)
        else:
            messages = values.pop("messages", [])
            say("  ".join(f"{name}={value}" for name, value in values.items() if value not in {None, ""}))
            for message in messages:
                click.echo(f"    {json_text(message)}")
        if (shown := shown + 1) == limit:
            break
    if as_json:
        click.echo(json_text({"frames": printed}))


def _frames(directory: Path, start: int, *, bodies: bool) -> Iterator[dict[str, Any]]:
    """Yield the frame, or the damage, at each position from this one on."""
    log, log_id = CommitLogReader(directory / "commitlog"), identity_of(directory, create=False).log_id
    firsts = log.files()
    for first, end in zip(firsts, [*firsts[1:], log.end_position()], strict=True):
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
                batch = FrameBatch.verified(header, data)
                values["messages"] = [message_values(message) for message in batch.messages()]
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
    short_help="Check a log, and repair it.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq check /var/lib/metaq\n  txmsg metaq check /var/lib/metaq --repair\n"
    "  txmsg metaq check /var/lib/metaq --repair \\\n      --storage postgresql://notify@db/notify\n\n"
    "Exit status 0: the log is whole. 1: it is damaged, or was and could not be repaired.",
)
@click.argument("directory", type=_LOG_DIRECTORY)
@click.option(
    "--repair",
    is_flag=True,
    help="Repair damage, and keep a copy of damaged bytes in DIR/damaged. Stop the log's writer first.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="With --repair: the Notify database that this log mirrors. Restores messages that it still has.",
)
@click.option(
    "--name",
    metavar="NAME",
    default="metaq",
    show_default=True,
    help="Name of the mirror in that database.",
)
@token_file_option
@json_option
def check(*, directory: Path, repair: bool, storage: str | None, name: str, as_json: bool) -> None:
    """Check every frame, cell and file of a log. Safe while it is read and written.

    Reports each damage with its position, the lost messages, and how to repair it.
    """
    # Without --repair nothing is written, so a database would silently have no effect.
    if storage and not repair:
        raise click.UsageError("--storage is used by a repair: give --repair, too")
    started = time.monotonic()
    done: list[str] = []
    with _bar(size_bytes_with_groups(directory)) as told:
        if repair:
            # The log's own repair first: it leaves holes with known offsets, which the table can then fill.
            done = repair_with_groups(directory, told)
            done += _take_again(directory, storage, name) if storage else ()
        report = check_with_groups(directory, told)
    took_s = time.monotonic() - started
    if as_json:
        click.echo(json.dumps({**report.values(), "repaired": done, "took_s": round(took_s, 3)}))
    else:
        for line in done:
            say(line)
        _print(report, took_s)
    sys.exit(1 if report.problems else 0)


def _take_again(directory: Path, storage: str, name: str) -> list[str]:
    """Take missing messages from the table as far as it has them. Returns sentences that report it."""
    # Only here, for they load a driver, which would double the time that `tail` takes to start.
    from txmsg.binlog.config import check_mirror_name
    from txmsg.binlog.database import connect, translated
    from txmsg.binlog.mirror.repair import take_again
    from txmsg.broker import migrate

    check_mirror_name(name)
    migrate.require(storage)
    with closing(connect(migrate.libpq_url(storage))) as session, translated():
        return [_told(missing) for missing in take_again(directory, session, name)]


def _told(missing: MissingMessages) -> str:
    where = f"topic {missing.topic} queue {missing.queue}"
    offsets = f"offsets {missing.begin} to {missing.end - 1}"
    if missing.is_back:
        return f"{where}: {offsets} are in their place again, from the table"
    return f"{where}: there is no room for what is missing; `txmsg tailer run` takes {offsets} from the table again"


def _print(report: LogCheckReport, took_s: float) -> None:
    for problem in report.problems[:_PROBLEMS_SHOWN_MAX]:
        say(str(problem), err=True)
    if len(report.problems) > _PROBLEMS_SHOWN_MAX:
        click.echo(f"and {len(report.problems) - _PROBLEMS_SHOWN_MAX} more: --json prints all", err=True)
    for hole in report.holes[:_PROBLEMS_SHOWN_MAX]:
        say(f"missing, as the log says: {hole}")
    for note in report.notes:
        say(note)
    rate = report.read_bytes / max(took_s, 1e-9) / 1024**2
    click.echo(
        f"{report.messages} messages in {report.frames} frames of {report.queues} queues, positions {report.begin} to "
        f"{report.end}: read in {took_s:.1f} s, {rate:.0f} MiB/s"
    )
    if report.problems:
        click.echo(f"{report.root} is damaged: {len(report.problems)} problems, {report.lost} messages lost", err=True)
    else:
        click.echo(f"{report.root} is whole")


@contextmanager
def _bar(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Draw a progress bar on a terminal."""
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("reading", total=total_bytes)
        yield lambda count: progress.advance(task, count)
