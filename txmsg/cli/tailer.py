"""`txmsg tailer`: the mirror of a Notify database in MetaQ. Talks to the database itself; no broker is needed."""

from __future__ import annotations

import dataclasses
import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from txmsg.cli.admin import json_option, yes_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.mirror_options import exclude_option, mirror_session, name_option, storage_option, topics_option
from txmsg.cli.mirrored_log import fork, verify
from txmsg.cli.showing import print_facts, print_table
from txmsg.runtime.logs import log_to_stderr

if TYPE_CHECKING:
    from txmsg.binlog.progress import Progress
    from txmsg.binlog.status import MirrorStatus
    from txmsg.binlog.tailer import State

__all__ = ["tailer"]

logger = logging.getLogger(__name__)

_METRICS_S = 10.0
_MUCH = 20_000


@click.group()
def tailer() -> None:
    """Mirror the messages of a Notify database into MetaQ, by logical replication.

    Messages keep their queues and offsets. Topics with durability memory are not replicated, so they are not mirrored.
    """


for each in (fork, verify):
    tailer.add_command(each)


@tailer.command(
    short_help="Run a tailer.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer run --storage postgresql://notify@db/notify --metaq /var/lib/metaq\n"
    "  txmsg tailer run --storage postgresql://notify@db/notify --metaq metaq:7720 --topics 'trade*'\n\n"
    "Prints `tailing NAME into WHERE` when it mirrors. A second tailer prints `standing by`, and takes over when the "
    "first one ends. SIGTERM and Ctrl-C stop it gracefully. A queue whose log and table differ, or that the log "
    "refuses, stops alone: see `txmsg tailer status`. The tailer exits only if an operator is needed: the log cannot "
    "be opened, or the database is not configured for it.",
)
@storage_option
@click.option(
    "--metaq",
    metavar="DIR|HOST:PORT",
    required=True,
    envvar="TXMSG_METAQ",
    show_envvar=True,
    help="The log: a directory, created if it is missing, or the address of `txmsg metaq serve`.",
)
@topics_option
@exclude_option
@name_option
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level logged to stderr.",
)
@json_option
def run(
    *,
    storage: str,
    metaq: str,
    topics: tuple[str, ...],
    exclude: tuple[str, ...] | None,
    name: str,
    log_level: str,
    as_json: bool,
) -> None:
    """Run a tailer: mirror existing and new messages."""
    from txmsg.binlog.config import TailerConfig
    from txmsg.binlog.tailer import Tailer
    from txmsg.broker import migrate
    from txmsg.mirror import open_sink

    log_to_stderr(log_level)
    config = TailerConfig(storage=migrate.libpq_url(storage), mirror=name, topics=topics or None, exclude=exclude)

    def tell(state: State) -> None:
        if as_json:
            click.echo(json.dumps({"state": state.value, "mirror": name, "metaq": metaq}))
        elif state.value == "tailing":
            click.echo(f"tailing {name} into {metaq}")
        else:
            click.echo(state.value)

    running = Tailer(config, lambda: open_sink(metaq), on_state=tell, on_progress=_metrics())
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: running.stop())
    running.run()


