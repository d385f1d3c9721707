"""Every statement with which an operator looks at topics, changes and deletes them. Brokers' knowledge is in topics.py.

A change is one transaction that locks the row of its topic. Brokers learn of it within seconds; what they could still
write to by what they knew before is touched only when SETTLED_S have gone by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from psycopg import AsyncConnection
from psycopg.rows import class_row

from txmsg.access.rules import ALL_NAMES, Names
from txmsg.broker.store import audit
from txmsg.broker.store.access_rules import is_visible
from txmsg.broker.store.connect import Pool, notify, session
from txmsg.broker.store.delivery import open_segment, queue_ends
from txmsg.broker.store.topics import check_erasable, check_message_type
from txmsg.errors import MisuseError, UnknownTopic
from txmsg.message import QUEUES_MAX, Offset, QueueId, QueueNumber

SETTLED_S: Final = 10.0
"""Seconds after which each broker knows of a change: twice the time between its looks."""

_WRITE: Final = 2
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettingsRow:
    """A topic with its settings; numbers of queues that were not set are those of all its queues."""

    id: int
    name: str
    queue_count: int
    write_queues: int
    read_queues: int
    ordered_queues: int
    permission: int
    durability: str
    unread: str
    message_type: str
    send_rate_max: float | None
    journal_since: datetime | None
    """None: it has no journal."""
    erasable_s: float | None
    """For how long the keys of its bodies are kept; None: they are not encrypted."""
    created_at: datetime
    version: int
    settled_in_s: float
    """Seconds until each broker has learned where it may send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """Settings to be changed; None: as it is. send_rate_max 0: no limit."""

    queues: int | None = None
    write_queues: int | None = None
    read_queues: int | None = None
    ordered_queues: int | None = None
    permission: int | None = None
    durability: str | None = None
    unread: str | None = None
    message_type: str | None = None
    send_rate_max: float | None = None
    journal: bool | None = None
    erasable_s: float | None = None


class TopicSummaryRow(NamedTuple):
    """A topic, how many messages are in its queues, and how many have ever entered them."""

    settings: TopicSettingsRow
    kept: int
    entered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueueRow:
    """A queue: the first offset kept, and the one after the last."""

    number: QueueNumber
    begin: Offset
    end: Offset


class TopicSegmentRow(NamedTuple):
    """A segment, and how many messages of a topic are in it. closed_at: None for the one that takes messages."""

    id: int
    opened_at: datetime
    closed_at: datetime | None
    messages: int


class TopicDetailsRow(NamedTuple):
    """A topic whole. halves: undecided or held back."""

    settings: TopicSettingsRow
    queues: Sequence[TopicQueueRow]
    segments: Sequence[TopicSegmentRow]
    groups: Sequence[TopicGroupRow]
    halves: int
    scheduled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGroupRow:
    """What a group has still to do in some queues of a topic, by its cursors as written."""

    group_name: str
    waiting: int
    retrying: int
    dead: int
    ordered: int
    """Of these retries and dead letters: those that hold back an ordering key."""


