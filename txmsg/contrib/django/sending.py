"""`@transactional_message` for Django: the message shares the fate of the transaction that the call is part of."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, transaction

from txmsg.client.flows.body import Key, MessagePlan
from txmsg.client.flows.flow import report_outcome, settle_by_fence
from txmsg.client.outbox.flow import half_unless_away
from txmsg.client.outbox.options import Outbox, WhenAway, ordering_key_of, outbox_of
from txmsg.client.outbox.packed import packed
from txmsg.client.producer import Producer
from txmsg.client.running import running
from txmsg.client.sending.half import Half
from txmsg.client.sending.traced import local_transaction
from txmsg.client.transactional import check_function, signature_of_calls
from txmsg.contrib.django import rows
from txmsg.contrib.django.commits import end_with_commit, fence_of
from txmsg.contrib.django.producers import declare, use_outbox
from txmsg.contrib.django.producers import producer as producer_of
from txmsg.errors import MisuseError
from txmsg.message import Message, TransactionState, new_transaction_id
from txmsg.message.typed.topic import Topic
from txmsg.runtime.user_function import finished, name_of

F = TypeVar("F", bound=Callable[..., Any])


def transactional_message(
    *,
    topic: str | Topic[Any] | None = None,
    key: Key = None,
    ordering_key: Key = None,
    tag: str | None = None,
    message: Callable[..., Message | Sequence[Message] | bytes] | None = None,
    using: str = DEFAULT_DB_ALIAS,
    producer: Producer | None = None,
    when_away: WhenAway = "raise",
    wait: bool = False,
) -> Callable[[F], F]:
    """Decorate a function: it runs in `atomic(using)`, and its message is delivered if and only if that commits.

    Inside another `atomic()`, as with ATOMIC_REQUESTS, the message waits for the outermost one, and is dropped if the
    savepoint in which it was sent is rolled back. If an outer block is rolled back, a check-back of the broker resolves
    the transaction some seconds later.

    topic, key, ordering_key, tag, message, when_away, wait: as for `txmsg.transactional_message`. using: the alias of
    the database that the function writes to. producer: default that of the setting TXMSG.

    Besides the function's own exceptions (unchanged), a call raises TypeError and InvalidMessage before anything is
    done; BrokerUnavailable if the half message could not be stored: the function has not run then; TransactionRefused
    if the transaction was so late that its check was answered ROLLBACK. `async def` is refused, because Django's
    transactions do not work there: use `await sync_to_async(place)(...)`.
    """

    def decorate(function: F) -> F:
        name = check_function(function)
        if inspect.iscoroutinefunction(function):
            raise MisuseError(
                f"{name} is async def, in which transactions of Django do not work: make it def, and call it by "
                "`await sync_to_async(...)`"
            )
        signature, receiver = signature_of_calls(function, drop_session=False)
        plan = MessagePlan(
            owner=name_of(function),
            signature=signature,
            topic=topic,
            key=key,
            ordering_key=ordering_key,
            tag=tag,
            builder=message,
            receiver=receiver,
        )

        if producer is None:
            declare(using)
        outbox = outbox_of(when_away, plan.owner)
        if outbox is not None:
            use_outbox(using) if producer is None else producer._use_outbox()

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            messages = plan.messages(args, kwargs)

            def work() -> Any:
                return finished(plan.owner, function(*args, **kwargs))

            chosen = producer or producer_of(using)
            if outbox is None:
                return _go_on(chosen, chosen.half(messages), using, work, wait=wait)
            return _run_with_outbox(chosen, messages, using, work, outbox=outbox, owner=plan.owner, wait=wait)

        return call  # type: ignore[return-value]

    return decorate


def _run_with_outbox(
    producer: Producer,
    messages: Sequence[Message],
    using: str,
    work: Callable[[], Any],
    *,
    outbox: Outbox,
    owner: str,
    wait: bool,
) -> Any:
    """Store half messages, or an outbox row in the same savepoint as the effects; see txmsg.client.outbox."""
    key = ordering_key_of(messages, owner)
    # By Django's connection: it also sees rows of calls before this one in the same transaction.
    half = half_unless_away(
        producer, messages, outbox, None if key is None else lambda: rows.has_kept(using, producer.group, key)
    )
    if half is not None:
        return _go_on(producer, half, using, work, wait=wait)
    transaction_id = new_transaction_id()  # A half of this call may be stored after all; no check finds this new id.
    kept = packed(transaction_id, producer._as_sent(messages))
    with transaction.atomic(using=using):
        rows.write_fence(using, transaction_id, fence_of(producer).fence_id())
        rows.write_kept(using, producer.group, transaction_id, key, kept)
        transaction.on_commit(producer._outbox.note_written, using=using)
        return work()


def _go_on(producer: Producer, half: Half, using: str, work: Callable[[], Any], *, wait: bool) -> Any:
    """Write the fence row and run `work` in one block of `atomic`; report the outcome when the outermost one commits.

    The row is of the same savepoint as the effects: they stay or go together, whatever becomes of the blocks around.
    """
    fence = fence_of(producer)
    try:
        with local_transaction(half.trace), running(half.id_bytes), transaction.atomic(using=using):
            # Before the function's own calls of on_commit, which may raise: then Django runs none of those behind it.
            end_with_commit(producer, half, using, wait=wait)
            return work()
    except BaseException as exc:
        # The outermost block may have committed, and something else have raised: a function of on_commit, for example.
        is_known = isinstance(exc, Exception) and not transaction.get_connection(using).in_atomic_block
        state = settle_by_fence(fence.check, half) if is_known else TransactionState.UNKNOWN
        report_outcome(producer, half, state, wait=isinstance(exc, Exception))
        raise