def _metrics(clock: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """Logs a line every few seconds while something is mirrored. In a terminal, a bar while much is to be caught up."""
    told_at, told = clock(), 0
    bar = _catching_up() if sys.stderr.isatty() else lambda _: None

    def tell(progress: Progress) -> None:
        nonlocal told_at, told
        bar(progress)
        passed_s = clock() - told_at
        if passed_s < _METRICS_S or progress.messages == told:
            return
        logger.info(
            "mirrored %d messages, %.0f/s; %.1f s behind, %d of them missing; %d queues stopped",
            *(progress.messages, (progress.messages - told) / passed_s, progress.lag_s, progress.missing),
            progress.stopped,
        )
        told_at, told = clock(), progress.messages

    return tell


def _catching_up() -> Callable[[Progress], None]:
    from rich.console import Console
    from rich.progress import Progress as Bars

    bars = Bars(console=Console(stderr=True), transient=True)
    task = bars.add_task("catching up", start=False, visible=False)
    goal = begin = 0

    def tell(progress: Progress) -> None:
        nonlocal goal, begin
        if progress.goal != goal:
            goal, begin = progress.goal, progress.messages
            if goal - begin >= _MUCH:
                bars.start()
                bars.reset(task, total=goal - begin, visible=True)
        bars.update(task, completed=progress.messages - begin)
        if progress.messages >= goal:
            bars.stop()

    return tell


@tailer.command(
    short_help="Create a mirror before its tailer runs, or change its topics.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer create --storage postgresql://notify@db/notify --topics 'trade*'",
)
@storage_option
@topics_option
@exclude_option
@name_option
@json_option
def create(*, storage: str, topics: tuple[str, ...], exclude: tuple[str, ...] | None, name: str, as_json: bool) -> None:
    """Create a mirror with its publication and slot. From now on, retention keeps messages until they are mirrored.

    For an existing mirror it changes the topics; restart its tailer to apply them.
    """
    from txmsg.binlog.config import check_mirror_name, check_patterns
    from txmsg.binlog.database import translated
    from txmsg.binlog.status import make

    check_mirror_name(name), check_patterns(topics), check_patterns(exclude or ())
    with closing(mirror_session(storage)) as session, translated():
        is_new = make(session, name, topics or None, exclude)
    if as_json:
        click.echo(json.dumps({"mirror": name, "is_new": is_new}))
    else:
        click.echo(f"mirror {name} {'created' if is_new else 'exists'}: run it with `txmsg tailer run`")


@tailer.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer drop --storage postgresql://notify@db/notify --yes")
@storage_option
@name_option
@yes_option
@json_option
def drop(*, storage: str, name: str, yes: bool, as_json: bool) -> None:
    """Drop a mirror with its slot and publication. The log is kept.

    Retention no longer keeps messages for it.
    """
    from txmsg.binlog.config import check_mirror_name
    from txmsg.binlog.database import translated
    from txmsg.binlog.status import drop as drop_mirror

    check_mirror_name(name)
    if not yes:
        click.confirm(f"Drop mirror {name}, its slot and its publication?", abort=True)
    with closing(mirror_session(storage)) as session, translated():
        was_there = drop_mirror(session, name)
    if as_json:
        click.echo(json.dumps({"mirror": name, "dropped": was_there}))
    else:
        click.echo(f"mirror {name} is dropped" if was_there else f"there was no mirror {name}")


@tailer.command(
    short_help="Show the lag of a mirror.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer status --storage postgresql://notify@db/notify --by-queue",
)
@storage_option
@name_option
@click.option("--by-queue", is_flag=True, help="Also print the lag of each queue.")
@json_option
def status(*, storage: str, name: str, by_queue: bool, as_json: bool) -> None:
    """Show the lag of a mirror in messages, seconds and bytes, the state of its slot, and stopped queues.

    Exit status 1 if a queue has stopped, or the slot is missing or lost. A tailer recreates the slot, and reads what it
    missed from the table.
    """
    from txmsg.binlog.config import check_mirror_name
    from txmsg.binlog.database import translated
    from txmsg.binlog.status import status as status_of

    check_mirror_name(name)
    with closing(mirror_session(storage)) as session, translated():
        found = status_of(session, name)
    values = _values(found)
    if as_json:
        click.echo(json.dumps(values | {"queues": [_queue_values(each) for each in found.queues]}))
    else:
        print_facts(values)
        if by_queue:
            _print_queues(found)
        for each in found.stopped:
            click.echo(f"topic {each.topic} queue {each.queue} has stopped: {each.stopped}")
    if found.slot is None or found.slot.is_lost or found.stopped:
        raise SystemExit(1)


def _values(found: MirrorStatus) -> dict[str, object]:
    mirror, slot = found.mirror, found.slot
    return {
        "mirror": mirror.name,
        "topics": " ".join(mirror.include),
        "exclude": " ".join(mirror.exclude) or None,
        "left_out_in_memory": " ".join(found.left_out) or None,
        "log": mirror.log,
        "generation": mirror.generation,
        "seen_at": mirror.seen_at and mirror.seen_at.isoformat(timespec="seconds"),
        "stopped_queues": len(found.stopped),
        "behind_messages": found.behind_messages,
        "behind_s": round(found.behind_s, 3),
        "behind_bytes": slot and slot.behind_bytes,
        "slot": slot and slot.name,
        "slot_state": "missing" if slot is None else slot.wal_status,
        "slot_is_read": slot is not None and slot.active_pid is not None,
        "slot_keeps_bytes": slot and slot.kept_bytes,
        "slot_safe_bytes": slot and slot.safe_bytes,
        "slot_fails_over": slot and slot.failover,
    }


def _queue_values(each: Any) -> dict[str, object]:
    return dataclasses.asdict(each)


def _print_queues(found: MirrorStatus) -> None:
    from rich.table import Table

    table = Table("Topic", "Queue", "Mirrored to", "Table to", "Behind", box=None)
    for each in found.queues:
        behind = max(0, each.end - each.next_offset)
        table.add_row(each.topic, *map(str, (each.queue, each.next_offset, each.end, behind)))
    print_table(table)
