# Generated from flow_async.py by `make generate`: change that one.

"""The classic flow around one call: half message, local transaction, outcome.

COMMIT is told only when the flow's own row is certainly in what committed: `SessionGuard` proves it. ROLLBACK is told
only when COMMIT was certainly never sent. From COMMIT onward, and for any exception of a function that commits by
itself, the answer is UNKNOWN and the check-back decides. Exceptions go to the caller unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from txmsg.checker.fence import Fence
from txmsg.checker.fence.engines import in_session, sync_session_of
from txmsg.client.guard import SessionGuard, keep_loaded
from txmsg.client.half import Half
from txmsg.client.halves import Halves
from txmsg.client.outcome_log import OUTCOME_WAIT_S, log_untold
from txmsg.client.traced import local_transaction
from txmsg.errors import TxmsgError
from txmsg.logs import EventLog
from txmsg.message import Message, TransactionState

_log = EventLog(__name__)

R = TypeVar("R")


def run(producer: Halves, messages: Sequence[Message], work: Callable[[], R]) -> R:
    """Half messages, then `work`, which owns its transaction, then the outcome."""
    half = producer.half(messages)
    try:
        with local_transaction(half):
            result = work()
    except BaseException as exc:
        tell(producer, half, TransactionState.UNKNOWN, wait=isinstance(exc, Exception))
        raise
    tell(producer, half, TransactionState.COMMIT)
    return result


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
        with local_transaction(half):
            with factory() as session:
                keep_loaded(sync_session_of(session), owner)
                guard = watch = SessionGuard(sync_session_of(session), owner=owner)
                with watch:
                    if producer.fence is not None:
                        producer.fence.write(session, half.transaction_id)
                        watch.own_row = producer.fence.own_row(half.transaction_id)
                    result = work(session)
                    in_session(session, lambda _: watch.end_work())
                    session.commit()
                    watch.check_committed()
    except BaseException as exc:
        state = TransactionState.UNKNOWN
        if producer.fence is not None and _was_not_sent(guard, exc):
            state = settle_by_fence(producer.fence, half)
        tell(producer, half, state, wait=isinstance(exc, Exception))
        raise
    tell(producer, half, TransactionState.COMMIT)
    return result


def _was_not_sent(guard: SessionGuard | None, exc: BaseException) -> bool:
    """Whether our COMMIT was not sent, and there is time to ask what became of the transaction."""
    return isinstance(exc, Exception) and (guard is None or not guard.commit_sent)


def settle_by_fence(fence: Fence, half: Half) -> TransactionState:
    # A commit on the DB-API connection itself, or inside a stored procedure of MySQL, is seen by no event. So a
    # function that raised is checked like any other: the fence says what its transaction became, and shuts the door.
    try:
        return fence.check(half.transaction_id)
    except Exception as exc:  # noqa: BLE001 - the caller is to see its own error
        _log.warning(
            "transaction.fence_unreadable",
            "transaction %(transaction_id)s: its fence cannot be read (%(error)s); the broker checks back later",
            transaction_id=half.transaction_id,
            error=exc,
        )
        return TransactionState.UNKNOWN


def tell(producer: Halves, half: Half, state: TransactionState, *, wait: bool = True) -> None:
    """Tells the broker the outcome as well as it goes: what happened has happened, so a failure is logged, not raised.

    wait: False while the caller is being torn down, when nothing may be waited for.
    """
    try:
        if wait:
            producer.end(half, state, timeout_s=OUTCOME_WAIT_S)
        else:
            producer.end_soon(half, state)
    except TxmsgError as exc:
        log_untold(half.id_bytes, state, exc)
