"""Mirrors into a MetaQ log, in a directory or at the address of its server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from txmsg.binlog.mirror.rows import columns_of, traced
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.binlog.sink import REFUSALS, MessageFingerprint, OffsetRange, QueueTail, content_crc
from txmsg.errors import LogBusy, MisuseError, OffsetsMissing
from txmsg.metaq.format.frame import Compression, encode, hole
from txmsg.metaq.interface import DEAD_LETTERS, NOTES, RETRIES, LogAccess, LogQueue
from txmsg.metaq.store.log import Append

if TYPE_CHECKING:
    from txmsg.tracing import Tracing

_SETTINGS_S = 10.0


class LogSink:
    """A `Sink` over a log in a directory or at an address. Closing it closes the log."""

    def __init__(self, log: LogAccess, name: str, tracing: Tracing | None = None) -> None:
        self._log = log
        self._tracing = tracing
        self.name = name
        identity = log.identity()
        self.log_id, self.generation = identity.log_id, identity.generation
        self._compressions: dict[str, Compression] = {}
        self._settings_until = 0.0

    @property
    def own_topics(self) -> Sequence[str]:
        return (f"{RETRIES}*", f"{DEAD_LETTERS}*", NOTES)

    def tails(self, queues: Sequence[tuple[str, int]]) -> list[QueueTail | Exception]:
        return [self._tail(topic, number) for topic, number in queues]

    def _tail(self, topic: str, number: int) -> QueueTail | Exception:
        try:
            begin, end = self._range(topic, number)
            mark = next(self.marks(topic, number, end - 1, end), None) if begin < end else None
        except REFUSALS as exc:
            return exc
        return QueueTail(OffsetRange(begin, end), mark)

    def _range(self, topic: str, number: int) -> OffsetRange:
        queue = LogQueue(topic, number)
        return OffsetRange._make(self._log.ranges([queue])[queue])

    def marks(self, topic: str, number: int, begin: int, end: int) -> Iterator[MessageFingerprint]:
        return marks_of(self._log, LogQueue(topic, number), begin, end)

    def append(self, batches: Sequence[RowBatch]) -> None:
        with traced(self._tracing, batches):
            self._append(
                [
                    Append(
                        batch.topic,
                        batch.number,
                        encode(columns_of(batch.rows), self._compression_of(batch.topic)),
                        batch.base_offset,
                        is_mirrored=True,
                    )
                    for batch in batches
                ]
            )

    def _append(self, appends: Sequence[Append]) -> None:
        """Append; on disk on return. Raises LogBusy if another tailer, paused before it lost its turn, appended
        meanwhile.
        """
        try:
            self._log.append(appends)
        except MisuseError as exc:
            # If all ends are as expected, the append itself is invalid. Otherwise another tailer has moved one of them.
            if all(self._range(append.topic, append.queue).end == append.base_offset for append in appends):
                raise
            raise LogBusy(f"something else has appended to the log {self.name}: {exc}") from exc
        # On disk before this returns, because the tailer then confirms the rows, and PostgreSQL forgets them.
        self._log.flush()

    def _compression_of(self, topic: str) -> Compression:
        """Return the topic's compression; a change is noticed within 10 s."""
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


def marks_of(log: LogAccess, queue: LogQueue, begin: int, end: int) -> Iterator[MessageFingerprint]:
    """Yield fingerprints of a queue's messages at these offsets, in order. Missing offsets, as in a hole,
    are left out.
    """
    while begin < end:
        found = log.fetch({queue: begin})
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
                row = TableRow(transaction_id, n, texts[0], texts[1], headers or b"", body, 0, 0, texts[2])
                yield MessageFingerprint(offset, transaction_id, n, content_crc(row))
            begin = batch.end_offset
