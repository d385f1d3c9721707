"""What a reader of Kafka makes of what its client hands out at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError

from txmsg.metaq.access import LogQueue
from txmsg.metaq.kafka.clients import Clients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.positions import Positions
from txmsg.metaq.kafka.probe import Probe
from txmsg.metaq.kafka.reader import Reader

T0 = LogQueue("t", 0)


@dataclass
class Told:
    """A record of partition 0, or the end of it."""

    at: int
    is_end: bool = False

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.is_end else None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def headers(self) -> None:
        return None

    def __len__(self) -> int:
        return 1


class Client:
    """A consumer of Kafka that has this to hand out."""

    def __init__(self, told: list[Told]) -> None:
        self._told = told

    def incremental_assign(self, _: object) -> None:
        pass

    def consume(self, _: int, __: float) -> list[Told]:
        told, self._told = self._told, []
        return told


def test_records_that_come_together_with_the_end_behind_them_are_read() -> None:
    client = Client([Told(5), Told(6), Told(7, is_end=True)])

    class Fake(Clients):
        def consumer(self, *_: object, **__: object) -> Any:
            return client

    clients = Fake(parse_address("kafka://localhost:9092"), {}, timeout_s=1)
    nothing: Any = None
    positions = Positions(clients, nothing, nothing, Probe(clients))
    positions.note(T0, 5, 5)
    [fetched] = Reader(clients, positions, threading.Event()).fetch({T0: 5}, 1000, 1.0)
    [batch] = fetched.batches
    assert (batch.base_offset, batch.end_offset) == (5, 7)
