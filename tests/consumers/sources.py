"""Both sources of subscriptions for tests, under one interface for sending and checking.

A row is what keeps its order: the messages of an ordering key at brokers, a queue of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from txmsg.client.app import Txmsg
from txmsg.client.app.router import Source
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.producer import Producer
from txmsg.message import Message, ReceivedMessage
from txmsg.message.encryption import Encryption
from txmsg.metaq import Log, LogProducer
from txmsg.metaq.consumer import fetcher
from txmsg.metaq.consumer.push_consumer import AsyncPushConsumer
from txmsg.metaq.consumer.retries import tried_of
from txmsg.metaq.interface import DEAD_LETTERS, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.testing import Broker

GROUP: Final = "g"
TOPIC: Final = "t"


class SourceUnderTest(Protocol):
    """A source, with a topic `t` and a group `g`."""

    source: Source

    def app(self, **options: Any) -> Txmsg:
        """Return an application that reads the source."""
        ...

    def send(
        self, *bodies: bytes, row: int | None = 0, topic: str = TOPIC, encryption: Encryption | None = None
    ) -> None:
        """Send messages of one row, in this order. row: None if their order is free."""
        ...

    def share_ahead(self, app: Txmsg) -> float:
        """Return its fetched unhandled messages, as a share of the maximum of a row of None."""
        ...

    def dead(self) -> list[bytes]:
        """Return the bodies of the group's dead letters."""
        ...


class BrokerSource:
    """A Notify broker. See `SourceUnderTest`."""

    source: Source = "brokers"

    def __init__(self, broker: Broker, producer: Producer) -> None:
        self._broker = broker
        self._producer = producer

    def app(self, **options: Any) -> Txmsg:
        return Txmsg(self._broker.address, group=GROUP, **options)

    def send(
        self, *bodies: bytes, row: int | None = 0, topic: str = TOPIC, encryption: Encryption | None = None
    ) -> None:
        key = None if row is None else f"row {row}"
        self._producer.send_many(_sent([Message(topic, body, ordering_key=key) for body in bodies], encryption))

    def share_ahead(self, app: Txmsg) -> float:
        """Share of the messages of a link: twice the handlers' concurrency while none are handled."""
        [consumer] = [each.consumer for each in app._receivers if TOPIC in each.topics]
        assert isinstance(consumer, AsyncConsumer)
        held = sum(shard.links.out() for shard in consumer._shards)
        return held / (2 * consumer._concurrency)

    def dead(self) -> list[bytes]:
        return [letter.body for letter in self._broker.dead_letters(GROUP)]


class LogSource:
    """A log. See `SourceUnderTest`."""

    source: Source = "log"

    def __init__(self, root: Path, writer: Log) -> None:
        self.root = root
        self._producer = LogProducer(writer)

    def app(self, **options: Any) -> Txmsg:
        return Txmsg(log=self.root, group=GROUP, **options)

    def send(
        self, *bodies: bytes, row: int | None = 0, topic: str = TOPIC, encryption: Encryption | None = None
    ) -> None:
        self._producer.send_many(_sent([Message(topic, body) for body in bodies], encryption), queue=row or 0)

    def share_ahead(self, app: Txmsg) -> float:
        """Share of the bytes of a queue: those that wait, and the next fetch."""
        [consumer] = [receiver.consumer for receiver in app._receivers]
        assert isinstance(consumer, AsyncPushConsumer)
        lane = consumer._balance.lanes.get(LogQueue(TOPIC, 0))
        return 0.0 if lane is None else lane.waiting_bytes / (fetcher.LANE_BYTES_MAX + fetcher._FETCH_BYTES)

    def dead(self) -> list[bytes]:
        with open_log(self.root) as access:
            fetched = access.fetch({LogQueue(DEAD_LETTERS + GROUP, 0): 0})
            copies = [message for each in fetched for batch in each.batches for message in batch.messages()]
        return [tried_of(copy).message.body for copy in copies]


def _sent(messages: Sequence[Message], encryption: Encryption | None) -> list[Message]:
    return [message if encryption is None else encryption.encrypt(message) for message in messages]


def of_kind(kind: str, handle: Callable[[ReceivedMessage], object]) -> Callable[[ReceivedMessage], Any]:
    """Return the function as a handler of this kind, `def` or `async def`."""

    def plain(message: ReceivedMessage) -> None:
        handle(message)

    async def coroutine(message: ReceivedMessage) -> None:
        handle(message)

    return plain if kind == "def" else coroutine


def figures_of(app: Txmsg) -> dict[str, dict[tuple[str, ...], object]]:
    """Return metrics since the application's last start, by name and labels."""
    figures = Figures(ExportingProcess.APPLICATION)
    app._put_figures(figures)
    return {metric.name: dict(values) for metric, values in figures.series()}


def acknowledged_by(app: Txmsg) -> int:
    """Return the number of messages acknowledged since the application's last start, from its metrics."""
    counts = figures_of(app)["txmsg_client_acknowledged_messages_total"].values()
    return sum(count for count in counts if isinstance(count, int))
