"""Receives for RocketMQ's consumers, settles what they got, and renews what push consumers hold. Belongs to one loop.

A consumer's calls name one topic each, while a member of a group says once for all of its topics what it wants. So each
topic of a client is a member of its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from txmsg.client.channel import Brokers
from txmsg.client.received import delivered
from txmsg.errors import TxmsgError
from txmsg.logs import EventLog
from txmsg.message import ReceivedMessage
from txmsg.rocketmq.filters import Wanted
from txmsg.rocketmq.ids import Handle
from txmsg.rocketmq.status import Refused
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.v1.txmsg_pb2 import Receipt, ReceiveReply, ReceiveRequest, Refusal, Subscription
from txmsg.wire.v1.txmsg_rpc import Notify

_log = EventLog(__name__)

RENEWED_S = 60.0
"""The visibility timeout of what is renewed for a client that is alive."""
RENEWED_S_MAX = 3 * 3600.0
"""For so long in all."""
_RENEWALS = 4
"""Within a visibility timeout: all but one may be lost."""
SILENT_S = 60.0
"""A client not heard of for so long has gone, as when its machine lost power: clients say every 10 s that they live."""
TOO_LATE = "the message is not in this consumer's hands any more: its time was over"
_GRACE_S = 5.0
_NO_DELAY_MS = -1


class Member(NamedTuple):
    """One topic of one client in a consumer group."""

    group: str
    client_id: str
    topic: str

    @property
    def id(self) -> str:
        """What brokers know it by."""
        return f"{self.client_id[:100]}/{self.topic}"[:200]


@dataclass(slots=True)
class _Held:
    member: Member
    until: float


class Receivers:
    """What consumers do, at whichever broker delivers the queue."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._held: dict[Handle, _Held] = {}
        self._heard: dict[str, float] = {}
        self._settling: set[asyncio.Task[None]] = set()

    async def receive(
        self,
        member: Member,
        broker: str,
        wanted: Wanted,
        *,
        count: int,
        wait_s: float,
        invisible_s: float,
        renews: bool,
    ) -> list[tuple[ReceivedMessage, Handle]]:
        """Up to `count` messages that this broker delivers, or none after wait_s. Raises TxmsgError, Refused.

        Those that the member's SQL filter does not want are acknowledged: they are done for the group.

        renews: they are renewed until they are settled, or the client has gone.
        """
        self.heard(member.client_id)
        clock = asyncio.get_running_loop().time
        until = clock() + wait_s
        request = self._request(member, invisible_s)
        request.subscriptions.append(Subscription(topic=member.topic, tags=wanted.tags))
        request.max_messages = count
        while True:
            request.wait_ms = max(0, int((until - clock()) * 1000))
            brought = await self._receive_once(member, broker, request)
            got = [(message, handle) for message, handle in brought if wanted.takes(message)]
            if got or not brought or clock() >= until:
                break
            del request.acks[:]
            request.acks.extend(handle.receipt for _, handle in brought)
        if renews:
            renewed_until = clock() + RENEWED_S_MAX
            self._held.update((handle, _Held(member, renewed_until)) for _, handle in got)
        kept = {handle for _, handle in got}
        if unwanted := [handle for _, handle in brought if handle not in kept]:
            request = self._request(member, invisible_s)
            request.acks.extend(handle.receipt for handle in unwanted)
            self._settle_later(broker, request)
        return got

    async def _receive_once(
        self, member: Member, broker: str, request: ReceiveRequest
    ) -> list[tuple[ReceivedMessage, Handle]]:
        """What one call brings; what of it cannot be read is refused."""
        reply = await self._call(broker, request, request.wait_ms / 1000 + _GRACE_S)
        got: list[tuple[ReceivedMessage, Handle]] = []
        unreadable: list[Refusal] = []
        for columns in reply.batches:
            queue_id, token, epoch = columns.receipt.queue_id, columns.receipt.token, columns.receipt.epoch
            messages, errors = delivered(columns)
            for message in messages:
                assert message.offset is not None, "it stands in a queue"
                got.append((message, Handle(broker, queue_id, token, epoch, message.offset)))
            for offset, error in errors.items():
                receipt = Receipt(queue_id=queue_id, token=token, epoch=epoch, offset=[offset])
                unreadable.append(Refusal(receipt=receipt, error=str(error), delay_ms=_NO_DELAY_MS))
        if unreadable:
            refusing = self._request(member, RENEWED_S)
            refusing.refusals.extend(unreadable)
            await self._call(broker, refusing, _GRACE_S)
        return got

    async def acknowledge(self, member: Member, handles: Iterable[Handle]) -> set[Handle]:
        """They are done. Returns those that came too late. Raises TxmsgError: then nothing may be said of any."""
        of_broker: defaultdict[str, list[Handle]] = defaultdict(list)
        for handle in handles:
            of_broker[handle.broker].append(handle)
        late = await asyncio.gather(*(self._acknowledge(member, *each) for each in of_broker.items()))
        return set().union(*late)

    async def _acknowledge(self, member: Member, broker: str, handles: Sequence[Handle]) -> set[Handle]:
        request = self._request(member, RENEWED_S)
        request.acks.extend(handle.receipt for handle in handles)
        reply = await self._call(broker, request, _GRACE_S)
        self._forget(handles)
        return _late(broker, reply)

    async def refuse(self, member: Member, handle: Handle, error: str, *, delay_s: float | None, dead: bool) -> None:
        """It is to come again after delay_s (None: the group's back-off), or to be a dead letter at once.

        Raises Refused if it came too late, and TxmsgError.
        """
        request = self._request(member, RENEWED_S)
        delay_ms = _NO_DELAY_MS if delay_s is None else round(delay_s * 1000)
        request.refusals.append(Refusal(receipt=handle.receipt, error=error, delay_ms=delay_ms, dead=dead))
        reply = await self._call(handle.broker, request, _GRACE_S)
        self._forget([handle])
        _check_in_time(handle, reply)

    async def extend(self, member: Member, handle: Handle, invisible_s: float) -> None:
        """It stays invisible for so long from now on, at least. Raises Refused if it came too late, and TxmsgError."""
        request = self._request(member, invisible_s)
        request.held.append(handle.receipt)
        reply = await self._call(handle.broker, request, _GRACE_S)
        _check_in_time(handle, reply)

    def unsent(self, member: Member, handles: Sequence[Handle]) -> None:
        """They did not reach the client, who can settle none of them: they come again at once."""
        self._forget(handles)
        request = self._request(member, RENEWED_S)
        request.refusals.extend(
            Refusal(receipt=handle.receipt, error="it did not reach the consumer", delay_ms=0) for handle in handles
        )
        self._settle_later(handles[0].broker, request)

    def _settle_later(self, broker: str, request: ReceiveRequest) -> None:
        """Settles what no client waits for."""
        settling = asyncio.create_task(self._settle(broker, request))
        self._settling.add(settling)
        settling.add_done_callback(self._settling.discard)

    async def _settle(self, broker: str, request: ReceiveRequest) -> None:
        with suppress(TxmsgError, Refused):  # they come again in any case, when their time is over
            await self._call(broker, request, _GRACE_S)

    def is_renewed(self, handle: Handle) -> bool:
        """Whether a push consumer holds it."""
        return handle in self._held

    def heard(self, client_id: str) -> None:
        """The client lives."""
        self._heard[client_id] = asyncio.get_running_loop().time()

    def left(self, client_id: str) -> None:
        """The client has gone: what it holds is not renewed any more."""
        self._forget([handle for handle, held in self._held.items() if held.member.client_id == client_id])

    async def renew(self) -> None:
        """Renews for ever what clients hold that are there."""
        while True:
            await asyncio.sleep(RENEWED_S / _RENEWALS)
            await self.renew_once(asyncio.get_running_loop().time())

    async def renew_once(self, now: float) -> None:
        """Renews what is held now, at all brokers at once: one that does not answer holds up no other."""
        self._heard = {client_id: at for client_id, at in self._heard.items() if at > now - SILENT_S}
        self._forget(
            [
                handle
                for handle, held in self._held.items()
                if held.until < now or held.member.client_id not in self._heard
            ]
        )
        groups: defaultdict[tuple[Member, str], list[Handle]] = defaultdict(list)
        for handle, held in self._held.items():
            groups[held.member, handle.broker].append(handle)
        await asyncio.gather(*(self._renew(*whose, handles) for whose, handles in groups.items()))

    async def _renew(self, member: Member, broker: str, handles: Sequence[Handle]) -> None:
        request = self._request(member, RENEWED_S)
        request.held.extend(handle.receipt for handle in handles)
        try:
            self._forget(_late(broker, await self._call(broker, request, _GRACE_S)))
        except (TxmsgError, Refused) as exc:  # the next renewal may reach it
            _log.warning(
                "rocketmq.renewal_failed",
                "%(messages)d messages in the hands of group %(group)s could not be renewed: %(error)s",
                messages=len(handles),
                group=member.group,
                error=exc,
            )

    def _forget(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            self._held.pop(handle, None)

    def _request(self, member: Member, invisible_s: float) -> ReceiveRequest:
        return ReceiveRequest(group=member.group, client_id=member.id, visibility_timeout_ms=round(invisible_s * 1000))

    async def _call(self, broker: str, request: ReceiveRequest, timeout_s: float) -> ReceiveReply:
        if broker not in self._brokers.addresses:
            raise Refused(
                pb.HA_NOT_AVAILABLE, f"broker {broker!r} is not there any more: its queues are delivered by others"
            )
        return await self._brokers.channel(broker).call(Notify.receive, request, timeout_s=timeout_s)


def _late(broker: str, reply: ReceiveReply) -> set[Handle]:
    return {
        Handle(broker, receipt.queue_id, receipt.token, receipt.epoch, offset)
        for receipt in reply.expired
        for offset in receipt.offset
    }


def _check_in_time(handle: Handle, reply: ReceiveReply) -> None:
    if handle in _late(handle.broker, reply):
        raise Refused(pb.INVALID_RECEIPT_HANDLE, TOO_LATE)
