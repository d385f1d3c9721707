"""Metadata that a group stores in Kafka with its offsets, and its open seek requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from txmsg.errors import OffsetOutOfRange
from txmsg.metaq.interface import LogQueue, QueueRange
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.membership import PartitionProgress
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.metaq.kafka.progress import GroupOffsets, Stored, sought_in

T0, T1 = LogQueue("t", 0), LogQueue("t", 1)


class FakePositions:
    """A log whose queues have offsets 10 to 19, with markers at every other position of the partition."""

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        return dict.fromkeys(queues, QueueRange(10, 20))

    def find_positions(self, wanted: Mapping[LogQueue, int]) -> dict[LogQueue, int | OffsetOutOfRange]:
        return {
            queue: 2 * offset if 10 <= offset <= 20 else OffsetOutOfRange("not kept", 10, 20)
            for queue, offset in wanted.items()
        }

    def queue_offsets(self, committed: Mapping[LogQueue, TopicPartition]) -> dict[LogQueue, int]:
        return {queue: place.offset // 2 for queue, place in committed.items()}

    def unknown(self, _: Mapping[LogQueue, int]) -> set[LogQueue]:
        return set()


class EmptiedPositions:
    """A mirror emptied by retention: its last message was 999, and the next position of the partition is 2000."""

    def __init__(self) -> None:
        self.filled = QueueRange(2000, 2000)
        """The range of the empty partition."""

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        return dict.fromkeys(queues, self.filled)

    def find_positions(self, wanted: Mapping[LogQueue, int]) -> dict[LogQueue, int | OffsetOutOfRange]:
        return dict.fromkeys(wanted, 2000)

    def queue_offsets(self, committed: Mapping[LogQueue, TopicPartition]) -> dict[LogQueue, int]:
        assert all(place.offset == 2000 for place in committed.values())
        return dict.fromkeys(committed, self.filled.begin)

    def unknown(self, wanted: Mapping[LogQueue, int]) -> set[LogQueue]:
        return set(wanted) if self.filled.begin == self.filled.end else set()


@pytest.fixture
def offsets() -> GroupOffsets:
    unused: Any = None  # no call to Kafka
    return GroupOffsets(
        KafkaClients(parse_address("kafka://localhost:9092/shop."), {}, timeout_s=1), unused, unused, FakePositions()
    )


@pytest.mark.parametrize(("offset", "place"), [(10, 20), (13, 26), (20, 40), (3, 20), (99, 40)])
def test_kafka_stores_the_position_with_offset_and_seek_as_metadata(
    offsets: GroupOffsets, offset: int, place: int
) -> None:
    at = Stored(offset, "5f3a")
    commits = offsets.commits_of({T0: at})
    assert commits == {KafkaPartition("shop.t", 0): PartitionProgress(place, f"{offset} 5f3a")}
    assert offsets.stored_of(commits) == {T0: at}


def test_offsets_stored_by_other_programs_are_converted(offsets: GroupOffsets) -> None:
    by_others = {
        KafkaPartition("shop.t", 0): PartitionProgress(26, ""),
        KafkaPartition("shop.t", 1): PartitionProgress(28, "theirs"),
        KafkaPartition("stock.t", 1): PartitionProgress(28, ""),
    }
    assert offsets.stored_of(by_others) == {T0: Stored(13), T1: Stored(14)}


@pytest.mark.parametrize("seek", ["", "5f3a"])
def test_a_member_of_an_emptied_partition_stores_no_invalid_offset(seek: str) -> None:
    places = EmptiedPositions()
    unused: Any = None
    clients = KafkaClients(parse_address("kafka://localhost:9092"), {}, timeout_s=1)
    offsets = GroupOffsets(clients, unused, unused, places)
    commits = offsets.commits_of({T0: Stored(2000, seek)})
    assert offsets.stored_of(commits) == {T0: Stored(2000, seek)}
    places.filled = QueueRange(1000, 1500)
    assert offsets.stored_of(commits) == {T0: Stored(1000, seek)}


@pytest.mark.parametrize(
    ("asked", "sought"),
    [
        ({}, {}),
        ({T0: Stored(3, "b")}, {T0: 3}),
        ({T0: Stored(3, "a")}, {}),
        ({T0: Stored(3)}, {}),
        ({T1: Stored(3, "b")}, {}),
    ],
    ids=["nothing", "a new one", "done before", "where it began", "of another queue"],
)
def test_a_seek_is_requested_until_its_id_is_stored(asked: dict[LogQueue, Stored], sought: dict[LogQueue, int]) -> None:
    assert sought_in({T0: Stored(7, "a")}, asked) == sought
