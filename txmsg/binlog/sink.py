"""The Protocol of a log that a tailer writes to. Imports no log: txmsg.binlog.mirror implements it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.errors import CorruptLog, InvalidMessage, MisuseError, OffsetOutOfRange, PermissionDenied, ProtocolError
from txmsg.wire.headers import pack_headers, unpack_headers

REFUSALS: Final = (CorruptLog, InvalidMessage, MisuseError, OffsetOutOfRange, PermissionDenied, ValueError)
"""Errors that a log raises because of one queue: its files are damaged, the log cannot store its topic's name or a
message, or the tailer has no right on its topic. Other queues can be written. A failure of the whole log is a
StorageError (a full disk) or BrokerUnavailable."""


class OffsetRange(NamedTuple):
    """The first offset of a queue, and the one after the last."""

    begin: int
    end: int


class MessageFingerprint(NamedTuple):
    """The fields that tell a message from another one at the same offset."""

    offset: int
    transaction_id: bytes
    n: int
    crc: int
    """The result of `content_crc`."""


class QueueTail(NamedTuple):
    """The range of a queue in a log, and its last message.

    range: its begin may be lower than the first message that is kept. None: it had messages, and both they and the
    place where they ended are gone. last: None if there are no messages, or a hole at the end.
    """

    range: OffsetRange | None
    last: MessageFingerprint | None


def content_crc(row: TableRow) -> int:
    """Return a checksum of a message's contents and their lengths: equal for the table and for the log."""
    try:
        # Equal headers may be packed in another way by another client, and a log may keep them one by one.
        headers = pack_headers(unpack_headers(row.headers))
    except ProtocolError:
        headers = row.headers
    crc = 0
    for part in (row.key, row.tag, row.ordering_key, headers, row.body):
        crc = zlib.crc32(part, zlib.crc32(len(part).to_bytes(4, "little"), crc))
    return crc


class MirrorSink(Protocol):
    """A log of queues that one writer appends to."""

    @property
    def name(self) -> str:
        """The name of the log for operators: a path or an address."""
        ...

    @property
    def log_id(self) -> int:
        """The identity of the log, independent of its place: a promoted copy has the same one."""
        ...

    @property
    def generation(self) -> int:
        """The generation of the log; rises when it is forked after a divergence, or when a copy of it is promoted."""
        ...

    @property
    def own_topics(self) -> Sequence[str]:
        """Patterns of topics that the log keeps for itself: topics of the table that match cannot be mirrored."""
        ...

    def tails(self, queues: Sequence[tuple[str, int]]) -> Sequence[QueueTail | Exception]:
        """Return the tail of each of these queues (topic, number), in their order; range 0 to 0 for an empty one.

        A queue whose tail the log cannot determine has one of REFUSALS in its place.
        """
        ...

    def marks(self, topic: str, number: int, begin: int, end: int) -> Iterator[MessageFingerprint]:
        """Yield the fingerprints of messages at these offsets, in order; missing offsets, as in a hole, are
        left out.
        """
        ...

    def append(self, batches: Sequence[RowBatch]) -> None:
        """Append all batches, each at the end of its queue, or none; on disk on return.

        A queue that the log does not have begins at the batch's base offset. Raises StorageError; LogBusy when another
        writer has appended meanwhile.
        """
        ...

    def mark_hole(self, topic: str, number: int, begin: int, end: int) -> None:
        """Record, on disk, that these offsets are missing: the queue continues at `end`."""
        ...

    def close(self) -> None:
        """Release the log for another writer. Closing twice is fine."""
        ...
