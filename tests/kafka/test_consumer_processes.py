"""A group of processes on Kafka: queues are assigned, and taken over from killed or suspended members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka_server import Kafka
from tests.metaq.consumer_groups import Group, judge, without_what_was_cut
from tests.waiting import until
from txmsg.metaq.location import open_log

pytestmark = pytest.mark.long


@pytest.fixture
def group(kafka: Kafka, kafka_prefix: str, tmp_path: Path) -> Iterator[Group]:
    where = f"{kafka.address}/{kafka_prefix}"
    with open_log(where) as log:
        group = Group(where, log, tmp_path, queues=4)
        try:
            group.append(5)
            yield group
        finally:
            group.kill()


def test_queues_of_a_killed_member_are_taken_over_without_skipping_messages(group: Group) -> None:
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


def test_suspended_member_loses_its_queues_and_does_not_overwrite_later_offsets(group: Group) -> None:
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
