"""Statements about mirrors in the Notify database: their topics, positions and current writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from psycopg.rows import class_row

from txmsg.binlog.config import ALL_TOPICS
from txmsg.binlog.database import Session

_LOCK_CLASS = 7707


class MirrorRow(NamedTuple):
    """A row of txmsg.mirror."""

    name: str
    include: Sequence[str]
    exclude: Sequence[str]
    log: str | None
    log_id: int | None
    generation: int | None
    created_at: datetime
    seen_at: datetime | None


class MirrorPosition(NamedTuple):
    """The next offset of a queue to mirror, and why the queue has stopped; None: it is mirrored."""

    next_offset: int
    stopped: str | None


class TailerMirror:
    """One mirror by its name. The database keeps its positions for retention only; the log decides where it
    continues.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self.name = name

    def read_row(self) -> MirrorRow | None:
        """Return the mirror, or None."""
        with self._session.cursor(row_factory=class_row(MirrorRow)) as cursor:
            return cursor.execute(
                "select name, include, exclude, log, log_id, generation, created_at, seen_at from txmsg.mirror "
                "where name = %s",
                (self.name,),
            ).fetchone()

    def settle(
        self, topics: Sequence[str] | None, exclude: Sequence[str] | None, *, own: Sequence[str] = ()
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Create the mirror, or change its topics. None leaves them as they are; a new mirror then has all topics.

        own: patterns of topics that the log keeps for itself; they are left out, too. From now on retention keeps
        messages that are not mirrored. Returns the patterns.
        """
        known = self.read_row()
        include = topics or (ALL_TOPICS if known is None else known.include)
        exclude = (() if known is None else known.exclude) if exclude is None else exclude
        exclude = list(dict.fromkeys((*exclude, *own)))
        self._session.execute(
            "insert into txmsg.mirror (name, include, exclude) values (%s, %s, %s) "
            "on conflict (name) do update set include = excluded.include, exclude = excluded.exclude",
            (self.name, list(include), list(exclude)),
        )
        return include, exclude

    def fitting(self, include: Sequence[str], patterns: Sequence[str]) -> list[str]:
        """Return the topics that match both lists of patterns."""
        rows = self._session.execute(
            "select t.name from txmsg.topic t where txmsg.fits(t.name, %s) and txmsg.fits(t.name, %s) order by 1",
            (list(include), list(patterns)),
        ).fetchall()
        return [name for (name,) in rows]

    def left_out(self, include: Sequence[str], exclude: Sequence[str]) -> list[str]:
        """Return matching topics of durability memory, which PostgreSQL's write-ahead log does not have."""
        rows = self._session.execute(
            "select t.name from txmsg.topic t where t.durability = 'memory' and txmsg.fits(t.name, %s) "
            "and not txmsg.fits(t.name, %s) order by 1",
            (list(include), list(exclude)),
        ).fetchall()
        return [name for (name,) in rows]

    def drop(self) -> bool:
        """Delete the mirror and its positions. Returns True if it existed."""
        return self._session.execute("delete from txmsg.mirror where name = %s", (self.name,)).rowcount == 1

    # ---- one writer

    def try_lock(self) -> bool:
        """Return True if this session holds the mirror's writer lock now; it then holds it until the session ends."""
        # A lock of the session, not a row with a lease: PostgreSQL releases it when the session ends, however its
        # process died, so the next tailer need not wait for a time to pass (decision 0019).
        lock = "select pg_try_advisory_lock(%s, hashtext(%s))"
        ((is_locked,),) = self._session.execute(lock, (_LOCK_CLASS, self.name)).fetchall()
        return bool(is_locked)

    def holder(self) -> int | None:
        """Return the server process of the session that holds the lock; None if none does."""
        found = self._session.execute(
            "select pid from pg_locks where locktype = 'advisory' and granted and classid = %s and objsubid = 2 "
            "and database = (select oid from pg_database where datname = current_database()) "
            "and objid::bigint = (hashtext(%s)::bigint & 4294967295)",
            (_LOCK_CLASS, self.name),
        )
        return next((int(pid) for (pid,) in found), None)

    # ---- positions

    def positions(self) -> dict[int, MirrorPosition]:
        """Return the position of each queue by its id."""
        rows = self._session.execute(
            "select queue, next_offset, stopped from txmsg.mirror_queue where mirror = %s", (self.name,)
        ).fetchall()
        return {queue_id: MirrorPosition(next_offset, stopped) for queue_id, next_offset, stopped in rows}

    def forget_topics(self, topics: Sequence[str]) -> None:
        """Delete the positions in topics that were deleted from the log."""
        self._session.execute(
            "delete from txmsg.mirror_queue p using txmsg.queue q join txmsg.topic t on t.id = q.topic_id "
            "where p.queue = q.id and p.mirror = %s and t.name = any(%s)",
            (self.name, list(topics)),
        )

    def stop(self, queue_id: int, next_offset: int | None, reason: str) -> None:
        """Note that a queue is no longer mirrored. next_offset: its position; None keeps the one noted before."""
        self._session.execute(
            "insert into txmsg.mirror_queue as p (mirror, queue, next_offset, stopped) "
            "select %(name)s, q.id, coalesce(%(next_offset)s, 0), %(reason)s from txmsg.queue q where q.id = %(queue)s "
            "on conflict (mirror, queue) do update "
            "set next_offset = coalesce(%(next_offset)s, p.next_offset), stopped = excluded.stopped, "
            "updated_at = now()",
            {"name": self.name, "queue": queue_id, "next_offset": next_offset, "reason": reason},
        )

    def write(self, positions: Mapping[int, int], *, log: str, log_id: int, generation: int) -> None:
        """Note positions that are on disk, clear their stops, and note that the tailer lives: one statement, one round
        trip.
        """
        self._session.execute(
            "with seen as (update txmsg.mirror set seen_at = now(), log = %(log)s, log_id = %(log_id)s, "
            "generation = %(generation)s where name = %(name)s) "
            "insert into txmsg.mirror_queue as p (mirror, queue, next_offset) select %(name)s, w.queue, w.next_offset "
            "from unnest(%(queues)s::int[], %(offsets)s::bigint[]) w(queue, next_offset) "
            "where exists (select from txmsg.queue q where q.id = w.queue) order by 2 "
            "on conflict (mirror, queue) do update "
            "set next_offset = excluded.next_offset, stopped = null, updated_at = now()",
            {
                "log": log,
                "log_id": log_id,
                "generation": generation,
                "name": self.name,
                "queues": list(positions),
                "offsets": list(positions.values()),
            },
        )
