"""The calls of a link to its broker: each is a Receive, whether it polls or only reports."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from txmsg.client.channel import BrokerCalls
from txmsg.client.receiving.awaited import AwaitedQueues
from txmsg.client.receiving.broker_failures import BrokerFailures
from txmsg.client.receiving.fetch_budget import FetchBudget
from txmsg.client.receiving.member import ConsumerMember
from txmsg.client.receiving.poll_sequence import PollSequence
from txmsg.errors import ProtocolError, TxmsgError
from txmsg.wire.v1.txmsg_pb2 import ReceiveReply, ReceiveRequest
from txmsg.wire.v1.txmsg_rpc import Notify

CALL_GRACE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkCalls:
    """Makes requests, and notes what each answer, or its absence, says about the broker."""

    channel: BrokerCalls
    member: ConsumerMember
    room: FetchBudget
    line: PollSequence
    awaited: AwaitedQueues
    trouble: BrokerFailures

    def request(self, *, names_line: bool = False) -> ReceiveRequest:
        """Return a request with the common fields. names_line: also the last message that came over its line; not while
        a poll is in progress."""
        request = ReceiveRequest(
            free=self.awaited.free(),
            group=self.member.group,
            client_id=self.member.client_id,
            subscriptions=self.member.subscriptions,
            visibility_timeout_ms=int(self.room.bounds.visibility_timeout_s * 1000),
            start=self.member.start,
            isolates=True,
        )
        if names_line:
            self.line.name(request)
        return request

    async def call(self, request: ReceiveRequest, *, timeout_s: float = CALL_GRACE_S) -> ReceiveReply | None:
        """Make one Receive. Returns None after a failure."""
        try:
            reply = await self.channel.call(Notify.receive, request, timeout_s=timeout_s)
        except TxmsgError as exc:
            self.member.counts.failed_calls += 1
            self.trouble.note_failure(exc, asyncio.get_running_loop().time())
            self.awaited.forget_queues()
            if isinstance(exc, ProtocolError):  # an unreadable reply would be sent again for ever, uncounted
                self.line.begin_again()
            return None
        self.awaited.hear(reply.awaited, asyncio.get_running_loop().time())
        self.trouble.note_answer()
        return reply
