"""`send`: a message of the transaction that is open, whichever code has begun it and ends it."""

from __future__ import annotations

from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, transaction

from txmsg.client.flows.flow import report_outcome
from txmsg.client.flows.outer import is_in_atomic
from txmsg.client.running import running
from txmsg.client.sending.traced import local_transaction
from txmsg.contrib.django.commits import end_with_commit
from txmsg.contrib.django.producers import producer as producer_of
from txmsg.errors import MisuseError
from txmsg.message import Message, MessageId, TransactionState, message_id
from txmsg.message.typed.outgoing import outgoing
from txmsg.message.typed.topic import Topic
from txmsg.runtime import loops

_OWNER: Final = "txmsg.contrib.django.send"


def send(
    message: Message | str | Topic[Any],
    value: object = ...,
    /,
    *,
    key: object = None,
    ordering_key: object = None,
    tag: str | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> MessageId:
    """Send a message, or a value for a topic, if and only if the block of `atomic(using)` around the call commits.

    The half message is stored at once, and the fence row is written in the same transaction: so the value may have ids
    that the database has just generated. It is delivered when the outermost block has committed, and dropped if the
    savepoint in which it was sent is rolled back. To be called in views under ATOMIC_REQUESTS, in handlers under
    `@idempotent`, and by receivers of `post_save` where the save is in a block.

    message, value, key, ordering_key, tag: as for `Transaction.send`. using: the alias of the database whose
    transaction decides. Returns the id of the message.

    Raises MisuseError outside of `atomic`, where no commit could decide, InvalidMessage, and BrokerUnavailable if the
    message could not be stored: then nothing was written, and the block may continue without it. Raises
    TransactionRefused or StorageError if the fence row could not be written: then the block rolls back.
    """
    if loops.is_running():
        raise MisuseError(
            f"{_OWNER}() blocks, and was called by a coroutine: put it into the function that writes, and call that by "
            "`await sync_to_async(...)`"
        )
    made = outgoing(_OWNER, message, value, key=key, ordering_key=ordering_key, tag=tag)
    connection = transaction.get_connection(using)
    if not is_in_atomic(connection):
        raise MisuseError(
            f"{_OWNER}() is called outside of transaction.atomic() of Django's database {using!r}, where what it tells "
            "of is committed already, or in no transaction: put both into `with transaction.atomic():` (views have it "
            "by ATOMIC_REQUESTS; a signal needs it around the save), or send at once, whatever commits, by "
            "txmsg.contrib.django.producer().send(message)"
        )
    connection.validate_no_broken_transaction()  # before anything is stored
    producer = producer_of(using)
    # Outside the try: if the broker cannot store the half, nothing was written, and the block may continue.
    half = producer.half([made])
    try:
        # Without its row the block must not commit, even if the caller catches the error.
        with local_transaction(half.trace), running(half.id_bytes), transaction.mark_for_rollback_on_error(using):
            end_with_commit(producer, half, using)
    except BaseException as exc:
        report_outcome(producer, half, TransactionState.UNKNOWN, wait=isinstance(exc, Exception))
        raise
    return message_id(half.transaction_id, 0)
