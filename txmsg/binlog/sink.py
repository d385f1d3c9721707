"""What the tailer needs of a log, as a Protocol. Knows no log: who joins both implements it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.errors import CorruptLog, InvalidMessage, MisuseError, OffsetOutOfRange, PermissionDenied, ProtocolError
from txmsg.wire.headers import pack_headers, unpack_headers

REFUSALS: Final = (CorruptLog, InvalidMessage, MisuseError, OffsetOutOfRange, PermissionDenied, ValueError)
"""What a log raises because of one queue: its files are damaged, its topic's name or a message cannot be kept, or the
tailer has no right on its topic. Others can be written all the same. What is wrong with the whole log is a StorageError
(a full disk), or BrokerUnavailable."""


class OffsetRange(NamedTuple):
    """The first offset of a queue, and the one after the last."""

    begin: int
    end: int


class MessageFingerprint(NamedTuple):
    """What tells a message from another one at the same offset."""

    offset: int
    transaction_id: bytes
    n: int
    crc: int
    """See content_crc."""


class QueueTail(NamedTuple):
    """What a log has of a queue, and its last message.

    range: its begin may be lower than the first message that is kept. None: it had messages, and both they and the
    place where they ended are gone. last: None if there are no messages, or a hole at the end.
    """

    range: OffsetRange | None
    last: MessageFingerprint | None


def content_crc(row: TableRow) -> int:
    """A checksum of what a message holds, with the length of each part: the same from the table and from the log."""
    try:
        # Equal headers may be packed in another way by somebody else's client, and a log may keep them one by one.
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
        """Its name for operators: a path or an address."""
        ...

    @property
    def log_id(self) -> int:
        """Tells it from other logs, wherever it is: a copy that was promoted has it, too."""
        ...

    @property
    def generation(self) -> int:
        """Rises when the log goes on after it has diverged from the table, or when a copy of it was promoted."""
        ...

    @property
    def own_topics(self) -> Sequence[str]:
        """Patterns of the topics that it keeps for itself: those of the table that fit cannot be mirrored."""
        ...

    def tails(self, queues: Sequence[tuple[str, int]]) -> Sequence[QueueTail | Exception]:
        """Where each of these queues (topic, number) ends in the log, in their order; 0 to 0 if it has nothing.

        One of REFUSALS in the place of a queue of which the log cannot say that.
        """
        ...

    def marks(self, topic: str, number: int, begin: int, end: int) -> Iterator[MessageFingerprint]:
        """What the log has at these offsets, in order; what is missing, as in a hole, is left out."""
        ...

    def append(self, batches: Sequence[RowBatch]) -> None:
        """Appends all, each where its queue ends, or none; on disk when this returns.

        A queue of which the log has nothing begins at the first offset it is given. StorageError; LogBusy when another
        writer has appended meanwhile.
        """
        ...

    def mark_hole(self, topic: str, number: int, begin: int, end: int) -> None:
        """Notes, on disk, that these offsets are gone: the queue goes on at `end`."""
        ...

    def close(self) -> None:
        """Lets another process write. Closing twice is fine."""
        ...