class TopicSettings:
    """The topics of one Notify database, for operators. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(
        self, limit: int, *, after: str = "", contains: str = "", names: Names = ALL_NAMES
    ) -> Sequence[TopicSummaryRow]:
        """The first topics by name among these that come after this one and whose names contain this."""
        values = {"settled": SETTLED_S, "limit": limit, "after": after, "contains": contains, **names._asdict()}
        async with session(self._pool) as conn, conn.transaction():
            async with conn.cursor(row_factory=class_row(TopicSettingsRow)) as cursor:
                await cursor.execute(_LIST, values)
                topics = await cursor.fetchall()
            cursor_of_queues = await conn.execute(_QUEUES_OF, ([topic.id for topic in topics],))
            queues = await cursor_of_queues.fetchall()
            ends = await queue_ends(conn, await open_segment(conn), [queue_id for _, queue_id, _ in queues])
        kept, entered = Counter[int](), Counter[int]()
        for topic_id, queue_id, begin in queues:
            entered[topic_id] += ends[queue_id]
            kept[topic_id] += ends[queue_id] - begin
        return [TopicSummaryRow(topic, kept[topic.id], entered[topic.id]) for topic in topics]

    async def settings(self, name: str) -> TopicSettingsRow:
        """The topic alone, which takes the same time whatever is in it. Raises UnknownTopic."""
        async with session(self._pool) as conn:
            return await _topic(conn, name)

    async def show(self, name: str) -> TopicDetailsRow:
        """The topic, and what is in it. Raises UnknownTopic."""
        async with session(self._pool) as conn, conn.transaction():
            topic = await _topic(conn, name)
            ids = await _queue_ids(conn, topic.id)
            ends = await queue_ends(conn, await open_segment(conn), ids)
            cursor = await conn.execute(_BEGINS, {"ids": ids})
            begins = {queue_id: begin for queue_id, begin in await cursor.fetchall()}
            queues = [
                TopicQueueRow(number=QueueNumber(number), begin=begins[queue_id], end=Offset(ends[queue_id]))
                for number, queue_id in enumerate(ids)
            ]
            segments = await _segments(conn, ids, sum(ends.values()))
            groups = await _groups(conn, ids)
            undecided, held_back, scheduled = await _not_entered(conn, ids)
        return TopicDetailsRow(topic, queues, segments, groups, undecided + held_back, scheduled)

    async def alter(self, name: str, change: TopicChange) -> TopicSettingsRow:
        """Changes what is named, all or nothing. Raises UnknownTopic, and MisuseError for what cannot be."""
        async with session(self._pool) as conn, conn.transaction():
            topic = await _topic(conn, name, lock=True)
            wanted = _wanted(topic, change)
            _check_numbers(topic, wanted)
            check_erasable(name, wanted.erasable_s)
            if wanted.read_queues < topic.read_queues:
                await _check_drained(conn, topic, wanted.read_queues, "read_queues")
            if wanted.ordered_queues != topic.ordered_queues:
                await _check_drained(conn, topic, 0, "ordered_queues")
            if (wanted.durability == "memory") != (topic.durability == "memory"):
                await _check_new(conn, topic)
            await conn.execute(_ADD_QUEUES, {"id": topic.id, "from": topic.queue_count, "to": wanted.queue_count - 1})
            await conn.execute(
                _ALTER,
                {
                    "id": topic.id,
                    "queue_count": wanted.queue_count,
                    "write_queues": _unless_all(wanted.write_queues, wanted.queue_count),
                    "read_queues": _unless_all(wanted.read_queues, wanted.queue_count),
                    "ordered_queues": wanted.ordered_queues,
                    "permission": wanted.permission,
                    "durability": wanted.durability,
                    "unread": wanted.unread,
                    "message_type": wanted.message_type,
                    "send_rate_max": wanted.send_rate_max,
                    "journal": (topic.journal_since is not None) if change.journal is None else change.journal,
                    "erasable_s": wanted.erasable_s,
                    "settled": SETTLED_S,
                    "sends_elsewhere": _where_it_sends(wanted) != _where_it_sends(topic),
                },
            )
            if wanted.durability == "memory" and topic.durability != "memory":
                await conn.execute("select txmsg.begin_memory(%s)", (await _queue_ids(conn, topic.id),))
            await notify(conn, "topics")
            altered = await _topic(conn, name)
            before, after = audit.difference(topic, altered, "version", "settled_in_s")
            await audit.record(conn, "topic.alter", name, before=before, after=after)
            return altered

    async def delete(self, name: str, *, force: bool, dry_run: bool = False) -> None:
        """Deletes a topic that takes no messages any more. Raises UnknownTopic, and MisuseError while it is in use.

        force: with undecided halves, which are rolled back, and with what groups have not got: transactions that were
        committed stay so. What is in segments goes with these. dry_run: only raises.
        """
        async with session(self._pool) as conn, conn.transaction():
            topic = await _topic(conn, name, lock=True)
            if topic.permission & _WRITE:
                raise MisuseError(
                    f"topic {name!r} still accepts messages: run `txmsg topic alter {name} --permission none` first, "
                    f"and delete it {SETTLED_S:.0f} s later, when every broker knows"
                )
            _check_settled(topic)
            ids = await _queue_ids(conn, topic.id)
            # As batches do, before half rows: no half of this topic is decided meanwhile.
            await conn.execute(_LOCK_QUEUES, {"ids": ids})
            await _check_unused(conn, name, ids, force=force)
            if dry_run:
                return
            for statement in _DELETE:
                await conn.execute(statement, {"id": topic.id, "ids": ids})
            await notify(conn, "topics")
            before = {"queues": topic.queue_count, "created_at": topic.created_at}
            await audit.record(conn, "topic.delete", name, before=before)


def _wanted(topic: TopicSettingsRow, change: TopicChange) -> TopicSettingsRow:
    """The topic as it will be. Numbers of queues that were those of all queues grow with them."""
    count = topic.queue_count if change.queues is None else change.queues
    write_queues = count if topic.write_queues == topic.queue_count else topic.write_queues
    read_queues = count if topic.read_queues == topic.queue_count else topic.read_queues
    rate = topic.send_rate_max if change.send_rate_max is None else change.send_rate_max or None
    return replace(
        topic,
        queue_count=count,
        write_queues=write_queues if change.write_queues is None else change.write_queues,
        read_queues=read_queues if change.read_queues is None else change.read_queues,
        ordered_queues=topic.ordered_queues if change.ordered_queues is None else change.ordered_queues,
        permission=topic.permission if change.permission is None else change.permission,
        durability=change.durability or topic.durability,
        unread=change.unread or topic.unread,
        message_type=change.message_type or topic.message_type,
        send_rate_max=rate,
        erasable_s=topic.erasable_s if change.erasable_s is None else change.erasable_s,
    )


def _check_numbers(topic: TopicSettingsRow, wanted: TopicSettingsRow) -> None:
    name, count = topic.name, wanted.queue_count
    if not 1 <= count <= QUEUES_MAX:
        raise MisuseError(f"{count} queues for topic {name!r}: 1 to {QUEUES_MAX} are allowed")
    if count < topic.queue_count:
        raise MisuseError(
            f"topic {name!r} has {topic.queue_count} queues, which are never removed: lower --write-queues to "
            f"{count}, and --read-queues when the others are drained"
        )
    for what in ("write_queues", "read_queues", "ordered_queues"):
        number: int = getattr(wanted, what)
        if not 1 <= number <= count:
            raise MisuseError(f"{what} {number} of topic {name!r}: 1 to {count} are allowed, for so many queues it has")
    if wanted.permission not in (0, 2, 4, 6):
        raise MisuseError(f"permission {wanted.permission} of topic {name!r}: 2 write, 4 read, 6 both, 0 neither")
    if wanted.durability not in ("replicated", "sync", "async", "memory"):
        raise MisuseError(f"durability {wanted.durability!r} of topic {name!r}: replicated, sync, async or memory")
    if wanted.unread not in ("keep", "drop"):
        raise MisuseError(f"unread {wanted.unread!r} of topic {name!r}: keep or drop")
    check_message_type(name, wanted.message_type)
    if wanted.send_rate_max is not None and not 0 < wanted.send_rate_max < 1e9:
        raise MisuseError(
            f"send rate {wanted.send_rate_max} of topic {name!r}: give messages per second, or 0 for unlimited"
        )
    if wanted.read_queues < max(wanted.write_queues, wanted.ordered_queues):
        raise MisuseError(
            f"topic {name!r} would accept messages in queues that are not read: read_queues {wanted.read_queues} must "
            f"not be below write_queues {wanted.write_queues} and ordered_queues {wanted.ordered_queues}"
        )


def _where_it_sends(topic: TopicSettingsRow) -> tuple[int, int, int]:
    return topic.write_queues, topic.ordered_queues, topic.permission & _WRITE


def _unless_all(number: int, count: int) -> int | None:
    return None if number == count else number


def _check_settled(topic: TopicSettingsRow) -> None:
    if topic.settled_in_s > 0:
        raise MisuseError(
            f"brokers may still use the settings of topic {topic.name!r} before its last change: try again in "
            f"{topic.settled_in_s:.0f} s"
        )


async def _segments(conn: AsyncConnection, ids: Sequence[QueueId], end: int) -> Sequence[TopicSegmentRow]:
    """The segments that are kept. end: the ends of all queues, together."""
    found = await (await conn.execute(_SEGMENTS, {"ids": ids})).fetchall()
    begins = [begin for *_, begin in found]
    return [
        TopicSegmentRow(id_, opened_at, closed_at, following - begin)
        for (id_, opened_at, closed_at, begin), following in zip(found, [*begins[1:], end], strict=True)
    ]


async def _check_drained(conn: AsyncConnection, topic: TopicSettingsRow, first: int, what: str) -> None:
    """Raises MisuseError unless nothing is left in the queues from number `first` on, and no broker sends there."""
    if what == "ordered_queues" and topic.permission & _WRITE:
        raise MisuseError(
            f"ordered_queues of topic {topic.name!r} cannot change while it accepts messages: run `txmsg topic alter "
            f"{topic.name} --permission r` first"
        )
    if what == "read_queues" and max(topic.write_queues, topic.ordered_queues) > first:
        raise MisuseError(
            f"topic {topic.name!r} still accepts messages in {max(topic.write_queues, topic.ordered_queues)} queues: "
            "lower write_queues and ordered_queues first, and read_queues when the others are drained"
        )
    _check_settled(topic)
    ids = (await _queue_ids(conn, topic.id))[first:]
    await conn.execute(_LOCK_QUEUES, {"ids": ids})
    left = await _left_to_enter(conn, ids)
    left += [
        f"group {group.group_name} has {group.waiting + group.retrying} messages left"
        + (f" and {group.ordered} that hold back ordering keys" if group.ordered else "")
        for group in await _groups(conn, ids)
        if group.waiting or group.retrying or group.ordered
    ]
    if left:
        raise MisuseError(
            f"{what} of topic {topic.name!r} cannot change before the queues from number {first} on are drained: "
            f"{_named(left)}"
        )


async def _check_new(conn: AsyncConnection, topic: TopicSettingsRow) -> None:
    """Raises MisuseError unless the topic has never had a message, and gets none before this transaction ends."""
    await conn.execute("select txmsg.look_after_memory()")  # else queues that have lost their messages look new
    ids = await _queue_ids(conn, topic.id)
    await conn.execute(_LOCK_QUEUES, {"ids": ids})
    if any((await queue_ends(conn, await open_segment(conn), ids)).values()):
        raise MisuseError(
            f"topic {topic.name!r} has had messages: durability memory can be set and unset only while a topic is "
            "new; create another topic"
        )


async def _check_unused(conn: AsyncConnection, name: str, ids: Sequence[QueueId], *, force: bool) -> None:
    cursor = await conn.execute(_SHARED_HALVES, {"ids": ids})
    ((shared,),) = await cursor.fetchall()
    if shared:
        raise MisuseError(
            f"topic {name!r} cannot be deleted: {shared} undecided transactions have messages for other topics, too; "
            "`txmsg half list` shows what waits"
        )
    left = await _left_to_enter(conn, ids)
    left += [
        f"group {group.group_name} has {group.waiting + group.retrying} messages left and {group.dead} dead letters"
        for group in await _groups(conn, ids)
        if group.waiting or group.retrying or group.dead
    ]
    if left and not force:
        raise MisuseError(f"topic {name!r} is in use: {_named(left)}; --force deletes all of it")


def _named(left: Sequence[str]) -> str:
    more = [f"{len(left) - _NAMED_MAX} more groups"] if len(left) > _NAMED_MAX else []
    return ", ".join([*left[:_NAMED_MAX], *more])


async def _topic(conn: AsyncConnection, name: str, *, lock: bool = False) -> TopicSettingsRow:
    async with conn.cursor(row_factory=class_row(TopicSettingsRow)) as cursor:
        statement = f"{_SELECT} where name = %(name)s {'for update' if lock else ''}"
        await cursor.execute(statement, {"settled": SETTLED_S, "name": name})
        row = await cursor.fetchone()
    if row is None:
        raise UnknownTopic(
            f"topic {name!r} is unknown: create it with `txmsg topic create {name}`, or check the spelling"
        )
    return row


async def _queue_ids(conn: AsyncConnection, topic_id: int) -> list[QueueId]:
    cursor = await conn.execute("select id from txmsg.queue where topic_id = %s order by number", (topic_id,))
    return [queue_id for (queue_id,) in await cursor.fetchall()]


async def _groups(conn: AsyncConnection, ids: Sequence[QueueId]) -> Sequence[TopicGroupRow]:
    ends = await queue_ends(conn, await open_segment(conn), ids)
    async with conn.cursor(row_factory=class_row(TopicGroupRow)) as cursor:
        await cursor.execute(_GROUPS, {"ids": list(ends), "ends": list(ends.values())})
        return await cursor.fetchall()


async def _left_to_enter(conn: AsyncConnection, ids: Sequence[QueueId]) -> list[str]:
    undecided, held_back, scheduled = await _not_entered(conn, ids)
    return [
        *([f"{undecided} halves are undecided"] if undecided else []),
        *([f"{held_back} committed messages wait for an earlier one of their ordering key"] if held_back else []),
        *([f"{scheduled} messages are not due yet"] if scheduled else []),
    ]


async def _not_entered(conn: AsyncConnection, ids: Sequence[QueueId]) -> tuple[int, int, int]:
    """How many messages for these queues are undecided, held back, and scheduled. Walks both tables."""
    cursor = await conn.execute(_NOT_ENTERED, {"ids": list(ids)})
    ((undecided, held_back, scheduled),) = await cursor.fetchall()
    return undecided, held_back, scheduled


_SELECT = """
select id, name, queue_count, coalesce(write_queues, queue_count) as write_queues,
       coalesce(read_queues, queue_count) as read_queues, ordered_queues,
       permission, durability, unread, message_type, send_rate_max, journal_since, body_keys_kept_s as erasable_s,
       created_at, version,
       greatest(0, %(settled)s::float8 - extract(epoch from now() - write_changed_at))::float8 as settled_in_s
  from txmsg.topic
