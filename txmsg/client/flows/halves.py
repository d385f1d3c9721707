# Generated from halves_async.py by `make generate`: change that one.

"""The interface of producers that the flows need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from txmsg.checker.fence import Fence
from txmsg.checker.listener import CheckMessageListener
from txmsg.client.sending.begun import BegunHalf
from txmsg.client.sending.half import Half
from txmsg.client.sending.unreported import UnreportedOutcomes
from txmsg.message import Message, TransactionId, TransactionState

if TYPE_CHECKING:
    from txmsg.client.outbox.state import OutboxState
    from txmsg.tracing import Tracing


class HalfSender(Protocol):
    """Stores half messages and tells outcomes. The contracts are those of `Producer`."""

    @property
    def check_listener(self) -> CheckMessageListener | None: ...
    @property
    def fence(self) -> Fence | None: ...
    @property
    def tracing(self) -> Tracing | None: ...
    @property
    def _is_sharded(self) -> bool: ...
    @property
    def _untold(self) -> UnreportedOutcomes: ...
    def half(self, messages: Sequence[Message], *, transaction_id: TransactionId | None = None) -> Half: ...
    def _half(
        self,
        messages: Sequence[Message],
        transaction_id: TransactionId | None,
        *,
        carry_context: bool,
        wait_s: float | None = None,
    ) -> Half: ...
    def _begin_half(self, messages: Sequence[Message], transaction_id: TransactionId | None = None) -> BegunHalf: ...
    def end(self, half: Half, state: TransactionState, *, timeout_s: float | None = None) -> None: ...
    def _end_soon(self, half: Half, state: TransactionState) -> None: ...


class OutboxHalfSender(HalfSender, Protocol):
    """The same of a producer that has an outbox."""

    @property
    def group(self) -> str: ...
    @property
    def _outbox(self) -> OutboxState: ...
    def _as_sent(self, messages: Sequence[Message]) -> Sequence[Message]: ...
