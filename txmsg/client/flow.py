"""The classic flow around one call: half message, local transaction, outcome.

COMMIT is told only when the flow's own row is certainly in what committed: `SessionGuard` proves it. ROLLBACK is told
only when COMMIT was certainly never sent. From COMMIT onward, and for any exception of a function that commits by
itself, the answer is UNKNOWN and the check-back decides. Exceptions go to the caller unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from txmsg.checker.fence import Fence
from txmsg.client.guard import SessionGuard
from txmsg.client.half import AsyncHalves, Half, Halves
from txmsg.client.outcome_log import log_untold
from txmsg.errors import MisuseError, TxmsgError
from txmsg.message import Message, TransactionState

__all__ = [
    "OUTCOME_WAIT_S",
    "run_async",
    "run_in_async_session",
    "run_in_session",
    "run_sync",
    "tell",
    "tell_async",
]

_log = logging.getLogger(__name__)

R = TypeVar("R")

OUTCOME_WAIT_S = 2.0
"""How long a call whose local transaction is over waits to tell the broker. The telling itself goes on until the
producer's timeout; after that the check-back finishes it."""


# ---- without a session of ours: the function owns its transaction


def run_sync(producer: Halves, messages: Sequence[Message], work: Callable[[], R]) -> R:
    """Half messages, then `work`, then the outcome."""
    half = producer.half(messages)
    try:
        result = work()
    except BaseException as exc:
        tell(producer, half, TransactionState.UNKNOWN, wait=isinstance(exc, Exception))
        raise
    tell(producer, half, TransactionState.COMMIT)
    return result


async def run_async(producer: AsyncHalves, messages: Sequence[Message], work: Callable[[], Awaitable[R]]) -> R:
    """`run_sync` for coroutines."""
    half = await producer.half(messages)
    try:
        result = await work()
    except BaseException as exc:
        await tell_async(producer, half, TransactionState.UNKNOWN, wait=isinstance(exc, Exception))
        raise
    await tell_async(producer, half, TransactionState.COMMIT)
    return result


# ---- with a session of ours, behind the fence


def run_in_session(
    producer: Halves,
    messages: Sequence[Message],
    factory: Callable[[], Session],
    work: Callable[[Session], R],
    *,
    owner: str,
) -> R:
    """Half messages, then `work` in a session of `factory` behind its fence row, then commit and outcome."""
    half = producer.half(messages)
    guard: SessionGuard | None = None
    try:
        with factory() as session:
            _check_fresh(session, owner)
            with SessionGuard(session, owner=owner) as guard:
                if producer.fence is not None:
                    producer.fence.write(session, half.transaction_id)
                    guard.own_row = producer.fence.own_row(half.transaction_id)
                result = work(session)
                guard.end_work()
                session.commit()
                guard.check_committed()
    except BaseException as exc:
        state = TransactionState.UNKNOWN
        if producer.fence is not None and _was_not_sent(guard, exc):
            state = _settle_by_fence(producer.fence, half)
        tell(producer, half, state, wait=isinstance(exc, Exception))
        raise
    tell(producer, half, TransactionState.COMMIT)
    return result


async def run_in_async_session(
    producer: AsyncHalves,
    messages: Sequence[Message],
    factory: Callable[[], AsyncSession],
    work: Callable[[AsyncSession], Awaitable[R]],
    *,
    owner: str,
) -> R:
    """`run_in_session` for an AsyncSession."""
    half = await producer.half(messages)
    guard: SessionGuard | None = None
    try:
        async with factory() as session:
            _check_fresh(session.sync_session, owner)
            guard = watch = SessionGuard(session.sync_session, owner=owner)
            with watch:
                if producer.fence is not None:
                    await producer.fence.write_async(session, half.transaction_id)
                    watch.own_row = producer.fence.own_row(half.transaction_id)
                result = await work(session)
                await session.run_sync(lambda _: watch.end_work())
                await session.commit()
                watch.check_committed()
    except BaseException as exc:
        state = TransactionState.UNKNOWN
        if producer.fence is not None and _was_not_sent(guard, exc):
            state = await _settle_by_fence_async(producer.fence, half)
        await tell_async(producer, half, state, wait=isinstance(exc, Exception))
        raise
    await tell_async(producer, half, TransactionState.COMMIT)
    return result


def _was_not_sent(guard: SessionGuard | None, exc: BaseException) -> bool:
    """Whether our COMMIT was not sent, and there is time to ask what became of the transaction."""
    return isinstance(exc, Exception) and (guard is None or not guard.commit_sent)


# A commit on the DB-API connection itself, or inside a stored procedure of MySQL, is seen by no event. So a function
# that raised is asked about like any other: the fence says what its transaction became, and shuts the door.


def _settle_by_fence(fence: Fence, half: Half) -> TransactionState:
    try:
        return fence.check(half.transaction_id)
    except Exception as exc:  # noqa: BLE001 - the caller is to see its own error
        _log.warning("transaction %s: its fence cannot be read (%s); the broker asks later", half.transaction_id, exc)
        return TransactionState.UNKNOWN


async def _settle_by_fence_async(fence: Fence, half: Half) -> TransactionState:
    try:
        if not fence.is_async:
            return await asyncio.to_thread(fence.check, half.transaction_id)
        return await fence.check_async(half.transaction_id)
    except Exception as exc:  # noqa: BLE001 - the caller is to see its own error
        _log.warning("transaction %s: its fence cannot be read (%s); the broker asks later", half.transaction_id, exc)
        return TransactionState.UNKNOWN


def _check_fresh(session: Session, owner: str) -> None:
    if session.in_transaction():
        raise MisuseError(
            f"session= of {owner} gave a session that is already in a transaction: give a sessionmaker, whose sessions "
            "are new, not a scoped_session or one session for all"
        )
    # The session closes with the call, so expired attributes of a returned object could never be loaded again.
    session.expire_on_commit = False


# ---- telling the broker


def tell(producer: Halves, half: Half, state: TransactionState, *, wait: bool = True) -> None:
    """Tells the outcome as well as it goes: what happened has happened, so a failure is logged, not raised."""
    try:
        if wait:
            producer.end(half, state, timeout_s=OUTCOME_WAIT_S)
        else:
            producer.end_soon(half, state)
    except TxmsgError as exc:
        log_untold(half.id_bytes, state, exc)


async def tell_async(producer: AsyncHalves, half: Half, state: TransactionState, *, wait: bool = True) -> None:
    """`tell` for asyncio. While the caller is being cancelled nothing may be awaited: then wait=False."""
    try:
        if wait:
            await producer.end(half, state, timeout_s=OUTCOME_WAIT_S)
        else:
            producer.end_soon(half, state)
    except TxmsgError as exc:
        log_untold(half.id_bytes, state, exc)
