"""Mends a log by the table that it mirrors: after they have diverged, or after damage."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from txmsg.binlog import table
from txmsg.binlog.comparing import Compared, Divergence, compare
from txmsg.binlog.database import Session
from txmsg.binlog.mirror.log_sink import LogSink
from txmsg.binlog.mirror.rows import columns_of
from txmsg.binlog.mirrors import TailerMirror
from txmsg.binlog.rows import TableRow
from txmsg.binlog.table import MirroredQueue
from txmsg.errors import MisuseError
from txmsg.metaq.format.frame import Compression, encode
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Log

_PUT_BACK_SIZE_BYTES_MAX = 64 * 1024 * 1024


class ForkedLog(NamedTuple):
    """A log that goes on. groups: those that were further than it is now, and were set back."""

    generation: int
    groups: Sequence[str]


def fork_log(root: Path, cuts: Sequence[Divergence]) -> ForkedLog:
    """Continues a log under a new generation, from where it and the table differ.

    What it has from there on is not served any more; the table's messages come in its place when the tailer runs. So
    groups that were further are set back, or they would go past these: before the log is cut, because it would
    not be done after a crash; and after it, because members may be running.
    """
    with Log(root) as log, open_log(root) as reading:
        groups = _set_back(reading, cuts)
        generation = log.fork([(cut.topic, cut.number, cut.offset) for cut in cuts])
        return ForkedLog(generation, sorted(groups | _set_back(reading, cuts)))


def delete_topics(where: str, kafka_config: Path | None, topics: Collection[str]) -> None:
    """Deletes topics of a Kafka: the tailer creates them again, with all that the table has of them."""
    from txmsg.binlog.mirror.kafka_sink import KafkaSink  # with txmsg[kafka] only

    with closing(KafkaSink(where, kafka_config)) as sink:  # which ends a tailer that still writes
        sink.delete(topics)


def _set_back(log: LogAccess, cuts: Sequence[Divergence]) -> set[str]:
    """Has groups that are further than these offsets go on there; their names."""
    ends = {LogQueue(cut.topic, cut.number): cut.offset for cut in cuts}
    found: set[str] = set()
    for group in log.groups():
        further = {
            state.queue: ends[state.queue]
            for state in log.group(group).queues
            if state.queue in ends and (state.offset or 0) > ends[state.queue]
        }
        if further:
            log.seek(group, further)
            found.add(group)
    return found


class MissingMessages(NamedTuple):
    """Messages that a log lacks and the table has: offsets from `begin` on, up to `end`."""

    topic: str
    queue: int
    begin: int
    end: int
    is_back: bool
    """They stand in the log again. Else it ends at `begin` now, and a tailer takes all from there on."""


def take_again(root: Path, session: Session, name: str) -> list[MissingMessages]:
    """Gives a log back what it lacks and the table has: in its place where there is room, as a repair leaves it.

    Where there is none, the queue ends where the first of it is missing, and a tailer goes on there. Offsets stay what
    they were, so the generation does. Queues that have diverged or cannot be read are left alone, and so is what the
    table has not got any more. Raises LogBusy while the log is written, and MisuseError if there is no such mirror.
    """
    mirrors = TailerMirror(session, name)
    mirror = mirrors.read_row()
    if mirror is None:
        raise MisuseError(f"there is no mirror {name}: `txmsg tailer run` or `txmsg tailer create` creates it")
    found: list[MissingMessages] = []
    with Log(root) as log, open_log(root) as reading:
        sink = LogSink(reading, str(root))
        for compared in list(compare(session, sink, mirrors, table.queues(session, mirror.include, mirror.exclude))):
            if isinstance(compared, Compared) and not compared.is_diverged:
                found += _taken_again(log, session, compared)
    return found


def _taken_again(log: Log, session: Session, compared: Compared) -> Iterator[MissingMessages]:
    queue, log_end = compared.queue, compared.in_log.end
    for begin, end in log.reader.queue(queue.topic, queue.number).holes():
        if begin < queue.begin:
            continue
        if _is_put_back(log, session, queue, begin, end):
            yield MissingMessages(queue.topic, queue.number, begin, end, is_back=True)
        else:
            log.truncate(queue.topic, queue.number, begin)
            yield MissingMessages(queue.topic, queue.number, begin, log_end, is_back=False)
            return


def _is_put_back(log: Log, session: Session, queue: MirroredQueue, begin: int, end: int) -> bool:
    """Whether the messages of a hole are in its place again: it has room for them, compressed as they were."""
    rows: list[TableRow] = []
    size_bytes = 0
    with closing(table.rows(session, queue.id, begin, end)) as in_table:
        for offset, row in in_table:
            size_bytes += len(row.body)
            if offset != begin + len(rows) or size_bytes > _PUT_BACK_SIZE_BYTES_MAX:
                return False
            rows.append(row)
    asked = log.settings_of(queue.topic).compression
    return len(rows) == end - begin and any(
        log.refill(queue.topic, queue.number, begin, encode(columns_of(rows), compression))
        for compression in sorted(Compression, key=lambda codec: codec is not asked)
    )
