"""Handling of batches of the Kafka client by a reader."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Producer

from txmsg.metaq.interface import LogQueue
from txmsg.metaq.kafka import reader as reader_module
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.kafka_log import KafkaLog
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.positions import Positions
from txmsg.metaq.kafka.probe import Probe
from txmsg.metaq.kafka.reader import KafkaReader

T0 = LogQueue("t", 0)


@dataclass
class ClientRecord:
    """A record of partition 0, or its end."""

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

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, 1_700_000_000_000

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"x"

    def __len__(self) -> int:
        return 1


class Client:
    """A Kafka consumer that returns these."""

    def __init__(self, told: list[ClientRecord]) -> None:
        self._told = told
        self.is_closed = False

    def incremental_assign(self, _: object) -> None:
        pass

    def poll(self, _: float) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def consume(self, _: int, __: float) -> list[ClientRecord]:
        told, self._told = self._told, []
        return told


def test_records_that_arrive_with_the_end_of_partition_are_read() -> None:
    client = Client([ClientRecord(5), ClientRecord(6), ClientRecord(7, is_end=True)])

    class Fake(KafkaClients):
        def consumer(self, *_: object, **__: object) -> Any:
            return client

    clients = Fake(parse_address("kafka://localhost:9092"), {}, timeout_s=1)
    nothing: Any = None
    positions = Positions(clients, nothing, nothing, Probe(clients))
    positions.note(T0, 5, 5)
    [fetched] = KafkaReader(clients, positions, threading.Event()).fetch({T0: 5}, 1000, 1.0)
    [batch] = fetched.batches
    assert (batch.base_offset, batch.end_offset) == (5, 7)


def test_a_client_that_returns_nothing_while_records_remain_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled, other = Client([ClientRecord(5, is_end=True)]), Client([ClientRecord(5), ClientRecord(6)])
    made = iter([stalled, other])

    class Fake(KafkaClients):
        def consumer(self, *_: object, **__: object) -> Any:
            return next(made)

    clients = Fake(parse_address("kafka://localhost:9092"), {}, timeout_s=1)
    nothing: Any = None
    positions = Positions(clients, nothing, nothing, Probe(clients))
    positions.note(T0, 5, 5)
    end = 5
    monkeypatch.setattr(positions, "ends", lambda queues: dict.fromkeys(queues, end))
    monkeypatch.setattr(reader_module, "_STALL_S", 0.0)
    reader = KafkaReader(clients, positions, threading.Event())
    assert reader.fetch({T0: 5}, 1000, 0.01) == []
    assert not stalled.is_closed  # it has returned all records
    end = 7
    assert reader.fetch({T0: 5}, 1000, 0.01) == []
    assert stalled.is_closed
    [fetched] = reader.fetch({T0: 5}, 1000, 1.0)
    assert fetched.batches[0].end_offset == 7


def test_a_paused_queue_is_read_after_a_seek(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    producer.list_topics("t", timeout=60.0)
    [node] = producer.list_topics(timeout=60.0).brokers.values()
    for number in range(400):
        producer.produce("t", b"%06d" % number + b"x" * 1500, partition=0)
    assert producer.flush(60.0) == 0
    monkeypatch.setattr(reader_module, "_LANE_BYTES_MAX", 100_000)
    log = KafkaLog(parse_address(f"kafka://{node.host}:{node.port}"), {}, timeout_s=60.0)

    def read_from(offset: int) -> int:
        [fetched] = log.fetch({T0: offset}, size_bytes_max=64 * 1024, wait_s=60.0)
        [batch] = fetched.batches
        assert batch.base_offset == offset
        return batch.end_offset

    try:
        assert read_from(read_from(0)) > 0
        for offset in (0, 300, 0, 100):
            read_from(offset)
    finally:
        log.close()
