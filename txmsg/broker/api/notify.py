"""The service Notify: requests become calls of delivery, sending and check-backs. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar
from uuid import UUID

from txmsg.broker.clients import AttachedClient, AttachedClients
from txmsg.broker.delivery.offsets import Expiry
from txmsg.broker.delivery.values import (
    MemberConnection,
    MemberSubscription,
    MessageBatch,
    PollSequenceStep,
    Receipt,
    Receive,
    Refusal,
)
from txmsg.broker.erasable import ErasableBodies
from txmsg.broker.incarnation import Incarnation
from txmsg.broker.service import NotifyService
from txmsg.broker.store.halves import HalfMessages
from txmsg.broker.store.rows import StoredRow
from txmsg.broker.store.scheduled import Scheduled
from txmsg.checker.ports import DueHalf
from txmsg.errors import BrokerUnavailable, InvalidMessage, ProtocolError, TxmsgError
from txmsg.message import (
    EPOCH_2000_US,
    MESSAGES_PER_TRANSACTION_MAX,
    QueueId,
    TransactionId,
    TransactionState,
    check_name,
)
from txmsg.message.typed.names import check_topics
from txmsg.wire.access.permissions import CHECK_GROUP, SEND_GROUP, SEND_TOPIC
from txmsg.wire.caller import current_usage, may, refusal, require
from txmsg.wire.codec import REQUEST_ITEMS_MAX, bytes_of_ids, ids_of_bytes, pack_headers, slices_of_ids
from txmsg.wire.columns import columns_of
from txmsg.wire.server_call import ServerCall, with_call
from txmsg.wire.start import start_of_wire
from txmsg.wire.v1 import txmsg_pb2 as pb

T = TypeVar("T")
Attached = ServerCall[pb.ClientFrame, pb.BrokerFrame]
Receiving = ServerCall[pb.ReceiveRequest, pb.ReceiveReply]

_CHECKS_WAITING_MAX = 64
_WAIT_S_MAX = 300.0
_MESSAGES_MAX = 10_000
_VISIBILITY_TIMEOUT_S = (1.0, 12 * 3600.0)
_CLIENT_ID_LENGTH_MAX = 200
_FENCES_MAX = 100
_STATES = {
    pb.CheckAnswer.COMMIT: TransactionState.COMMIT,
    pb.CheckAnswer.ROLLBACK: TransactionState.ROLLBACK,
    pb.CheckAnswer.UNKNOWN: TransactionState.UNKNOWN,
}
_RECALLS = {
    "recalled": pb.RecallReply.RECALLED,
    "entered": pb.RecallReply.ENTERED,
    "undecided": pb.RecallReply.UNDECIDED,
    "unknown": pb.RecallReply.UNKNOWN,
}


class DeliveryService(Protocol):
    """The part of `broker.delivery` that receiving needs."""

    async def receive(self, request: Receive, outlet: MemberConnection | None = None) -> Sequence[MessageBatch]:
        """Return messages for a member of a group; none if none came within the time that it waits."""
        ...

    def follow(self, group: str, client_id: str, line: PollSequenceStep) -> None:
        """End earlier calls on this line: messages sent over it and not received return at once."""
        ...

    def put_back(self, group: str, client_id: str, receipts: Sequence[Receipt]) -> None:
        """Return messages that a member does not get, at once."""
        ...

    async def settle(
        self, group: str, client_id: str, acks: Sequence[Receipt], refusals: Sequence[Refusal]
    ) -> Sequence[Receipt]:
        """Take acknowledgements and refusals. Returns those that came too late."""
        ...

    async def renew(
        self,
        group: str,
        client_id: str,
        held: Sequence[Receipt],
        visibility_timeout_s: float,
        *,
        is_exact: bool = False,
    ) -> Sequence[Receipt]:
        """Restart the visibility timeout of messages that a member still holds. Returns those that it does not hold."""
        ...

    def awaited(self, group: str, client_id: str) -> Sequence[tuple[QueueId, int]]:
        """Return queues, by id and epoch, that wait until this member holds nothing of them; the reply asks it."""
        ...

    def free(self, group: str, client_id: str, queues: Sequence[tuple[QueueId, int]]) -> None:
        """Note that a member holds nothing of these queues, by id and epoch."""
        ...

    def note_alone(self, group: str, receipts: Sequence[Receipt], *, is_alone: bool) -> Sequence[Receipt]:
        """Note that a member runs these suspects alone, or no longer alone. Returns those that it does not hold."""
        ...

    def attached(self, group: str, client_id: str, *, is_there: bool) -> None:
        """Note that a consumer begins its presence, or ends it: then it is not a member any more."""
        ...

    def why_paused(self, group: str) -> str:
        """Return the reason why the group gets nothing here, or single messages only; "" if delivery runs."""
        ...

    async def flush(self) -> None:
        """Write the acknowledgements taken so far."""
        ...


class BrokerRoutes(Protocol):
    """The brokers of this database, as clients are told of them."""

    @property
    def address(self) -> str:
        """The address of this broker."""
        ...

    @property
    def is_draining(self) -> bool:
        """True if this broker accepts no more messages."""
        ...

    def addresses(self) -> Sequence[str]:
        """Return the addresses of the brokers, those that accept messages first.

        Empty while this one does not know them.
        """
        ...

    def draining(self) -> Sequence[str]:
        """Return the addresses of those that accept no more messages."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """True if this broker cannot reach its database."""
        ...

    async def changed(self) -> None:
        """Return when any of this has changed."""
        ...


class NotifyApi:
    """The service Notify."""

    def __init__(
        self,
        service: NotifyService,
        delivery: DeliveryService,
        halves: HalfMessages,
        clients: AttachedClients,
        scheduled: Scheduled,
        *,
        bodies: ErasableBodies,
        routes: BrokerRoutes,
        incarnation: Incarnation,
        stopping: asyncio.Event,
        authenticates: bool = False,
    ) -> None:
        self._service = service
        self._delivery = delivery
        self._halves = halves
        self._clients = clients
        self._scheduled = scheduled
        self._bodies = bodies
        self._routes = routes
        self._incarnation = incarnation
        self._stopping = stopping
        self._authenticates = authenticates
        """True if ids of other users must be refused, because callers are known."""

    @property
    def _shard(self) -> bytes:
        """The id of the Notify database. Another one may have taken its place under the same address."""
        shard = self._incarnation.shard
        assert shard is not None, "a broker reads it before it answers"
        return shard.bytes

    async def send(self, request: pb.SendRequest) -> pb.SendReply:
        if self._routes.is_draining:
            raise BrokerUnavailable("this broker is draining and accepts no messages: ask another one")
        count = sum(len(batch.body) for batch in request.batches)
        _check_items(count)
        if (usage := current_usage()) is not None:
            await usage.messages(count)
        # After the wait for the user's rate: a rule that is taken away meanwhile must count.
        if request.half:
            require(SEND_GROUP, request.group)
        # By topic and not for the request: messages to other topics in it are stored.
        denied = {batch.topic: refusal(SEND_TOPIC, batch.topic) for batch in request.batches}
        problems = await self._service.store_messages(
            group=request.group,
            fence_id=request.fence_id,
            half=request.half,
            batches=[(batch.topic, columns_of(batch, is_half=request.half)) for batch in request.batches],
            denied={topic: error for topic, error in denied.items() if error is not None},
        )
        return pb.SendReply(shard=self._shard, errors=_item_errors(problems))

    async def end_transactions(self, request: pb.EndTransactionsRequest) -> pb.EndTransactionsReply:
        if len(request.shard) not in (0, 16):
            raise ProtocolError(f"the id of a Notify database has 16 bytes, not {len(request.shard)}")
        if request.shard and request.shard != self._shard:
            raise InvalidMessage(
                f"these transactions belong to Notify database {UUID(bytes=request.shard)}, and this broker writes to "
                f"{UUID(bytes=self._shard)}: send their outcomes to a broker of their own database"
            )
        commit, rollback, unknown = map(slices_of_ids, (request.commit, request.rollback, request.unknown))
        _check_items(len(commit) + len(rollback) + len(unknown))
        # The group counts only where callers are known: otherwise any caller could name any group.
        problems = await self._service.end_transactions(
            commit=commit, rollback=rollback, unknown=unknown, group=request.group if self._authenticates else ""
        )
        return pb.EndTransactionsReply(errors=_item_errors(problems))

    async def recall(self, request: pb.RecallRequest) -> pb.RecallReply:
        ids = ids_of_bytes(request.transaction_ids)
        _check_items(len(ids))
        ns = list(request.n) or [0] * len(ids)
        if len(ns) != len(ids) or max(ns, default=0) >= MESSAGES_PER_TRANSACTION_MAX:
            raise ProtocolError(
                f"{len(ids)} messages to recall come with {len(ns)} places in their transactions, each of which is to "
                f"be below {MESSAGES_PER_TRANSACTION_MAX}"
            )
        if self._authenticates or request.topic:
            kinds = await self._recall_own(ids, ns, request.topic)
        else:
            kinds = await self._scheduled.recall(ids, ns)
        return pb.RecallReply(results=[_RECALLS[kind] for kind in kinds])

    async def _recall_own(self, ids: Sequence[UUID], ns: Sequence[int], topic: str) -> Sequence[str]:
        """Recall the caller's own messages. Others, and those that came after the look-up, are answered as unknown.

        topic: also those outside of this topic; "": any topic.
        """
        topics = await self._scheduled.topics_of(ids)
        own = [
            row
            for row, id_ in enumerate(ids)
            if id_ in topics and all(may(SEND_TOPIC, each) and topic in ("", each) for each in topics[id_])
        ]
        kinds = await self._scheduled.recall([ids[row] for row in own], [ns[row] for row in own]) if own else ()
        found = dict(zip(own, kinds, strict=True))
        return [found.get(row, "unknown") for row in range(len(ids))]

    @with_call
    async def receive(self, request: pb.ReceiveRequest, call: Receiving) -> pb.ReceiveReply:
        check_name("group", request.group)
        _check_client_id(request.client_id)
        # The order below matters: the line is followed first, so that messages of a lost reply are ready again;
        # outcomes come before `free`, which says that the consumer has settled all of a queue.
        asked_s = min(request.visibility_timeout_ms / 1000, _VISIBILITY_TIMEOUT_S[1])
        visibility_timeout_s = max(_VISIBILITY_TIMEOUT_S[0], asked_s)
        line = PollSequenceStep(request.line, request.received, request.call) if request.line else None
        if line is not None:
            self._delivery.follow(request.group, request.client_id, line)
        expired: list[Receipt] = []
        if request.held:
            held = [_receipt(receipt) for receipt in request.held]
            held_s = asked_s if request.exact else visibility_timeout_s
            expired += await self._delivery.renew(
                request.group, request.client_id, held, held_s, is_exact=request.exact
            )
        for told, is_alone in ((request.joined, False), (request.alone, True)):
            if told:
                receipts = [_receipt(receipt) for receipt in told]
                expired += self._delivery.note_alone(request.group, receipts, is_alone=is_alone)
        if request.acks or request.refusals:
            expired += await self._delivery.settle(
                request.group,
                request.client_id,
                [_receipt(receipt) for receipt in request.acks],
                [
                    Refusal(
                        _receipt(refusal.receipt),
                        refusal.error,
                        refusal.delay_ms / 1000 if refusal.delay_ms >= 0 else None,
                        refusal.dead,
                        refusal.rejected,
                        refusal.least,
                    )
                    for refusal in request.refusals
                ],
            )
        if request.free:
            self._delivery.free(
                request.group,
                request.client_id,
                [(QueueId(receipt.queue_id), receipt.epoch) for receipt in request.free],
            )
        handouts: Sequence[MessageBatch] = ()
        # A stopping broker still takes outcomes, without which messages would be redelivered elsewhere; a call for
        # messages alone is refused, so that the client asks another broker.
        if request.max_messages and self._stopping.is_set() and not (request.acks or request.refusals):
            raise BrokerUnavailable("this broker is closing: ask another one")
        if request.max_messages and not self._stopping.is_set():
            receive = Receive(
                group=request.group,
                client_id=request.client_id,
                subscriptions=[
                    MemberSubscription(check_topics(wanted.topic), wanted.tags or "*")
                    for wanted in request.subscriptions
                ],
                count_max=min(request.max_messages, _MESSAGES_MAX),
                size_bytes_max=request.max_bytes or None,
                wait_s=min(request.wait_ms / 1000, _WAIT_S_MAX),
                visibility_timeout_s=visibility_timeout_s,
                expiry=Expiry.EXACT if request.exact else Expiry.LOST if request.isolates else Expiry.COUNTED,
                start=start_of_wire(request.start),
                line=line,
                in_runs=request.runs,
            )
            handouts = await self._delivery.receive(receive, call.connection)
            receipts = [handout.receipt for handout in handouts]
            # Set before the bodies are opened, which may fail or be cancelled: the messages return at once instead of
            # after the visibility timeout.
            call.unsent = lambda: self._delivery.put_back(request.group, request.client_id, receipts)
            handouts, erased, damaged = await self._bodies.opened(handouts)
            # Settled in the consumer's place: it could never read them, and they would expire and be retried for
            # nothing.
            if erased or damaged:
                await self._delivery.settle(request.group, request.client_id, erased, damaged)
        return pb.ReceiveReply(
            batches=[_columns(handout) for handout in handouts],
            expired=[_receipt_pb(receipt) for receipt in expired],
            pause=self._delivery.why_paused(request.group) if request.max_messages else "",
            awaited=[
                pb.Receipt(queue_id=queue_id, epoch=epoch)
                for queue_id, epoch in self._delivery.awaited(request.group, request.client_id)
            ],
        )

    async def attach(self, call: Attached) -> None:
        """Serve a client's presence, until it ends it, or the broker stops."""
        # Full when the client does not read: a check then fails with QueueFull, which counts as UNKNOWN.
        outgoing: asyncio.Queue[DueHalf] = asyncio.Queue(_CHECKS_WAITING_MAX)
        hello = await self._hello(call)
        client = AttachedClient(
            client_id=hello.client_id,
            producer_group=_group_of_producer(hello.producer_group),
            fences=frozenset(
                [*(UUID(bytes=fence_id) for fence_id in hello.fence_ids), *([None] if hello.checks_unfenced else [])]
            ),
            send_check=outgoing.put_nowait,
            consumer_group=hello.consumer_group,
            host=hello.host[:_CLIENT_ID_LENGTH_MAX],
            pid=hello.pid,
            release=hello.release[:_CLIENT_ID_LENGTH_MAX],
        )
        self._clients.attach(client)
        self._delivery.attached(client.consumer_group, client.client_id, is_there=True)
        reading = asyncio.create_task(self._read(client, call))
        stopping = asyncio.create_task(self._stopping.wait())
        getting: asyncio.Task[DueHalf] | None = None
        changed = asyncio.create_task(self._routes.changed())
        try:
            await call.send_reply(pb.BrokerFrame(route_changed=self._route()))
            while not (reading.done() or stopping.done()):
                getting = asyncio.create_task(outgoing.get())
                await asyncio.wait({getting, reading, stopping, changed}, return_when=asyncio.FIRST_COMPLETED)
                if changed.done():
                    changed = asyncio.create_task(self._routes.changed())
                    await call.send_reply(pb.BrokerFrame(route_changed=self._route()))
                if getting.done():
                    half = getting.result()
                    if half.transaction_id in client.asked:  # else its time to answer is over
                        await call.send_reply(pb.BrokerFrame(check=_check(half, self._shard)))
                else:
                    getting.cancel()
            if reading.done():
                reading.result()
        finally:
            if self._clients.detach(client):
                self._delivery.attached(client.consumer_group, client.client_id, is_there=False)
            for task in (reading, stopping, getting, changed):
                if task is not None:
                    task.cancel()

    def _route(self) -> pb.RouteChanged:
        routes = self._routes
        return pb.RouteChanged(
            brokers=routes.addresses(),
            this=routes.address,
            draining=routes.draining(),
            shard=self._shard,
            is_cut_off=routes.is_cut_off,
        )

    async def _hello(self, call: Attached) -> pb.Hello:
        first = await anext(call)  # it comes with the call
        if first.WhichOneof("kind") != "hello":
            raise ProtocolError("a client that attaches says Hello first")
        if first.hello.producer_group:
            check_name("group", first.hello.producer_group)
        if first.hello.consumer_group:
            check_name("group", first.hello.consumer_group)
        _check_client_id(first.hello.client_id)
        if len(first.hello.fence_ids) > _FENCES_MAX:
            raise ProtocolError(f"a client reads at most {_FENCES_MAX} fences, not {len(first.hello.fence_ids)}")
        if any(len(each) != 16 for each in first.hello.fence_ids):
            raise ProtocolError("a fence id has 16 bytes")
        return first.hello

    async def _read(self, client: AttachedClient, call: Attached) -> None:
        """Take answers until the client ends its side. Raises the error of an invalid frame."""
        async for frame in call:
            if frame.WhichOneof("kind") == "check_answer":
                answer = frame.check_answer
                for transaction_id in ids_of_bytes(answer.transaction_id):
                    state = _STATES.get(answer.state, TransactionState.UNKNOWN)
                    client.answer(TransactionId(transaction_id), state)

    async def route(self, request: pb.RouteRequest) -> pb.RouteReply:
        route = self._route()
        return pb.RouteReply(
            shard=self._shard,
            brokers=route.brokers,
            this=route.this,
            draining=route.draining,
            is_cut_off=route.is_cut_off,
        )

    async def held(self, request: pb.HeldRequest) -> pb.HeldReply:
        ids = ids_of_bytes(request.transaction_ids)
        _check_items(len(ids))
        held = await self._halves.held(ids)
        for group in set(held.values()):
            require(
                CHECK_GROUP, group
            )  # refused, not left out: a client that is told that a transaction is decided purges its fence row
        return pb.HeldReply(held=bytes_of_ids(held))


