"""The producer for asyncio, which the sync one runs, too. Sessions are the decorator's and the late flow's business.

Everything a producer sends goes through its `Sender`, which coalesces the calls that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncSession

from txmsg.checker.fence import AsyncFence, AsyncFenceStore, FenceCheckListener, FenceStore
from txmsg.checker.listener import CheckMessageListener
from txmsg.client.attach import AttachedStreams
from txmsg.client.channel import Brokers, knock
from txmsg.client.flows.late_async import AsyncLateTransaction
from txmsg.client.hooks import ProducerHooks
from txmsg.client.options import check_listener_of
from txmsg.client.outbox.relay import OutboxRelay
from txmsg.client.outbox.state import OutboxState
from txmsg.client.sending.batch import EndEntry, FreshEntry, SendEntry, Waiter, messages_of, recalled
from txmsg.client.sending.begun import AsyncBegunHalf
from txmsg.client.sending.counts import ProducerCounts
from txmsg.client.sending.half import Half, check_half, id_bytes_of
from txmsg.client.sending.outcome_queue import OutcomeQueue
from txmsg.client.sending.schemas import register_schemas
from txmsg.client.sending.sender import Sender
from txmsg.client.sending.shards import Shards, find_shards
from txmsg.client.sending.traced import sending, telling
from txmsg.client.sending.unreported import UNTOLD_MAX, UnreportedOutcomes
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown
from txmsg.message import (
    Message,
    MessageId,
    TransactionId,
    TransactionState,
    check_name,
    message_id,
    new_transaction_id,
    new_transaction_id_bytes,
    parse_message_id,
)
from txmsg.message.typed.topic import Topic
from txmsg.metrics.figures import Figures
from txmsg.runtime.background import in_background
from txmsg.runtime.durations import Seconds, check_seconds, in_seconds
from txmsg.runtime.forks import renew_in_children
from txmsg.wire.brokers import MEMORY, shards_of
from txmsg.wire.credential import TokenChoice, client_access
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption
    from txmsg.tracing import Tracing
    from txmsg.tracing.sending import SendSpan, Unsampled

TIMEOUT_S_MAX = 24 * 3600.0
_RELAY_END_S = 5.0
"""Seconds that a close waits for the relay, which gives up its turn in the business database."""


class AsyncProducer:
    """Sends messages from asyncio code. Belongs to the loop on which it is first used; not to be shared by loops.

    In a forked child it behaves as newly created: it belongs to the loop on which it is first used there.

    brokers: "host:port", several of them in a list or separated by commas; default: the variable TXMSG_BROKERS, or else
    localhost:7700. They share one Notify database, and name its other brokers. Each producer sends to one of them,
    chosen at random, until that fails. Brokers of several databases are separated by semicolons
    ("a:7700,b:7700; c:7700"), or are lists in a list: messages without an ordering key are spread over the databases
    and go to the others if one is down; those of one ordering key go to one database only.
    group: the producer group; the broker may check back with any live client of it.
    check_listener: answers these check-backs; for SQLAlchemy, use FenceCheckListener(engine).
    timeout_s: how long a call may take, including waiting, retries and failover. Default 10.
    tls: True to verify the brokers' certificates with the CAs that the system trusts, the path of a file with CAs
    (PEM), or an ssl.SSLContext; False for no TLS. Default: TXMSG_TLS_CA in the environment.
    token: of a user, if brokers require authentication: a token, the pathlib.Path of a file with one, or a function
    that returns one; read again at each connection. Default: TXMSG_TOKEN_FILE or TXMSG_TOKEN in the environment.
    hooks: for tests, which can also set them later.
    tracing: with `txmsg.tracing.Tracing()`, OpenTelemetry traces its calls.
    encryption: encrypts the bodies that are sent, such as `txmsg.message.encryption.AesGcm`, and decrypts them for the
    check listener.

    The first call connects, and attaches for check-backs. A service should call `start` (or use `async with`) when it
    starts, so that transactions which an earlier process left undecided are resolved at once.
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
        self._addresses = shards_of(brokers, takes_memory=True)
        self._access = client_access(tls, token)
        self.group = check_name("producer group", group)
        self.check_listener = check_listener_of(check_listener)
        self._fence = _fence_of(self.check_listener)
        self._uses_outbox = False
        self.timeout_s = check_seconds("timeout_s", timeout_s, least_s=0.001, most_s=TIMEOUT_S_MAX)
        self.hooks = hooks or ProducerHooks()
        self.tracing = tracing
        self.encryption = encryption
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._client_id = uuid4().hex
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._starting: asyncio.Lock | None = None
        self._brokers: list[Brokers] = []
        self._sender: Sender | Shards | None = None
        self._senders: Sequence[Sender] = ()
        self._counts = ProducerCounts()
        self._untold = UnreportedOutcomes(0)
        self._outcomes: OutcomeQueue | None = None
        self._presences: list[asyncio.Task[None]] = []
        self._outbox = OutboxState()
        self._relaying: asyncio.Task[None] | None = None

    def _is_in_use(self, brokers: str | Sequence[str | Sequence[str]] | None) -> bool:
        """Return True if it has started with these brokers, and neither it nor its loop is closed."""
        loop = self._loop
        is_started = self._sender is not None and not self._closed and loop is not None and not loop.is_closed()
        return is_started and self._addresses == shards_of(brokers, takes_memory=True)

    @property
    def _is_over(self) -> bool:
        """True if it or its loop was closed."""
        return self._closed or (self._loop is not None and self._loop.is_closed())

    def _reopen(self, brokers: str | Sequence[str | Sequence[str]] | None) -> None:
        """Return it to its state before the first use, with these brokers. For an application that starts again."""
        self._addresses = shards_of(brokers, takes_memory=True)
        self._renew()

    @property
    def _is_sharded(self) -> bool:
        """True if it sends to several Notify databases."""
        return len(self._addresses) > 1

    @property
    def fence(self) -> AsyncFence | None:
        """The fence of a FenceCheckListener; None with any other listener."""
        return self._fence

    # ---- life

    async def start(self) -> Self:
        """Connect, read the fence id and attach for check-backs, as the first use does, too. Idempotent.

        Raises Unauthenticated if a broker refuses the credential. Does not wait for brokers that are unreachable.
        """
        if self._addresses != [[MEMORY]]:  # which answers at once, and is looked at by the next line of a test
            self._untold.count_max = UNTOLD_MAX  # who starts it closes it, which sends what is under way
        if self._sender is None and not self._closed:
            await asyncio.gather(*(knock(Brokers(addresses, **self._access)) for addresses in self._addresses))
        await self._started()
        return self

    async def close(self) -> None:
        """Send waiting messages and outcomes, then disconnect. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._relaying is not None:  # first: it sends
            await _cancelled(self._relaying, wait_s=_RELAY_END_S)
        if self._sender is not None:
            # Before the sender drains: outcomes still in the group would miss the drain, and be left to check-backs.
            self._outcomes_started.close()
            await self._sender.drain()
        for presence in self._presences:
            await _cancelled(presence)
        await asyncio.gather(*(brokers.close() for brokers in self._brokers))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _started(self) -> Sender | Shards:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._starting = loop, asyncio.Lock()
        if loop is not self._loop:
            raise MisuseError("this AsyncProducer was first used on another event loop: make one per loop")
        if self._closed:
            raise MisuseError("the producer is closed: make a new one")
        assert self._starting is not None
        # The first calls of many tasks come together: one connects, and the others wait for it.
        async with self._starting:
            if self._sender is None:
                await self._connect()
        assert self._sender is not None
        return self._sender

    async def _connect(self) -> None:
        fence_id = await _fence_id_of(self.fence, self.check_listener)
        if not self._brokers:
            self._brokers = [Brokers(addresses, **self._access) for addresses in self._addresses]
        if len(self._brokers) > 1:
            await find_shards(self._brokers, timeout_s=self.timeout_s)
        senders: list[Sender] = []
        for brokers in self._brokers:
            sender = Sender(brokers, group=self.group, timeout_s=self.timeout_s, hooks=self.hooks, counts=self._counts)
            senders.append(sender)
            senders[-1].fence_id = fence_id
            presence = AttachedStreams(
                brokers,
                group=self.group,
                client_id=self._client_id,
                fence_id=fence_id,
                listener=self.check_listener,
                encryption=self.encryption,
                tracing=self.tracing,
            )
            self._presences.append(in_background(presence.run(), name=f"txmsg-attach-{self.group}"))
        self._senders = senders
        self._sender = Shards(senders, timeout_s=self.timeout_s) if len(senders) > 1 else senders[0]
        self._outcomes = OutcomeQueue(asyncio.get_running_loop(), self._sender.end_transaction)
        if self._uses_outbox:
            self._relay_outbox()

    def _put_figures(self, figures: Figures) -> None:
        """Add its figures; for `txmsg.metrics.ClientCollector`."""
        self._counts.put_figures(figures)
        figures.add("txmsg_client_pending_items", sum(sender.pending_items() for sender in self._senders))
        if self._uses_outbox:
            self._outbox.put_figures(figures)

    # ---- plain messages

    async def send(self, message: Message) -> MessageId:
        """Send one message. Returns when it is on disk.

        Raises BrokerUnavailable if it was certainly not stored, OutcomeUnknown if it may have been stored, Overloaded
        if too many messages wait, UnknownTopic.
        """
        return (await self.send_many((message,)))[0]

    async def send_many(self, messages: Sequence[Message]) -> list[MessageId]:
        """Send up to 1,000 messages (8 MiB) as one unit of retry, with one transaction id. Returns their ids in order.

        Raises the same errors as `send`.
        """
        messages = messages_of(messages, self.encryption)
        if not messages:
            return []
        self.hooks.before_send()
        transaction_id = new_transaction_id()
        sender = self._sender_here() or await self._started()
        waiter = sender.new_waiter()
        with sending(self.tracing, "send", messages, self.group) as trace:
            sender.plain.offer(
                SendEntry(transaction_id.bytes, messages if trace is None else trace.carried_by(messages), waiter)
            )
            await waiter
            if trace is not None:
                trace.stored(transaction_id.bytes)
        return [message_id(transaction_id, n) for n in range(len(messages))]

    async def recall(self, message_id: MessageId) -> bool:
        """Cancel a delayed message. True: it will not be delivered. False: too late, it has entered its queue.

        Idempotent. Raises OutcomeExpired if the message is not known, MisuseError while its transaction is undecided
        (it can be rolled back), InvalidMessage for an invalid message id, BrokerUnavailable, OutcomeUnknown.
        """
        transaction_id, n = parse_message_id(message_id)
        sender = self._sender_here() or await self._started()
        if (untold := self._untold.find_outcome(transaction_id.bytes)) is not None:
            await self.end(*untold)  # once more, as its reply is needed now
        return recalled(message_id, await sender.recall(transaction_id.bytes, n))

    async def register_schemas(self, *topics: Topic[Any]) -> None:
        """Register the schemas of these topics in each Notify database, unless they are registered.

        Raises MisuseError, naming the fields, if one is not compatible with the latest version, BrokerUnavailable,
        OutcomeUnknown, PermissionDenied.
        """
        await self._started()
        await register_schemas(self._brokers, topics, timeout_s=self.timeout_s)

    # ---- transactions

    def transaction(self, session: AsyncSession, *, wait: bool = False) -> AsyncLateTransaction:
        """Return a block of the late flow: `async with producer.transaction(session) as tx: ...;
        tx.send(Message(...))`.

        At the end of the block all half messages are sent in one request, the session is committed, and the outcome is
        sent to the broker. wait: True to wait for the reply to that.
        """
        return AsyncLateTransaction(self, session, wait=wait)

    async def half(self, messages: Sequence[Message], *, transaction_id: TransactionId | None = None) -> Half:
        """Store the half messages of one transaction, 1 to 1,000. Returns when they are on disk.

        Idempotent under the same transaction id. The caller must report the outcome with `end`. Without a
        check_listener there are no check-backs, and a half message whose `end` is lost is parked. Raises
        BrokerUnavailable: do not begin the local transaction then; half messages that may have been stored are never
        delivered.
        """
        # A call that may be repeated must store the same each time: no context of its own.
        return await self._half(messages, transaction_id, carry_context=transaction_id is None)

    async def _half(
        self,
        messages: Sequence[Message],
        transaction_id: TransactionId | None,
        *,
        carry_context: bool,
        wait_s: float | None = None,
    ) -> Half:
        """As `half`. carry_context: the messages carry the context of this call, if it is traced.

        wait_s: after so long BrokerUnavailable is raised; what is stored later is rolled back. Without transaction_id.
        """
        self.hooks.before_half()
        sender = self._sender_here() or await self._started()
        id_bytes = new_transaction_id_bytes() if transaction_id is None else id_bytes_of(transaction_id)
        waiter = sender.new_waiter()
        messages = messages_of(messages, self.encryption)
        with sending(self.tracing, "half", messages, self.group) as trace:
            entry = (FreshEntry if transaction_id is None else SendEntry)(
                id_bytes, trace.carried_by(messages) if trace is not None and carry_context else messages, waiter
            )
            sender.halves.offer(entry)
            if wait_s is not None and isinstance(entry, FreshEntry):
                await self._wait_for(entry, waiter, wait_s)
            shard = await waiter  # first: the entry may get another id on its way
            if trace is not None:
                trace.stored(entry.transaction_id)
        half = Half(entry.transaction_id, shard, trace)
        self.hooks.after_half(half)
        return half

    async def _begin_half(
        self, messages: Sequence[Message], transaction_id: TransactionId | None = None
    ) -> AsyncBegunHalf:
        """Begin to store half messages as `half`; returns when they are on their way, under an id that stays."""
        self.hooks.before_half()
        sender = self._sender_here() or await self._started()
        id_bytes = new_transaction_id_bytes() if transaction_id is None else id_bytes_of(transaction_id)
        waiter = sender.new_waiter()
        entry, trace = self._entry_of_begun(id_bytes, messages, waiter)
        sender.halves.offer(entry)
        return AsyncBegunHalf(
            entry, waiter, trace, after_half=self.hooks.after_half, leave=lambda: self._check_back_if_stored(entry)
        )

    def _entry_of_begun(
        self, id_bytes: bytes, messages: Sequence[Message], waiter: Waiter
    ) -> tuple[SendEntry, SendSpan | Unsampled | None]:
        messages = messages_of(messages, self.encryption)
        with contextlib.ExitStack() as entered:
            trace = entered.enter_context(sending(self.tracing, "half", messages, self.group))
            # Not a FreshEntry: the fence row is written under this id while the half message travels, so it must not
            # get another one (0108).
            entry = SendEntry(id_bytes, messages if trace is None else trace.carried_by(messages), waiter)
            if trace is not None:
                trace.stored(id_bytes)
            entered.pop_all()  # the trace ends when the half messages are stored, or left
        return entry, trace

    async def _wait_for(self, entry: FreshEntry, waiter: asyncio.Future[bytes], wait_s: float) -> None:
        """Return when the entry is answered. Raises BrokerUnavailable after wait_s."""
        try:
            # Not wait_for: it would cancel the waiter at the timeout, and a reply that is on its way could not roll
            # back what was stored.
            await asyncio.wait((waiter,), timeout=wait_s)
        except asyncio.CancelledError:
            waiter.cancel()
            raise
        if not waiter.done():
            self._roll_back_late(entry)
            raise BrokerUnavailable(f"no broker has stored the half message within {wait_s:g} s")

    def _roll_back_late_from_thread(self, entry: FreshEntry) -> None:
        """Roll back on the loop, after the work in progress for this entry there: the leader of its batch may still
        wake it."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._roll_back_late, entry)

    def _roll_back_late(self, entry: FreshEntry) -> None:
        """Detach an entry without a waiting caller: it is rolled back if it gets stored."""
        self._leave(entry, TransactionState.ROLLBACK)

    def _check_back_if_stored(self, entry: SendEntry) -> None:
        """Detach an entry whose transaction only a check can decide: it is checked back if it gets stored."""
        self._leave(entry, TransactionState.UNKNOWN)

    def _leave(self, entry: SendEntry, state: TransactionState) -> None:
        assert self._loop is not None
        loop = self._loop

        def stored(shard: bytes) -> None:
            loop.call_soon_threadsafe(self._tell_soon, Half(entry.transaction_id, shard), state)

        entry.go_on_without(stored)

    def _as_sent(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages in the form in which they are kept: encrypted, and with the context of this call."""
        messages = messages_of(messages, self.encryption)
        with sending(self.tracing, "send", messages, self.group) as trace:
            return messages if trace is None else trace.carried_by(messages)

    async def _half_of_kept(self, messages: Sequence[Message], born_at_us: int) -> Half:
        """Store halves of messages that were kept, under a new transaction id. If cancelled, they are rolled back if
        stored."""
        self.hooks.before_half()
        sender = self._sender_here() or await self._started()
        entry = FreshEntry(new_transaction_id_bytes(), messages, waiter := sender.new_waiter())
        entry.born_at_us = born_at_us
        sender.halves.offer(entry)
        try:
            await asyncio.wait((waiter,))
        except asyncio.CancelledError:
            self._roll_back_late(entry)
            raise
        half = Half(entry.transaction_id, waiter.result())
        self.hooks.after_half(half)
        return half

    def _use_outbox(self) -> None:
        """Relay the group's outbox in the background, from `start` on. Idempotent; the decorator calls it.

        Raises MisuseError without a fence.
        """
        _check_fence(self._fence, self.group)
        if self._uses_outbox:
            return
        self._uses_outbox = True
        if self._loop is not None and self._sender is not None:
            self._loop.call_soon_threadsafe(self._relay_outbox)

    async def relay_outbox(self) -> int:
        """Relay the group's outbox now, including refused messages. Returns the number of transactions.

        Works whether or not this producer uses the outbox. Raises BrokerUnavailable if nothing could be relayed, and
        errors of the business database.
        """
        return await self._new_relay().relay_all(self.timeout_s)

    def _relay_outbox(self) -> None:
        if self._relaying is None and not self._closed:
            self._relaying = in_background(self._new_relay().run(), name=f"txmsg-outbox-{self.group}")

    def _new_relay(self) -> OutboxRelay:
        return OutboxRelay(
            _check_fence(self._fence, self.group),
            self.group,
            self._outbox,
            store=self._half_of_kept,
            tell=self._end_soon,
        )

    async def end(self, half: Half, state: TransactionState, *, timeout_s: Seconds | None = None) -> None:
        """Report the outcome of the local transaction. Returns when it is on disk.

        UNKNOWN makes the broker check back. Idempotent. timeout_s shortens the wait, not the attempts, which continue
        in the background. Raises OutcomeConflict if the transaction already has the other outcome, OutcomeExpired, and
        BrokerUnavailable or OutcomeUnknown: the check-back then resolves it.
        """
        self.hooks.before_end(half, state)
        sender = self._sender_here() or await self._started()
        waiter = sender.new_waiter()
        entry = EndEntry(check_half(half).id_bytes, state, waiter)
        with telling(half, state):
            sender.end_transaction(half.shard, entry)
            if timeout_s is None:
                await waiter
                return
            wait_s = in_seconds(timeout_s)
            try:
                async with asyncio.timeout(wait_s):
                    await waiter
            except TimeoutError as exc:
                raise OutcomeUnknown(f"no answer within {wait_s:g} s; it is still being tried") from exc

    def _end_soon(self, half: Half, state: TransactionState) -> None:
        """Report an outcome as `end`, without waiting: a failure is logged, once for an outage. For any thread."""
        self.hooks.before_end(half, state)
        self._tell_soon(half, state)

    def _tell_soon(self, half: Half, state: TransactionState) -> None:
        with telling(half, state):
            try:
                self._outcomes_started.add(half.shard, self._untold.add(half, state))
            except BaseException:  # a signal, say: it would count for ever
                self._untold.forget_outcome(half)
                raise

    @property
    def _outcomes_started(self) -> OutcomeQueue:
        assert self._outcomes is not None, "start() comes first"
        return self._outcomes

    @property
    def _sender_started(self) -> Sender | Shards:
        """The hot path, for the sync producer. Only after `start`."""
        assert self._sender is not None, "start() comes first"
        return self._sender

    def _sender_here(self) -> Sender | Shards | None:
        """Return the sender in the usual case; None sends the caller to `_started`, which raises or starts."""
        # A forked child has another loop, or none: no need to ask for the pid each time.
        return None if self._closed or self._loop is not asyncio.get_running_loop() else self._sender


async def _fence_id_of(fence: AsyncFence | None, listener: CheckMessageListener | None) -> bytes:
    """Return the fence id to stamp on half messages; empty if no fence answers checks."""
    if isinstance(listener, FenceStore):
        return (await asyncio.to_thread(listener.fence_id)).bytes
    if isinstance(listener, AsyncFenceStore):
        return (await listener.fence_id()).bytes
    return b"" if fence is None else (await fence.fence_id()).bytes


def _check_fence(fence: AsyncFence | None, group: str) -> AsyncFence:
    if fence is None:
        raise MisuseError(
            f"the outbox of producer group {group} needs a fence, in whose database it is: give the producer "
            "check_listener=FenceCheckListener(engine)"
        )
    return fence


async def _cancelled(task: asyncio.Task[None], *, wait_s: float | None = None) -> None:
    """Cancel a task, and return when it has ended, or after wait_s."""
    task.cancel()
    if not (await asyncio.wait((task,), timeout=wait_s))[0]:
        return
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _fence_of(listener: CheckMessageListener | None) -> AsyncFence | None:
    if not isinstance(listener, FenceCheckListener):
        return None
    if isinstance(listener.fence, AsyncFence):
        return listener.fence
    fence = AsyncFence(listener.fence.engine)
    # The listener's checks, and what a Producer writes, have to name the fence that brokers are told of.
    fence.identity = listener.fence.identity
    return fence
