"""Checks that offsets noted under one generation of a log name the same messages under a later one.

They do after a promotion if the frame before an offset was written under the noted generation, or an earlier one: all
copies of the log that have such a frame have the same one.
"""

from __future__ import annotations

from collections.abc import Mapping

from txmsg.errors import BrokerUnavailable, MisuseError, OffsetsMissing
from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.interface import LogAccess, LogQueue, QueueRange
from txmsg.metaq.store.state import LogIdentity
from txmsg.spark.options import ReadOptions


def require_continued(
    log: LogAccess, options: ReadOptions, noted: LogIdentity, found: LogIdentity, offsets: Mapping[LogQueue, int]
) -> None:
    """Raise MisuseError if a later generation of the log may have other messages before these offsets.

    noted: the identity of the log when they were noted. found: its identity now, of the same or a later generation.
    """
    if found.generation in (noted.generation, options.accept_generation):
        return
    ranges = log.ranges(list(offsets))
    for queue, offset in offsets.items():
        kept = ranges.get(queue)  # None: its topic was deleted
        if kept is not None and not _is_continued(log, queue, offset, kept, noted.generation):
            raise MisuseError(
                f"the checkpoint is of generation {noted.generation} of the log, and {options.where} is generation "
                f"{found.generation}, which does not show that it has the messages of topic {queue.topic} queue "
                f"{queue.queue} before offset {offset} that were read: if a promotion began it, go on by the option "
                f"acceptGeneration={found.generation}; after `txmsg tailer fork`, where offsets name other messages, "
                "start with another checkpointLocation"
            )


def _is_continued(log: LogAccess, queue: LogQueue, offset: int, kept: QueueRange, generation: int) -> bool:
    if offset == 0:
        return True
    if offset > kept.end:
        return False
    if kept.begin == kept.end:
        return True  # all were deleted: what was not read of them is told as lost
    # If the one before it was deleted, the first that is kept tells as much.
    at = min(max(offset - 1, kept.begin), kept.end - 1)
    found = log.fetch({queue: at}, size_bytes_max=1)
    if not found:
        raise BrokerUnavailable(f"topic {queue.topic} queue {queue.queue} cannot be read yet: start the query again")
    error = found[0].error
    if isinstance(error, OffsetsMissing):  # what is before a hole tells as much
        return error.begin > kept.begin and _is_continued(log, queue, error.begin, kept, generation)
    if error is not None:
        raise error
    first = found[0].batches[0]
    return isinstance(first, FrameBatch) and first.header.generation <= generation
