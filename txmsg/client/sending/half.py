"""The value that connects half messages with their outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from txmsg.errors import MisuseError, shown
from txmsg.message import TransactionId

if TYPE_CHECKING:
    from txmsg.tracing.sending import SendSpan, Unsampled


class Half(NamedTuple):
    """A transaction whose half messages are on disk and whose outcome is not reported yet.

    shard is the Notify database that holds them. One is created per transaction on the hot path: hence a NamedTuple,
    and the id as bytes, converted to a UUID on demand.
    """

    id_bytes: bytes
    shard: bytes
    trace: SendSpan | Unsampled | None = None
    """Makes the spans of the transaction; None if the producer does not trace."""

    @property
    def transaction_id(self) -> TransactionId:
        """The id of the transaction, and with `message_id` those of its messages."""
        return TransactionId(UUID(bytes=self.id_bytes))


def id_bytes_of(transaction_id: object) -> bytes:
    """Return the 16 bytes of a transaction id. Raises MisuseError for anything else."""
    id_bytes = getattr(transaction_id, "bytes", None)
    if not isinstance(id_bytes, bytes) or len(id_bytes) != 16:
        raise MisuseError(f"transaction_id {shown(transaction_id)} is not a UUID: give new_transaction_id(), or none")
    return id_bytes


def check_half(half: object) -> Half:
    """Return `half` if it is a Half. Raises MisuseError."""
    if not isinstance(half, Half):
        raise MisuseError(f"{shown(half)} is not a Half: give what producer.half() returned")
    return half
