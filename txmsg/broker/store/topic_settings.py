"""Statements by which operators list, change and delete topics. Brokers' knowledge of topics is in topics.py.

A change is one transaction that locks the row of its topic. Brokers learn of it within seconds; tables that they could
still write to, by their earlier knowledge, are touched only after SETTLED_S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final, NamedTuple

from psycopg import AsyncConnection
from psycopg.rows import kwargs_row

from txmsg.administration.topics import (
    TopicChange,
    TopicDetails,
    TopicGroup,
    TopicPage,
    TopicQuery,
    TopicQueue,
    TopicSegment,
    TopicSummary,
    TopicWithSettings,
)
from txmsg.broker.store import audit
from txmsg.broker.store.access_rules import is_visible
from txmsg.broker.store.connect import Pool, notify, session
from txmsg.broker.store.delivery import open_segment, queue_ends
from txmsg.broker.store.topics import check_erasable
from txmsg.errors import MisuseError, UnknownTopic
from txmsg.message import QueueId, check_name
from txmsg.wire.access.rules import ALL_NAMES, Names

SETTLED_S: Final = 10.0
"""Seconds after which each broker knows of a change: twice the interval of its polls."""

_NAMED_MAX: Final = 5


class _Topic(NamedTuple):
    """A topic. settled_in_s: seconds until each broker knows which queues it may send to."""

    id: int
    settled_in_s: float
    settings: TopicWithSettings

    @property
    def name(self) -> str:
        return self.settings.topic


class _Group(NamedTuple):
    """A group. ordered: the number of its retries and dead letters that hold back an ordering key."""

    ordered: int
    lag: TopicGroup


class TopicAdministration:
    """The topics of one Notify database, for operators. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, query: TopicQuery, *, names: Names = ALL_NAMES) -> TopicPage:
        """Return a page of the topics within `names`."""
        values = {"settled": SETTLED_S, **asdict(query), **names._asdict()}
        async with session(self._pool) as conn, conn.transaction():
            async with conn.cursor(row_factory=kwargs_row(_topic_of)) as cursor:
                await cursor.execute(_LIST, values)
                found = await cursor.fetchall()
            topics = found[: query.limit]
            cursor_of_queues = await conn.execute(_QUEUES_OF, ([topic.id for topic in topics],))
            queues = await cursor_of_queues.fetchall()
            ends = await queue_ends(conn, await open_segment(conn), [queue_id for _, queue_id, _ in queues])
        kept, entered = Counter[int](), Counter[int]()
        for topic_id, queue_id, begin in queues:
            entered[topic_id] += ends[queue_id]
            kept[topic_id] += ends[queue_id] - begin
        return TopicPage(
            topics=[
                TopicSummary(settings=topic.settings, kept=kept[topic.id], entered=entered[topic.id])
                for topic in topics
            ],
            next=topics[-1].name if len(found) > len(topics) else None,
        )

    async def settings(self, name: str) -> TopicWithSettings:
        """Return a topic's settings, without its contents: in constant time. Raises UnknownTopic."""
        async with session(self._pool) as conn:
            return (await _topic(conn, name)).settings

    async def show(self, name: str, *, retention_s: float) -> TopicDetails:
        """Return a topic with its contents. retention_s: the brokers' setting. Raises UnknownTopic."""
        async with session(self._pool) as conn, conn.transaction():
            topic = await _topic(conn, name)
            ids = await _queue_ids(conn, topic.id)
            ends = await queue_ends(conn, await open_segment(conn), ids)
            cursor = await conn.execute(_BEGINS, {"ids": ids})
            begins = {queue_id: begin for queue_id, begin in await cursor.fetchall()}
            undecided, held_back, scheduled = await _not_entered(conn, ids)
            return TopicDetails(
                settings=topic.settings,
                queues=[
                    TopicQueue(number=number, begin=begins[queue_id], end=ends[queue_id])
                    for number, queue_id in enumerate(ids)
                ],
                segments=await _segments(conn, ids, sum(ends.values())),
                retention_s=retention_s,
                groups=[group.lag for group in await _groups(conn, ids)],
                halves=undecided + held_back,
                scheduled=scheduled,
            )

    async def alter(self, name: str, change: TopicChange) -> TopicWithSettings:
        """Change the named settings, all or nothing. Raises UnknownTopic, and MisuseError for an impossible change."""
        async with session(self._pool) as conn, conn.transaction():
            topic = await _topic(conn, name, lock=True)
            now, wanted = topic.settings, _wanted(topic.settings, change)
            _check_numbers(now, wanted)
            check_erasable(name, wanted.erasable_s)
            if wanted.read_queues < now.read_queues:
                await _check_drained(conn, topic, wanted.read_queues, "read_queues")
            if wanted.ordered_queues != now.ordered_queues:
                # A key's queue is crc32(key) % ordered_queues: another number moves keys to other queues, where their
                # later messages could be delivered before earlier ones that wait in the old queue (decision 4).
                await _check_drained(conn, topic, 0, "ordered_queues")
            if (wanted.durability == "memory") != (now.durability == "memory"):
                await _check_new(conn, topic)
            await conn.execute(_ADD_QUEUES, {"id": topic.id, "from": now.queues, "to": wanted.queues - 1})
            values = asdict(wanted) | {
                "id": topic.id,
                "journal": (now.journal_since is not None) if change.journal is None else change.journal,
                "settled": SETTLED_S,
                # Only such a change starts the time of settling: other settings do not decide which queues brokers
                # write to.
                "sends_elsewhere": _where_it_sends(wanted) != _where_it_sends(now),
            }
            await conn.execute(_ALTER, values)
            if wanted.durability == "memory" and now.durability != "memory":
                await conn.execute("select txmsg.begin_memory(%s)", (await _queue_ids(conn, topic.id),))
            await notify(conn, "topics")
            altered = (await _topic(conn, name)).settings
            before, after = audit.difference(now, altered)
            await audit.record(conn, "topic.alter", name, before=before, after=after)
            return altered

    async def delete(self, name: str, *, force: bool, dry_run: bool = False) -> None:
        """Delete a topic that does not accept messages any more. Raises UnknownTopic, and MisuseError while in use.

        force: with undecided halves, which are rolled back, and with messages that groups have not processed:
        transactions that were committed stay committed. Messages in segments are dropped with these. dry_run: only
        raise.
        """
        async with session(self._pool) as conn, conn.transaction():
            topic = await _topic(conn, name, lock=True)
            if _is_writable(topic.settings):
                raise MisuseError(
                    f"topic {name!r} still accepts messages: run `txmsg topic alter {name} --permission none` first, "
                    f"and delete it {SETTLED_S:.0f} s later, when every broker knows"
                )
            _check_settled(topic)
            ids = await _queue_ids(conn, topic.id)
            # The order of batches: locks of queues before rows of halves. No half of this topic is decided meanwhile.
            await conn.execute(_LOCK_QUEUES, {"ids": ids})
            await _check_unused(conn, name, ids, force=force)
            if dry_run:
                return
            for statement in _DELETE:
                await conn.execute(statement, {"id": topic.id, "ids": ids})
            await notify(conn, "topics")
            before = {"queues": topic.settings.queues, "created_at": topic.settings.created_at}
            await audit.record(conn, "topic.delete", name, before=before)


