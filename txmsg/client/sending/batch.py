"""Entries of requests: one per caller, and the request that many of them become.

Pure, except that it completes the callers' futures. Knows no network and no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from txmsg.client.sending.outcome_log import is_contradiction, log_untold
from txmsg.errors import (
    BrokerUnavailable,
    InvalidMessage,
    MessageTooLarge,
    MisuseError,
    OutcomeExpired,
    OutcomeUnknown,
    TxmsgError,
    error_of_code,
    shown,
)
from txmsg.message import MESSAGES_PER_TRANSACTION_MAX, Message, TransactionState, now_us
from txmsg.message.columns import Columns, put_value
from txmsg.wire.codec import REQUEST_SIZE_BYTES_MAX, pack_headers
from txmsg.wire.columns import packed_columns
from txmsg.wire.v1.txmsg_pb2 import EndTransactionsRequest, ItemError, MessageColumns, RecallReply

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption

E = TypeVar("E", bound="RequestEntry")

_MESSAGE_OVERHEAD_BYTES = 48  # ids, lengths, times


class Waiter(Protocol):
    """A caller's future: asyncio's, or that of concurrent.futures for a caller on another thread."""

    def done(self) -> bool: ...
    def result(self) -> bytes: ...
    def set_result(self, result: bytes, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...
    def exception(self) -> BaseException | None: ...


def messages_of(messages: object, encryption: Encryption | None = None) -> tuple[Message, ...]:
    """Return the messages of one call, as a tuple that no caller can change. SendEntry checks their types.

    encryption: encrypts them. Raises InvalidMessage for an object that contains no messages at all.
    """
    if encryption is not None:
        encrypt = encryption.encrypt
        return tuple(encrypt(message) if isinstance(message, Message) else message for message in messages_of(messages))
    # A tuple is taken as it is, because it cannot change while the entry waits. A list is copied: its owner may clear
    # and refill it.
    if isinstance(messages, tuple):
        return messages
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise InvalidMessage(
            f"{shown(messages)} is of type {type(messages).__name__}: give a list of Message(topic, body)"
        )
    return tuple(messages)


class RequestEntry:
    """One caller's part of a request. Not a frozen dataclass: tens of thousands are made per second."""

    __slots__ = ("deadline", "items", "size_bytes", "transaction_id", "waiter")

    def __init__(self, transaction_id: bytes, items: int, size_bytes: int, waiter: Waiter | None) -> None:
        self.transaction_id = transaction_id
        self.items = items
        self.size_bytes = size_bytes
        self.waiter = waiter
        self.deadline = 0.0

    def abandoned(self) -> bool:
        """Return True if the caller has gone and the entry need not be sent."""
        return False

    def succeed(self, shard: bytes) -> None:
        """Complete the caller, if it still waits."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(shard)

    def fail(self, error: BaseException) -> None:
        """Complete the caller, if it still waits. `error` must not be shared: a shared one collects the tracebacks of
        all callers."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)


class SendEntry(RequestEntry):
    """The messages of one transaction (or one plain send). Raises MessageTooLarge, InvalidMessage."""

    __slots__ = ("born_at_us", "messages")

    def __init__(self, transaction_id: bytes, messages: Sequence[Message], waiter: Waiter | None) -> None:
        size_bytes = 0
        self.born_at_us = now_us()
        for message in messages:
            if not isinstance(message, Message):
                raise InvalidMessage(
                    f"{shown(message)} is of type {type(message).__name__}, not a Message: send Message(topic, body), "
                    "or what message(payload) of a Topic makes"
                )
            # An upper estimate without encoding: four bytes per character of text.
            size_bytes += len(message.body) + _MESSAGE_OVERHEAD_BYTES
            if message.key is not None:
                size_bytes += 4 * len(message.key)
            if message.ordering_key is not None:
                size_bytes += 4 * len(message.ordering_key)
            if message._is_delayed:
                message._deliver_at_us(self.born_at_us)  # said here, where the caller hears it
            if message.headers:
                size_bytes += sum(4 * (len(name) + len(value)) for name, value in message.headers.items())
        super().__init__(transaction_id, len(messages), size_bytes, waiter)
        self.messages = messages
        if not 0 < self.items <= MESSAGES_PER_TRANSACTION_MAX:
            raise InvalidMessage(
                f"{self.items} messages in one transaction: 1 to {MESSAGES_PER_TRANSACTION_MAX} are allowed"
            )
        if size_bytes > REQUEST_SIZE_BYTES_MAX and self.items > 1:  # one has the limit of its own
            raise MessageTooLarge(
                f"the {self.items} messages of one transaction are about {size_bytes} bytes: at most "
                f"{REQUEST_SIZE_BYTES_MAX} are allowed, because they leave in one request"
            )

    def go_on_without(self, stored: Callable[[bytes], object]) -> None:
        """Detach the caller. An entry that was not sent never is; if it gets stored, `stored` is called."""
        waiter, self.waiter = self.waiter, _AbandonedWaiter(stored)
        # The reply may have come between the caller's timeout and this call. It must not be lost: stored half messages
        # have to be rolled back, or checked back.
        if waiter is not None and waiter.done() and waiter.exception() is None:
            stored(waiter.result())

    def abandoned(self) -> bool:
        """Return True if the caller had gone before the request was sent: then nothing needs to be stored."""
        return isinstance(self.waiter, _AbandonedWaiter) or (self.waiter is not None and self.waiter.done())


class FreshEntry(SendEntry):
    """Half messages whose transaction id the caller does not know yet: they may move to another Notify database under
    another id."""

    __slots__ = ()


