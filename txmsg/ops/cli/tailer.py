"""`txmsg tailer`: the mirror of a Notify database in MetaQ. Talks to the database itself; no broker is needed."""

from __future__ import annotations

import dataclasses
import gc
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress as Bars
from rich.table import Table

from txmsg.binlog.config import TailerConfig, check_mirror_name, check_patterns
from txmsg.binlog.database import Session, connect, translated
from txmsg.binlog.figures import dead, figures_of, unready
from txmsg.binlog.mirror import open_sink
from txmsg.binlog.mirror.repair import delete_topics, fork_log
from txmsg.binlog.mirrors import TailerMirror
from txmsg.binlog.progress import TailerProgress
from txmsg.binlog.sink import MirrorSink
from txmsg.binlog.status import MirrorStatus, diverged, make
from txmsg.binlog.status import drop as drop_mirror
from txmsg.binlog.status import status as status_of
from txmsg.binlog.tailer import Tailer, TailerState
from txmsg.binlog.verifier.compare import verify as compare
from txmsg.broker import migrate
from txmsg.metaq.kafka.location import is_kafka
from txmsg.metrics.figures import Figures
from txmsg.metrics.http import Probes, serving_on_thread
from txmsg.ops.cli.connections import token_file_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import Decorator, duration, json_option, storage_option, yes_option
from txmsg.ops.cli.output import json_text, print_facts, print_table
from txmsg.ops.cli.settings import read_settings, settings_options, take_again
from txmsg.runtime.logs import EventLog, name_process, set_log_level
from txmsg.runtime.signals import call_on_hangup_by_thread
from txmsg.settings.live import GivenSettings
from txmsg.settings.tracing import tracing_of_process

_log = EventLog(__name__)

_METRICS_S = 10.0
_MUCH = 20_000


_name_option: Decorator = click.option(
    "--name",
    metavar="NAME",
    default="metaq",
    show_default=True,
    help="Name of the mirror, its slot and its publication.",
)
_topics_option: Decorator = click.option(
    "--topics",
    metavar="PATTERN",
    multiple=True,
    help="Topics to mirror, with * and ?; repeatable. Default: those of the existing mirror, else all.",
)


