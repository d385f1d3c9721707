"""Statements by which operators list, change, seek and delete consumer groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.errors import CheckViolation
from psycopg.rows import kwargs_row

from txmsg.administration.groups import (
    GroupChange,
    GroupDetails,
    GroupQueue,
    GroupSettings,
    GroupSummary,
    Seek,
    SeekPlan,
    TopicLag,
)
from txmsg.administration.halves import GroupLag
from txmsg.broker.store import audit
from txmsg.broker.store.access_rules import is_visible
from txmsg.broker.store.connect import Pool, notify, session
from txmsg.broker.store.consumer_groups import GroupRow, create_group, group_row
from txmsg.broker.store.delivery import open_segment, queue_ends
from txmsg.broker.store.retries import group_lag
from txmsg.errors import MisuseError, UnknownGroup, UnknownTopic
from txmsg.message import QueueId, datetime_of_us
from txmsg.wire.access.rules import ALL_NAMES, Names
from txmsg.wire.start import Start

_DELAYS_MAX: Final = 1000
_AGAIN_MAX: Final = 1000  # as the table says
_DELAY_S_MAX: Final = 7 * 86_400.0


class GroupAdministration:
    """The consumer groups of one Notify database, for operators. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(
        self, limit: int, *, after: str = "", contains: str = "", names: Names = ALL_NAMES
    ) -> Sequence[GroupSummary]:
        """Return the first groups by name, within `names`, with their lag in each topic.

        after: only names behind this one. contains: only names that contain this, ignoring case.
        """
        async with session(self._pool) as conn:
            cursor = await conn.execute(
                _LIST, {"after": after, "contains": contains, "limit": limit, **names._asdict()}
            )
            rows = await cursor.fetchall()
            lags = await group_lag(conn, await open_segment(conn), [group_id for group_id, _, _ in rows])
        # A group that has no cursor yet has no lag, and is listed with zeros.
        lags_of: dict[str, list[GroupLag]] = {name: [] for _, name, _ in rows}
        for lag in lags:
            lags_of[lag.group].append(lag)
        return [
            GroupSummary(
                group=name,
                waiting=sum(lag.waiting for lag in lags_of[name]),
                retrying=sum(lag.retrying for lag in lags_of[name]),
                dead=sum(lag.dead for lag in lags_of[name]),
                topics=[
                    TopicLag(topic=lag.topic, waiting=lag.waiting, retrying=lag.retrying, dead=lag.dead)
                    for lag in lags_of[name]
                ],
                created_at=created_at,
            )
            for _, name, created_at in rows
        ]

    async def lag(self) -> Sequence[GroupLag]:
        """Return the lag of all groups in each topic, by their cursors as written."""
        async with session(self._pool) as conn:
            return await group_lag(conn, await open_segment(conn))

    async def settings(self, name: str) -> GroupSettings:
        """Return a group's settings, without its queues: in constant time. Raises UnknownGroup."""
        async with session(self._pool) as conn:
            return (await _group(conn, name)).settings

    async def show(self, name: str) -> GroupDetails:
        """Return a group, without its members and pauses, which only brokers know. Raises UnknownGroup."""
        async with session(self._pool) as conn, conn.transaction():
            group = await _group(conn, name)
            cursor = await conn.execute("select created_at from txmsg.consumer_group where id = %s", (group.id,))
            ((created_at,),) = await cursor.fetchall()
            queues = list((await _queues(conn, group.id)).values())
        counts = _counts(queues)
        return GroupDetails(
            settings=group.settings,
            created_at=created_at,
            waiting=counts["waiting"],
            retrying=counts["retrying"],
            dead=counts["dead"],
            members=(),
            queues=queues,
        )

    async def alter(self, change: GroupChange) -> GroupSettings:
        """Change the named settings, all or nothing. Raises UnknownGroup, and MisuseError for invalid values.

        A group that is created by this starts, as all do, when its first consumer asks for messages.
        """
        _check(change)
        name = change.group
        async with session(self._pool) as conn, conn.transaction():
            if change.create:
                await create_group(conn, name, None)
            group = await _group(conn, name, lock=True)
            delays_s = None if change.default_retries else group.retry_delays_s
            retries_max = None if change.default_retries else group.retries_max
            await conn.execute(
                _ALTER,
                {
                    "id": group.id,
                    "retry_delays_s": delays_s if change.retry_delays_s is None else list(change.retry_delays_s),
                    "retries_max": retries_max if change.retries_max is None else change.retries_max,
                    "poisoned_key": change.poisoned_key or group.poisoned_key,
                    "deliver_rate_max": group.deliver_rate_max
                    if change.deliver_rate_max is None
                    else change.deliver_rate_max or None,
                    "stopped": group.stopped if change.stopped is None else change.stopped,
                    "orderly": group.orderly if change.orderly is None else change.orderly,
                },
            )
            await notify(conn, "groups")
            altered = await _group(conn, name)
            before, after = audit.difference(group, altered, "version")
            await audit.record(conn, "group.alter", name, before=before, after=after)
            return altered.settings

    async def seek(self, seek: Seek) -> SeekPlan:
        """Move a group to another position in a topic, or in one queue of it.

        The brokers that deliver the queues do so as soon as they see it; consumers lose the messages that they hold
        then. again: messages from there on have a new generation, now and after later seeks (decision 34). Raises
        UnknownGroup, UnknownTopic, and MisuseError for a position that is not kept.
        """
        name, topic = seek.group, seek.topic
        async with session(self._pool) as conn, conn.transaction():
            group = await _group(conn, name, lock=not seek.dry_run)
            chosen = await _chosen(conn, group, topic, seek.queue)
            places = await _places(conn, chosen, seek.to)
            if seek.dry_run:
                return SeekPlan(queues=list(chosen.values()), to=list(places.values()))
            values = {
                "group": group.id,
                "queue_ids": list(places),
                "places": list(places.values()),
                "begins": [queue.begin for queue in chosen.values()],
            }
            # Three statements: rows are added, then locked in the order in which brokers write cursors, then changed.
            # An update alone would lock them in the order of its plan, and could deadlock with a broker.
            await conn.execute(_ADD_CURSORS, values)
            await conn.execute(_LOCK_CURSORS, values)
            await conn.execute(_SEEK, values)
            if seek.again:
                try:
                    await conn.execute(_AGAIN, values)
                except CheckViolation as exc:
                    raise MisuseError(
                        f"group {name!r} was sent to {_AGAIN_MAX} different offsets of a queue of topic {topic!r} by "
                        "--again: give an earlier one, such as earliest"
                    ) from exc
            # Brokers read cursors again when the version of a group has changed.
            await conn.execute("update txmsg.consumer_group set version = version + 1 where id = %s", (group.id,))
            await notify(conn, "groups")
            await audit.record(
                conn,
                "group.seek",
                name,
                before={"topic": topic, "next_offsets": {each.queue: each.next_offset for each in chosen.values()}},
                after={
                    "topic": topic,
                    "next_offsets": {each.queue: places[queue_id] for queue_id, each in chosen.items()},
                    "again": seek.again,
                },
            )
            queues = await _queues(conn, group.id)
            return SeekPlan(queues=[queues[queue_id] for queue_id in places], to=list(places.values()))

    async def delete(self, name: str, *, force: bool, dry_run: bool = False) -> None:
        """Delete a group with its cursors. Raises UnknownGroup, and MisuseError for one with failures unless forced.

        force: with its retries and dead letters. dry_run: only raise.
        """
        async with session(self._pool) as conn, conn.transaction():
            group = await _group(conn, name, lock=True)
            counts = _counts((await _queues(conn, group.id)).values())
            if (counts["retrying"] or counts["dead"]) and not force:
                raise MisuseError(
                    f"group {name!r} has {counts['retrying']} messages in retry and {counts['dead']} dead letters: "
                    "--force deletes it with them"
                )
            if dry_run:
                return
            await conn.execute("delete from txmsg.consumer_group where id = %s", (group.id,))
            await notify(conn, "groups")
            await audit.record(conn, "group.delete", name, before=counts)


