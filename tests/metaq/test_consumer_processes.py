"""A group of processes: queues are shared out, taken over and given back, and never handled by two at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.metaq.consumer_groups import Group, judge, without_what_was_cut
from tests.waiting import until
from txmsg.metaq.location import open_log


@contextmanager
def group_on(root: Path) -> Iterator[Group]:
    with open_log(root, append=True) as log:
        group = Group(root, log, root, queues=10)
        try:
            group.append(5)
            yield group
        finally:
            group.kill()


def test_queues_of_a_killed_member_are_taken_over_and_nothing_is_skipped(tmp_path: Path) -> None:
    with group_on(tmp_path) as group:
        first, second, third = (group.start() for _ in range(3))
        until((tmp_path / "groups" / "g" / "members").exists)
        until(lambda: group.is_shared_out(first, second, third))
        group.append(100)
        until(lambda: len(second.notes()) > 100)
        stored = group.stored()
        killed = second.pid
        second.kill()
        until(lambda: group.is_shared_out(first, third))
        fourth = group.start()
        group.append(20)
        until(lambda: group.is_shared_out(first, third, fourth))
        assert first.stop() == 0
        until(lambda: group.is_shared_out(third, fourth))
        group.append(20)
        until(group.is_done)
        times = judge(without_what_was_cut(group.notes(), killed), group.ends())
        again = {key for key, count in times.items() if count > 1}
        assert all(offset >= stored[queue] for queue, offset in again), "what was stored came again"
        for member in (third, fourth):
            assert member.stop() == 0


def test_queues_of_a_stopped_member_wait_for_it_and_others_go_on(tmp_path: Path) -> None:
    with group_on(tmp_path) as group:
        first, second = group.start(), group.start()
        until((tmp_path / "groups" / "g" / "members").exists)
        until(lambda: group.is_shared_out(first, second))
        until(group.is_done)
        owned = group.owned()
        second.pause()
        group.append(5)
        until(lambda: all(group.stored()[queue] == 10 for queue in owned[first.pid]))
        third = group.start()
        until(lambda: group.has_members(3))
        assert group.owned()[second.pid] == owned[second.pid], "what a stopped member owns was taken"
        assert all(group.stored()[queue] == 5 for queue in owned[second.pid])
        second.resume()
        until(lambda: group.is_shared_out(first, second, third))
        until(group.is_done)
        assert set(judge(group.notes(), group.ends()).values()) == {1}
