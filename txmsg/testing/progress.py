"""The remaining work of a group in a topic, read from the Notify database and described in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from txmsg.message.typed.names import is_pattern, prefix_of

_ERROR_LENGTH_MAX = 200

Wanted = tuple[str, str | None]
"""A group, and a topic, or a pattern of topics; None: all that it has asked for."""


@dataclass(frozen=True, slots=True)
class Late:
    """A message that waits for its due time, or is dead."""

    what: str
    """The description: "delivery 2 failed: ValueError: boom"."""
    due_in_s: float | None
    """Seconds until it is tried again; None: never by itself."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a group in one topic. Dead letters do not count as acknowledged."""

    group: str
    topic: str
    known: bool
    """True if the group has ever asked for the topic."""
    committed: int
    passed: int
    """Messages of the queues that the group has passed: acknowledged, to be retried, or dead."""
    retries: list[Late]
    dead: list[Late]
    undecided: list[Late]
    scheduled: list[Late]

    @property
    def acknowledged(self) -> int:
        """Messages that were handled, or whose tags the group does not want."""
        return self.passed - len(self.retries) - len(self.dead)

    @property
    def waiting(self) -> int:
        """Messages of the queues that are neither acknowledged nor refused."""
        return self.committed - self.passed

    @property
    def late(self) -> list[Late]:
        """The messages that are still to come."""
        return [*self.retries, *self.undecided, *self.scheduled]

    def lines(self) -> Iterator[str]:
        """Yield the remaining work in words."""
        yield (
            f"topic {self.topic!r}: {self.committed} committed, {self.acknowledged} acknowledged, "
            f"{self.waiting} not yet handled, {len(self.retries)} to be retried, {len(self.dead)} dead, "
            f"{len(self.undecided)} undecided, {len(self.scheduled)} delayed"
        )
        if not self.known:
            yield "  the group has never asked for it: is a consumer of this group subscribed to it, and started?"
        elif self.waiting:
            yield "  not yet handled: is a consumer running, or a handler still at work?"
        for retry in self.retries:
            yield f"  retry, {_when(retry.due_in_s)}: {retry.what}"
        for dead in self.dead:
            yield f"  dead letter: {dead.what}"
        for half in self.undecided:
            yield f"  undecided, {_when(half.due_in_s)}: {half.what}"
        for message in self.scheduled:
            yield f"  delayed, {_when(message.due_in_s)}: {message.what}"


def _when(due_in_s: float | None) -> str:
    if due_in_s is None:
        return "not by itself"
    if due_in_s <= 0:
        return "now"
    return f"in {due_in_s:.1f} s (txmsg_clock.advance(seconds={math.ceil(due_in_s)}) lets it come at once)"


def progress_of(connection: psycopg.Connection[Any], wanted: Sequence[Wanted]) -> list[Progress]:
    """Return the groups' progress at one moment: in the wanted topic, or in each topic that the group has asked for."""
    with connection.transaction():
        # One snapshot for all statements: a message that moves between tables meanwhile is counted once.
        connection.execute("set transaction isolation level repeatable read")
        return [
            Progress(
                group,
                name,
                known,
                committed,
                passed,
                [_failed(row) for row in connection.execute(_RETRIES, {"group": group, "topic": name})],
                [_failed(row) for row in connection.execute(_DEAD, {"group": group, "topic": name})],
                [_undecided(row) for row in connection.execute(_UNDECIDED, {"topic": name})],
                [_delayed(row) for row in connection.execute(_SCHEDULED, {"topic": name})],
            )
            for group, topic in wanted
            for name, known, committed, passed in connection.execute(_TOPICS, {"group": group, **_named(topic)})
        ]


def _named(topic: str | None) -> dict[str, str | None]:
    if topic is not None and is_pattern(topic):
        return {"topic": None, "prefix": prefix_of(topic)}
    return {"topic": topic, "prefix": None}


def _failed(row: tuple[Any, ...]) -> Late:
    key, attempts, error, due_in_s = row
    said = (error or "no error").splitlines()[0][:_ERROR_LENGTH_MAX]
    return Late(f"key {key!r}, delivery {attempts} failed: {said}", due_in_s)


def _undecided(row: tuple[Any, ...]) -> Late:
    transaction_id, group, parked_reason, checks, decided, due_in_s = row
    what = f"transaction {transaction_id} of producer group {group!r}, {checks} checks so far"
    if parked_reason is not None:
        what += f", parked in doubt: {parked_reason}"
    if decided:
        what += ", committed: it waits for an earlier one of its ordering key"
    return Late(what, due_in_s)


def _delayed(row: tuple[Any, ...]) -> Late:
    key, due_in_s = row
    return Late(f"key {key!r}", due_in_s)


# Only for databases of tests: these statements read whole tables.
_TOPICS = """
select t.name, count(c.queue_id) > 0, coalesce(sum(m.count), 0)::int,
       coalesce(sum(c.next_offset + (select coalesce(sum(upper(r) - lower(r)), 0) from unnest(c.acked) r)), 0)::int
  from txmsg.topic t
  join txmsg.queue q on q.topic_id = t.id
  left join (select queue, count(*) from txmsg.message group by queue) m on m.queue = q.id
  left join (txmsg.cursor c join txmsg.consumer_group g on g.id = c.group_id and g.name = %(group)s)
         on c.queue_id = q.id
 where %(topic)s::text is null and %(prefix)s::text is null or t.name = %(topic)s or starts_with(t.name, %(prefix)s)
 group by t.name having %(topic)s::text is not null or %(prefix)s::text is not null or count(c.queue_id) > 0
 order by t.name
"""
_RETRIES = """
select r.key, r.attempt, r.last_error,
       case when r.due_at < 'infinity' then extract(epoch from r.due_at - now())::float8 end
  from txmsg.retry r join txmsg.consumer_group g on g.id = r.group_id
  join txmsg.queue q on q.id = r.queue_id join txmsg.topic t on t.id = q.topic_id
 where g.name = %(group)s and t.name = %(topic)s order by r.due_at
"""
_DEAD = """
select d.key, d.attempts, d.last_error, null::float8
  from txmsg.dead_letter d join txmsg.consumer_group g on g.id = d.group_id
  join txmsg.queue q on q.id = d.queue_id join txmsg.topic t on t.id = q.topic_id
 where g.name = %(group)s and t.name = %(topic)s order by d.died_at
"""
_UNDECIDED = """
select h.transaction_id, p.group_name, f.parked_reason, f.checks, h.decided,
       extract(epoch from f.next_check_at - now())::float8
  from txmsg.half_message h
  join txmsg.half_message f on f.transaction_id = h.transaction_id and f.n = 0
  left join txmsg.producer p on p.id = h.producer
  join txmsg.queue q on q.id = h.queue join txmsg.topic t on t.id = q.topic_id
 where t.name = %(topic)s order by h.stored_at
"""
_SCHEDULED = """
select s.key, extract(epoch from s.deliver_at - now())::float8
  from txmsg.scheduled s join txmsg.queue q on q.id = s.queue join txmsg.topic t on t.id = q.topic_id
 where t.name = %(topic)s order by s.deliver_at
"""
