"""Which topics there are, and where their messages are: each broker is a queue to RocketMQ's clients.

A broker delivers what it leases, which changes while clients run, so the queues of txmsg are not told. Ordering keys
keep their order whichever broker takes a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from txmsg.client.channel import Brokers
from txmsg.errors import UnknownTopic
from txmsg.message_types import ANY_TYPE
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.v1.topics_pb2 import ShowTopicRequest
from txmsg.wire.v1.topics_rpc import Topics

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


class _Known(NamedTuple):
    """A topic, until when it need not be asked for again."""

    message_type: str
    until: float


class Routes:
    """Of the topics of a Notify database."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[str, _Known] = {}

    async def queues(self, topic: str, endpoints: pb.Endpoints) -> list[pb.MessageQueue]:
        """The queues of a topic, all behind the endpoints that the client asked. Raises UnknownTopic, TxmsgError."""
        message_type = await self._type_of(topic)
        return [
            pb.MessageQueue(
                topic=pb.Resource(name=topic),
                id=number,
                permission=pb.READ_WRITE,
                broker=pb.Broker(name=name, endpoints=endpoints),
                accept_message_types=_TYPES[message_type],
            )
            for number, name in enumerate(self._brokers.names)
        ]

    async def _type_of(self, topic: str) -> str:
        """Which messages it takes."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and known.until > now:
            return known.message_type
        try:
            reply = await self._brokers.call(Topics.show, ShowTopicRequest(name=topic), timeout_s=_TIMEOUT_S)
        except UnknownTopic:
            self._known.pop(topic, None)
            raise
        if len(self._known) >= _KNOWN_MAX:
            self._known = {name: each for name, each in self._known.items() if each.until > now}
        # A type that this release does not know: brokers say what they take when a message is sent.
        message_type = reply.topic.message_type if reply.topic.message_type in _TYPES else ANY_TYPE
        self._known[topic] = _Known(message_type, now + _KNOWN_S)
        return message_type
