"""The state of a mirror as its database reports it: for operators, and for alerts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from txmsg.binlog import table
from txmsg.binlog.comparing import Compared, Divergence, compare, divergence, require_latest
from txmsg.binlog.database import Session
from txmsg.binlog.mirrors import MirrorPosition, MirrorRow, TailerMirror
from txmsg.binlog.sink import MirrorSink
from txmsg.binlog.slot import MirrorSlot, ReplicationSlot
from txmsg.errors import MisuseError

_ENDING_S_MAX = 3.0
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue of a mirror. next_offset: the next one to mirror, as noted last; end: the end of the table."""

    topic: str
    queue: int
    next_offset: int
    end: int
    stopped: str | None
    """The reason why it is no longer mirrored; None: it is mirrored."""


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """A mirror with its slot, its queues and its lag."""

    mirror: MirrorRow
    slot: ReplicationSlot | None
    behind_s: float
    """Seconds since the oldest message that is not in the log was stored."""
    queues: Sequence[QueueStatus]
    left_out: Sequence[str]
    """Matching topics that cannot be mirrored: those of durability memory."""

    @property
    def behind_messages(self) -> int:
        """Messages in the table that are not in the log."""
        return sum(max(0, queue.end - queue.next_offset) for queue in self.queues)

    @property
    def stopped(self) -> list[QueueStatus]:
        """Queues that are no longer mirrored."""
        return [queue for queue in self.queues if queue.stopped is not None]


def status(session: Session, name: str) -> MirrorStatus:
    """Return the state of the mirror. Raises MisuseError for an unknown mirror."""
    mirrors = TailerMirror(session, name)
    mirror = mirrors.read_row()
    if mirror is None:
        raise MisuseError(f"there is no mirror {name}: `txmsg tailer run` or `txmsg tailer create` creates it")
    positions = mirrors.positions()
    found = table.queues(session, mirror.include, mirror.exclude)
    queues = [
        QueueStatus(queue.topic, queue.number, max(queue.begin, at.next_offset), queue.end, at.stopped)
        for queue in found
        for at in [positions.get(queue.id, MirrorPosition(0, None))]
    ]
    behind = {
        queue.id: shown.next_offset for queue, shown in zip(found, queues, strict=True) if shown.next_offset < queue.end
    }
    return MirrorStatus(
        mirror,
        MirrorSlot(session, name).read_slot(),
        table.oldest_age_s(session, behind),
        queues,
        mirrors.left_out(mirror.include, mirror.exclude),
    )


def make(session: Session, name: str, topics: Sequence[str] | None, exclude: Sequence[str] | None) -> bool:
    """Create a mirror with its publication and slot, or change its topics. Returns True if the slot is new."""
    mirrors, slots = TailerMirror(session, name), MirrorSlot(session, name)
    mirrors.settle(topics, exclude)
    slots.make_publication()
    slots.check_publication()
    return slots.make_slot()


def diverged(session: Session, sink: MirrorSink, name: str) -> list[Divergence]:
    """Return the queues whose log and table hold different messages. Makes the session the mirror's only writer until
    it ends.

    Raises MisuseError while a tailer works, or for an unknown mirror; NotLeader.
    """
    mirrors = TailerMirror(session, name)
    mirror = mirrors.read_row()
    if mirror is None:
        raise MisuseError(f"there is no mirror {name}: `txmsg tailer run` or `txmsg tailer create` creates it")
    _become_writer(mirrors)
    require_latest(sink, mirror)
    found = compare(session, sink, mirrors, table.queues(session, mirror.include, mirror.exclude))
    return [
        divergence(session, sink, compared)
        for compared in list(found)
        if isinstance(compared, Compared) and compared.is_diverged
    ]


def drop(session: Session, name: str) -> bool:
    """Drop a mirror with its slot and publication; the log is kept. Returns True if any of it existed.

    Raises MisuseError while a tailer works.
    """
    mirrors, slots = TailerMirror(session, name), MirrorSlot(session, name)
    _become_writer(mirrors)
    had_slot = _drop_slot(slots)
    slots.drop_publication()
    return mirrors.drop() or had_slot


# A tailer that has just ended holds its lock and its slot until the server's processes have seen that it is gone.


def _become_writer(mirrors: TailerMirror) -> None:
    deadline = time.monotonic() + _ENDING_S_MAX
    while not mirrors.try_lock():
        if time.monotonic() > deadline:
            raise MisuseError(f"mirror {mirrors.name} is being written by a tailer: stop it first")
        time.sleep(_LOOK_S)


def _drop_slot(slots: MirrorSlot) -> bool:
    deadline = time.monotonic() + _ENDING_S_MAX
    while True:
        try:
            return slots.drop_slot()
        except psycopg.errors.ObjectInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)