def _excluded(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the given patterns; () for one empty pattern, None (as the mirror has them) without any."""
    if given == ("",):
        return ()
    return given or None


_exclude_option: Decorator = click.option(
    "--exclude",
    metavar="PATTERN",
    multiple=True,
    callback=_excluded,
    help="Topics to exclude; repeatable. '' excludes none. Default: those of the existing mirror, else none.",
)


def _metaq_option(meaning: str) -> Decorator:
    return click.option("--metaq", metavar="DIR|kafka://...", required=True, help=meaning)


_kafka_config_option: Decorator = click.option(
    "--kafka-config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    envvar="TXMSG_KAFKA_CONFIG",
    show_envvar=True,
    help="For Kafka: file with properties of librdkafka, one NAME=VALUE per line.",
)


@click.group()
def tailer() -> None:
    """Mirror the messages of a Notify database into MetaQ, by logical replication.

    Messages keep their queues and offsets. Topics with durability memory are not replicated, so they are not mirrored.
    """


@tailer.command(
    short_help="Run a tailer.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer run --storage postgresql://notify@db/notify "
    "\\\n      --metaq /var/lib/metaq\n"
    "  txmsg tailer run --storage postgresql://notify@db/notify \\\n      --metaq metaq:7720 --topics 'trade*'\n\n"
    "Prints `tailing NAME into WHERE` when it mirrors. A second tailer prints `standing by`, and takes over when the "
    "first one ends. SIGTERM and Ctrl-C stop it gracefully; SIGHUP has it read its file again. A queue whose log and "
    "table differ, or that the log refuses, stops alone: see `txmsg tailer status`. The tailer exits only if an "
    "operator is needed: the log cannot be opened, or the database is not configured for it. `txmsg config explain "
    "tailer` lists all settings.",
)
@settings_options(TailerConfig, "tailer")
@token_file_option
@json_option
def run(*, config: Path | None, as_json: bool, **options: object) -> None:
    """Run a tailer: mirror existing and new messages."""
    settings = read_settings(TailerConfig, "tailer", config, options)
    made = settings.make()
    given = GivenSettings(made, settings.sources())
    if not made.metaq:
        raise click.UsageError(
            "tailer.metaq is missing: give --metaq, the directory of a log, HOST:PORT of its server, or "
            "kafka://HOST:PORT"
        )
    name_process(f"tailer {made.mirror}")
    # psycopg takes no SQLAlchemy URL, and users give the one that their application has.
    made = dataclasses.replace(made, storage=migrate.libpq_url(made.storage))

    def tell(state: TailerState) -> None:
        if as_json:
            click.echo(json.dumps({"state": state.value, "mirror": made.mirror, "metaq": made.metaq}))
        elif state.value == "tailing":
            click.echo(f"tailing {made.mirror} into {made.metaq}")
        else:
            click.echo(state.value)

    tracing = tracing_of_process() if made.tracing else None

    def open_log() -> MirrorSink:
        return open_sink(
            made.metaq,
            tracing,
            kafka_config=made.kafka_config,
            replication_factor=made.replication_factor,
            min_insync_replicas=made.min_insync_replicas,
        )

    running = Tailer(made, open_log, on_state=tell, on_progress=_metrics())
    for signum in (signal.SIGTERM, signal.SIGINT):
        # Not an exception in the main thread: the tailer ends between two steps, when everything taken is on disk.
        signal.signal(signum, lambda *_: running.stop())

    def use(live: TailerConfig) -> None:
        set_log_level(live.log_level)
        running.apply_settings(dataclasses.replace(live, storage=made.storage))

    given.use = use
    call_on_hangup_by_thread(partial(take_again, given, "tailer", config, options))

    async def read() -> Figures:
        return figures_of(running)

    probes = Probes(figures=read, unready=lambda: unready(running), dead=lambda: dead(running))
    with serving_on_thread(made.http_listen, probes, made.tls.of_server(), made.http_token_file):
        gc.freeze()  # what was loaded stays: no collection goes through it while many rows wait
        running.run()


def _metrics() -> Callable[[TailerProgress], None]:
    """Log a line every few seconds while something is mirrored. In a terminal, a bar while much is to be caught up."""
    told_at, told = time.monotonic(), 0
    bar = _catching_up() if sys.stderr.isatty() else lambda _: None

    def tell(progress: TailerProgress) -> None:
        nonlocal told_at, told
        bar(progress)
        passed_s = time.monotonic() - told_at
        # Silent while nothing is mirrored: an idle mirror would fill the log with lines that say nothing.
        if passed_s < _METRICS_S or progress.messages == told:
            return
        _log.info(
            "mirror.progress",
            "mirrored %(messages)d messages, %(messages_per_s).0f/s; %(lag_s).1f s behind, %(missing)d of them "
            "missing; %(stopped)d queues stopped",
            messages=progress.messages,
            messages_per_s=(progress.messages - told) / passed_s,
            lag_s=progress.lag_s,
            missing=progress.missing,
            stopped=progress.stopped,
        )
        told_at, told = time.monotonic(), progress.messages

    return tell


def _catching_up() -> Callable[[TailerProgress], None]:
    bars = Bars(console=Console(stderr=True), transient=True)
    task = bars.add_task("catching up", start=False, visible=False)
    goal = begin = 0

    def tell(progress: TailerProgress) -> None:
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
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer create --storage postgresql://notify@db/notify "
    "\\\n      --topics 'trade*'",
)
@storage_option
@_topics_option
@_exclude_option
@_name_option
@json_option
def create(*, storage: str, topics: tuple[str, ...], exclude: tuple[str, ...] | None, name: str, as_json: bool) -> None:
    """Create a mirror with its publication and slot. From now on, retention keeps messages until they are mirrored.

    For an existing mirror it changes the topics; restart its tailer to apply them.
    """
    check_mirror_name(name), check_patterns(topics), check_patterns(exclude or ())
    with closing(_mirror_session(storage)) as session, translated():
        is_new = make(session, name, topics or None, exclude)
    if as_json:
        click.echo(json.dumps({"mirror": name, "is_new": is_new}))
    else:
        click.echo(f"mirror {name} {'created' if is_new else 'exists'}: run it with `txmsg tailer run`")


@tailer.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer drop --storage postgresql://notify@db/notify --yes")
@storage_option
@_name_option
@yes_option
@json_option
def drop(*, storage: str, name: str, yes: bool, as_json: bool) -> None:
    """Drop a mirror with its slot and publication. The log is kept.

    Retention no longer keeps messages for it.
    """
    check_mirror_name(name)
    if not yes:
        click.confirm(f"Drop mirror {name}, its slot and its publication?", abort=True)
    with closing(_mirror_session(storage)) as session, translated():
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
@_name_option
@click.option("--by-queue", is_flag=True, help="Also print the lag of each queue.")
@json_option
def status(*, storage: str, name: str, by_queue: bool, as_json: bool) -> None:
    """Show the lag of a mirror in messages, seconds and bytes, the state of its slot, and stopped queues.

    Exit status 1 if a queue has stopped, or the slot is missing or lost. A tailer recreates the slot, and reads missing
    messages from the table.
    """
    check_mirror_name(name)
    with closing(_mirror_session(storage)) as session, translated():
        found = status_of(session, name)
    values = _values(found)
    if as_json:
        click.echo(json_text(values | {"queues": [dataclasses.asdict(state) for state in found.queues]}))
    else:
        print_facts(values)
        if by_queue:
            _print_queues(found)
        for queue in found.stopped:
            click.echo(f"topic {queue.topic} queue {queue.queue} has stopped: {queue.stopped}")
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
        "seen_at": mirror.seen_at,
        "stopped_queues": len(found.stopped),
        "waiting": found.behind_messages,
        "behind_s": round(found.behind_s, 3),
        "behind_bytes": slot and slot.behind_bytes,
        "slot": slot and slot.name,
        "slot_state": "missing" if slot is None else slot.wal_status,
        "slot_is_read": slot is not None and slot.active_pid is not None,
        "slot_keeps_bytes": slot and slot.kept_bytes,
        "slot_safe_bytes": slot and slot.safe_bytes,
        "slot_fails_over": slot and slot.failover,
    }


def _print_queues(found: MirrorStatus) -> None:
    table = Table("Topic", "Queue", "Mirrored to", "Table to", "Waiting", box=None)
    for state in found.queues:
        behind = max(0, state.end - state.next_offset)
        table.add_row(state.topic, *map(str, (state.queue, state.next_offset, state.end, behind)))
    print_table(table)


@tailer.command(
    short_help="Continue a log that has diverged from its table.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer fork --storage postgresql://notify@db/notify "
    "\\\n      --metaq /var/lib/metaq\n\n"
    "Stop the tailer first, and `txmsg metaq serve` if it serves this directory. Consumers may have read messages that "
    "the log gives up.",
)
@storage_option
@_metaq_option("The log: its directory, or kafka://HOST:PORT,...")
@_kafka_config_option
@_name_option
@yes_option
@json_option
def fork(*, storage: str, metaq: str, kafka_config: Path | None, name: str, yes: bool, as_json: bool) -> None:
    """Continue a log under a new generation, from the offset where it and its table begin to differ.

    Use it if the table is right, as after a restored backup, or the promotion of a standby that lagged behind. From
    that offset on, the log's own messages are no longer served, the tailer mirrors the table's, and groups that were
    further are set back.

    Kafka cannot truncate a partition: there, topics with such a queue are deleted with all their messages, and the
    tailer recreates them from the table. To keep them, mirror to another prefix instead.
    """
    check_mirror_name(name)
    # A server cannot be forked from outside: the log is cut on the machine that has its files.
    where = metaq if is_kafka(metaq) else str(_directory(metaq))
    with closing(_mirror_session(storage)) as session, translated():
        with closing(open_sink(where, kafka_config=kafka_config)) as sink:
            cuts = diverged(session, sink, name)
            generation = sink.generation
        groups: Sequence[str] = ()
        for cut in cuts if not as_json else ():
            click.echo(
                f"topic {cut.topic} queue {cut.number}: from offset {cut.offset} on, {cut.log_end - cut.offset} "
                f"messages of the log give way to {max(0, cut.table_end - cut.offset)} of the table"
            )
        deleted = sorted({cut.topic for cut in cuts}) if is_kafka(metaq) else []
        if cuts:
            lost = f"Delete topics {', '.join(deleted)} from" if deleted else "Give up from there on what is in"
            if not yes:
                click.confirm(f"{lost} {metaq}?", abort=True)
            if deleted:
                TailerMirror(session, name).forget_topics(
                    deleted
                )  # first: from then on retention keeps what they will need
                delete_topics(where, kafka_config, deleted)
            else:
                generation, groups = fork_log(Path(where), cuts)
    if as_json:
        values = [{"topic": cut.topic, "queue": cut.number, "offset": cut.offset} for cut in cuts]
        told = {"generation": generation, "cuts": values, "groups_set_back": list(groups), "deleted_topics": deleted}
        click.echo(json.dumps(told))
    elif deleted:
        click.echo(f"deleted {', '.join(deleted)}: create them again from the table with `txmsg tailer run`")
    elif cuts:
        for group in groups:
            click.echo(f"group {group} was further, and is set back")
        click.echo(f"the log continues under generation {generation}: start it with `txmsg tailer run`")
    else:
        click.echo(f"log and table have not diverged; the log stays at generation {generation}")


def _directory(metaq: str) -> Path:
    """Return an existing log in a directory: creating one, or asking a server, would be a mistake here."""
    directory = Path(metaq)
    if not (directory / "log.json").exists():
        raise click.UsageError(f"--metaq {metaq}: there is no log in such a directory; name it on the machine it is on")
    return directory.absolute()


@tailer.command(
    short_help="Compare a log with its table, message by message.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg tailer verify --storage postgresql://notify@db/notify "
    "\\\n      --metaq /var/lib/metaq",
)
@storage_option
@_metaq_option("The log: its directory, whose files are read directly, without a server, or kafka://HOST:PORT,...")
@_kafka_config_option
@_topics_option
@_exclude_option
@_name_option
@click.option(
    "--wait",
    metavar="TIME",
    type=duration,
    default="10s",
    show_default=True,
    help="Time to wait until a running tailer has caught up with the messages committed now.",
)
@json_option
def verify(
    *,
    storage: str,
    metaq: str,
    kafka_config: Path | None,
    topics: tuple[str, ...],
    exclude: tuple[str, ...] | None,
    name: str,
    wait: float,
    as_json: bool,
) -> None:
    """Compare a log with its table: every message, byte for byte, and its offset.

    Shares no code with the log or the tailer. Safe while both run. Exit status 1 if anything differs.
    """

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("messages", total=None)
        found = compare(
            migrate.libpq_url(storage),
            metaq,
            kafka_config=kafka_config,
            topics=topics,
            exclude=exclude or (),
            mirror=name,
            wait_s=wait,
            progress=lambda done, total: bars.update(task, completed=done, total=total),
        )
    values = dataclasses.asdict(found) | {"differences": list(map(str, found.differences)), "equal": found.is_equal}
    if as_json:
        click.echo(json.dumps(values))
    else:
        differing = sum(found.differing.values())
        print_facts({name: value for name, value in values.items() if isinstance(value, int) and name != "equal"})
        for difference in found.differences:
            click.echo(difference)
        click.echo("equal" if found.is_equal else f"NOT equal: {differing} messages differ")
    if not found.is_equal:
        raise SystemExit(1)


def _mirror_session(storage: str) -> Session:
    """Return a session on a Notify database that this release works with."""
    migrate.require(storage)
    return connect(migrate.libpq_url(storage))
