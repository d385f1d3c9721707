"""Places in partitions, asked of nodes of Kafka that do not know them yet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from txmsg.errors import BrokerUnavailable
from txmsg.metaq.access import LogQueue
from txmsg.metaq.kafka.clients import Clients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.positions import Positions


class Answer:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def result(self) -> Any:
        if self._offset is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return SimpleNamespace(offset=self._offset)


class Nodes:
    """Know the end of a queue at the third time that they are asked, or never."""

    def __init__(self, *, knows_after: int = 2) -> None:
        self.asked = 0
        self._knows_after = knows_after

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: object) -> dict[TopicPartition, Answer]:
        self.asked += 1
        return {each: Answer(7 if self.asked > self._knows_after else None) for each in asked}


def positions(nodes: Nodes, partitions: int) -> Positions:
    clients = Clients(parse_address("kafka://localhost:1"), {}, timeout_s=0.2)
    topics: Any = SimpleNamespace(partitions_of=lambda _: partitions)
    admin: Any = nodes
    probe: Any = None
    return Positions(clients, admin, topics, probe)


QUEUE = LogQueue("t", 0)


def test_a_node_that_has_just_come_back_is_asked_again() -> None:
    assert positions(Nodes(), 1).ends([QUEUE]) == {QUEUE: 7}


def test_a_partition_that_is_not_there_is_left_out_at_once() -> None:
    nodes = Nodes()
    assert positions(nodes, 0).ends([QUEUE]) == {}
    assert nodes.asked == 1


def test_a_partition_that_no_node_knows_is_no_empty_one() -> None:
    with pytest.raises(BrokerUnavailable, match=r"has topic t, but for 0\.2 s its nodes do not know partition 0"):
        positions(Nodes(knows_after=1_000_000), 1).ends([QUEUE])
