"""The replies to a fetch: frames as they were found, in sizes that fit the wire. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from txmsg.metaq.format.batch import FrameBatch
from txmsg.metaq.format.frame import Buffer, Header
from txmsg.metaq.interface import Fetched, LogQueue
from txmsg.metaq.protocol import PIECE_SIZE_BYTES, log_error_of
from txmsg.wire.frames import PART_SIZE_BYTES
from txmsg.wire.v1 import metaq_pb2 as pb

_REPLY_SIZE_BYTES_MAX: Final = PART_SIZE_BYTES - 1024
"""Bytes of frames in a reply, besides the names of their queues."""


class FramePart(NamedTuple):
    """A part of a frame that is large: its position in the log."""

    topic: str
    position: int
    size_bytes: int


class FetchedReply:
    """The contents of one reply: whole frames, as they were read and verified; or a part of a frame that is large."""

    def __init__(self) -> None:
        self.head = pb.FetchHead()
        self.frames: list[Buffer] = []
        self.part: FramePart | None = None
        """The part to send; it is read again when it is sent."""
        self.size_bytes = 0


def replies_of(found: Sequence[Fetched], places: Mapping[LogQueue, int]) -> list[FetchedReply]:
    """Return the replies for the frames that were found, each within a frame of the protocol, so that none is
    reassembled.
    """
    replies = [FetchedReply()]
    for fetched in found:
        at, frames = places[fetched.queue], None
        if fetched.error is not None:
            replies[-1].head.fetched.add(at=at, error=log_error_of(fetched.error))
        for batch in fetched.batches:
            assert isinstance(batch, FrameBatch)  # a server's log is in a directory
            size_bytes = batch.size_bytes
            if size_bytes > PIECE_SIZE_BYTES:
                replies += [*_parts_of(at, batch.header), FetchedReply()]
                frames = None
                continue
            if replies[-1].size_bytes + size_bytes > _REPLY_SIZE_BYTES_MAX and replies[-1].size_bytes:
                replies.append(FetchedReply())
                frames = None
            reply = replies[-1]
            frames = frames or reply.head.fetched.add(at=at)
            frames.size += size_bytes
            reply.frames.append(batch.frame)
            reply.size_bytes += size_bytes
    return [reply for reply in replies if reply.head.fetched]


def _parts_of(at: int, header: Header) -> Iterator[FetchedReply]:
    """Return a frame in parts, of which one at a time is kept in memory."""
    for position in range(header.position, header.end, PIECE_SIZE_BYTES):
        reply = FetchedReply()
        reply.size_bytes = min(PIECE_SIZE_BYTES, header.end - position)
        reply.part = FramePart(header.topic, position, reply.size_bytes)
        reply.head.fetched.add(at=at, size=reply.size_bytes, goes_on=position + reply.size_bytes < header.end)
        yield reply


def wanted_after(wanted: Mapping[LogQueue, int], found: Sequence[Fetched]) -> dict[LogQueue, int]:
    """Return the queues and offsets wanted after these results. A queue with an error is not continued."""
    ends = {fetched.queue: fetched.batches[-1].end_offset for fetched in found if fetched.batches}
    failed = {fetched.queue for fetched in found} - ends.keys()
    return {queue: ends.get(queue, offset) for queue, offset in wanted.items() if queue not in failed}
