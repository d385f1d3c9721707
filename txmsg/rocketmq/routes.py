"""Which topics there are, and where their messages are: each broker is a queue to RocketMQ's clients.

A broker delivers what it leases, which changes while clients run, so the queues of txmsg are not told. Ordering keys
keep their order whichever broker takes a message.
"""

from __future__ import annotations

import asyncio

from txmsg.client.channel import Brokers
from txmsg.errors import UnknownTopic
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.v1.topics_pb2 import ShowTopicRequest
from txmsg.wire.v1.topics_rpc import Topics

_KNOWN_S = 30.0
_KNOWN_MAX = 10_000
_TIMEOUT_S = 2.5
_TYPES = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)


class Routes:
    """Of the topics of a Notify database."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[str, float] = {}

    async def queues(self, topic: str, endpoints: pb.Endpoints) -> list[pb.MessageQueue]:
        """The queues of a topic, all behind the endpoints that the client asked. Raises UnknownTopic, TxmsgError."""
        await self._check(topic)
        return [
            pb.MessageQueue(
                topic=pb.Resource(name=topic),
                id=number,
                permission=pb.READ_WRITE,
                broker=pb.Broker(name=address, endpoints=endpoints),
                accept_message_types=_TYPES,
            )
            for number, address in enumerate(sorted(self._brokers.addresses))
        ]

    async def _check(self, topic: str) -> None:
        now = asyncio.get_running_loop().time()
        if self._known.get(topic, 0.0) > now:
            return
        try:
            await self._brokers.call(Topics.show, ShowTopicRequest(name=topic), timeout_s=_TIMEOUT_S)
        except UnknownTopic:
            self._known.pop(topic, None)
            raise
        if len(self._known) >= _KNOWN_MAX:
            self._known = {name: until for name, until in self._known.items() if until > now}
        self._known[topic] = now + _KNOWN_S