class _AbandonedWaiter:
    """Replaces the waiter of a caller that no longer waits."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Callable[[bytes], object]) -> None:
        self._stored = stored

    def done(self) -> bool:
        return False

    def result(self) -> bytes:
        raise AssertionError("it is never done")

    def set_result(self, result: bytes, /) -> None:
        self._stored(result)

    def set_exception(self, exception: BaseException, /) -> None:
        """Ignore the error: nothing was stored, or a check-back removes it."""

    def exception(self) -> BaseException | None:
        return None


class EndEntry(RequestEntry):
    """The outcome of one transaction. Sent even if the caller no longer waits."""

    __slots__ = ("state",)

    def __init__(self, transaction_id: bytes, state: TransactionState, waiter: Waiter | None) -> None:
        if not isinstance(state, TransactionState):  # any other would be in no column, and be lost
            raise MisuseError(
                f"outcome {shown(state)} is of type {type(state).__name__}: give TransactionState.COMMIT, ROLLBACK or "
                "UNKNOWN"
            )
        super().__init__(transaction_id, 1, 16, waiter)
        self.state = state

    def fail(self, error: BaseException) -> None:
        """Complete the caller. If it no longer waits, log the error, unless a check-back will resolve it."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)
        elif is_contradiction(self.state, error):
            log_untold(self.transaction_id, self.state, error)

    def forsake(self) -> None:
        """Detach the caller. To be called on the loop."""
        waiter, self.waiter = self.waiter, None
        if waiter is not None and waiter.done() and (error := waiter.exception()) is not None:
            self.fail(error)


def columns_of(entries: Iterable[SendEntry]) -> list[MessageColumns]:
    """Return the entries' messages as columns, one set per topic, in the order of the entries.

    A column that is empty for all items is left out.
    """
    by_topic: dict[str, Columns] = {}
    for entry in entries:
        for n, message in enumerate(entry.messages):
            # Columns: one Python object per message and hop would cost too much (0002).
            columns = by_topic.get(message.topic)
            if columns is None:
                columns = by_topic[message.topic] = Columns()
            row = len(columns.transaction_id)
            columns.transaction_id.append(entry.transaction_id)
            columns.body.append(message.body)
            columns.born_at_us.append(entry.born_at_us)
            if n:
                put_value(columns.n, row, n, 0)
            if message.key is not None:
                put_value(columns.key, row, message.key, "")
            if message.tag is not None:
                put_value(columns.tag, row, message.tag, "")
            if message.headers:
                put_value(columns.headers, row, pack_headers(message.headers), b"")
            if message.ordering_key is not None:
                put_value(columns.ordering_key, row, message.ordering_key, "")
            if message._is_delayed:
                _put_delay(columns, row, message, entry.born_at_us)
            if message.first_check_after is not None:
                put_value(columns.first_check_ms, row, message._first_check_ms, 0)
    for columns in by_topic.values():
        columns.fill()
    return [packed_columns(topic, columns) for topic, columns in by_topic.items()]


def _put_delay(columns: Columns, row: int, message: Message, born_at_us: int) -> None:
    if message.deliver_at is not None:
        put_value(columns.deliver_at_us, row, message._deliver_at_us(born_at_us), 0)
    else:  # not a time: this machine's clock may be wrong
        put_value(columns.deliver_after_us, row, message._deliver_after_us, 0)


def recalled(message_id: str, result: int) -> bool:
    """Return True if the broker has recalled the message; False if it was too late. Raises the error for any other
    result."""
    match result:
        case RecallReply.RECALLED:
            return True
        case RecallReply.ENTERED:
            return False
        case RecallReply.UNDECIDED:
            raise MisuseError(
                f"message {message_id} is a half message: nothing is scheduled yet. If its transaction has just "
                "committed, its outcome is on its way: recall it again, or send with wait=True; else end its "
                "transaction with TransactionState.ROLLBACK"
            )
    raise OutcomeExpired(
        f"message {message_id} is unknown: it was never stored, or entered its queue longer ago than the broker "
        "remembers"
    )


def end_request(group: str, shard: bytes, entries: Sequence[EndEntry]) -> EndTransactionsRequest:
    """Return one request for the outcomes of a producer group's transactions, all of one Notify database."""

    def ids_of(state: TransactionState) -> bytes:
        return b"".join([entry.transaction_id for entry in entries if entry.state is state])

    return EndTransactionsRequest(
        shard=shard,
        commit=ids_of(TransactionState.COMMIT),
        rollback=ids_of(TransactionState.ROLLBACK),
        unknown=ids_of(TransactionState.UNKNOWN),
        group=group,
    )


def settle(
    entries: Sequence[E],
    shard: bytes,
    errors: Sequence[ItemError],
    final: Callable[[TxmsgError], TxmsgError] = lambda error: error,
) -> tuple[list[E], TxmsgError | None]:
    """Complete the callers by the reply. Returns the entries to send again, and one of their errors.

    If one of these may have been carried out, it is that one's error. final: makes the error of a refused item.
    """
    if not errors:
        for entry in entries:  # `succeed` by hand: this is the hot path
            waiter = entry.waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(shard)
        return [], None
    by_id = {error.transaction_id: error for error in errors}
    again: list[E] = []
    retryable: TxmsgError | None = None
    for entry in entries:
        item = by_id.get(entry.transaction_id)
        # The broker lists only the items that it refused: a reply to 1,000 accepted ones is a few bytes.
        if item is None:
            entry.succeed(shard)
            continue
        error = error_of_code(item.code, item.text)
        if isinstance(error, BrokerUnavailable | OutcomeUnknown):
            # A refused item that may be repeated leaves the others alone: they are settled, and only this one goes into
            # the next attempt.
            again.append(entry)
            if retryable is None or isinstance(error, OutcomeUnknown):
                retryable = error
        else:
            told = final(error)
            if told is not error:
                told.__cause__ = error
            entry.fail(told)
    return again, retryable
