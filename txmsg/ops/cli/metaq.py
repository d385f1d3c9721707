"""`txmsg metaq`: logs, in a directory or at the address of a server."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table

from txmsg.administration.log_contents import log_state, log_topics, require_read
from txmsg.errors import CorruptLog
from txmsg.message import QUEUES_MAX, check_name
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.interface import LogAccess
from txmsg.metaq.local import LocalLog
from txmsg.metaq.location import open_log
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, Permission, TopicSettings
from txmsg.ops.cli.connections import log_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT, LazyGroup
from txmsg.ops.cli.options import duration, json_option
from txmsg.ops.cli.output import print_facts, print_rows, print_table, say
from txmsg.runtime.durations import shown_duration
from txmsg.wire.access.file import entry_of
from txmsg.wire.access.tokens import new_token

_AS_THE_LOG = "log"


@click.group(
    cls=LazyGroup,
    path=("metaq",),
    modules={
        "check": "metaq_contents",
        "delayed": "metaq_delayed",
        "dump": "metaq_contents",
        "export": "metaq_export",
        "find": "metaq_find",
        "follow": "metaq_server",
        "promote": "metaq_server",
        "recall": "metaq_delayed",
        "serve": "metaq_server",
        "tail": "metaq_contents",
    },
)
def metaq() -> None:
    """Serve, inspect, export, check and repair logs."""


@metaq.command(
    short_help="List the topics of a log.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq topics --log /var/lib/metaq\n  txmsg metaq topics --log metaq:7720 --json",
)
@log_option
@json_option
def topics(*, log: str, as_json: bool) -> None:
    """List the topics of a log: queues, offsets kept, and options. Missing offsets are shown for directories only."""
    size_bytes: int | None = None
    with open_log(log) as access:
        rows = _rows(access)
        if isinstance(access, LocalLog):
            size_bytes = _add_holes(access, rows)
    if as_json:
        click.echo(json.dumps({"queues": rows, "size_bytes": size_bytes}))
    elif not rows:
        click.echo("no topics")
    else:
        _print(rows)


def _rows(access: LogAccess) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for topic in log_topics(access)[0]:
        for number, found in topic.queues:
            row: dict[str, Any] = {"topic": topic.topic, "queue": number, "begin": None, "end": None}
            if isinstance(found, CorruptLog):
                row["error"] = str(found)
            else:
                row["begin"], row["end"] = found
            rows.append(row | topic.settings.values() | {"access": _access(topic.settings, number)})
    return rows


def _add_holes(access: LocalLog, rows: Sequence[dict[str, Any]]) -> int:
    """Add to each queue the offsets that the log itself marks as missing. Returns the size of the log."""
    reader = LogReader(access.root)
    for row in rows:
        try:
            row["holes"] = reader.queue(row["topic"], row["queue"]).holes()
        except CorruptLog as exc:
            row["error"] = str(exc)
    return reader.commit_log.end_position() - reader.commit_log.begin_position()


def _print(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "Topic", "Queue", "Begin", "End", "Messages", "Missing", "Access", "Flush", "Compression", "Retention", box=None
    )
    for row in rows:
        if "error" in row:
            table.add_row(row["topic"], str(row["queue"]), row["error"])
            continue
        begin, end, holes = row["begin"], row["end"], row.get("holes")
        missing = sum(min(last, end) - max(first, begin) for first, last in holes or ())
        counts = (begin, end, end - begin - missing, "-" if holes is None else missing)
        settings = (row["access"], row["flush"], row["compression"], _kept_for(row["retention_s"]))
        table.add_row(row["topic"], *map(str, (row["queue"], *counts)), *settings)
    print_table(table)


def _access(settings: TopicSettings, queue: int) -> str:
    """Return the rights of producers and groups on a queue: rw, r, w, or - for neither."""
    is_written = settings.takes(queue) and (settings.write_queues is None or queue < settings.write_queues)
    return ("r" if settings.gives(queue) else "") + ("w" if is_written else "") or "-"


def _kept_for(retention_s: float | None) -> str:
    return "as the log" if retention_s is None else shown_duration(retention_s)


class _Retention(click.ParamType):  # type: ignore[type-arg]
    """A duration, or `log` for the log's own retention."""

    name = duration.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        return _AS_THE_LOG if value == _AS_THE_LOG else duration(value)


