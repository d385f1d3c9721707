"""The producer for asyncio, which the sync one runs, too. Sessions are the decorator's and the late flow's business.

Everything a producer sends goes through its `Sender`, which coalesces the calls that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncSession

from txmsg.checker.fence import AsyncFence, FenceCheckListener
from txmsg.checker.listener import CheckMessageListener
from txmsg.client.attach import Presence
from txmsg.client.batch import EndEntry, FreshEntry, SendEntry, messages_of, recalled
from txmsg.client.channel import Brokers, knock
from txmsg.client.counts import ProducerCounts
from txmsg.client.half import Half, check_half, id_bytes_of
from txmsg.client.hooks import ProducerHooks
from txmsg.client.late_async import AsyncLateTransaction
from txmsg.client.options import check_listener_of, shards_of
from txmsg.client.sender import Sender
from txmsg.client.shards import Shards, find_shards
from txmsg.client.traced import sending, telling
from txmsg.errors import MisuseError, OutcomeUnknown
from txmsg.forks import renew_in_children
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
from txmsg.metrics.figures import Figures
from txmsg.runtime.durations import Seconds, check_seconds, in_seconds
from txmsg.wire.credential import TokenChoice, client_access
from txmsg.wire.tls import TlsChoice

if TYPE_CHECKING:
    from txmsg.encryption import Encryption
    from txmsg.tracing import Tracing

TIMEOUT_S_MAX = 24 * 3600.0


class AsyncProducer:
    """Sends messages from asyncio code. Belongs to the loop on which it is first used; not to be shared by loops.

    In a forked child it is as it was when it was made: it belongs to the loop on which it is first used there.

    brokers: "host:port", several of them in a list or separated by commas; they share one Notify database, and name the
    others of it. Each producer sends to one of them, chosen at random, until that fails. Those of several databases are
    separated by semicolons ("a:7700,b:7700; c:7700"), or are lists in a list: messages without an ordering key are
    spread over these and go to the others when one is away; those of one ordering key go to one of them only.
    group: the producer group; any live client of it may be asked what became of a transaction.
    check_listener: answers these check-backs; FenceCheckListener(engine) does it for SQLAlchemy users.
    timeout_s: how long a call may take, waiting, retries and failing over included. Default 10.
    tls: True to verify the brokers' certificates by the authorities that the system trusts, the path of a file with
    authorities (PEM), or an ssl.SSLContext; False for none. By default the environment says it: TXMSG_TLS_CA.
    token: of a user, where brokers require authentication: a token, the pathlib.Path of a file with one, or a function
    that returns one; read again at each connection. By default the environment says it: TXMSG_TOKEN_FILE, TXMSG_TOKEN.
    hooks: for tests, which can also set them later.
    tracing: `txmsg.tracing.Tracing()` has OpenTelemetry trace what it does.
    encryption: encrypts the bodies that are sent, such as `txmsg.encryption.AesGcm`, and decrypts them for the check
    listener.

    The first call connects, and attaches for check-backs. A service calls `start` (or uses `async with`) when it
    begins, so that transactions which an earlier process left undecided are answered at once.
    """

    def __init__(
        self,
        brokers: str | Sequence[str | Sequence[str]] = "localhost:7700",
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
        self._addresses = shards_of(brokers)
        self._access = client_access(tls, token)
        self.group = check_name("producer group", group)
        self.check_listener = check_listener_of(check_listener)
        self._fence = _fence_of(self.check_listener)
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
        self._presences: list[asyncio.Task[None]] = []

    @property
    def fence(self) -> AsyncFence | None:
        """The fence of a FenceCheckListener; None with any other listener."""
        return self._fence

    # ---- life

    async def start(self) -> Self:
        """Connects, reads the fence id and attaches for check-backs, as the first use does, too. Idempotent.

        Raises Unauthenticated if a broker does not let us in; one that is away is not waited for.
        """
        if self._sender is None and not self._closed:
            await asyncio.gather(*(knock(Brokers(addresses, **self._access)) for addresses in self._addresses))
        await self._started()
        return self

    async def close(self) -> None:
        """Sends what is still waiting, then disconnects. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        if self._sender is not None:
            await self._sender.drain()
        for presence in self._presences:
            presence.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await presence
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
        async with self._starting:
            if self._sender is None:
                await self._connect()
        assert self._sender is not None
        return self._sender

    async def _connect(self) -> None:
        fence_id = b"" if self.fence is None else (await self.fence.fence_id()).bytes
        if not self._brokers:
            self._brokers = [Brokers(addresses, **self._access) for addresses in self._addresses]
        if len(self._brokers) > 1:
            await find_shards(self._brokers, timeout_s=self.timeout_s)
        senders: list[Sender] = []
        for brokers in self._brokers:
            sender = Sender(brokers, group=self.group, timeout_s=self.timeout_s, hooks=self.hooks, counts=self._counts)
            senders.append(sender)
            senders[-1].fence_id = fence_id
            presence = Presence(
                brokers,
                group=self.group,
                client_id=self._client_id,
                fence_id=fence_id,
                listener=self.check_listener,
                encryption=self.encryption,
                tracing=self.tracing,
            )
            self._presences.append(asyncio.create_task(presence.run(), name=f"txmsg-attach-{self.group}"))
        self._senders = senders
        self._sender = Shards(senders, timeout_s=self.timeout_s) if len(senders) > 1 else senders[0]

    def put_figures(self, figures: Figures) -> None:
        """For `txmsg.metrics.ClientCollector`."""
        self._counts.put(figures)
        figures.add("txmsg_client_pending_items", sum(sender.pending_items() for sender in self._senders))

    # ---- plain messages

    async def send(self, message: Message) -> MessageId:
        """Sends one message. Returns when it is on disk.

        Raises BrokerUnavailable when it certainly was not stored, OutcomeUnknown when it may have been, Overloaded
        when too much is waiting, UnknownTopic.
        """
        return (await self.send_many((message,)))[0]

    async def send_many(self, messages: Sequence[Message]) -> list[MessageId]:
        """Sends up to 1,000 messages (8 MiB) as one unit of retry, of one transaction id. Returns their ids in order.

        Raises what `send` raises.
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
        """Takes a delayed message back. True: it will not be delivered. False: too late, it has entered its queue.

        Idempotent. Raises OutcomeExpired when nothing is known of it, MisuseError while its transaction is not decided
        (which can be rolled back), InvalidMessage for an invalid message id, BrokerUnavailable, OutcomeUnknown.
        """
        transaction_id, n = parse_message_id(message_id)
        sender = self._sender_here() or await self._started()
        return recalled(message_id, await sender.recall(transaction_id.bytes, n))

    # ---- transactions

    def transaction(self, session: AsyncSession) -> AsyncLateTransaction:
        """The late flow: `async with producer.transaction(session) as tx: ...; tx.send(Message(...))`.

        At the exit all half messages leave in one request, the session is committed, and the broker is told.
        """
        return AsyncLateTransaction(self, session)

    async def half(self, messages: Sequence[Message], *, transaction_id: TransactionId | None = None) -> Half:
        """Stores the half messages of one transaction, 1 to 1,000. Returns when they are on disk.

        Idempotent under the same transaction id. Whoever calls this owes the broker an `end`; without a check_listener
        there are no check-backs, and a half whose `end` is lost is parked. Raises BrokerUnavailable: begin no local
        transaction then; what may have been stored is never delivered.
        """
        # A call that may be repeated must store the same each time: no context of its own.
        return await self._half(messages, transaction_id, carry_context=transaction_id is None)

    async def _half(
        self, messages: Sequence[Message], transaction_id: TransactionId | None, *, carry_context: bool
    ) -> Half:
        """As `half`. carry_context: the messages carry the context of this call, if it is traced."""
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
            shard = await waiter  # first: the entry may get another id on its way
            if trace is not None:
                trace.stored(entry.transaction_id)
        half = Half(entry.transaction_id, shard, trace)
        self.hooks.after_half(half)
        return half

    async def end(self, half: Half, state: TransactionState, *, timeout_s: Seconds | None = None) -> None:
        """Reports the outcome of the local transaction. Returns when it is on disk.

        UNKNOWN has the broker ask the group. Idempotent. timeout_s shortens the wait, not the attempts, which go on
        in the background. Raises OutcomeConflict when the other outcome stands, OutcomeExpired, and BrokerUnavailable
        or OutcomeUnknown: the check-back then resolves it.
        """
        self.hooks.before_end(half, state)
        sender = self._sender_here() or await self._started()
        waiter = sender.new_waiter()
        entry = EndEntry(check_half(half).id_bytes, state, waiter)
        with telling(half, state):
            sender.end(half.shard, entry)
            if timeout_s is None:
                await waiter
                return
            wait_s = in_seconds(timeout_s)
            try:
                async with asyncio.timeout(wait_s):
                    await waiter
            except TimeoutError as exc:
                raise OutcomeUnknown(f"no answer within {wait_s:g} s; it is still being tried") from exc

    def end_soon(self, half: Half, state: TransactionState) -> None:
        """Like `end`, but does not wait: for a caller that is being cancelled. To be called on the loop."""
        self.hooks.before_end_soon(half, state)
        self._end_soon(half, state)

    def _end_soon(self, half: Half, state: TransactionState) -> None:
        if self._sender is not None:
            entry = EndEntry(half.id_bytes, state, None)
            with telling(half, state):
                self._sender.end(half.shard, entry)

    @property
    def _sender_started(self) -> Sender | Shards:
        """The hot path, for the sync producer. Only after `start`."""
        assert self._sender is not None, "start() comes first"
        return self._sender

    def _sender_here(self) -> Sender | Shards | None:
        """The sender if everything is as usual; None sends the caller the long way, which says what is wrong."""
        # A forked child has another loop, or none: no need to ask for the pid each time.
        return None if self._closed or self._loop is not asyncio.get_running_loop() else self._sender


def _fence_of(listener: CheckMessageListener | None) -> AsyncFence | None:
    if not isinstance(listener, FenceCheckListener):
        return None
    if isinstance(listener.fence, AsyncFence):
        return listener.fence
    fence = AsyncFence(listener.fence.engine)
    # The listener's checks, and what a Producer writes, have to name the fence that brokers are told of.
    fence.identity = listener.fence.identity
    return fence