def _group_of_producer(group: str) -> str:
    """Return `group` if the client is one of its producers, else "": no client is shown under a group of others.

    Not refused: a producer of plain messages needs a right on their topics only.
    """
    return group if may(SEND_GROUP, group) or may(CHECK_GROUP, group) else ""


def _check_items(count: int) -> None:
    if count > REQUEST_ITEMS_MAX:
        raise InvalidMessage(f"{count} items in one request: at most {REQUEST_ITEMS_MAX} are allowed, send several")


def _check_client_id(client_id: str) -> None:
    if len(client_id) > _CLIENT_ID_LENGTH_MAX:
        raise ProtocolError(f"a client id of {len(client_id)} characters: at most {_CLIENT_ID_LENGTH_MAX} are allowed")


def _item_errors(problems: Mapping[bytes, TxmsgError]) -> list[pb.ItemError]:
    return [pb.ItemError(transaction_id=id_bytes, code=exc.code, text=str(exc)) for id_bytes, exc in problems.items()]


def _receipt(receipt: pb.Receipt) -> Receipt:
    return Receipt(receipt.queue_id, receipt.token, receipt.epoch, list(receipt.offset))


def _receipt_pb(receipt: Receipt) -> pb.Receipt:
    return pb.Receipt(queue_id=receipt.queue_id, token=receipt.token, epoch=receipt.epoch, offset=receipt.offsets)


