"""Receives messages for RocketMQ's consumers, settles them, and renews what push consumers hold. Belongs to one loop.

A call of a consumer names one topic, while a member of a txmsg group subscribes to all its topics at once. So each
topic of a client is a separate member. Each receive is a separate line (docs/protocol.md): messages that it took and
the client did not get are returned by a last call with the line.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from txmsg.client.channel import RETRYABLE, Brokers
from txmsg.client.receiving.received import delivered
from txmsg.errors import TxmsgError
from txmsg.message import ReceivedMessage
from txmsg.rocketmq.filters import Wanted
from txmsg.rocketmq.ids import Handle
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.runtime.logs import EventLog
from txmsg.wire.v1.txmsg_pb2 import Receipt, ReceiveReply, ReceiveRequest, Refusal, RouteRequest, Subscription
from txmsg.wire.v1.txmsg_rpc import Notify

_log = EventLog(__name__)

RENEWED_S = 60.0
"""The visibility timeout, in seconds, of messages that are renewed for a client that is alive."""
RENEWED_S_MAX = 3 * 3600.0
"""Maximum seconds for which a message is renewed in all."""
_RENEWALS = 4
"""Renewals within a visibility timeout: all but one may be lost."""
SILENT_S = 60.0
"""Seconds without a sign of a client after which it is gone, as without power: clients send a heartbeat every 10 s."""
TOO_LATE = "the message is not in this consumer's hands any more: its time was over"
_GRACE_S = 5.0
_RECEIVED_SIZE_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of bodies and headers in one reply, which is in memory until the client has read it; at least one
message."""
_LOST_MAX = 5
"""Maximum times that a message is given back because its reply did not reach the client. After that, each time counts
as an attempt: the client may be unable to take it, as Node's is if a message has more than 4 MiB with all its fields.
"""
_LOST_KEPT_MAX = 1000
"""Maximum messages for which lost replies are counted."""
_NO_DELAY_MS = -1
_LINE_BITS = 63
_ID_LENGTH_MAX = 200
"""Maximum characters of a member's id, as at brokers."""
_ATTEMPT_LENGTH_MAX = 128
"""Maximum characters of an attempt's name that is remembered; clients use a UUID."""
_LAST_CALL = 1 << 62
"""The call number of a line's last call: after all others."""


class ClientSubscription(NamedTuple):
    """One topic of one client in a consumer group."""

    group: str
    client_id: str
    topic: str

    @property
    def id(self) -> str:
        """The member's id at brokers, unique even if the client's id is very long."""
        whole = f"{self.client_id}/{self.topic}"
        if len(whole) <= _ID_LENGTH_MAX:
            return whole
        digest = hashlib.blake2b(whole.encode(), digest_size=16).hexdigest()
        return f"{whole[: _ID_LENGTH_MAX - len(digest) - 1]}/{digest}"


class Received(NamedTuple):
    """The messages that one call took for a member, and its line."""

    member: ClientSubscription
    broker: str
    line: int
    messages: list[tuple[ReceivedMessage, Handle]]

    @property
    def handles(self) -> list[Handle]:
        """The handles of the messages."""
        return [handle for _, handle in self.messages]


class _Reply(NamedTuple):
    """The handles that a push consumer was given, in case it repeats the receive. Without the messages, which can be
    large.
    """

    attempt: str
    line: int
    handles: Sequence[Handle]


@dataclass(slots=True)
class _HeldDelivery:
    member: ClientSubscription
    until: float
    may_hold: Callable[[], bool]


