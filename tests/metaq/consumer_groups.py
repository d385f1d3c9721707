"""A group of processes on a log: records of its members, the log's state, and checks of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.metaq.consumer_process import Member, Note
from tests.metaq.logs import append
from txmsg.metaq.interface import LogAccess, LogQueue


class Group:
    """The members that a test starts on topic t, and the state of their group in the log.

    where: the log, as processes open it. log: the same, to append to.
    """

    def __init__(self, where: Path | str, log: LogAccess, directory: Path, *, queues: int) -> None:
        self._where = where
        self._log = log
        self._directory = directory
        self._queues = range(queues)
        self.members: list[Member] = []

    def start(self) -> Member:
        member = Member(self._where, "g", self._directory / f"journal-{len(self.members)}")
        self.members.append(member)
        member.launch()
        return member

    def kill(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.kill()

    def append(self, count: int) -> None:
        """Append so many messages to each queue."""
        for queue in self._queues:
            append(self._log, "t", queue, count)

    def owned(self) -> dict[int, set[int]]:
        """Return the queues by the process that owns them."""
        found: dict[int, set[int]] = {}
        for queue in self._log.group("g").queues:
            if queue.owner is not None:
                found.setdefault(int(queue.owner.split("-")[-2]), set()).add(queue.queue.queue)
        return found

    def is_shared_out(self, *members: Member) -> bool:
        if "g" not in self._log.groups():
            return False
        owned = self.owned()
        shares = sorted(map(len, owned.values()), reverse=True)
        least, more = divmod(len(self._queues), len(members))
        expected = [least + 1] * more + [least] * (len(members) - more)
        return owned.keys() == {member.pid for member in members} and shares == expected

    def has_members(self, count: int) -> bool:
        return len(self._log.group("g").members) == count

    def stored(self) -> dict[int, int]:
        return {queue.queue.queue: queue.offset or 0 for queue in self._log.group("g").queues}

    def ends(self) -> dict[int, int]:
        kept = self._log.ranges([LogQueue("t", queue) for queue in self._queues])
        return {queue.queue: each.end for queue, each in kept.items()}

    def is_done(self) -> bool:
        return self.stored() == self.ends()

    def notes(self) -> list[Note]:
        """Return the notes of all members, by time."""
        return sorted(note for member in self.members for note in member.notes())


def judge(notes: Iterable[Note], ends: dict[int, int]) -> Counter[tuple[int, int]]:
    """Count deliveries by message. Fails if one was skipped or out of order, or two members had its queue at once."""
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


def without_what_was_cut(notes: list[Note], killed: int) -> list[Note]:
    """Return the notes without a killed member's last message that it began and did not end."""
    ended = {(note.member, note.queue, note.offset) for note in notes if note.what == "end"}
    return [note for note in notes if note.member != killed or (note.member, note.queue, note.offset) in ended]
