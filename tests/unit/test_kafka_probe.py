"""Reading single records from the answers of the Kafka client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError

from txmsg.errors import BrokerUnavailable
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.probe import KafkaPartition, PartitionBounds, Probe

P0 = KafkaPartition("t", 0)


@dataclass
class ClientRecord:
    """A record of partition 0, or an error."""

    at: int
    code: int | None = None

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)

    def topic(self) -> str:
        return P0.topic

    def partition(self) -> int:
        return P0.number


class Client:
    """A Kafka consumer that returns these, one after the other."""

    def __init__(self, *told: ClientRecord) -> None:
        self._told = list(told)

    def assign(self, _: object) -> None:
        pass

    def unassign(self) -> None:
        pass

    def poll(self, _: float) -> ClientRecord | None:
        return self._told.pop(0) if self._told else None


def probe(*told: ClientRecord) -> Probe:
    class Fake(KafkaClients):
        def consumer(self, *_: object, **__: object) -> Any:
            return Client(*told)

    return Probe(Fake(parse_address("kafka://localhost:9092"), {}, timeout_s=0.05))


def end(at: int) -> ClientRecord:
    return ClientRecord(at, KafkaError._PARTITION_EOF)


def test_an_end_before_the_committed_offset_is_not_believed() -> None:
    """A node that has just become the leader answers so: the partition would seem to begin at its end."""
    [record] = probe(end(0), ClientRecord(0)).first({P0: 0}, {P0: 3}).values()
    assert record.offset() == 0
    [last] = probe(end(1), ClientRecord(2), end(3)).last({P0: PartitionBounds(0, 3)}).values()
    assert last.offset() == 2


def test_a_partition_with_only_markers_has_no_record() -> None:
    assert probe(end(3)).first({P0: 0}, {P0: 3}) == {}


def test_a_partition_whose_end_is_not_reached_in_time_is_not_reported_as_empty() -> None:
    with pytest.raises(BrokerUnavailable):
        probe(end(0)).first({P0: 0}, {P0: 3})
    with pytest.raises(BrokerUnavailable):  # a starting tailer retries and does not end
        probe(ClientRecord(0, KafkaError._AUTO_OFFSET_RESET)).first({P0: 0}, {P0: 3})


def test_an_expired_offset_has_no_record() -> None:
    assert probe(ClientRecord(0, KafkaError._AUTO_OFFSET_RESET)).first({P0: 0}) == {}
