"""Positions in partitions that Kafka nodes do not know yet."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from txmsg.errors import BrokerUnavailable
from txmsg.metaq.interface import LogQueue, QueueRange
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.positions import Positions
from txmsg.metaq.kafka.probe import KafkaPartition, PartitionBounds
from txmsg.metaq.kafka.record import PLACE


class Answer:
    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def result(self) -> Any:
        if self._offset is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return SimpleNamespace(offset=self._offset)


class Nodes:
    """Nodes that know the end of a queue at the third request, or never."""

    def __init__(self, *, knows_after: int = 2) -> None:
        self.asked = 0
        self._knows_after = knows_after

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: object) -> dict[TopicPartition, Answer]:
        self.asked += 1
        return {each: Answer(7 if self.asked > self._knows_after else None) for each in asked}


class Probed:
    """Partitions whose records have these queue offsets, one at each position."""

    def __init__(self, *offsets: int) -> None:
        self._records = [
            Message(topic="t", partition=0, offset=at, headers=[(PLACE, b"t/0/%d" % each)])
            for at, each in enumerate(offsets)
        ]

    def first(
        self, starts: Mapping[KafkaPartition, int], _: Mapping[KafkaPartition, int] | None
    ) -> dict[KafkaPartition, Message]:
        return {each: self._records[at] for each, at in starts.items()}  # each read is where a record can be

    def last(self, bounds: Mapping[KafkaPartition, PartitionBounds]) -> dict[KafkaPartition, Message]:
        return {each: self._records[-1] for each in bounds}


def positions(nodes: Any, partitions: int, *offsets: int, timeout_s: float = 60.0) -> Positions:
    clients = KafkaClients(parse_address("kafka://localhost:1"), {}, timeout_s=timeout_s)
    topics: Any = SimpleNamespace(partitions_of=lambda _: partitions)
    probe: Any = Probed(*offsets)
    return Positions(clients, nodes, topics, probe)


QUEUE = LogQueue("t", 0)


def test_a_restarted_node_is_asked_again() -> None:
    assert positions(Nodes(), 1).ends([QUEUE]) == {QUEUE: 7}


def test_a_missing_partition_is_left_out_at_once() -> None:
    nodes = Nodes()
    assert positions(nodes, 0).ends([QUEUE]) == {}
    assert nodes.asked == 1


def test_a_partition_that_no_node_knows_is_not_reported_as_empty() -> None:
    with pytest.raises(BrokerUnavailable, match=r"has topic t, but for 0\.2 s its nodes do not know partition 0"):
        positions(Nodes(knows_after=1_000_000), 1, timeout_s=0.2).ends([QUEUE])


class GoneNodes(Nodes):
    """Nodes that disconnect twice before answering: librdkafka reports that as an invalid offset, without an error."""

    def list_offsets(self, asked: dict[TopicPartition, Any], **_: object) -> dict[TopicPartition, Answer]:
        self.asked += 1
        return {each: Answer(7 if self.asked > 2 else OFFSET_INVALID) for each in asked}


def test_a_node_that_disconnected_before_answering_is_asked_again() -> None:
    nodes = GoneNodes()
    assert positions(nodes, 1).bounds([QUEUE]) == {QUEUE: PartitionBounds(7, 7)}
    assert nodes.asked == 4  # three times for the first offset, once for the last


class OlderNodes(GoneNodes):
    """Nodes whose messages are all older."""

    def list_offsets(self, asked: dict[TopicPartition, OffsetSpec], **_: object) -> dict[TopicPartition, Answer]:
        if {OffsetSpec.earliest(), OffsetSpec.latest()} & set(asked.values()):
            return dict.fromkeys(asked, Answer(7))
        self.asked += 1
        return dict.fromkeys(asked, Answer(OFFSET_END if self.asked > 2 else OFFSET_INVALID))


def test_a_lookup_by_time_is_repeated_when_a_node_disconnected() -> None:
    nodes = OlderNodes()
    assert positions(nodes, 1).at_time([QUEUE], 1) == {QUEUE: 7}
    assert nodes.asked == 3


class Filled:
    """Nodes of partitions with the positions 0 to 3."""

    def list_offsets(self, asked: dict[TopicPartition, OffsetSpec], **_: object) -> dict[TopicPartition, Answer]:
        return {each: Answer(0 if which is OffsetSpec.earliest() else 4) for each, which in asked.items()}


def test_a_search_among_gaps_stays_within_the_partition() -> None:
    places = positions(Filled(), 1, 100, 200, 5000, 9000)
    assert places.find_positions({QUEUE: 8000}) == {QUEUE: 3}
    assert places.find_positions({QUEUE: 100}) == {QUEUE: 0}


def test_a_forgotten_partition_leaves_no_offsets_for_its_successor() -> None:
    nodes = Nodes(knows_after=0)  # of an empty partition
    places = positions(nodes, 1)
    assert places.unknown({QUEUE: 7}) == {QUEUE}
    places.note(QUEUE, 7, 7)
    places._begins[QUEUE] = places._ends[QUEUE] = (7, 3)
    assert places.ranges([QUEUE]) == {QUEUE: QueueRange(3, 3)}
    assert places.unknown({QUEUE: 7, LogQueue("t", 1): 7}) == {LogQueue("t", 1)}
    places.forget_queue(QUEUE)
    assert places.ranges([QUEUE]) == {QUEUE: QueueRange(7, 7)}
    assert places.unknown({QUEUE: 7}) == {QUEUE}