def _topic_of(id: int, settled_in_s: float, **settings: Any) -> _Topic:
    return _Topic(id, settled_in_s, TopicWithSettings(**settings))


def _group_of(ordered: int, **lag: Any) -> _Group:
    return _Group(ordered, TopicGroup(**lag))


def _wanted(now: TopicWithSettings, change: TopicChange) -> TopicWithSettings:
    """Return the topic as it will be, except for its journal.

    Numbers of queues that were equal to the number of all queues grow with it.
    """
    given = {name: value for name, value in asdict(change).items() if value is not None and name != "journal"}
    count = now.queues if change.queues is None else change.queues
    grown = {name: count for name in ("write_queues", "read_queues") if getattr(now, name) == now.queues}
    wanted = replace(now, **grown | given)
    return replace(wanted, send_rate_max=wanted.send_rate_max or None)


def _check_numbers(now: TopicWithSettings, wanted: TopicWithSettings) -> None:
    name, count = now.topic, wanted.queues
    if count < now.queues:
        raise MisuseError(
            f"topic {name!r} has {now.queues} queues, which are never removed: lower --write-queues to "
            f"{count}, and --read-queues when the others are drained"
        )
    for what in ("write_queues", "read_queues", "ordered_queues"):
        number: int = getattr(wanted, what)
        if number > count:
            raise MisuseError(f"{what} {number} of topic {name!r}: 1 to {count} are allowed, for so many queues it has")
    if wanted.send_rate_max is not None and not 0 < wanted.send_rate_max < 1e9:
        raise MisuseError(
            f"send rate {wanted.send_rate_max} of topic {name!r}: give messages per second, or 0 for unlimited"
        )
    if wanted.read_queues < max(wanted.write_queues, wanted.ordered_queues):
        raise MisuseError(
            f"topic {name!r} would accept messages in queues that are not read: read_queues {wanted.read_queues} must "
            f"not be below write_queues {wanted.write_queues} and ordered_queues {wanted.ordered_queues}"
        )


