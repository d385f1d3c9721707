"""A group of processes: queues are shared out, taken over and given back, and never handled by two at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.metaq.consumer_process import Member, Note
from tests.metaq.logs import fill
from tests.waiting import until
from txmsg.metaq.access import LogAccess
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Log

QUEUES = range(10)


class Group:
    """The members that a test starts, and what the log says of them."""

    def __init__(self, root: Path, log: Log, access: LogAccess) -> None:
        self._root = root
        self._log = log
        self._access = access
        self.members: list[Member] = []

    def start(self) -> Member:
        member = Member(self._root, "g", self._root / f"journal-{len(self.members)}")
        self.members.append(member)
        member.launch()
        return member

    def owned(self) -> dict[int, set[int]]:
        """The queues by the process that owns them."""
        found: dict[int, set[int]] = {}
        for queue in self._access.group("g").queues:
            if queue.owner is not None:
                found.setdefault(int(queue.owner.split("-")[-2]), set()).add(queue.queue.queue)
        return found

    def is_shared_out(self, *members: Member) -> bool:
        shares = sorted(map(len, self.owned().values()), reverse=True)
        least, more = divmod(len(QUEUES), len(members))
        expected = [least + 1] * more + [least] * (len(members) - more)
        return self.owned().keys() == {member.pid for member in members} and shares == expected

    def has_members(self, count: int) -> bool:
        return len(self._access.group("g").members) == count

    def stored(self) -> dict[int, int]:
        return {queue.queue.queue: queue.offset or 0 for queue in self._access.group("g").queues}

    def append(self, count: int) -> None:
        """So many messages more in each queue."""
        for queue in QUEUES:
            fill(self._log, "t", queue, [count])

    def ends(self) -> dict[int, int]:
        return {queue: self._log.reader.queue("t", queue).end() for queue in QUEUES}

    def notes(self) -> list[Note]:
        """Of all members, in the order of time."""
        return sorted(note for member in self.members for note in member.notes())


@contextmanager
def group_on(root: Path) -> Iterator[Group]:
    with Log(root) as log, open_log(root) as access:
        group = Group(root, log, access)
        try:
            group.append(5)
            yield group
        finally:
            for member in group.members:
                member.kill()


def judge(notes: Iterable[Note], ends: dict[int, int]) -> Counter[tuple[int, int]]:
    """How often each message was handled. Fails when one was skipped, or out of order, or two had its queue at once."""
    handling: dict[int, Note] = {}
    done: dict[int, Note] = {}
    reached = dict.fromkeys(ends, 0)
    times: Counter[tuple[int, int]] = Counter()
    for note in notes:
        running = handling.get(note.queue)
        if note.what == "begin":
            assert running is None, f"queue {note.queue}: {note} began while {running} was not over"
            assert note.offset <= reached[note.queue], f"queue {note.queue}: {note} skips messages"
            last = done.get(note.queue)
            if last is not None and last.member == note.member:
                assert note.offset == last.offset + 1, f"queue {note.queue}: {note} follows {last}"
            handling[note.queue] = note
        else:
            assert running is not None
            assert (running.member, running.offset) == (note.member, note.offset)
            del handling[note.queue]
            times[note.queue, note.offset] += 1
            reached[note.queue] = max(reached[note.queue], note.offset + 1)
            done[note.queue] = note
    assert reached == ends
    return times


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
        until(lambda: group.stored() == group.ends())
        times = judge(without_what_was_cut(group.notes(), killed), group.ends())
        again = {key for key, count in times.items() if count > 1}
        assert all(offset >= stored[queue] for queue, offset in again), "what was stored came again"
        for member in (third, fourth):
            assert member.stop() == 0


def without_what_was_cut(notes: list[Note], killed: int) -> list[Note]:
    """The notes without the last that a killed member began with and did not end."""
    ended = {(note.member, note.queue, note.offset) for note in notes if note.what == "end"}
    return [note for note in notes if note.member != killed or (note.member, note.queue, note.offset) in ended]


def test_queues_of_a_stopped_member_wait_for_it_and_others_go_on(tmp_path: Path) -> None:
    with group_on(tmp_path) as group:
        first, second = group.start(), group.start()
        until((tmp_path / "groups" / "g" / "members").exists)
        until(lambda: group.is_shared_out(first, second))
        until(lambda: group.stored() == group.ends())
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
        until(lambda: group.stored() == group.ends())
        assert set(judge(group.notes(), group.ends()).values()) == {1}
