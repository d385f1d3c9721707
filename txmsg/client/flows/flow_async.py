"""The classic flow around one call: half message, local transaction, outcome.

COMMIT is told only when the flow's own row is certainly in what committed: `SessionGuard` proves it. ROLLBACK is told
only when COMMIT was certainly never sent. From COMMIT onward, and for any exception of a function that commits by
itself, the answer is UNKNOWN and the check-back decides. Exceptions go to the caller unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from txmsg.checker.connections.opening import AsyncDriver
from txmsg.checker.fence import AsyncFence
from txmsg.checker.fence.engines import in_session_async, sync_session_of
from txmsg.checker.fence.store import AsyncFenceStore
from txmsg.client.connections.rows_async import write_fence
from txmsg.client.connections.transaction_async import AsyncConnectionTransaction
from txmsg.client.flows.guard import SessionGuard, keep_loaded
from txmsg.client.flows.halves_async import AsyncHalfSender
from txmsg.client.flows.outer import inside, refuse_nested
from txmsg.client.running import running
from txmsg.client.sending.begun import AsyncBegunHalf
from txmsg.client.sending.half import Half
from txmsg.client.sending.outcome_log import OUTCOME_WAIT_S, log_untold
from txmsg.client.sending.traced import local_transaction
from txmsg.errors import MisuseError, TxmsgError
from txmsg.message import Message, TransactionId, TransactionState
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

R = TypeVar("R")


async def run(
    producer: AsyncHalfSender, messages: Sequence[Message], work: Callable[[], Awaitable[R]], *, wait: bool = False
) -> R:
    """Store the half messages, run `work`, which owns its transaction, and report the outcome. wait: also wait for the
    reply to it."""
    half = await producer.half(messages)
    try:
        with local_transaction(half.trace), running(half.id_bytes):
            result = await work()
    except BaseException as exc:
        await report_outcome(producer, half, TransactionState.UNKNOWN, wait=isinstance(exc, Exception))
        raise
    await report_commit(producer, half, wait=wait)
    return result


async def run_in_session(
    producer: AsyncHalfSender,
    messages: Sequence[Message],
    factory: Callable[[], Any] | AsyncFenceStore[Any],
    work: Callable[[Any], Awaitable[R]],
    *,
    owner: str,
    wait: bool = False,
    alongside: bool = False,
) -> R:
    """Store the half messages, run `work` in a session of `factory` behind its fence row, commit, and report the
    outcome.

    wait: also for the reply to the outcome. alongside: the half messages are on their way while `work` runs, and the
    commit waits until they are stored.
    """
    # First: inside another transaction of this database it would commit one of its own, whatever becomes of the outer
    # one.
    refuse_nested(owner, producer.fence)
    half = await (producer._begin_half(messages) if alongside else producer.half(messages))
    return await go_on_in_session(producer, half, factory, work, owner=owner, wait=wait)


async def go_on_in_session(
    producer: AsyncHalfSender,
    half: Half | AsyncBegunHalf,
    factory: Callable[[], Any] | AsyncFenceStore[Any],
    work: Callable[[Any], Awaitable[R]],
    *,
    owner: str,
    wait: bool,
) -> R:
    """Run the part of the flow after the half messages were stored, or are on their way."""
    begun = None if isinstance(half, Half) else half
    local = AsyncLocalTransaction(
        producer.fence, half.transaction_id, owner, before_commit=None if begun is None else begun.stored
    )
    try:
        with local_transaction(half.trace), running(half.id_bytes):
            result = await local.run(factory, work)
    except BaseException as exc:
        stored = _stored(half)
        if stored is not None:
            state = TransactionState.UNKNOWN
            fence_check = _fence_check(producer, factory)
            # Asked at once instead of leaving it to the check-back: reading the fence as a check does also writes
            # ROLLBACK into it, so the transaction cannot commit afterwards.
            if fence_check is not None and _was_not_sent(local.guard, exc):
                state = await settle_by_fence(fence_check, stored)
            await report_outcome(producer, stored, state, wait=isinstance(exc, Exception))
        elif begun is not None:
            begun.leave()
        raise
    stored = _stored(half)
    assert stored is not None, "nothing is committed before"
    await report_commit(producer, stored, wait=wait)
    return result


def _stored(half: Half | AsyncBegunHalf) -> Half | None:
    """Return the half messages, or None while they are not known to be stored."""
    return half if isinstance(half, Half) else half.half


class AsyncLocalTransaction:
    """`work` in a session or on a connection of its own behind the fence row of its id, and the commit.

    guard: what has watched it, as soon as there is a session. before_commit: what the commit waits for; if it raises,
    the transaction is rolled back.
    """

    def __init__(
        self,
        fence: AsyncFence | None,
        transaction_id: TransactionId,
        owner: str,
        *,
        before_commit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.guard: SessionGuard | None = None
        self._fence = fence
        self._transaction_id = transaction_id
        self._owner = owner
        self._before_commit = before_commit

    async def run(self, factory: Callable[[], Any] | AsyncFenceStore[Any], work: Callable[[Any], Awaitable[R]]) -> R:
        """Return the result of `work`, once it is committed. Raises if it may not be."""
        if isinstance(factory, AsyncFenceStore):
            return await self._run_in(factory.transaction(self._transaction_id), work)
        opened = factory()
        if not isinstance(opened, AsyncSession):
            row = None if self._fence is None else self._write_fence
            return await self._run_in(AsyncConnectionTransaction(opened, row, owner=self._owner), work)
        async with opened as session:
            keep_loaded(sync_session_of(session), self._owner)
            self.guard = watch = SessionGuard(sync_session_of(session), owner=self._owner)
            with watch:
                if self._fence is not None:
                    await self._fence.write(session, self._transaction_id)
                    watch.own_row = self._fence._own_row(self._transaction_id)
                with inside(self._owner, sync_session_of(session)):
                    result = await work(session)
                await in_session_async(session, lambda _: watch.end_work())
                if self._before_commit is not None:
                    await self._before_commit()
                # From here on the outcome is the fence's to tell: an exception of commit() may come after the database
                # has committed.
                await session.commit()
                watch.check_committed()
        return result

    async def _run_in(self, transaction: AbstractAsyncContextManager[Any], work: Callable[[Any], Awaitable[R]]) -> R:
        async with transaction as opened:
            result = await work(opened)
            if self._before_commit is not None:
                await self._before_commit()
            return result
        raise MisuseError(
            f"the transaction of {self._owner} hid an exception that was raised inside it, and may have committed or "
            "not: the context manager must let exceptions out"
        )

    async def _write_fence(self, driver: AsyncDriver, connection: Any) -> None:
        assert self._fence is not None, "where there is none, no row is written"
        await write_fence(driver, connection, self._transaction_id, await self._fence.fence_id())


def _fence_check(
    producer: AsyncHalfSender, factory: object
) -> Callable[[TransactionId], Awaitable[TransactionState]] | None:
    if isinstance(factory, AsyncFenceStore):
        return factory.outcome
    return None if producer.fence is None else producer.fence.check


def _was_not_sent(guard: SessionGuard | None, exc: BaseException) -> bool:
    """Return True if our COMMIT was not sent, and there is time to ask for the transaction's outcome."""
    return isinstance(exc, Exception) and (guard is None or not guard.commit_sent)


