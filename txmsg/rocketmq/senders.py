"""Sends for RocketMQ's producers: messages, half messages, outcomes. Belongs to one loop.

The producer group of a transaction is its topic: these clients name no group, and checks name the topic.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from txmsg.client.channel import Brokers
from txmsg.client.sending.batch import EndEntry, SendEntry, recalled
from txmsg.client.sending.sender import Sender
from txmsg.message import Message, TransactionState, message_id
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.v1.txmsg_pb2 import RecallReply

_TOPICS_MAX = 10_000
"""Maximum topics whose senders are kept. Senders are small; topics are those that clients name and brokers have."""


class Senders:
    """The senders of each producer group. timeout_s: of a call, including retries at other brokers."""

    def __init__(self, brokers: Brokers, *, timeout_s: float) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s
        self._of_topic: dict[str, Sender] = {}

    async def send_message(self, transaction_id: bytes, message: Message, *, born_at_us: int, half: bool) -> None:
        """Send a message; on disk on return. Idempotent under the same id. Raises as `AsyncProducer.send` or `half`."""
        sender = self._sender(message.topic)
        waiter = sender.new_waiter()
        entry = SendEntry(transaction_id, (message,), waiter)
        entry.born_at_us = born_at_us
        (sender.halves if half else sender.plain).offer(entry)
        try:
            await waiter
        finally:  # its error knows this frame, and would keep the message until it is collected
            del waiter, entry

    async def end_transaction(self, topic: str, transaction_id: bytes, state: TransactionState) -> None:
        """Report an outcome; on disk on return. Raises as `AsyncProducer.end`."""
        sender = self._sender(topic)
        waiter = sender.new_waiter()
        sender.end_transaction(self._brokers.shard, EndEntry(transaction_id, state, waiter))
        await waiter

    async def recall(self, topic: str, transaction_id: bytes) -> bool:
        """Recall a delayed message. Returns False if it is too late. Raises OutcomeExpired, CallRefused."""
        result = await self._sender(topic).recall(transaction_id, 0, topic)
        if result == RecallReply.UNDECIDED:
            raise CallRefused(
                pb.BAD_REQUEST,
                "it is a half message, which is not scheduled yet: end its transaction by ROLLBACK instead",
            )
        return recalled(message_id(UUID(bytes=transaction_id), 0), result)

    async def drain(self) -> None:
        """Accept nothing more, and return when everything accepted is settled."""
        await asyncio.gather(*(sender.drain() for sender in self._of_topic.values()))

    def _sender(self, topic: str) -> Sender:
        sender = self._of_topic.get(topic)
        if sender is None:
            sender = self._of_topic[topic] = Sender(self._brokers, group=topic, timeout_s=self._timeout_s)
            if len(self._of_topic) > _TOPICS_MAX:
                # Only a sender without items may be dropped: `drain` waits for those that are kept.
                idle = next((name for name, each in self._of_topic.items() if not each.pending_items()), topic)
                if idle != topic:
                    del self._of_topic[idle]
        return sender
