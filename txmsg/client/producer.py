"""The producer for threads.

They send by themselves, the first of those that wait for all of them (thread_lane.py). What is not as usual, and
answering check-backs, is the business of the asyncio core on the background loop of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy.orm import Session

from txmsg.checker.fence import Fence, FenceCheckListener
from txmsg.checker.listener import CheckMessageListener
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.flows.late import LateTransaction
from txmsg.client.hooks import ProducerHooks
from txmsg.client.outbox.state import OutboxState
from txmsg.client.sending.batch import EndEntry, FreshEntry, SendEntry, messages_of
from txmsg.client.sending.begun import BegunHalf
from txmsg.client.sending.half import Half, check_half, id_bytes_of
from txmsg.client.sending.sender import half_unavailable
from txmsg.client.sending.thread_lane import ThreadWaiter
from txmsg.client.sending.traced import sending, telling
from txmsg.client.sending.unreported import UnreportedOutcomes
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown
from txmsg.message import (
    Message,
    MessageId,
    TransactionId,
    TransactionState,
    message_id,
    new_transaction_id,
    new_transaction_id_bytes,
)
from txmsg.message.typed.topic import Topic
from txmsg.metrics.figures import Figures
from txmsg.runtime.durations import Seconds, in_seconds
from txmsg.runtime.forks import check_fork_was_told, renew_in_children
from txmsg.runtime.process import LoopThread, shared_loop
from txmsg.wire.credential import TokenChoice
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption
    from txmsg.tracing import Tracing

_GRACE_S = 5.0
_RELAY_S_MAX = 3600.0


class Producer:
    """Sends messages from threads. One per process and group is enough; all threads may share it.

    brokers: "host:port", several of them in a list or separated by commas; they share one Notify database. Those of
    several databases are separated by semicolons, or are lists in a list: see AsyncProducer. Default: the variable
    TXMSG_BROKERS, or else localhost:7700.
    group: the producer group; the broker may check back with any live client of it.
    check_listener: answers these check-backs; for SQLAlchemy, use FenceCheckListener(engine).
    timeout_s: how long a call may take, including waiting, retries and failover. Default 10.
    tls, token: see AsyncProducer.
    hooks: for tests, which can also set them later.
    tracing: with `txmsg.tracing.Tracing()`, OpenTelemetry traces its calls.

    Close it, or use `with`: one that is dropped warns (ResourceWarning) and is closed then; one that is kept to the end
    of the process is closed then, without a warning.

    Not for signal handlers: the thread that a signal interrupts may hold a lock that the call waits for. Let the
    handler set an event, and send from a thread.

    The constructor does not connect. The first call connects, and attaches for check-backs; a service should call
    `start` (or use `with`) when it starts, so that transactions which an earlier process left undecided are resolved at
    once. In a forked child it behaves as newly created: its first call there opens new connections.
    """

    def __init__(
        self,
        brokers: str | Sequence[str | Sequence[str]] | None = None,
        *,
        group: str,
        check_listener: CheckMessageListener | None = None,
        timeout_s: Seconds = 10.0,
        tls: TlsChoice = None,
        token: TokenChoice = None,
        hooks: ProducerHooks | None = None,
        tracing: Tracing | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self._core = AsyncProducer(
            brokers,
            group=group,
            check_listener=check_listener,
            timeout_s=timeout_s,
            tls=tls,
            token=token,
            hooks=hooks,
            tracing=tracing,
            encryption=encryption,
        )
        self.hooks = self._core.hooks
        self._fence = _fence_of(self._core.check_listener)
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._thread: LoopThread | None = None
        """The loop on which it runs, once it has started."""
        self._used: LoopThread | None = None
        """The loop on which there may be something to close, also after a start that failed."""
        self._closed = False
        self._starting = threading.Lock()

    def _is_in_use(self, brokers: str | Sequence[str | Sequence[str]] | None) -> bool:
        """Return True if it has started with these brokers, and is not closed."""
        return self._thread is not None and not self._closed and self._core._is_in_use(brokers)

    @property
    def _is_over(self) -> bool:
        """True if it was closed."""
        return self._closed

    def _reopen(self, brokers: str | Sequence[str | Sequence[str]] | None) -> None:
        """Return it to its state before the first use, with these brokers. For an application that starts again."""
        self._core._reopen(brokers)
        self._renew()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._core.group

    @property
    def timeout_s(self) -> float:
        """Seconds that a call may take."""
        return self._core.timeout_s

    @property
    def check_listener(self) -> CheckMessageListener | None:
        """The object that answers check-backs."""
        return self._core.check_listener

    @property
    def tracing(self) -> Tracing | None:
        """The Tracing of its constructor, or None."""
        return self._core.tracing

    @property
    def _is_sharded(self) -> bool:
        return self._core._is_sharded

    @property
    def fence(self) -> Fence | None:
        """The fence of a FenceCheckListener; None with any other listener."""
        return self._fence

    def _put_figures(self, figures: Figures) -> None:
        """Add its figures; for `txmsg.metrics.ClientCollector`."""
        self._core._put_figures(figures)

    # ---- life

    def start(self) -> Self:
        """Connect, read the fence id and attach for check-backs. Called by the first use. Idempotent."""
        self._started()
        return self

    def close(self) -> None:
        """Send waiting messages and outcomes, then disconnect. Closing twice is fine."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
            if self._used is not None:
                self._used.call(self._core.close(), timeout_s=self.timeout_s + _GRACE_S)
                self._used.at_exit(self._core, None)

    def __del__(self) -> None:
        used: LoopThread | None = getattr(self, "_used", None)  # none where the constructor raised
        if used is not None and not self._closed:
            what = f"producer of group {self.group!r}: call close(), or use `with`" if self._thread is not None else ""
            used.close_dropped(self._core, what, self)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> LoopThread:
        # Read without the lock on the hot path: it is set once, after a start that has succeeded.
        thread = self._thread
        if thread is not None and not self._closed:
            check_fork_was_told()
            return thread
        with self._starting:
            if self._closed:
                raise MisuseError("the producer is closed: make a new one")
            if self._thread is None:
                # Before the start: if that fails, `close` must still end what it has begun on the loop.
                self._used = thread = shared_loop()
                thread.at_exit(self._core, self._core.close)
                try:
                    thread.call(self._core.start(), timeout_s=self.timeout_s + _GRACE_S)
                except TimeoutError as exc:
                    raise BrokerUnavailable(
                        f"the producer did not start within {self.timeout_s + _GRACE_S:g} s: does the business "
                        "database, which holds the fence, answer?"
                    ) from exc
                self._thread = thread
            return self._thread

    @property
    def _outbox(self) -> OutboxState:
        return self._core._outbox

    def _as_sent(self, messages: Sequence[Message]) -> Sequence[Message]:
        return self._core._as_sent(messages)

    def _use_outbox(self) -> None:
        """Relay the group's outbox in the background, from `start` on. Idempotent; the decorator calls it.

        Raises MisuseError without a fence.
        """
        self._core._use_outbox()

    def relay_outbox(self) -> int:
        """Relay the group's outbox now, including refused messages. Returns the number of transactions.

        Works whether or not this producer uses the outbox. Raises BrokerUnavailable if nothing could be relayed, and
        errors of the business database.
        """
        return self._started().call(self._core.relay_outbox(), timeout_s=_RELAY_S_MAX)

    # ---- plain messages

    def send(self, message: Message) -> MessageId:
        """Send one message. Returns when it is on disk.

        Raises BrokerUnavailable if it was certainly not stored, OutcomeUnknown if it may have been stored, Overloaded
        if too many messages wait, UnknownTopic.
        """
        return self.send_many((message,))[0]

    def send_many(self, messages: Sequence[Message]) -> list[MessageId]:
        """Send up to 1,000 messages (8 MiB) as one unit of retry, with one transaction id. Returns their ids in order.

        Raises the same errors as `send`.
        """
        messages = messages_of(messages, self._core.encryption)
        if not messages:
            return []
        self.hooks.before_send()
        transaction_id = new_transaction_id()
        self._started()
        waiter: ThreadWaiter[SendEntry] = ThreadWaiter()
        with sending(self.tracing, "send", messages, self.group) as trace:
            entry = SendEntry(transaction_id.bytes, messages if trace is None else trace.carried_by(messages), waiter)
            self._core._sender_started.plain.send_and_wait(entry, waiter, self._wait_s)
            if trace is not None:
                trace.stored(transaction_id.bytes)
        return [message_id(transaction_id, n) for n in range(len(messages))]

    def recall(self, message_id: MessageId) -> bool:
        """Cancel a delayed message. True: it will not be delivered. False: too late, it has entered its queue.

        Idempotent. Raises OutcomeExpired if the message is not known, MisuseError while its transaction is undecided
        (it can be rolled back), InvalidMessage for an invalid message id, BrokerUnavailable, OutcomeUnknown.
        """
        thread = self._started()
        try:
            return thread.call(self._core.recall(message_id), timeout_s=self.timeout_s + _GRACE_S)
        except TimeoutError as exc:
            raise OutcomeUnknown(
                f"no answer within {self.timeout_s + _GRACE_S:g} s; the message may be recalled"
            ) from exc

    def register_schemas(self, *topics: Topic[Any]) -> None:
        """Register the schemas of these topics in each Notify database, unless they are registered.

        Raises MisuseError, naming the fields, if one is not compatible with the latest version, BrokerUnavailable,
        OutcomeUnknown, PermissionDenied.
        """
        thread = self._started()
        try:
            thread.call(self._core.register_schemas(*topics), timeout_s=self.timeout_s + _GRACE_S)
        except TimeoutError as exc:
            raise OutcomeUnknown(
                f"no answer within {self.timeout_s + _GRACE_S:g} s; the schemas may be registered"
            ) from exc

    # ---- transactions

    def transaction(self, session: Session, *, wait: bool = False) -> LateTransaction:
        """Return a block of the late flow: `with producer.transaction(session) as tx: ...; tx.send(Message(...))`.

        At the end of the block all half messages are sent in one request, the session is committed, and the outcome is
        sent to the broker. wait: True to wait for the reply to that.
        """
        return LateTransaction(self, session, wait=wait)

    def half(self, messages: Sequence[Message], *, transaction_id: TransactionId | None = None) -> Half:
        """Store the half messages of one transaction, 1 to 1,000. Returns when they are on disk.

        Idempotent under the same transaction id. The caller must report the outcome with `end`. Without a
        check_listener there are no check-backs, and a half message whose `end` is lost is parked. Raises
        BrokerUnavailable: do not begin the local transaction then; half messages that may have been stored are never
        delivered.
        """
        # A call that may be repeated must store the same each time: no context of its own.
        return self._half(messages, transaction_id, carry_context=transaction_id is None)

    def _half(
        self,
        messages: Sequence[Message],
        transaction_id: TransactionId | None,
        *,
        carry_context: bool,
        wait_s: float | None = None,
    ) -> Half:
        """Store half messages as `half`. carry_context, wait_s: as of AsyncProducer."""
        self.hooks.before_half()
        self._started()
        id_bytes = new_transaction_id_bytes() if transaction_id is None else id_bytes_of(transaction_id)
        waiter: ThreadWaiter[SendEntry] = ThreadWaiter()
        messages = messages_of(messages, self._core.encryption)
        with sending(self.tracing, "half", messages, self.group) as trace:
            entry = (FreshEntry if transaction_id is None else SendEntry)(
                id_bytes, trace.carried_by(messages) if trace is not None and carry_context else messages, waiter
            )
            try:
                shard = self._core._sender_started.halves.send_and_wait(
                    entry, waiter, self._wait_s if wait_s is None else wait_s
                )
            except OutcomeUnknown as exc:
                if wait_s is not None and isinstance(entry, FreshEntry):
                    # The call continues with the outbox: a half message that is stored after all is rolled back now,
                    # not only by its check-back.
                    self._core._roll_back_late_from_thread(entry)
                raise half_unavailable(exc) from exc
            if trace is not None:
                trace.stored(entry.transaction_id)
        half = Half(entry.transaction_id, shard, trace)
        self.hooks.after_half(half)
        return half

    def _begin_half(self, messages: Sequence[Message], transaction_id: TransactionId | None = None) -> BegunHalf:
        """Begin to store half messages as `half`; returns when they are on their way, under an id that stays."""
        self.hooks.before_half()
        thread = self._started()
        id_bytes = new_transaction_id_bytes() if transaction_id is None else id_bytes_of(transaction_id)
        waiter: ThreadWaiter[SendEntry] = ThreadWaiter()
        entry, trace = self._core._entry_of_begun(id_bytes, messages, waiter)
        thread.post(self._core._sender_started.halves.offer, entry)
        return BegunHalf(
            entry,
            waiter,
            trace,
            wait_s=self._wait_s,
            after_half=self.hooks.after_half,
            leave=lambda: thread.post(self._core._check_back_if_stored, entry),
        )

    def end(self, half: Half, state: TransactionState, *, timeout_s: Seconds | None = None) -> None:
        """Report the outcome of the local transaction. Returns when it is on disk.

        UNKNOWN makes the broker check back. Idempotent. timeout_s shortens the wait, not the attempts, which continue
        in the background. Raises OutcomeConflict if the transaction already has the other outcome, OutcomeExpired, and
        BrokerUnavailable or OutcomeUnknown: the check-back then resolves it.
        """
        self.hooks.before_end(half, state)
        thread = self._started()
        waiter: ThreadWaiter[EndEntry] = ThreadWaiter()
        entry = EndEntry(check_half(half).id_bytes, state, waiter)
        with telling(half, state):
            try:
                wait_s = self._wait_s if timeout_s is None else in_seconds(timeout_s)
                self._core._sender_started.end_by_thread(half.shard, entry, waiter, wait_s)
            except (OutcomeUnknown, KeyboardInterrupt):
                # On the loop, which completes the waiter: the entry may be answered at this moment, and a contradiction
                # must be logged, once.
                thread.post(entry.forsake)
                raise

    def _end_soon(self, half: Half, state: TransactionState) -> None:
        """Report an outcome as `end`, without waiting: a failure is logged, once for an outage."""
        self._started()
        self._core._end_soon(half, state)

    @property
    def _untold(self) -> UnreportedOutcomes:
        return self._core._untold

    @property
    def _wait_s(self) -> float:
        """Seconds that a thread waits: more than the timeout, because the sender's error at the timeout says more."""
        return self.timeout_s + _GRACE_S


def _fence_of(listener: CheckMessageListener | None) -> Fence | None:
    """Return the fence of a FenceCheckListener, or None. Raises MisuseError for one that cannot be written from
    threads."""
    if not isinstance(listener, FenceCheckListener):
        return None
    if not isinstance(listener.fence, Fence):
        raise MisuseError(
            "a Producer was given FenceCheckListener(AsyncEngine): give FenceCheckListener an Engine of the same "
            "database, or use an AsyncProducer"
        )
    return listener.fence
