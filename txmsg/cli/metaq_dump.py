"""`txmsg metaq dump`: the frames of a log as they stand in it, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from txmsg.cli.admin import json_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.metaq_check import LOG_DIRECTORY, require_metaq
from txmsg.cli.metaq_tail import message_values
from txmsg.cli.showing import moment, say

if TYPE_CHECKING:
    from txmsg.metaq.format.frame import Header

__all__ = ["dump"]


@click.command(
    short_help="Print the frames of a log.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq dump /var/lib/metaq --position 1073741824 --limit 20 --bodies",
)
@click.argument("directory", type=LOG_DIRECTORY)
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
@json_option
def dump(
    *, directory: Path, position: int, limit: int, topic: str | None, queue: int | None, bodies: bool, as_json: bool
) -> None:
    """Print the frames of a log in the order of the file: headers, and where one is damaged."""
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
            say("  ".join(f"{name}={value}" for name, value in values.items() if value not in {None, ""}))
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
    from txmsg.metaq.store.frames import next_frame, whole_frame
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
                batch = LogBatch(header, verify(header, data))
                values["messages"] = [message_values(each) for each in batch.messages()]
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
