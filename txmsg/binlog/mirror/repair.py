"""Repairs a log by the table that it mirrors: after a divergence, or after damage."""

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
    """A log that was continued. groups: those that were further than its new end, and were set back."""

    generation: int
    groups: Sequence[str]


def fork_log(root: Path, cuts: Sequence[Divergence]) -> ForkedLog:
    """Continue a log under a new generation, from the offset where it and the table differ.

    Its messages from there on are no longer served; the tailer appends the table's in their place. Groups that were
    further are set back, or they would skip these: before the cut, because after a crash it would not be done; and
    again after the cut, because members may be running.
    """
    with Log(root) as log, open_log(root) as reading:
        groups = _set_back(reading, cuts)
        generation = log.fork([(cut.topic, cut.number, cut.offset) for cut in cuts])
        return ForkedLog(generation, sorted(groups | _set_back(reading, cuts)))


def delete_topics(where: str, kafka_config: Path | None, topics: Collection[str]) -> None:
    """Delete topics of a Kafka: the tailer recreates them from the table."""
    from txmsg.binlog.mirror.kafka_sink import KafkaSink  # with txmsg[kafka] only

    with closing(KafkaSink(where, kafka_config)) as sink:  # which ends a tailer that still writes
        sink.delete(topics)


def _set_back(log: LogAccess, cuts: Sequence[Divergence]) -> set[str]:
    """Set groups that are further than these offsets back to them. Returns the groups' names."""
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
    """Messages of the table that a log lacks: offsets from `begin` up to, and without, `end`."""

    topic: str
    queue: int
    begin: int
    end: int
    is_back: bool
    """True if the log has them again; otherwise it now ends at `begin`, and a tailer continues from there."""


def take_again(root: Path, session: Session, name: str) -> list[MissingMessages]:
    """Give a log the messages that it lacks and the table has: in their place where there is room, as a repair leaves
    it.

    Where there is no room, the queue is cut at the first missing message, and a tailer continues there. Offsets do not
    change, so the generation does not either. Diverged and unreadable queues are left alone, and so are messages that
    the table has dropped. Raises LogBusy while another process writes the log, and MisuseError for an unknown mirror.
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
    """Return True if the messages of a hole are back in their place: it has room for them under some compression."""
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