def _is_writable(settings: TopicWithSettings) -> bool:
    return settings.permission in ("rw", "w")


def _where_it_sends(settings: TopicWithSettings) -> tuple[int, int, bool]:
    return settings.write_queues, settings.ordered_queues, _is_writable(settings)


def _check_settled(topic: _Topic) -> None:
    if topic.settled_in_s > 0:
        raise MisuseError(
            f"brokers may still use the settings of topic {topic.name!r} before its last change: try again in "
            f"{topic.settled_in_s:.0f} s"
        )


async def _segments(conn: AsyncConnection, ids: Sequence[QueueId], end: int) -> Sequence[TopicSegment]:
    """Return the kept segments. end: the sum of the ends of all queues."""
    found = await (await conn.execute(_SEGMENTS, {"ids": ids})).fetchall()
    begins = [begin for *_, begin in found]
    return [
        TopicSegment(id=id_, opened_at=opened_at, closed_at=closed_at, messages=following - begin)
        for (id_, opened_at, closed_at, begin), following in zip(found, [*begins[1:], end], strict=True)
    ]


async def _check_drained(conn: AsyncConnection, topic: _Topic, first: int, what: str) -> None:
    """Raise MisuseError unless the queues from number `first` on are empty, and no broker sends there."""
    if what == "ordered_queues" and _is_writable(topic.settings):
        raise MisuseError(
            f"ordered_queues of topic {topic.name!r} cannot change while it accepts messages: run `txmsg topic alter "
            f"{topic.name} --permission r` first"
        )
    sent_to = max(topic.settings.write_queues, topic.settings.ordered_queues)
    if what == "read_queues" and sent_to > first:
        raise MisuseError(
            f"topic {topic.name!r} still accepts messages in {sent_to} queues: lower write_queues and ordered_queues "
            "first, and read_queues when the others are drained"
        )
    _check_settled(topic)
    ids = (await _queue_ids(conn, topic.id))[first:]
    # Under the locks of the queues: a batch that is placing a message at this moment is waited for, and seen.
    await conn.execute(_LOCK_QUEUES, {"ids": ids})
    left = await _left_to_enter(conn, ids)
    left += [
        f"group {lag.group} has {lag.waiting + lag.retrying} messages left"
        + (f" and {ordered} that hold back ordering keys" if ordered else "")
        for ordered, lag in await _groups(conn, ids)
        if lag.waiting or lag.retrying or ordered
    ]
    if left:
        raise MisuseError(
            f"{what} of topic {topic.name!r} cannot change before the queues from number {first} on are drained: "
            f"{_named(left)}"
        )


async def _check_new(conn: AsyncConnection, topic: _Topic) -> None:
    """Raise MisuseError unless the topic has never had a message, and gets none before this transaction ends."""
    await conn.execute("select txmsg.look_after_memory()")  # else queues that have lost their messages would look new
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
        f"group {lag.group} has {lag.waiting + lag.retrying} messages left and {lag.dead} dead letters"
        for _, lag in await _groups(conn, ids)
        if lag.waiting or lag.retrying or lag.dead
    ]
    if left and not force:
        raise MisuseError(f"topic {name!r} is in use: {_named(left)}; --force deletes all of it")


def _named(left: Sequence[str]) -> str:
    more = [f"{len(left) - _NAMED_MAX} more groups"] if len(left) > _NAMED_MAX else []
    return ", ".join([*left[:_NAMED_MAX], *more])


