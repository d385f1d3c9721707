"""A group of processes on Kafka: queues are shared out, and taken over from members that are killed or stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.logs import fill
from tests.kafka_server import Kafka
from tests.metaq.consumer_process import Member, Note
from tests.metaq.test_consumer_processes import judge, without_what_was_cut
from tests.waiting import until
from txmsg.metaq.access import LogAccess
from txmsg.metaq.location import open_log

pytestmark = pytest.mark.long

QUEUES = range(4)


class Group:
    """The members that a test starts, and what Kafka says of them."""

    def __init__(self, where: str, log: LogAccess, directory: Path) -> None:
        self._where = where
        self._log = log
        self._directory = directory
        self.members: list[Member] = []

    def start(self) -> Member:
        member = Member(self._where, "g", self._directory / f"journal-{len(self.members)}")
        self.members.append(member)
        member.launch()
        return member

    def append(self, count: int) -> None:
        for queue in QUEUES:
            fill(self._log, "t", queue, count)

    def owned(self) -> dict[int, set[int]]:
        """The queues by the process that owns them."""
        found: dict[int, set[int]] = {}
        for queue in self._log.group("g").queues:
            if queue.owner is not None:
                found.setdefault(int(queue.owner.split("-")[-2]), set()).add(queue.queue.queue)
        return found

    def is_shared_out(self, *members: Member) -> bool:
        if "g" not in self._log.groups():
            return False
        owned = self.owned()
        return owned.keys() == {member.pid for member in members} and all(
            len(queues) == len(QUEUES) // len(members) for queues in owned.values()
        )

    def stored(self) -> dict[int, int]:
        return {queue.queue.queue: queue.offset or 0 for queue in self._log.group("g").queues}

    def ends(self) -> dict[int, int]:
        return {queue.queue.queue: queue.kept.end for queue in self._log.group("g").queues}

    def is_done(self) -> bool:
        return self.stored() == self.ends()

    def notes(self) -> list[Note]:
        """Of all members, in the order of time."""
        return sorted(note for member in self.members for note in member.notes())


@pytest.fixture
def group(kafka: Kafka, kafka_prefix: str, tmp_path: Path) -> Iterator[Group]:
    where = f"{kafka.address}/{kafka_prefix}"
    with open_log(where) as log:
        group = Group(where, log, tmp_path)
        try:
            group.append(5)
            yield group
        finally:
            for member in group.members:
                member.kill()


def test_queues_of_a_killed_member_are_taken_over_and_nothing_is_skipped(group: Group) -> None:
    first, second = group.start(), group.start()
    until(lambda: group.is_shared_out(first, second))
    group.append(200)
    until(lambda: len(second.notes()) > 100)
    stored = group.stored()
    killed = second.pid
    second.kill()
    third = group.start()
    group.append(20)
    until(lambda: group.is_shared_out(first, third))
    assert first.stop() == 0
    until(lambda: group.is_shared_out(third))
    group.append(20)
    until(group.is_done)
    times = judge(without_what_was_cut(group.notes(), killed), group.ends())
    again = {key for key, count in times.items() if count > 1}
    assert all(offset >= stored[queue] for queue, offset in again), "what was stored came again"
    assert third.stop() == 0


def test_a_stopped_member_loses_its_queues_and_stores_nothing_over_what_others_did(group: Group) -> None:
    first, second = group.start(), group.start()
    until(lambda: group.is_shared_out(first, second))
    until(group.is_done)
    second.pause()
    group.append(300)
    until(lambda: group.is_shared_out(first))
    until(group.is_done)
    second.resume()
    until(lambda: group.is_shared_out(first, second))
    assert "has lost its place in group" in second.log.read_text()
    assert group.is_done(), "it has stored what others are past"
    group.append(20)
    until(group.is_done)
    times = Counter((note.queue, note.offset) for note in group.notes() if note.what == "end")
    assert times.keys() == {(queue, offset) for queue, end in group.ends().items() for offset in range(end)}
    assert max(times.values()) <= 2, (
        "what the stopped member had was handled more often than by it and by its successor"
    )