def _counts(queues: Collection[GroupQueue]) -> dict[str, int]:
    return {
        "waiting": sum(queue.waiting for queue in queues),
        "retrying": sum(queue.retrying or 0 for queue in queues),
        "dead": sum(queue.dead or 0 for queue in queues),
    }


def _check(change: GroupChange) -> None:
    name, delays_s = change.group, change.retry_delays_s
    if delays_s is not None and not (
        1 <= len(delays_s) <= _DELAYS_MAX and all(0 <= delay_s <= _DELAY_S_MAX for delay_s in delays_s)
    ):
        raise MisuseError(f"retry delays of group {name!r}: give 1 to {_DELAYS_MAX}, each of at most 7 days")
    rate = change.deliver_rate_max
    if rate is not None and not 0 <= rate < 1e9:
        raise MisuseError(f"rate {rate} of group {name!r}: give messages per second, or 0 for unlimited")


async def _group(conn: AsyncConnection, name: str, *, lock: bool = False) -> GroupRow:
    if lock:
        await conn.execute("select from txmsg.consumer_group where name = %s for update", (name,))
    group = await group_row(conn, name)
    if group is None:
        raise UnknownGroup(f"consumer group {name!r} is unknown: `txmsg group list` shows existing ones")
    return group


async def _chosen(
    conn: AsyncConnection, group: GroupRow, topic: str, number: int | None
) -> Mapping[QueueId, GroupQueue]:
    """Return the queues of a topic, or the one of this number, that a group reads. Raises UnknownTopic, MisuseError."""
    found = {queue_id: each for queue_id, each in (await _queues(conn, group.id)).items() if each.topic == topic}
    if not found:
        await _refuse_topic(conn, group.name, topic)
    chosen = {queue_id: each for queue_id, each in found.items() if number in (None, each.queue)}
    if not chosen:
        raise MisuseError(f"group {group.name!r} reads no queue {number} of topic {topic!r}: it reads {len(found)}")
    return chosen


