"""Reads a task's messages, on an executor: from a directory or a server, in Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from txmsg.errors import MisuseError, OffsetOutOfRange
from txmsg.metaq.format.batch import LogBatch, in_pieces
from txmsg.metaq.interface import LogAccess, offset_after
from txmsg.metaq.location import open_log
from txmsg.metaq.store.state import LogIdentity
from txmsg.spark.columns import ArrowColumns
from txmsg.spark.generations import require_continued
from txmsg.spark.options import ReadOptions
from txmsg.spark.tasks import QueuePart

_FETCHED_FIRST_BYTES = 512 * 1024
_FETCHED_BYTES_MAX = 8 * 1024 * 1024


class Task(InputPartition):
    """The parts of queues that one task reads, with the identity of their log."""

    def __init__(self, parts: tuple[QueuePart, ...], identity: LogIdentity) -> None:
        super().__init__(parts)
        self.parts = parts
        self.identity = identity


def read_task(task: InputPartition, options: ReadOptions, columns: ArrowColumns) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task's parts, in order within each.

    Raises OffsetOutOfRange when some are gone, CorruptLog.
    """
    if not isinstance(task, Task):
        return  # Spark's stand-in for no partitions at all
    with open_log(options.where) as log:
        found = log.identity()
        if found.log_id != task.identity.log_id or found.generation < task.identity.generation:
            raise MisuseError(
                f"{options.where} is generation {found.generation} of log {found.log_id:x} here, and the read was "
                f"planned for generation {task.identity.generation} of log {task.identity.log_id:x}: all executors "
                "must see the same directory, or use the option server"
            )
        require_continued(log, options, task.identity, found, {part.queue: part.end for part in task.parts})
        yield from read_parts(log, task.parts, options, columns)


def read_parts(
    log: LogAccess, parts: Iterable[QueuePart], options: ReadOptions, columns: ArrowColumns
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of these parts, in order within each.

    Raises OffsetOutOfRange when some are gone, CorruptLog.
    """
    keys = None
    if options.body_keys:
        from txmsg.wire.body_keys import BodyKeys  # loads a client of brokers, which others do not need

        keys = BodyKeys(options.body_keys)
    for part in parts:
        for batches in _fetched(log, part, options):
            for piece in in_pieces(batches):
                yield columns.of(part.queue, piece, part.end, keys)


def _fetched(log: LogAccess, part: QueuePart, options: ReadOptions) -> Iterator[tuple[LogBatch, ...]]:
    """Yield batches from a part's begin on; the last one may extend past its end."""
    offset, size_bytes = part.begin, _FETCHED_FIRST_BYTES
    while offset < part.end:
        found = log.fetch({part.queue: offset}, size_bytes_max=size_bytes)
        # Small at first, since a part may have a few messages only; doubled, so that a large part takes few fetches.
        size_bytes = min(2 * size_bytes, _FETCHED_BYTES_MAX)
        if not found:
            options.report_loss(part.queue, offset, part.end, "the log has lost them since the read was planned")
            return
        error = found[0].error
        if error is None:
            yield tuple(batch for batch in found[0].batches if batch.base_offset < part.end)
            offset = found[0].batches[-1].end_offset
            continue
        following = offset_after(error, offset)
        if following is None and not isinstance(error, OffsetOutOfRange):
            raise error
        on = part.end if following is None else min(following, part.end)
        options.report_loss(part.queue, offset, on, str(error))
        offset = on