"""

_LIST = f"""{_SELECT}
 where name > %(after)s and strpos(lower(name), lower(%(contains)s)) > 0 and {is_visible("name")}
 order by name limit %(limit)s"""

_QUEUES_OF = """
select q.topic_id, q.id, txmsg.first_kept(q.id) from txmsg.queue q where q.topic_id = any(%s::int[])
"""

_ADD_QUEUES = """
insert into txmsg.queue (topic_id, number) select %(id)s, generate_series(%(from)s::int, %(to)s::int)
"""

_ALTER = """
update txmsg.topic
   set queue_count = %(queue_count)s, write_queues = %(write_queues)s, read_queues = %(read_queues)s,
       ordered_queues = %(ordered_queues)s, permission = %(permission)s, durability = %(durability)s,
       unread = %(unread)s, message_type = %(message_type)s, send_rate_max = %(send_rate_max)s,
       journal_since = case when %(journal)s then coalesce(journal_since, now()) end, version = version + 1,
       body_keys_kept_s = %(erasable_s)s,
       -- Encrypted once all brokers know that they have to decrypt.
       erasable_since = case when %(erasable_s)s::float8 > 0
                             then coalesce(erasable_since, now() + make_interval(secs => %(settled)s)) end,
       write_changed_at = case when %(sends_elsewhere)s then now() else write_changed_at end
 where id = %(id)s