async def _refuse_topic(conn: AsyncConnection, name: str, topic: str) -> None:
    cursor = await conn.execute("select from txmsg.topic where name = %s", (topic,))
    if await cursor.fetchone() is None:
        raise UnknownTopic(
            f"topic {topic!r} is unknown: create it with `txmsg topic create {topic}`, or check the spelling"
        )
    raise MisuseError(f"group {name!r} does not read topic {topic!r} yet: its consumers set its start position")


async def _queues(conn: AsyncConnection, group: int) -> Mapping[QueueId, GroupQueue]:
    """Return a group's position in each queue, by its cursors as written; by topic name and queue number."""
    cursor = await conn.execute(
        "select queue_id from txmsg.effective_cursor where group_id = %s order by queue_id", (group,)
    )
    queue_ids = [queue_id for (queue_id,) in await cursor.fetchall()]
    # The ends are a query of their own and passed in: `queue_ends` names the open partition, and so reads one table
    # instead of all.
    ends = await queue_ends(conn, await open_segment(conn), queue_ids)
    async with conn.cursor(row_factory=kwargs_row(_queue)) as rows:
        await rows.execute(_QUEUES, {"group": group, "ids": list(ends), "ends": list(ends.values())})
        return dict(await rows.fetchall())


def _queue(*, queue_id: QueueId, **columns: Any) -> tuple[QueueId, GroupQueue]:
    return queue_id, GroupQueue(**columns)


async def _places(conn: AsyncConnection, queues: Mapping[QueueId, GroupQueue], to: Start) -> Mapping[QueueId, int]:
    """Return the offset from which each queue continues."""
    if to.kind == "offset":
        if len(queues) > 1:
            topic = next(iter(queues.values())).topic
            raise MisuseError(f"offset {to.value} needs a queue, and topic {topic!r} has {len(queues)}: give --queue")
        ((queue_id, queue),) = queues.items()
        if not queue.begin <= to.value <= queue.end:
            raise MisuseError(
                f"offset {to.value} is not kept in queue {queue.queue} of topic {queue.topic!r}: give {queue.begin} "
                f"to {queue.end}"
            )
        return {queue_id: to.value}
    if to.kind == "time":
        at = datetime_of_us(to.value)
        cursor = await conn.execute("select q, txmsg.offset_at(q, %s) from unnest(%s::int[]) q", (at, list(queues)))
        found: dict[QueueId, int | None] = dict(await cursor.fetchall())
        return {
            queue_id: queue.end if (begin := found[queue_id]) is None else begin for queue_id, queue in queues.items()
        }
    return {queue_id: queue.begin if to.kind == "earliest" else queue.end for queue_id, queue in queues.items()}


