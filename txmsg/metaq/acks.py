"""The levels that a sender can wait for, and what each guarantees; defined only here."""

from __future__ import annotations

from enum import StrEnum

from txmsg.metaq.store.topics import Flush


class Acks(StrEnum):
    """The guarantee when an append returns. Each level includes the previous ones."""

    NONE = "none"
    """The server has received the messages. Later failures, such as a full disk, are counted there and not reported."""
    MEMORY = "memory"
    """They have their offsets, in the memory of the log's machine. Survives a crash of the server; a power cut loses
    up to `flush_s` of them."""
    DISK = "disk"
    """They are on the disk of the log, and can be read. Survives a power cut."""
    COPIES = "copies"
    """They are also on the disks of as many copies as the server requires. Survives the loss of the log's machine."""

    @property
    def flush(self) -> Flush:
        """The flush mode that the log itself needs for it."""
        return Flush.TIMED if self in {Acks.NONE, Acks.MEMORY} else Flush.SYNC