async def settle_by_fence(
    fence_check: Callable[[TransactionId], Awaitable[TransactionState]], half: Half
) -> TransactionState:
    # A commit on the DB-API connection itself, or inside a stored procedure of MySQL, is seen by no event. So a
    # function that raised is checked like any other: the fence says what its transaction became, and shuts the door.
    try:
        return await fence_check(half.transaction_id)
    except Exception as exc:  # noqa: BLE001 - the caller is to see its own error
        _log.warning(
            "transaction.fence_unreadable",
            "transaction %(transaction_id)s: its fence cannot be read (%(error)s); the broker checks back later",
            transaction_id=half.transaction_id,
            error=exc,
        )
        return TransactionState.UNKNOWN


async def report_commit(producer: AsyncHalfSender, half: Half, *, wait: bool = False) -> None:
    """Report the commit to the broker.

    Its fate is sealed: should the outcome get lost, the check-back says the same. So its reply is waited for only on
    request, or when too many are under way.
    """
    await report_outcome(producer, half, TransactionState.COMMIT, wait=wait or producer._untold.is_full)


async def report_outcome(producer: AsyncHalfSender, half: Half, state: TransactionState, *, wait: bool) -> None:
    """Report the outcome to the broker; a failure is logged, not raised, because the transaction is over.

    wait: for the reply; False also while the caller is being torn down, when nothing may be waited for.
    """
    try:
        if wait:
            await producer.end(half, state, timeout_s=OUTCOME_WAIT_S)
        else:
            producer._end_soon(half, state)
    except TxmsgError as exc:
        log_untold(half.id_bytes, state, exc)