_LIST = f"""
select id, name, created_at from txmsg.consumer_group
 where name > %(after)s and strpos(lower(name), lower(%(contains)s)) > 0 and {is_visible("name")}
 order by name limit %(limit)s
"""

_QUEUES = """
select t.name as topic, q.number as queue, c.queue_id, c.next_offset, txmsg.first_kept(c.queue_id) as begin,
       e.queue_end as end,
       greatest(0, e.queue_end - c.next_offset - (
           select coalesce(sum(upper(r) - lower(r)), 0) from unnest(c.acked) r))::bigint as waiting,
       (select count(*) from txmsg.retry r where r.group_id = c.group_id and r.queue_id = c.queue_id) as retrying,
       (select count(*) from txmsg.dead_letter d where d.group_id = c.group_id and d.queue_id = c.queue_id) as dead,
       c.seeking
  from txmsg.effective_cursor c
  join unnest(%(ids)s::int[], %(ends)s::bigint[]) e(queue_id, queue_end) on e.queue_id = c.queue_id
  join txmsg.queue q on q.id = c.queue_id
  join txmsg.topic t on t.id = q.topic_id
 where c.group_id = %(group)s
 order by t.name, q.number
"""

_ALTER = """
update txmsg.consumer_group
   set retry_delays_s = %(retry_delays_s)s, retries_max = %(retries_max)s, poisoned_key = %(poisoned_key)s,
       deliver_rate_max = %(deliver_rate_max)s, stopped = %(stopped)s, orderly = %(orderly)s,
       version = version + 1
 where id = %(id)s
"""

# Of queues that were not delivered to the group yet.
_ADD_CURSORS = """
insert into txmsg.cursor (group_id, queue_id, next_offset, epoch)
select c.group_id, c.queue_id, c.next_offset, 0 from txmsg.effective_cursor c
 where c.group_id = %(group)s and c.queue_id = any(%(queue_ids)s) order by c.queue_id
on conflict do nothing
"""

# In the order of the queues, as brokers write cursors.
_LOCK_CURSORS = """
select from txmsg.cursor c
 where c.group_id = %(group)s and c.queue_id = any(%(queue_ids)s) order by c.queue_id for update
"""

_SEEK = """
update txmsg.cursor c
   set seek_to = s.place
  from unnest(%(queue_ids)s::int[], %(places)s::bigint[]) s(queue_id, place)
 where c.group_id = %(group)s and c.queue_id = s.queue_id
"""

# The new generation is that of all offsets from its place on; before it, each keeps the one it had. At least the
# seconds since 2020: the inbox may remember a group of this name that was deleted. Of generations that begin at or
# before what is kept only the last one is of use.
_AGAIN = """
update txmsg.cursor c
   set generation = n.generation,
       again_from = c.again_from[n.first:n.last] || s.place,
       again_generations = c.again_generations[n.first:n.last] || n.generation
  from unnest(%(queue_ids)s::int[], %(places)s::bigint[], %(begins)s::bigint[]) s(queue_id, place, begin),
       lateral (
       select greatest(1, width_bucket(s.begin, k.again_from)) as first,
              width_bucket(s.place - 1, k.again_from) as last,
              greatest(k.generation + 1,
                       extract(epoch from now() - timestamptz '2020-01-01 00:00:00Z')::int) as generation
         from txmsg.cursor k where k.group_id = %(group)s and k.queue_id = s.queue_id) n
 where c.group_id = %(group)s and c.queue_id = s.queue_id
"""
