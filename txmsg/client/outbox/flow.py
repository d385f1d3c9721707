# Generated from flow_async.py by `make generate`: change that one.

"""The flow around one call that continues when no broker answers.

As the classic flow; but if the half messages cannot be stored in time, or earlier messages of the ordering key wait in
the outbox, the messages are written there, in the business transaction. Their outcome is not reported to any broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from txmsg.checker.fence.engines import in_session
from txmsg.client.connections.rows import write_outbox
from txmsg.client.flows.flow import LocalTransaction, go_on_in_session
from txmsg.client.flows.halves import OutboxHalfSender
from txmsg.client.flows.outer import refuse_nested
from txmsg.client.outbox import rows
from txmsg.client.outbox.options import Outbox, ordering_key_of
from txmsg.client.outbox.packed import packed
from txmsg.client.sending.half import Half
from txmsg.errors import BrokerUnavailable
from txmsg.message import Message, new_transaction_id
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

R = TypeVar("R")


def run_in_session(
    producer: OutboxHalfSender,
    messages: Sequence[Message],
    factory: Callable[[], Any],
    work: Callable[[Any], R],
    *,
    owner: str,
    wait: bool = False,
    outbox: Outbox,
) -> R:
    """Store half messages, or write a row of the outbox; run `work` in a session of `factory` behind its fence row;
    commit."""
    refuse_nested(owner, producer.fence)
    key = ordering_key_of(messages, owner)
    assert producer.fence is not None, "the decorator asks for one"
    fence = producer.fence
    half = half_unless_away(
        producer, messages, outbox, None if key is None else lambda: fence._run(rows.has_key, producer.group, key)
    )
    if half is not None:
        return go_on_in_session(producer, half, factory, work, owner=owner, wait=wait)
    transaction_id = new_transaction_id()  # of which there is no half, also if one of this call was stored after all
    kept = packed(transaction_id, producer._as_sent(messages))

    def keep_and_work(session: Any) -> R:
        if isinstance(session, Session):
            write = partial(rows.write, options=fence._row_options)
            in_session(session, write, producer.group, transaction_id, key, kept)
        else:
            write_outbox(session, producer.group, transaction_id, None if key is None else rows.stored_key(key), kept)
        return work(session)

    result = LocalTransaction(fence, transaction_id, owner).run(factory, keep_and_work)
    producer._outbox.note_written()
    return result


def half_unless_away(
    producer: OutboxHalfSender,
    messages: Sequence[Message],
    outbox: Outbox,
    is_behind_kept: Callable[[], bool] | None,
) -> Half | None:
    """Store the half messages and return them; None: they are to be kept. Raises BrokerUnavailable if the outbox is
    full.

    is_behind_kept: whether earlier messages of their ordering key are in the outbox, if they have one.
    """
    state = producer._outbox
    is_to_try = state.circuit_breaker.may_try(time.monotonic())
    # Before the half message is sent, not after: a row of the key that commits later belongs to a call that had not
    # returned, and has no order with this one.
    if is_to_try and is_behind_kept is not None:
        is_to_try = not is_behind_kept()
    if not is_to_try:
        state.check_room(outbox, producer.group)
        return None
    try:
        half = producer._half(messages, None, carry_context=True, wait_s=outbox.wait_s)
    except BrokerUnavailable as exc:
        if state.circuit_breaker.note_away(time.monotonic()):
            _log.warning(
                "outbox.begun",
                "messages of group %(group)s are kept in its outbox: %(error)s",
                group=producer.group,
                error=exc,
            )
        state.check_room(outbox, producer.group, exc)
        return None
    state.circuit_breaker.note_answer()
    return half
