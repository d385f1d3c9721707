"""What a member of a group in Kafka has deleted of what it has handled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from txmsg.metaq.access import LogQueue
from txmsg.metaq.kafka.member import KafkaMember
from txmsg.metaq.kafka.progress import Stored


class Offsets:
    """Of a group that has stored nothing yet."""

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

    def hold(self, wanted: Collection[LogQueue]) -> list[LogQueue]:
        return list(wanted)

    def committed(self, _: object) -> dict[LogQueue, Stored]:
        return {}

    def commit(self, _: object) -> None:
        pass

    def leave(self) -> None:
        pass


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
def test_a_member_deletes_what_is_its_groups_own(
    group: str, topics: tuple[str, ...], topic: str, *, is_deleted: bool
) -> None:
    offsets: Any = Offsets()
    joined: Any = lambda _, __: Membership()  # noqa: E731 - any membership
    member = KafkaMember(group, "member", topics, offsets, joined)
    queue = LogQueue(topic, 0)
    member.take([queue])
    member.leave({queue: 5})
    assert offsets.deleted == ({queue: 5} if is_deleted else {})
