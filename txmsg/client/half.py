"""Half messages as the flows see them: the value between half and outcome, and what a producer does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from txmsg.checker.fence import Fence
from txmsg.checker.listener import CheckMessageListener
from txmsg.errors import MisuseError, shown
from txmsg.message import Message, TransactionId, TransactionState

__all__ = ["AsyncHalves", "Half", "Halves", "check_half", "id_bytes_of"]


class Half(NamedTuple):
    """A transaction whose half messages are on disk and whose outcome is still to be told.

    shard is the Notify database that holds them. One is made per transaction on the hot path: hence a NamedTuple, and
    the id as bytes, of which a UUID is made when somebody asks for it.
    """

    id_bytes: bytes
    shard: bytes

    @property
    def transaction_id(self) -> TransactionId:
        """The id of the transaction, and with `message_id` those of its messages."""
        return TransactionId(UUID(bytes=self.id_bytes))


def id_bytes_of(transaction_id: object) -> bytes:
    """The 16 bytes of a transaction id. Raises MisuseError for anything else."""
    id_bytes = getattr(transaction_id, "bytes", None)
    if not isinstance(id_bytes, bytes) or len(id_bytes) != 16:
        raise MisuseError(f"transaction_id {shown(transaction_id)} is no UUID: give new_transaction_id(), or none")
    return id_bytes


def check_half(half: object) -> Half:
    """`half` if it is one; else MisuseError."""
    if not isinstance(half, Half):
        raise MisuseError(f"{shown(half)} is no Half: give what producer.half() returned")
    return half


class Halves(Protocol):
    """Stores half messages and tells outcomes: what the flows need of a `Producer`, where the contracts stand."""

    @property
    def check_listener(self) -> CheckMessageListener | None: ...
    @property
    def fence(self) -> Fence | None: ...
    def half(self, messages: Sequence[Message], *, transaction_id: TransactionId | None = None) -> Half: ...
    def end(self, half: Half, state: TransactionState, *, timeout_s: float | None = None) -> None: ...
    def end_soon(self, half: Half, state: TransactionState) -> None: ...


class AsyncHalves(Protocol):
    """The same of an `AsyncProducer`."""

    @property
    def check_listener(self) -> CheckMessageListener | None: ...
    @property
    def fence(self) -> Fence | None: ...
    async def half(self, messages: Sequence[Message], *, transaction_id: TransactionId | None = None) -> Half: ...
    async def end(self, half: Half, state: TransactionState, *, timeout_s: float | None = None) -> None: ...
    def end_soon(self, half: Half, state: TransactionState) -> None: ...