@metaq.command(
    "set",
    short_help="Set topic options.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq set trade --log metaq:7720 --flush timed --compression zstd\n"
    "  txmsg metaq set trade --log /var/lib/metaq --retention 7d\n"
    "  txmsg metaq set trade --log metaq:7720 --write-queues 4 --read-queues 8\n\n"
    "A log has one writer: while a server or a tailer writes the directory, give the server's address.",
)
@log_option
@click.argument("topic")
@click.option(
    "--flush",
    type=click.Choice(["sync", "timed"]),
    help="sync: on disk before an append returns. timed: within half a second; a power cut may lose these messages.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd"]),
    help="Compression of batches by producers and the tailer.",
)
@click.option(
    "--retention",
    metavar="TIME",
    type=_Retention(),
    help="Minimum time to keep messages, or `log`: the log's setting.",
)
@click.option(
    "--write-queues",
    type=click.IntRange(1, QUEUES_MAX),
    help="Number of queues that producers append to.  [default: as they say]",
)
@click.option(
    "--read-queues",
    type=click.IntRange(1, QUEUES_MAX),
    help="Number of queues that groups read; the others must be drained, and take no appends.  [default: all]",
)
@click.option(
    "--permission",
    type=click.Choice([each.value for each in Permission]),
    help="Whether messages may be appended (w) and are read by groups (r).",
)
@click.option("--force", is_flag=True, help="Stop reading queues that groups have not read to their end.")
@json_option
def set_(
    *,
    log: str,
    topic: str,
    flush: str | None,
    compression: str | None,
    retention: float | str | None,
    write_queues: int | None,
    read_queues: int | None,
    permission: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Set options of a topic, from the next append on. The topic need not exist yet.

    Without options, shows the current ones.

    To use fewer queues: lower --write-queues, wait until the others are drained, lower --read-queues. The mirror of a
    table ignores these options: use `txmsg topic alter` for its topics.
    """
    check_name("topic", topic)
    changes: dict[str, Any] = {}
    if flush is not None:
        changes["flush"] = Flush(flush)
    if compression is not None:
        changes["compression"] = Compression[compression.upper()]
    if retention is not None:
        changes["retention_s"] = None if retention == _AS_THE_LOG else retention
    for name, count in (("write_queues", write_queues), ("read_queues", read_queues)):
        if count is not None:
            changes[name] = count
    if permission is not None:
        changes["permission"] = Permission(permission)
    with open_log(log) as access:  # which makes none
        before = access.settings_of(topic)
        settings = dataclasses.replace(before, **changes)
        if not force:
            require_read(access, topic, before, settings)
    if changes:
        with open_log(log, append=True) as access:
            access.set_topic(topic, settings)
    if as_json:
        click.echo(json.dumps({"topic": topic} | settings.values()))
    else:
        shown = settings.values() | {"retention_s": None, "retention": _kept_for(settings.retention_s)}
        print_facts({"topic": topic} | shown)


@metaq.command(
    short_help="Show the state of a log, and whether it accepts appends.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq status --log metaq:7720\n  txmsg metaq status --log /var/lib/metaq --json",
)
@log_option
@json_option
def status(*, log: str, as_json: bool) -> None:
    """Show the state of a log; of a server, also whether it accepts appends, and its load.

    Exit status 1 if the server accepts no appends, for example because its disk is full.
    """
    with open_log(log) as access:
        values = dataclasses.asdict(log_state(access))
    if as_json:
        click.echo(json.dumps(values))
    else:
        print_facts(values | {"copies": None})
        if values["copies"]:
            print_rows(values["copies"])
    if values["failure"]:
        raise SystemExit(1)


@metaq.command(
    short_help="Make a token for the file of --access.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq token --json",
)
@json_option
def token(*, as_json: bool) -> None:
    """Create a token for a user of a server with --access FILE.

    Prints the token, which is not stored, and the entry for the user's `tokens` in the file.
    """
    made = new_token()
    if as_json:
        click.echo(json.dumps({"token": made.text, "entry": entry_of(made)}))
    else:
        say(f'tokens = ["{entry_of(made)}"]', err=True)
        click.echo(made.text)
