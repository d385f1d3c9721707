"""A group of processes: queues are assigned, taken over and revoked, and never handled by two at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.metaq.consumer_groups import Group, judge, without_what_was_cut
from tests.metaq.consumers import WAIT_S
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


def test_queues_of_a_killed_member_are_taken_over_without_skipping_messages(tmp_path: Path) -> None:
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


def test_suspended_member_that_gets_sigterm_stops_when_it_is_resumed(tmp_path: Path) -> None:
    """Any of its threads may get the signal then, and only the main thread handles it."""
    with group_on(tmp_path) as group:
        member = group.start()
        until(lambda: len(member.notes()) == 2 * 10 * 5)
        member.pause()
        until(lambda: psutil.Process(member.pid).status() == psutil.STATUS_STOPPED)
        member.child.send_signal(signal.SIGTERM)
        member.resume()
        assert member.child.wait(WAIT_S) == 0
        assert group.is_done()


def test_queues_of_a_suspended_member_wait_for_it_and_others_continue(tmp_path: Path) -> None:
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


def test_processes_in_a_stopped_group_handle_nothing_before_the_group_starts(tmp_path: Path) -> None:
    with open_log(tmp_path, append=True) as log:
        group = Group(tmp_path, log, tmp_path, queues=4)
        group.append(20)
        log.join("g", ["t"]).leave({})
        log.alter_group("g", stopped=True)
        try:
            first, second = group.start(), group.start()
            until(lambda: group.is_shared_out(first, second))
            started_at_ns = time.monotonic_ns()
            log.alter_group("g", stopped=False)
            until(group.is_done)
            notes = group.notes()
            assert min(note.at_ns for note in notes) > started_at_ns
            assert {note.member for note in notes} == {first.pid, second.pid}
            judge(notes, group.ends())
        finally:
            group.kill()
