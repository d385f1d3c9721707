"""Half messages that are on their way while their local transaction works; it commits when they are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from txmsg.client.sending.batch import SendEntry
from txmsg.client.sending.half import Half
from txmsg.client.sending.sender import half_unavailable
from txmsg.client.sending.thread_lane import ThreadWaiter, wait_for
from txmsg.errors import OutcomeUnknown
from txmsg.message import TransactionId

if TYPE_CHECKING:
    from txmsg.tracing.sending import SendSpan, Unsampled


class _Begun:
    """The common part of both kinds. half: None until the half messages are known to be stored.

    leave: called if the transaction does not commit; if the half messages are stored all the same, the broker checks
    back.
    """

    def __init__(
        self,
        entry: SendEntry,
        trace: SendSpan | Unsampled | None,
        *,
        after_half: Callable[[Half], object],
        leave: Callable[[], object],
    ) -> None:
        self.half: Half | None = None
        self.id_bytes = entry.transaction_id
        self.trace = trace
        self._after_half = after_half
        self._leave = leave
        self._is_stored = False
        self._has_ended = False
        """True once the span has ended."""

    @property
    def transaction_id(self) -> TransactionId:
        """The transaction's id, as of a Half."""
        return Half(self.id_bytes, b"").transaction_id

    def leave(self) -> None:
        """Stop waiting: unsent half messages are not sent, and stored ones are checked back."""
        if not self._is_stored:
            self._end_span(None)
            self._leave()

    def _end_span(self, error: BaseException | None) -> None:
        if self.trace is not None and not self._has_ended:
            self._has_ended = True
            self.trace.__exit__(None if error is None else type(error), error, None)

    def _stored(self, shard: bytes) -> None:
        self._is_stored = True
        self._end_span(None)
        half = Half(self.id_bytes, shard, self.trace)
        self._after_half(half)  # of a test: if it raises, the process has died here, and tells nothing
        self.half = half


class AsyncBegunHalf(_Begun):
    """Half messages on their way, from `AsyncProducer._begin_half`."""

    def __init__(
        self,
        entry: SendEntry,
        waiter: asyncio.Future[bytes],
        trace: SendSpan | Unsampled | None,
        *,
        after_half: Callable[[Half], object],
        leave: Callable[[], object],
    ) -> None:
        super().__init__(entry, trace, after_half=after_half, leave=leave)
        self._waiter = waiter

    async def stored(self) -> None:
        """Return when the half messages are on disk. Raises as `AsyncProducer.half`: the transaction must not commit
        then."""
        try:
            if not self._waiter.done():
                await asyncio.wait((self._waiter,))  # a cancelled caller leaves it: see `leave`
            shard = self._waiter.result()
        except Exception as exc:
            self._end_span(exc)
            raise
        self._stored(shard)


class BegunHalf(_Begun):
    """Half messages on their way, from `Producer._begin_half`. wait_s: the seconds that `stored` waits."""

    def __init__(
        self,
        entry: SendEntry,
        waiter: ThreadWaiter[SendEntry],
        trace: SendSpan | Unsampled | None,
        *,
        wait_s: float,
        after_half: Callable[[Half], object],
        leave: Callable[[], object],
    ) -> None:
        super().__init__(entry, trace, after_half=after_half, leave=leave)
        self._waiter = waiter
        self._wait_s = wait_s

    def stored(self) -> None:
        """Return when the half messages are on disk. Raises as `Producer.half`: the transaction must not commit
        then."""
        try:
            try:
                shard = wait_for(self._waiter, self._wait_s)
            except OutcomeUnknown as exc:
                # Not OutcomeUnknown: the caller has committed nothing yet, so for it nothing has happened. A half
                # message that is stored all the same is removed by its check-back.
                raise half_unavailable(exc) from exc
        except Exception as exc:
            self._end_span(exc)
            raise
        self._stored(shard)
