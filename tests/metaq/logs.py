"""Logs for tests: small batches with contents that say where they belong."""

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
    """What the messages of a queue hold, by offset."""
    return [f"{topic}/{queue}/{offset}".encode() for offset in range(start, start + count)]


def batch(
    topic: str, queue: int, start: int, count: int, *, compression: Compression = Compression.NONE, at_us: int = 1
) -> Append:
    """Messages from this offset on."""
    return Append(topic, queue, encode(FrameColumns(bodies(topic, queue, start, count), [at_us]), compression), start)


def frames(fetched: Fetched) -> list[FrameBatch]:
    """What was fetched, of a log that has it in frames."""
    return [batch for batch in fetched.batches if isinstance(batch, FrameBatch)]


def fill(log: Log, topic: str, queue: int, counts: Sequence[int]) -> int:
    """Appends batches of these sizes at the queue's end; returns the offset after them."""
    offset = log.reader.queue(topic, queue).end_offset()
    for count in counts:
        log.append([batch(topic, queue, offset, count)])
        offset += count
    return offset


def append(log: LogAccess, topic: str, queue: int, count: int, *, at_us: int = 1, tags: list[str] | None = None) -> int:
    """Appends a batch at the queue's end, wherever the log is; returns the offset after it."""
    at = LogQueue(topic, queue)
    offset = log.ranges([at])[at].end
    columns = FrameColumns(bodies(topic, queue, offset, count), [at_us], tag=tags or [])
    assert log.append([Append(topic, queue, encode(columns))]) == [offset]
    return offset + count


def append_compressible(log: LogAccess, topic: str, frames: int, *, size_bytes: int = 1024 * 1024) -> None:
    """Appends frames of this size to queue 0, with two messages each, that are stored as a thousandth of it."""
    columns = FrameColumns([b"x" * (size_bytes // 2)] * 2, [1])
    for _ in range(frames):
        log.append([Append(topic, 0, encode(columns, Compression.ZSTD))])


def read_all(queue: QueueReader) -> list[bytes]:
    """All bodies of a queue that are kept, read to its end."""
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
    """The same by offset, without what the log says is missing."""
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
    """The same by a reader that is new."""
    return read_all(LogReader(root).queue(topic, queue))