"""

_BEGINS = "select q.id, txmsg.first_kept(q.id) from unnest(%(ids)s::int[]) q(id)"

# Where all queues together start in each segment. No row: the queue is younger than the segment, and starts at 0.
_SEGMENTS = """
select s.id, s.opened_at, s.closed_at, coalesce(sum(b.base), 0)::bigint
  from txmsg.segment s left join txmsg.segment_base b on b.segment = s.id and b.queue = any(%(ids)s::int[])
 where s.state <> 'ahead' and not s.dropping
 group by s.id order by s.id
"""

_LOCK_QUEUES = """
select pg_advisory_xact_lock(7702, l.lock)
  from (select distinct q %% 1024 as lock from unnest(%(ids)s::int[]) q order by 1) l
"""

_GROUPS = """
select g.name as group_name,
       sum(greatest(0, e.queue_end - c.next_offset - (
           select coalesce(sum(upper(r) - lower(r)), 0) from unnest(c.acked) r)))::bigint as waiting,
       sum(f.retrying)::bigint as retrying, sum(f.dead)::bigint as dead, sum(f.ordered)::bigint as ordered
  from unnest(%(ids)s::int[], %(ends)s::bigint[]) e(queue_id, queue_end)
  join txmsg.effective_cursor c on c.queue_id = e.queue_id
  join txmsg.consumer_group g on g.id = c.group_id
 cross join lateral (
       select count(*) filter (where not x.is_dead) as retrying, count(*) filter (where x.is_dead) as dead,
              count(*) filter (where x.holds_key) as ordered
         from (select false as is_dead, r.ordering_key is not null as holds_key from txmsg.retry r
                where r.group_id = c.group_id and r.queue_id = c.queue_id
               union all
               select true, d.blocks_key from txmsg.dead_letter d
                where d.group_id = c.group_id and d.queue_id = c.queue_id) x) f
 group by g.name order by g.name