class Receivers:
    """The operations of consumers, at the broker that delivers each queue."""

    def __init__(self, brokers: Brokers, tasks: Tasks) -> None:
        self._brokers = brokers
        self._tasks = tasks
        self._held: dict[Handle, _HeldDelivery] = {}
        self._heard: dict[str, float] = {}
        self._replies: dict[tuple[ClientSubscription, str], _Reply] = {}
        """The last reply with messages, by member and broker."""
        self._lost: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        """Numbers of lost replies, by group, queue and offset of a message that came alone."""

    async def receive(
        self,
        member: ClientSubscription,
        broker: str,
        wanted: Wanted,
        *,
        count: int,
        wait_s: float,
        invisible_s: float,
        renews: bool,
        attempt: str = "",
        may_hold: Callable[[], bool] = lambda: True,
    ) -> Received:
        """Return up to `count` messages that this broker delivers, or none after wait_s. Raises TxmsgError,
        CallRefused.

        Messages that the member's SQL filter does not accept are acknowledged: they are done for the group.

        renews: messages are renewed until they are settled or the client is gone. Otherwise each becomes visible again
        after invisible_s, and there may be several of a message group, in order: a program that asks for them processes
        them in this order, while a push consumer may process them concurrently. If this call is cancelled, nothing is
        taken.

        may_hold: asked before each renewal. A client without rights could not settle its messages: others get them.

        attempt: the client's name for this receive, which it repeats as long as it gets no reply. So if an earlier
        receive had the same name, the client did not get its messages: they are given back. Otherwise they would be
        renewed for hours.
        """
        self.heard(member.client_id)
        self._give_back_unless_come(member, broker, attempt)
        clock = asyncio.get_running_loop().time
        until = clock() + wait_s
        request = self._request(member, invisible_s)
        request.subscriptions.append(Subscription(topic=member.topic, tags=wanted.tags))
        request.max_messages, request.exact, request.runs = count, not renews, not renews
        request.max_bytes = _RECEIVED_SIZE_BYTES_MAX
        # Random, because gateways share no memory: two of them must not use the same line of a member.
        request.line = secrets.randbits(_LINE_BITS) + 1
        received = Received(member, broker, request.line, [])
        try:
            while True:
                request.wait_ms = max(0, int((until - clock()) * 1000))
                brought = await self._receive_once(member, broker, request, renews=renews)
                received.messages[:] = brought if wanted.sql is None else await _chosen(wanted, brought)
                if received.messages or not brought or clock() >= until:
                    break
                del request.acks[:]
                request.acks.extend(handle.receipt for _, handle in brought)
        except (asyncio.CancelledError, TxmsgError):  # the broker may have given messages all the same
            self.give_back(received)
            raise
        if renews:
            renewed_until = clock() + RENEWED_S_MAX
            self._held.update((handle, _HeldDelivery(member, renewed_until, may_hold)) for handle in received.handles)
            if 0 < len(attempt) <= _ATTEMPT_LENGTH_MAX and received.messages:
                self._replies[member, broker] = _Reply(attempt, request.line, received.handles)
        if len(received.messages) < len(brought):
            # A message that the filter refused is done for the whole group, as in RocketMQ: acknowledge it (decision
            # 0087).
            kept = set(received.handles)
            request = self._request(member, invisible_s)
            request.acks.extend(handle.receipt for _, handle in brought if handle not in kept)
            self._settle_later(broker, request)
        return received

    async def _receive_once(
        self, member: ClientSubscription, broker: str, request: ReceiveRequest, *, renews: bool
    ) -> list[tuple[ReceivedMessage, Handle]]:
        """Return the messages of one call; unreadable ones are refused."""
        request.call += 1
        reply = await self._call(broker, request, request.wait_ms / 1000 + _GRACE_S)
        if reply.batches:
            request.received = reply.batches[0].receipt.token
        name = self._brokers.name_of(broker) or broker  # another gateway may reach it at another address
        got: list[tuple[ReceivedMessage, Handle]] = []
        unreadable: list[Refusal] = []
        for columns in reply.batches:
            queue_id, token, epoch = columns.receipt.queue_id, columns.receipt.token, columns.receipt.epoch
            messages, errors = delivered(columns)
            for message in messages:
                assert message.offset is not None, "it stands in a queue"
                got.append((message, Handle(name, queue_id, token, epoch, message.offset, renews)))
            for offset, error in errors.items():
                receipt = Receipt(queue_id=queue_id, token=token, epoch=epoch, offset=[offset])
                unreadable.append(Refusal(receipt=receipt, error=str(error), delay_ms=_NO_DELAY_MS))
        if unreadable:
            refusing = self._request(member)
            refusing.refusals.extend(unreadable)
            await self._call(broker, refusing, _GRACE_S)
        return got

    def _give_back_unless_come(self, member: ClientSubscription, broker: str, attempt: str) -> None:
        reply = self._replies.pop((member, broker), None)
        if reply is not None and reply.attempt == attempt:
            self._give_back(member, broker, reply.line, reply.handles)

    def give_back(self, received: Received) -> None:
        """Return messages that did not reach the client: they are redelivered at once, as if they had not been taken.

        If the broker cannot be reached, they are redelivered when their time is over.
        """
        self._give_back(received.member, received.broker, received.line, received.handles)

    def _give_back(self, member: ClientSubscription, broker: str, line: int, handles: Sequence[Handle]) -> None:
        self._forget_handles(handles)
        request = self._request(member)
        if (lost := self._lost_too_often(member, handles)) is not None:
            error = f"{_LOST_MAX} replies with it did not reach their client: is it larger than the client accepts?"
            request.refusals.append(Refusal(receipt=lost.receipt, error=error, delay_ms=_NO_DELAY_MS))
        else:
            request.line, request.call = line, _LAST_CALL
        self._settle_later(broker, request)

    def _lost_too_often(self, member: ClientSubscription, handles: Sequence[Handle]) -> Handle | None:
        """Return the message, if it came alone (as large ones do) and is lost once more after _LOST_MAX times."""
        if len(handles) != 1:
            return None
        [handle] = handles
        key = (member.group, handle.queue_id, handle.offset)
        lost = self._lost[key] = self._lost.pop(key, 0) + 1
        if len(self._lost) > _LOST_KEPT_MAX:
            self._lost.popitem(last=False)
        return handle if lost > _LOST_MAX else None

    def _settle_later(self, broker: str, request: ReceiveRequest) -> None:
        """Settle in the background; no client waits for it."""
        self._tasks.start(self._settle(broker, request), name="rocketmq-settle")

    async def _settle(self, broker: str, request: ReceiveRequest) -> None:
        with suppress(TxmsgError, CallRefused):  # they come again in any case, when their time is over
            await self._call(broker, request, _GRACE_S)

    async def acknowledge(self, member: ClientSubscription, handles: Iterable[Handle]) -> set[Handle]:
        """Acknowledge messages. Returns those that came too late.

        Raises TxmsgError; then none may be reported as done.
        """
        of_broker: defaultdict[str, list[Handle]] = defaultdict(list)
        for handle in handles:
            of_broker[handle.broker].append(handle)
        late = await asyncio.gather(*(self._acknowledge(member, *each) for each in of_broker.items()))
        return set().union(*late)

    async def _acknowledge(self, member: ClientSubscription, broker: str, handles: Sequence[Handle]) -> set[Handle]:
        request = self._request(member)
        request.acks.extend(handle.receipt for handle in handles)
        late = await self._late_at(broker, handles, request)
        self._forget_handles(handles)
        return late

    async def refuse(self, member: ClientSubscription, handle: Handle, error: str, *, delay_s: float) -> None:
        """Have a message redelivered after delay_s, or after the group's back-off if that is longer.

        So a client that passes milliseconds where it means seconds is not flooded. Raises CallRefused if it came too
        late, and TxmsgError.
        """
        await self._refuse(member, handle, Refusal(error=error, delay_ms=round(delay_s * 1000), least=True))

    async def bury(self, member: ClientSubscription, handle: Handle, error: str) -> None:
        """Make a message a dead letter now. Raises as `refuse`."""
        await self._refuse(member, handle, Refusal(error=error, delay_ms=_NO_DELAY_MS, dead=True))

    async def _refuse(self, member: ClientSubscription, handle: Handle, refusal: Refusal) -> None:
        request = self._request(member)
        refusal.receipt.CopyFrom(handle.receipt)
        request.refusals.append(refusal)
        late = await self._late_at(handle.broker, [handle], request)
        self._forget_handles([handle])
        _check_in_time(late)

    async def set_invisible(self, member: ClientSubscription, handle: Handle, invisible_s: float) -> None:
        """Make a message visible again this long from now, sooner or later than before. Raises as `refuse`."""
        request = self._request(member, invisible_s)
        request.held.append(handle.receipt)
        request.exact = True
        _check_in_time(await self._late_at(handle.broker, [handle], request))

    def is_renewed(self, handle: Handle) -> bool:
        """Return True if a push consumer holds the message."""
        return handle in self._held

    @property
    def held_messages(self) -> int:
        """The number of messages that push consumers hold."""
        return len(self._held)

    def heard(self, client_id: str) -> None:
        """Note that the client is alive."""
        self._heard[client_id] = asyncio.get_running_loop().time()

    def left(self, client_id: str) -> None:
        """Note that the client is gone: messages that it holds are no longer renewed."""
        self._forget_handles([handle for handle, held in self._held.items() if held.member.client_id == client_id])
        self._replies = {key: reply for key, reply in self._replies.items() if key[0].client_id != client_id}

    async def renew(self) -> None:
        """Renew the messages of living clients periodically, until cancelled."""
        while True:
            await asyncio.sleep(RENEWED_S / _RENEWALS)
            try:
                await self.renew_once(asyncio.get_running_loop().time())
            except Exception:  # noqa: BLE001 - the root of a task: the next round may do
                _log.exception("rocketmq.renewals_failed", "renewals failed unexpectedly")

    async def renew_once(self, now: float) -> None:
        """Renew all held messages now, at all brokers concurrently, so that a slow one does not delay others."""
        self._heard = {client_id: at for client_id, at in self._heard.items() if at > now - SILENT_S}
        self._replies = {key: reply for key, reply in self._replies.items() if key[0].client_id in self._heard}
        self._forget_handles(
            [
                handle
                for handle, held in self._held.items()
                if held.until < now or held.member.client_id not in self._heard or not held.may_hold()
            ]
        )
        groups: defaultdict[tuple[ClientSubscription, str], list[Handle]] = defaultdict(list)
        for handle, held in self._held.items():
            groups[held.member, handle.broker].append(handle)
        await asyncio.gather(*(self._renew(*whose, handles) for whose, handles in groups.items()))

    async def _renew(self, member: ClientSubscription, broker: str, handles: Sequence[Handle]) -> None:
        request = self._request(member, RENEWED_S)
        request.held.extend(handle.receipt for handle in handles)
        try:
            self._forget_handles(await self._late_at(broker, handles, request))
        except (TxmsgError, CallRefused) as exc:  # the next renewal may reach it
            _log.warning(
                "rocketmq.renewal_failed",
                "%(messages)d messages in the hands of group %(group)s could not be renewed: %(error)s",
                messages=len(handles),
                group=member.group,
                error=exc,
            )

    def _forget_handles(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            self._held.pop(handle, None)

    def _request(self, member: ClientSubscription, invisible_s: float = RENEWED_S) -> ReceiveRequest:
        return ReceiveRequest(group=member.group, client_id=member.id, visibility_timeout_ms=round(invisible_s * 1000))

    async def _late_at(self, broker: str, handles: Sequence[Handle], request: ReceiveRequest) -> set[Handle]:
        """Settle or hold messages of this broker. Returns those that came too late: all, if the broker is gone for
        good.

        Some clients retry for ever after any other error.
        """
        try:
            return _late(handles, await self._call(broker, request, _GRACE_S))
        except (*RETRYABLE, CallRefused):
            if not await self._has_gone(broker):
                raise
            return set(handles)

    async def _has_gone(self, broker: str) -> bool:
        """Return True if other brokers report now that this one is gone; they then redeliver its messages.

        Raises TxmsgError if none answers.
        """
        told = await self._brokers.call(Notify.route, RouteRequest(), timeout_s=_GRACE_S)
        if self._brokers.address_of(broker) is not None:
            broker = self._brokers.name_of(broker)
        is_told = bool(broker and told.brokers) and not told.is_cut_off
        return is_told and broker not in told.brokers

    async def _call(self, broker: str, request: ReceiveRequest, timeout_s: float) -> ReceiveReply:
        address = self._brokers.address_of(broker)
        if address is None:
            raise CallRefused(
                pb.HA_NOT_AVAILABLE, f"broker {broker!r} is not there any more: its queues are delivered by others"
            )
        return await self._brokers.channel(address).call(Notify.receive, request, timeout_s=timeout_s)


async def _chosen(
    wanted: Wanted, brought: Iterable[tuple[ReceivedMessage, Handle]]
) -> list[tuple[ReceivedMessage, Handle]]:
    """Return the messages that the filter accepts. Yields to other tasks after each, since evaluating one may take 35
    ms.
    """
    chosen = []
    for message, handle in brought:
        if wanted.takes(message):
            chosen.append((message, handle))
        await asyncio.sleep(0)
    return chosen


def _late(handles: Iterable[Handle], reply: ReceiveReply) -> set[Handle]:
    """Return the handles that the broker does not, or no longer, know as delivered."""
    expired = {
        (receipt.queue_id, receipt.token, receipt.epoch, offset)
        for receipt in reply.expired
        for offset in receipt.offset
    }
    return {handle for handle in handles if handle.delivery in expired}


def _check_in_time(late: set[Handle]) -> None:
    if late:
        raise CallRefused(pb.INVALID_RECEIPT_HANDLE, TOO_LATE)
