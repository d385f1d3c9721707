"""Joins the tailer and the log, which do not know each other: a MetaQ log as what the tailer writes to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from txmsg.binlog import table
from txmsg.binlog.comparing import Compared, Divergence, compare
from txmsg.binlog.database import Session
from txmsg.binlog.mirrors import Mirrors
from txmsg.binlog.rows import EPOCH_2000_US, Batch, Row
from txmsg.binlog.sink import Mark, OffsetRange, content_crc
from txmsg.binlog.table import TableQueue
from txmsg.errors import LogBusy, MisuseError, OffsetsMissing
from txmsg.metaq.access import DEAD_LETTERS, NOTES, RETRIES, LogAccess, LogQueue
from txmsg.metaq.format.frame import Columns, Compression, Payload, encode, hole
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Append, Log

if TYPE_CHECKING:
    from txmsg.tracing import Tracing

_SETTINGS_S = 10.0
_PUT_BACK_SIZE_BYTES_MAX = 64 * 1024 * 1024


def open_sink(where: str, tracing: Tracing | None = None) -> LogSink:
    """The log in a directory, made when missing, or at an address. Raises LogBusy when another process writes it.

    tracing: traces the appends that have traced messages.
    """
    log = open_log(where, append=True)
    try:
        return LogSink(log, where, tracing)
    except BaseException:  # as while a server is away: this is tried again and again
        log.close()
        raise


class LogSink:
    """A `Sink` over a log in a directory or at an address. Closing it closes the log."""

    def __init__(self, log: LogAccess, name: str, tracing: Tracing | None = None) -> None:
        self._log = log
        self._tracing = tracing
        self.name = name
        self.generation = log.identity().generation
        self._compressions: dict[str, Compression] = {}
        self._settings_until = 0.0

    @property
    def own_topics(self) -> Sequence[str]:
        return (f"{RETRIES}*", f"{DEAD_LETTERS}*", NOTES)

    def range(self, topic: str, number: int) -> OffsetRange:
        queue = LogQueue(topic, number)
        return OffsetRange._make(self._log.ranges([queue])[queue])

    def marks(self, topic: str, number: int, begin: int, end: int) -> Iterator[Mark]:
        queue = LogQueue(topic, number)
        while begin < end:
            found = self._log.fetch({queue: begin})
            if not found:
                return
            error = found[0].error
            if isinstance(error, OffsetsMissing):
                begin = error.end
                continue
            if error is not None:
                raise error
            for batch in found[0].batches:
                names = ("offset", "transaction_id", "n", "key", "tag", "headers", "body", "ordering_key")
                arrow = batch.to_arrow().slice(0, max(0, end - batch.base_offset))
                columns = (arrow[name].to_pylist() for name in names)
                for offset, transaction_id, n, key, tag, headers, body, ordering_key in zip(*columns, strict=True):
                    texts = [(text or "").encode() for text in (key, tag, ordering_key)]
                    row = Row(transaction_id, n, texts[0], texts[1], headers or b"", body, 0, 0, texts[2])
                    yield Mark(offset, transaction_id, n, content_crc(row))
                begin = batch.end_offset

    def append(self, batches: Sequence[Batch]) -> None:
        with self._traced(batches):
            self._append(
                [
                    Append(topic, number, _payload(rows, self._compression_of(topic)), base_offset, is_mirrored=True)
                    for topic, number, base_offset, rows in batches
                ]
            )

    def _traced(self, batches: Sequence[Batch]) -> AbstractContextManager[object]:
        if self._tracing is None:
            return nullcontext()
        headers = (row.headers for batch in batches for row in batch.rows)
        count = sum(len(batch.rows) for batch in batches)
        return self._tracing.mirroring({batch.topic for batch in batches}, count, headers)

    def _append(self, appends: Sequence[Append]) -> None:
        """On disk on return. At an address another tailer may come between, which was paused and has lost its turn."""
        try:
            self._log.append(appends)
        except MisuseError as exc:
            if all(self.range(append.topic, append.queue).end == append.base_offset for append in appends):
                raise
            raise LogBusy(f"something else has appended to the log {self.name}: {exc}") from exc
        self._log.flush()

    def _compression_of(self, topic: str) -> Compression:
        """What the topic asks for; a change is seen some seconds later."""
        now = time.monotonic()
        if now > self._settings_until:
            self._compressions, self._settings_until = {}, now + _SETTINGS_S
        found = self._compressions.get(topic)
        if found is None:
            found = self._compressions[topic] = self._log.settings_of(topic).compression
        return found

    def mark_hole(self, topic: str, number: int, begin: int, end: int) -> None:
        self._append([Append(topic, number, hole(end, time.time_ns() // 1000), begin, is_mirrored=True)])

    def close(self) -> None:
        self._log.close()


class Forked(NamedTuple):
    """A log that goes on. groups: those that were further than it is now, and were set back."""

    generation: int
    groups: Sequence[str]


def fork_log(root: Path, cuts: Sequence[Divergence]) -> Forked:
    """Continues a log under a new generation, from where it and the table differ.

    What it has from there on is not served any more; the table's messages come in its place when the tailer runs. So
    groups that were further are set back, or they would go past these: before the log is cut, because it would
    not be done after a crash; and after it, because members may be running.
    """
    with Log(root) as log, open_log(root) as reading:
        groups = _set_back(reading, cuts)
        generation = log.fork([(cut.topic, cut.number, cut.offset) for cut in cuts])
        return Forked(generation, sorted(groups | _set_back(reading, cuts)))


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


class Missing(NamedTuple):
    """Messages that a log lacks and the table has: offsets from `begin` on, up to `end`."""

    topic: str
    queue: int
    begin: int
    end: int
    is_back: bool
    """They stand in the log again. Else it ends at `begin` now, and a tailer takes all from there on."""


def take_again(root: Path, session: Session, name: str) -> list[Missing]:
    """Gives a log back what it lacks and the table has: in its place where there is room, as a repair leaves it.

    Where there is none, the queue ends where the first of it is missing, and a tailer goes on there. Offsets stay what
    they were, so the generation does. Queues that have diverged or cannot be read are left alone, and so is what the
    table has not got any more. Raises LogBusy while the log is written, and MisuseError if there is no such mirror.
    """
    mirror = Mirrors(session, name).look()
    if mirror is None:
        raise MisuseError(f"there is no mirror {name}: `txmsg tailer run` or `txmsg tailer create` creates it")
    found: list[Missing] = []
    with Log(root) as log, open_log(root) as reading:
        sink = LogSink(reading, str(root))
        for compared in list(compare(session, sink, table.queues(session, mirror.include, mirror.exclude))):
            if isinstance(compared, Compared) and not compared.is_diverged:
                found += _taken_again(log, session, compared)
    return found


def _taken_again(log: Log, session: Session, compared: Compared) -> Iterator[Missing]:
    queue, log_end = compared.queue, compared.in_log.end
    for begin, end in log.reader.queue(queue.topic, queue.number).holes():
        if begin < queue.begin:
            continue
        if _is_put_back(log, session, queue, begin, end):
            yield Missing(queue.topic, queue.number, begin, end, is_back=True)
        else:
            log.truncate(queue.topic, queue.number, begin)
            yield Missing(queue.topic, queue.number, begin, log_end, is_back=False)
            return


def _is_put_back(log: Log, session: Session, queue: TableQueue, begin: int, end: int) -> bool:
    """Whether the messages of a hole are in its place again: it has room for them, compressed as they were."""
    rows: list[Row] = []
    size_bytes = 0
    with closing(table.rows(session, queue.id, begin, end)) as in_table:
        for offset, row in in_table:
            size_bytes += len(row.body)
            if offset != begin + len(rows) or size_bytes > _PUT_BACK_SIZE_BYTES_MAX:
                return False
            rows.append(row)
    asked = log.settings_of(queue.topic).compression
    return len(rows) == end - begin and any(
        log.refill(queue.topic, queue.number, begin, _payload(rows, compression))
        for compression in sorted(Compression, key=lambda codec: codec is not asked)
    )


def _payload(rows: Sequence[Row], compression: Compression) -> Payload:
    ids, n, keys, tags, headers, bodies, born_at, stored_at, ordering_keys = zip(*rows, strict=True)
    return encode(
        Columns(
            bodies=bodies,
            stored_at_us=[us + EPOCH_2000_US for us in stored_at],
            transaction_ids=b"".join(ids),
            n=n,
            born_at_us=[us + EPOCH_2000_US for us in born_at],
            keys=_texts(keys),
            tags=_texts(tags),
            headers=headers,
            ordering_keys=_texts(ordering_keys),
        ),
        compression,
    )


def _texts(values: tuple[bytes, ...]) -> Sequence[str]:
    return [value.decode() for value in values] if any(values) else ()