async def _topic(conn: AsyncConnection, name: str, *, lock: bool = False) -> _Topic:
    async with conn.cursor(row_factory=kwargs_row(_topic_of)) as cursor:
        statement = f"{_SELECT} where name = %(name)s {'for update' if lock else ''}"
        await cursor.execute(statement, {"settled": SETTLED_S, "name": check_name("topic", name)})
        row = await cursor.fetchone()
    if row is None:
        raise UnknownTopic(
            f"topic {name!r} is unknown: create it with `txmsg topic create {name}`, or check the spelling"
        )
    return row


async def _queue_ids(conn: AsyncConnection, topic_id: int) -> list[QueueId]:
    cursor = await conn.execute("select id from txmsg.queue where topic_id = %s order by number", (topic_id,))
    return [queue_id for (queue_id,) in await cursor.fetchall()]


async def _groups(conn: AsyncConnection, ids: Sequence[QueueId]) -> Sequence[_Group]:
    ends = await queue_ends(conn, await open_segment(conn), ids)
    async with conn.cursor(row_factory=kwargs_row(_group_of)) as cursor:
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
    """Return the numbers of undecided, held-back and scheduled messages for these queues. Reads both tables whole."""
    cursor = await conn.execute(_NOT_ENTERED, {"ids": list(ids)})
    ((undecided, held_back, scheduled),) = await cursor.fetchall()
    return undecided, held_back, scheduled


_READ: Final = {
    "topic": "name",
    "queues": "queue_count",
    "write_queues": "coalesce(write_queues, queue_count)",
    "read_queues": "coalesce(read_queues, queue_count)",
    "permission": "case permission when 6 then 'rw' when 4 then 'r' when 2 then 'w' else 'none' end",
    "erasable_s": "body_keys_kept_s",
}
"""The expression that a setting is read from, if it is not the column of its name."""
_SELECT = f"""
select id, {", ".join(f"{_READ.get(each.name, each.name)} as {each.name}" for each in fields(TopicWithSettings))},
       greatest(0, %(settled)s::float8 - extract(epoch from now() - write_changed_at))::float8 as settled_in_s
  from txmsg.topic
"""

_LIST = f"""{_SELECT}
 where name > %(after)s and strpos(lower(name), lower(%(contains)s)) > 0 and {is_visible("name")}
 order by name limit %(limit)s + 1"""

_QUEUES_OF = """
select q.topic_id, q.id, txmsg.first_kept(q.id) from txmsg.queue q where q.topic_id = any(%s::int[])
"""

_ADD_QUEUES = """
insert into txmsg.queue (topic_id, number) select %(id)s, generate_series(%(from)s::int, %(to)s::int)
"""

_WRITE: Final = {
    "queues": "queue_count = %(queues)s",
    "write_queues": "write_queues = nullif(%(write_queues)s, %(queues)s)",
    "read_queues": "read_queues = nullif(%(read_queues)s, %(queues)s)",
    "permission": "permission = case %(permission)s::text when 'rw' then 6 when 'r' then 4 when 'w' then 2 else 0 end",
    "journal": "journal_since = case when %(journal)s then coalesce(journal_since, now()) end",
    # Encrypted once all brokers know that they have to decrypt.
    "erasable_s": "body_keys_kept_s = %(erasable_s)s, erasable_since = case when %(erasable_s)s::float8 > 0 "
    "then coalesce(erasable_since, now() + make_interval(secs => %(settled)s)) end",
}
"""The assignment by which a setting is written, if it is not the column of its name."""
_ALTER = f"""
update txmsg.topic
   set {", ".join(_WRITE.get(each.name, f"{each.name} = %({each.name})s") for each in fields(TopicChange))},
       write_changed_at = case when %(sends_elsewhere)s then now() else write_changed_at end, version = version + 1
 where id = %(id)s
"""

_BEGINS = "select q.id, txmsg.first_kept(q.id) from unnest(%(ids)s::int[]) q(id)"

# The sum of the queues' starts in each segment. No row: the queue is younger than the segment, and starts at 0.
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
select g.name as "group",
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
    # In the order of writers of failures, which lock the lease first: one that holds its lease would wait for rows that
    # are deleted here, while the deletion of the lease, with its queue, waits for it.
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
"""Executed in this order. Messages in segments stay until those are dropped: no statement deletes messages one by
one."""
