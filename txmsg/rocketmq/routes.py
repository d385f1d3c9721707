"""Routes of topics: RocketMQ's clients see each broker as a queue.

A broker delivers the queues that it leases, which change while clients run, so txmsg's queues are not exposed. Ordering
keys keep their order, whichever broker accepts a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from txmsg.administration.topics import TopicName, TopicsService
from txmsg.client.channel import Brokers
from txmsg.errors import UnknownTopic
from txmsg.message import ANY_TYPE
from txmsg.rocketmq.v2 import messaging_pb2 as pb

_KNOWN_S = 30.0
_KNOWN_MAX = 10_000
_TIMEOUT_S = 2.5
_TYPES: Final[Mapping[str, Sequence[pb.MessageType]]] = {
    ANY_TYPE: (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION),
    "normal": (pb.NORMAL,),
    "fifo": (pb.FIFO,),
    "delay": (pb.DELAY,),
    "transaction": (pb.TRANSACTION,),
}


class _CachedTopicType(NamedTuple):
    """The type of a topic, cached until a time."""

    message_type: str
    until: float


class TopicRoutes:
    """Routes of the topics of a Notify database."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[str, _CachedTopicType] = {}

    async def queues(self, topic: str, endpoints: pb.Endpoints) -> list[pb.MessageQueue]:
        """Return the queues of a topic, all at the endpoints that the client used. Raises UnknownTopic, TxmsgError."""
        message_type = await self._type_of(topic)
        return [
            pb.MessageQueue(
                topic=pb.Resource(name=topic),
                id=number,
                permission=pb.READ_WRITE,
                broker=pb.Broker(name=name, endpoints=endpoints),
                accept_message_types=_TYPES[message_type],
            )
            # A broker is a queue, because txmsg's queues move between brokers while clients run (decision 0087).
            for number, name in enumerate(self._brokers.names)
        ]

    async def _type_of(self, topic: str) -> str:
        """Return the topic's message type."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and known.until > now:
            return known.message_type
        try:
            settings = await self._brokers.ask_any(TopicsService.settings, TopicName(topic=topic), timeout_s=_TIMEOUT_S)
        except UnknownTopic:
            self._known.pop(topic, None)
            raise
        # Clients choose the names, so the cache is bounded: expired entries are dropped when it is full.
        if len(self._known) >= _KNOWN_MAX:
            self._known = {name: each for name, each in self._known.items() if each.until > now}
        # A type that this release does not know: brokers say what they take when a message is sent.
        message_type = settings.message_type if settings.message_type in _TYPES else ANY_TYPE
        self._known[topic] = _CachedTopicType(message_type, now + _KNOWN_S)
        return message_type
