"""Logs for tests: small batches whose contents state their position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from txmsg.errors import OffsetsMissing
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import Compression, FrameColumns, encode
from txmsg.metaq.interface import Fetched, LogAccess, LogQueue
from txmsg.metaq.store.log import Append, Log
from txmsg.metaq.store.reader import LogReader, QueueReader


def bodies(topic: str, queue: int, start: int, count: int) -> list[bytes]:
    """Return the expected bodies of a queue, by offset."""
    return [f"{topic}/{queue}/{offset}".encode() for offset in range(start, start + count)]


def batch(
    topic: str, queue: int, start: int, count: int, *, compression: Compression = Compression.NONE, at_us: int = 1
) -> Append:
    """Return messages from this offset on."""
    return Append(topic, queue, encode(FrameColumns(bodies(topic, queue, start, count), [at_us]), compression), start)


def frames(fetched: Fetched) -> list[FrameBatch]:
    """Return the fetched frames of a log."""
    return [batch for batch in fetched.batches if isinstance(batch, FrameBatch)]


def fill(log: Log, topic: str, queue: int, counts: Sequence[int]) -> int:
    """Append batches of these sizes at the queue's end; return the offset after them."""
    offset = log.reader.queue(topic, queue).end_offset()
    for count in counts:
        log.append([batch(topic, queue, offset, count)])
        offset += count
    return offset


def append(log: LogAccess, topic: str, queue: int, count: int, *, at_us: int = 1, tags: list[str] | None = None) -> int:
    """Append a batch at the queue's end, in any kind of log; return the offset after it."""
    at = LogQueue(topic, queue)
    offset = log.ranges([at])[at].end
    columns = FrameColumns(bodies(topic, queue, offset, count), [at_us], tag=tags or [])
    assert log.append([Append(topic, queue, encode(columns))]) == [offset]
    return offset + count


def append_compressible(log: LogAccess, topic: str, frames: int, *, size_bytes: int = 1024 * 1024) -> None:
    """Append frames of this size to queue 0, with two messages each, that compress to a thousandth."""
    columns = FrameColumns([b"x" * (size_bytes // 2)] * 2, [1])
    for _ in range(frames):
        log.append([Append(topic, 0, encode(columns, Compression.ZSTD))])


def read_all(queue: QueueReader) -> list[bytes]:
    """Return all bodies of a queue, read to its end."""
    offset, end = queue.range()
    found: list[bytes] = []
    while offset < end:
        for each in queue.fetch(offset, size_bytes_max=300):
            assert each.base_offset == offset, "a batch that was not asked for"
            found += each.to_arrow()["body"].to_pylist()
            offset = each.end_offset
    assert queue.fetch(offset) == []
    return found


def read_around(queue: QueueReader) -> dict[int, bytes]:
    """Return the same by offset, without the reported holes."""
    offset, end = queue.range()
    found: dict[int, bytes] = {}
    while offset < end:
        try:
            batches = queue.fetch(offset, size_bytes_max=300)
        except OffsetsMissing as exc:
            offset = exc.end
            continue
        found |= {message.offset or 0: message.body for each in batches for message in each.messages()}
        offset = batches[-1].end_offset
    return found


def readable(root: Path, topic: str, queue: int) -> list[bytes]:
    """Return the same by a new reader."""
    return read_all(LogReader(root).queue(topic, queue))
