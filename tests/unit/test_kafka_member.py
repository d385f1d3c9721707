"""A member of a Kafka group: the offsets that it deletes, and the errors that it raises."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from txmsg.errors import TxmsgError
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.member import KafkaMember
from txmsg.metaq.kafka.membership import KafkaMembership as Group
from txmsg.metaq.kafka.progress import Stored


class Offsets:
    """The offsets of a group that has stored none yet."""

    def __init__(self) -> None:
        self.deleted: dict[LogQueue, int] = {}

    def partition_of(self, queue: LogQueue) -> LogQueue:
        return queue

    def stored_of(self, _: object) -> dict[LogQueue, Stored]:
        return {}

    def begun(self, _: str, queues: Collection[LogQueue], __: object) -> dict[LogQueue, Stored]:
        return dict.fromkeys(queues, Stored(0))

    def commits_of(self, offsets: object) -> object:
        return offsets

    def delete_before(self, offsets: Mapping[LogQueue, int]) -> None:
        self.deleted.update(offsets)


class Membership:
    is_over = False

    def __init__(self) -> None:
        self.settled = self

    def wait(self, _: float) -> bool:
        return True

    def hold_partitions(self, wanted: Collection[LogQueue]) -> list[LogQueue]:
        return list(wanted)

    def committed(self, _: object) -> dict[LogQueue, Stored]:
        return {}

    def commit(self, _: object) -> None:
        pass

    def leave(self) -> None:
        pass


class Consumer:
    """A client that reports errors."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)
        self.has_told = threading.Event()

    def subscribe(self, _: object, **__: object) -> None:
        pass

    def poll(self, _: float) -> Any:
        if not self._codes:
            self.has_told.set()
            return None
        error = KafkaError(self._codes.pop(0))
        return SimpleNamespace(error=lambda: error)

    def unsubscribe(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("code", "raises"),
    [
        (KafkaError._AUTO_OFFSET_RESET, nullcontext()),
        (KafkaError.OFFSET_OUT_OF_RANGE, nullcontext()),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, nullcontext()),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, pytest.raises(TxmsgError, match="being a member of group 'orders'")),
    ],
)
def test_a_member_raises_only_errors_that_prevent_its_assignment(
    code: int, raises: AbstractContextManager[Any]
) -> None:
    consumer = Consumer(code)

    class Fake(KafkaClients):
        def consumer(self, *_: object, **__: object) -> Any:
            return consumer

    membership = Group(Fake(parse_address("kafka://localhost:1"), {}, timeout_s=1), "orders", ["trade"], "member")
    try:
        assert consumer.has_told.wait(60.0)
        with raises:
            assert membership.assigned() == set()
    finally:
        membership.leave()


@pytest.mark.parametrize(
    ("group", "topics", "topic", "is_deleted"),
    [
        ("orders", ("trade", "%RETRY%orders"), "%RETRY%orders", True),
        ("orders", (), "%DLQ%orders", True),
        ("orders", ("%DLQ%orders",), "%DLQ%orders", False),
        ("inspector", ("%DLQ%orders",), "%DLQ%orders", False),
        ("inspector", ("%RETRY%orders",), "%RETRY%orders", False),
        ("inspector", (), "%DLQ%orders", False),
        ("orders", ("trade",), "trade", False),
    ],
)
def test_a_member_deletes_only_offsets_of_its_own_group_topics(
    group: str, topics: tuple[str, ...], topic: str, *, is_deleted: bool
) -> None:
    offsets: Any = Offsets()
    joined: Any = lambda _, __: Membership()  # noqa: E731 - any membership
    member = KafkaMember(group, "member", topics, offsets, joined)
    queue = LogQueue(topic, 0)
    member.take_queues([queue])
    member.leave({queue: 5})
    assert offsets.deleted == ({queue: 5} if is_deleted else {})