def _columns(handout: MessageBatch) -> pb.DeliveredColumns:
    # One zip for all columns, in C, instead of a Python loop per message (decision 10).
    columns: Any = StoredRow._make(zip(*handout.rows, strict=True))
    return pb.DeliveredColumns(
        topic=handout.topic,
        queue=handout.queue,
        receipt=_receipt_pb(handout.receipt),
        transaction_id=b"".join(columns.transaction_id),
        n=columns.n if any(columns.n) else None,
        body=columns.body,
        key=_given(columns.key, ""),
        tag=_given(columns.tag, ""),
        headers=_given(columns.headers, b""),
        born_at_us=[us + EPOCH_2000_US for us in columns.born_at_2000_us],
        stored_at_us=[us + EPOCH_2000_US for us in columns.stored_at_2000_us],
        attempt=handout.attempts,
        ordering_key=_given(columns.ordering_key, ""),
        generation=handout.generations if handout.generations and any(handout.generations) else None,
        losses=handout.losses if handout.losses and any(handout.losses) else None,
    )


def _given(column: Sequence[T | None], none: T) -> list[T] | None:
    """Return a column in the protocol's form: `none` in place of None, or left out."""
    return [value or none for value in column] if any(column) else None


def _check(half: DueHalf, shard: bytes) -> pb.Check:
    message = half.message
    return pb.Check(
        shard=shard,
        attempt=half.checks,
        transaction_id=half.transaction_id.bytes,
        topic=message.topic,
        body=message.body,
        key=message.key or "",
        tag=message.tag or "",
        headers=pack_headers(message.headers),
        born_at_us=message.born_at_us,
        stored_at_us=message.stored_at_us,
        trace=half.trace,
    )
