"""Frames where they are to stand, before they are written: with each its queue, its cell, and the offset after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from txmsg.errors import MisuseError
from txmsg.metaq.format.frame import HOLES, Buffer, Payload, header_crc_of, hole_end_of, pack
from txmsg.metaq.store.cells import Cell
from txmsg.metaq.store.commit_log import CommitLogWriter
from txmsg.metaq.store.queues import QueueEnd, Queues
from txmsg.metaq.store.state import Identity

__all__ = ["Append", "Placed", "packed"]


class Append(NamedTuple):
    """A batch for one queue. base_offset: where it must begin, or None: at the queue's end.

    A queue that nothing was ever appended to begins at base_offset. is_mirrored: the messages stand elsewhere under
    these offsets, and whoever appends them does so again when a power cut has taken them.
    """

    topic: str
    queue: int
    payload: Payload
    base_offset: int | None = None
    is_mirrored: bool = False


Placed: TypeAlias = tuple[QueueEnd, Cell, int]
"""A frame that was placed: its queue, its cell, and the offset after it."""


def packed(
    appends: Sequence[Append], queues: Queues, writer: CommitLogWriter, identity: Identity
) -> tuple[list[Buffer], list[Placed], int]:
    """The frames as they will stand at the end of the log, in parts, and their size. Moves nothing yet.

    Raises MisuseError for a base_offset that is not the queue's end, and as `Queues.of`.
    """
    parts: list[Buffer] = []
    placed: list[Placed] = []
    ends: dict[QueueEnd, int] = {}
    position = writer.end
    for topic, number, payload, base_offset, _ in appends:
        queue = queues.of(topic, number)
        at = ends.get(queue, queue.end)
        if base_offset is not None and base_offset != at:
            if not queue.is_new or queue in ends:
                raise MisuseError(
                    f"offset {base_offset} of topic {topic} queue {number}: the next one is {at}; nothing was appended"
                )
            at = base_offset
        frame = pack(
            payload,
            queue.name,
            number,
            at,
            position=position,
            log_id=identity.log_id,
            synced=writer.synced,
            generation=identity.generation,
        )
        parts += frame
        size = sum(map(len, frame))
        crc = header_crc_of(frame)
        end = hole_end_of(payload) if payload.kind in HOLES else at + payload.count
        placed.append((queue, Cell(at, position, size, payload.count, payload.last_stored_at_us, crc), end))
        ends[queue] = end
        position += size
    return parts, placed, position - writer.end