"""

_NOT_ENTERED = """
select count(*) filter (where not h.decided), count(*) filter (where h.decided),
       (select count(*) from txmsg.scheduled s where s.queue = any(%(ids)s))
  from txmsg.half_message h where h.queue = any(%(ids)s)
"""

# Deleting the first half of a transaction would end the checks of the others.
_SHARED_HALVES = """
select count(distinct h.transaction_id) from txmsg.half_message h
 where h.queue = any(%(ids)s) and not h.decided
   and exists (select from txmsg.half_message o
                where o.transaction_id = h.transaction_id and o.queue <> all (%(ids)s))
"""

_DELETE: Final = (
    # First what writers of failures lock first: one that has its lease would wait for rows that are deleted here, while
    # the lease, which goes with its queue, waits for it.
    "select from txmsg.queue_lease where queue_id = any(%(ids)s) order by queue_id for update",
    """
    with half as (
        delete from txmsg.half_message where queue = any(%(ids)s) returning transaction_id, decided),
    later as (
        delete from txmsg.scheduled where queue = any(%(ids)s) returning transaction_id),
    gone as (
        select transaction_id, decided from half union select transaction_id, true from later)
    insert into txmsg.rolled_back (segment, transaction_id, committed)
    select distinct (select id from txmsg.segment where state = 'open'), transaction_id, decided from gone
    on conflict do nothing
    """,
    "delete from txmsg.retry where queue_id = any(%(ids)s)",
    "delete from txmsg.dead_letter where queue_id = any(%(ids)s)",
    "delete from txmsg.cursor where queue_id = any(%(ids)s)",
    "delete from txmsg.segment_base where queue = any(%(ids)s)",
    "delete from txmsg.clock_step where queue = any(%(ids)s)",
    "delete from txmsg.queue where topic_id = %(id)s",
    "delete from txmsg.topic_schema where topic_id = %(id)s",
    "delete from txmsg.topic where id = %(id)s",
)
"""In this order. Messages in segments stay until those are dropped: nothing deletes messages one by one."""
