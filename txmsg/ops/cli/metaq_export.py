"""`txmsg metaq export`: messages of a topic as files for data tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from txmsg.metaq.export import Format, PartitionScheme
from txmsg.metaq.export import export as export_spans
from txmsg.metaq.location import open_log
from txmsg.metaq.tables import spans_of
from txmsg.ops.cli.connections import log_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import START, json_option
from txmsg.ops.cli.output import json_text, say

if TYPE_CHECKING:
    from txmsg.wire.start import Start

_FORMATS = {each.name.lower().replace("_", "-"): each for each in Format}
_SUFFIXES = ", ".join(each.value for each in Format)


@click.command(
    short_help="Write messages of a topic to files: Parquet, Arrow or JSON lines.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq export trade --log metaq:7720 --into trades.parquet --from 24h\n"
    "  txmsg metaq export trade --log /var/lib/metaq --into trades/ \\\n      --partition day --format parquet\n"
    "  txmsg metaq export trade --log kafka://k1:9092 --into trades.jsonl "
    "\\\n      --queue 3 --from 1200 --before 2400",
)
@log_option
@click.argument("topic")
@click.option(
    "--into",
    "to",
    metavar="PATH",
    type=click.Path(path_type=Path),
    required=True,
    help=f"A new file, whose name ends with its format ({_SUFFIXES}); or a new directory.",
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(_FORMATS)),
    help="Format of a directory's files.  [default: parquet]",
)
@click.option(
    "--partition",
    "partitions",
    type=click.Choice([each.value for each in PartitionScheme]),
    multiple=True,
    help="Subdirectories: queue=3, day=2026-11-23 (day of storing, in UTC), or both.",
)
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    type=START,
    default="earliest",
    show_default=True,
    help="The first message: earliest, an offset, or a time (2026-05-01T10:00:00Z, or 2h for two hours ago).",
)
@click.option(
    "--before",
    "until",
    metavar="POSITION",
    type=START,
    default="latest",
    show_default=True,
    help="The message before which to end: an offset, a time, or latest (all messages at the start).",
)
@click.option(
    "--queue", "queues", type=click.IntRange(0, 9999), multiple=True, help="Only these queues.  [default: all]"
)
@click.option(
    "--skip-missing", is_flag=True, help="Skip messages that are missing or cannot be read, and report them on stderr."
)
@json_option
def export(
    *,
    log: str,
    topic: str,
    to: Path,
    format_name: str | None,
    partitions: tuple[str, ...],
    start: Start,
    until: Start,
    queues: tuple[int, ...],
    skip_missing: bool,
    as_json: bool,
) -> None:
    """Write messages of a topic to files.

    Does not affect groups. Each queue is written in order, one after the other. PATH appears when it is completely on
    disk; an existing one is refused. Bodies of erasable topics stay encrypted.
    """
    format, is_directory = _format(to, format_name, partitions)
    with open_log(log) as access:
        spans = spans_of(access, topic, start=start, until=until, queues=queues or None)
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            task = progress.add_task("written", total=sum(span.end - span.begin for span in spans))
            done = export_spans(
                access,
                spans,
                to,
                format,
                partitions=[PartitionScheme(each) for each in partitions] if is_directory else None,
                on_written=lambda count: progress.advance(task, count),
                on_missing=(lambda text: say(text, err=True)) if skip_missing else None,
            )
    if as_json:
        queue_rows = [{"queue": span.queue.queue, "begin": span.begin, "end": span.end} for span in done.spans]
        click.echo(
            json_text(
                {
                    "messages": done.messages,
                    "files": [str(path) for path in done.files],
                    "size_bytes": done.size_bytes,
                    "queues": queue_rows,
                }
            )
        )
    else:
        files = "" if not is_directory else f" in {len(done.files)} files"
        say(f"{done.messages} messages of {len(done.spans)} queues are in {to}{files}, {done.size_bytes} bytes")


def _format(to: Path, name: str | None, partitions: tuple[str, ...]) -> tuple[Format, bool]:
    """Return the format, and True if a directory is written."""
    of_file = Format.of(to)
    if of_file is None:
        return _FORMATS[name or "parquet"], True
    if partitions:
        raise click.UsageError(
            f"--partition is for directories, and {to} is the name of a file: give --into {to.stem}/"
        )
    if name is not None and _FORMATS[name] is not of_file:
        raise click.UsageError(f"{to} is the name of a file of {of_file.value}, not of {name}: leave out --format")
    return of_file, False
