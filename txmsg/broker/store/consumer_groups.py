"""Statements on consumer groups and their settings. The caller owns the transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

from psycopg.rows import class_row

from txmsg.administration.groups import GroupSettings
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Connection, after_session
from txmsg.broker.store.creators import check_created, creator
from txmsg.message import QueueId
from txmsg.wire.changes import change_of

_COLUMNS = "id, name, retry_delays_s, retries_max, poisoned_key, deliver_rate_max, stopped, orderly, version"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow(GroupSettings):
    """A consumer group and its settings. version: rises with each change."""

    id: int
    name: str
    version: int

    @property
    def settings(self) -> GroupSettings:
        """The settings without id, name and version."""
        return GroupSettings(**{each.name: getattr(self, each.name) for each in fields(GroupSettings)})


async def group_row(conn: Connection, name: str) -> GroupRow | None:
    """Return the group of this name, or None."""
    async with conn.cursor(row_factory=class_row(GroupRow)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from txmsg.consumer_group where name = %s", (name,))
        return await cursor.fetchone()


async def group_rows(conn: Connection, groups: Collection[int]) -> dict[int, GroupRow]:
    """Return these groups by id; one that was deleted is left out."""
    async with conn.cursor(row_factory=class_row(GroupRow)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from txmsg.consumer_group where id = any(%s)", (list(groups),))
        return {row.id: row for row in await cursor.fetchall()}


async def groups_version(conn: Connection) -> tuple[int, int, int]:
    """Return a value that differs after each change of a group's settings or position, each new and each deleted group.

    Ids and versions only rise: two states of the table with the same number of groups and the same sum of ids have the
    same groups, and then the same sum of versions means that none of them has changed.
    """
    cursor = await conn.execute("select count(*), sum(id), sum(version) from txmsg.consumer_group")
    ((count, ids, versions),) = await cursor.fetchall()
    return count, ids, versions


async def create_group(conn: Connection, name: str, expires_after_s: float | None) -> None:
    """Create a consumer group; nothing happens if one has this name.

    expires_after_s: seconds without use after which it is deleted; None: never. Raises PermissionDenied if the caller
    has created as many groups as it may.
    """
    noted = change_of("group.create", name)
    cursor = await conn.execute(
        f"""
        with made as (
            insert into txmsg.consumer_group (name, created_by, expires_after_s)
            values (%(name)s, %(by)s, %(expires_after_s)s)
            on conflict do nothing returning expires_after_s is null as is_lasting),
        noted as ({audit.ENTRY} from made where is_lasting)  -- not of a member that broadcasts
        select is_lasting from made
        """,
        {"name": name, "by": creator(), "expires_after_s": expires_after_s, **noted._asdict()},
    )
    for (is_lasting,) in await cursor.fetchall():
        await check_created(conn, "groups")
        if is_lasting:
            after_session(conn, noted.log_change)


async def touch_groups(conn: Connection, groups: Collection[int]) -> None:
    """Note that these groups are in use."""
    await conn.execute("update txmsg.consumer_group set seen_at = now() where id = any(%s::int[])", (sorted(groups),))


async def delete_unused_groups(conn: Connection, limit: int) -> list[str]:
    """Delete groups whose time without use is over, with their cursors and failures. Returns their names."""
    cursor = await conn.execute(
        """
        delete from txmsg.consumer_group
         where id in (select id from txmsg.consumer_group
                       where expires_after_s is not null and seen_at < now() - make_interval(secs => expires_after_s)
                       order by id limit %s for update skip locked)
        returning name
        """,
        (limit,),
    )
    return [name for (name,) in await cursor.fetchall()]


async def topics_with(conn: Connection, prefixes: Sequence[str]) -> tuple[int, list[str]]:
    """Return the highest id of a topic, and the names of all topics that begin with one of these prefixes, sorted.

    The id is read first: a topic that is created between the two has a higher one, and counts as created later.
    """
    cursor = await conn.execute("select coalesce(max(id), 0) from txmsg.topic")
    ((newest,),) = await cursor.fetchall()
    cursor = await conn.execute(
        "select t.name from txmsg.topic t "
        "where exists (select from unnest(%s::text[]) p(prefix) where starts_with(t.name, p.prefix)) order by t.name",
        (list(prefixes),),
    )
    return newest, [name for (name,) in await cursor.fetchall()]


async def begin_prefixes(conn: Connection, group: int, prefixes: Sequence[str], newest: int) -> None:
    """Note that a group reads all topics with these prefixes. `newest` is the id of the newest topic at this moment."""
    await conn.execute(
        "insert into txmsg.group_prefix (group_id, prefix, newest_topic) select %s, prefix, %s "
        "from unnest(%s::text[]) prefix on conflict do nothing",
        (group, newest, list(prefixes)),
    )


async def later_topics(conn: Connection, group: int, names: Sequence[str]) -> list[str]:
    """Return those of the topics that were created after the group had begun to read by a pattern that matches them.

    Any of its patterns counts: a member of another release may name a wider or narrower one than those before it.
    """
    cursor = await conn.execute(
        "select t.name from txmsg.topic t where t.name = any(%s) and exists (select from txmsg.group_prefix p "
        "where p.group_id = %s and starts_with(t.name, p.prefix) and t.id > p.newest_topic)",
        (list(names), group),
    )
    return [name for (name,) in await cursor.fetchall()]


# After the last message in the open segment, on disk (id) or in memory (-id); in an empty one the queue's start there;
# 0 for a queue without any.
_LATEST = """
    coalesce((select m.queue_offset + 1 from txmsg.message m
               where m.segment = s.id and m.queue = q.id order by m.queue_offset desc limit 1),
             (select m.queue_offset + 1 from txmsg.message m
               where m.segment = -s.id and m.queue = q.id order by m.queue_offset desc limit 1),
             (select b.base from txmsg.segment_base b where b.segment = s.id and b.queue = q.id), 0)"""


async def subscribe_at(conn: Connection, group: int, queue_ids: Sequence[QueueId], *, at_us: int | None) -> None:
    """Set the start of a group that is new to a topic with these queues: after the last message, or at a time.

    at_us: us since 1970; None: the end. A group that has a cursor in any of the queues is left alone, and begins queues
    added later at their start. All queues at once, whichever broker delivers them: else messages sent meanwhile to a
    queue that is loaded later would be skipped.
    """
    begin = _LATEST
    if at_us is not None:
        begin = f"coalesce(txmsg.offset_at(q.id, to_timestamp(%(at_us)s::float8 / 1000000)), {_LATEST})"
    await conn.execute(
        f"""
        insert into txmsg.cursor (group_id, queue_id, next_offset, epoch)
        select %(group)s, q.id, {begin}, 0
          from unnest(%(queue_ids)s::int[]) q(id), txmsg.segment s
         where s.state = 'open' and not exists (
               select from txmsg.cursor c where c.group_id = %(group)s and c.queue_id = any(%(queue_ids)s::int[]))
         order by q.id
        on conflict do nothing
        """,
        {"group": group, "queue_ids": list(queue_ids), "at_us": at_us},
        # Planned each time: a plan made while a partition was small would be kept while it grows.
        prepare=False,
    )
