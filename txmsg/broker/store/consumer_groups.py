"""Every statement on consumer groups and their settings. The caller owns the transaction."""

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
        """Its settings alone."""
        return GroupSettings(**{each.name: getattr(self, each.name) for each in fields(GroupSettings)})


async def group_row(conn: Connection, name: str) -> GroupRow | None:
    """The group of this name, or None."""
    async with conn.cursor(row_factory=class_row(GroupRow)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from txmsg.consumer_group where name = %s", (name,))
        return await cursor.fetchone()


async def group_rows(conn: Connection, groups: Collection[int]) -> dict[int, GroupRow]:
    """These groups by id; one that was deleted is left out."""
    async with conn.cursor(row_factory=class_row(GroupRow)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from txmsg.consumer_group where id = any(%s)", (list(groups),))
        return {row.id: row for row in await cursor.fetchall()}


async def groups_version(conn: Connection) -> tuple[int, int, int]:
    """Another value after each change of a group's settings or place, after a new group, and after one was deleted.

    Ids and versions only rise: two states of the table with the same number of groups and the same sum of ids have the
    same groups, and then the same sum of versions means that none of them has changed.
    """
    cursor = await conn.execute("select count(*), sum(id), sum(version) from txmsg.consumer_group")
    ((count, ids, versions),) = await cursor.fetchall()
    return count, ids, versions


async def create_group(conn: Connection, name: str, expires_after_s: float | None) -> None:
    """Makes a consumer group; nothing happens if there is one of this name.

    expires_after_s: when it is deleted if it is not used; None: never. Raises PermissionDenied if the caller has
    created as many groups as it may.
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
    """Notes that these groups are used."""
    await conn.execute("update txmsg.consumer_group set seen_at = now() where id = any(%s::int[])", (sorted(groups),))


async def delete_unused_groups(conn: Connection, limit: int) -> list[str]:
    """Deletes groups that were not used for as long as they are kept, with all they have; their names."""
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
    """The highest id of a topic, and the names of all topics that begin with one of these, in their order.

    The id is read first: a topic that is created between has a higher one, and counts as created later.
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
    """A group reads all topics with these prefixes from now on: that with this id is the newest one that is there."""
    await conn.execute(
        "insert into txmsg.group_prefix (group_id, prefix, newest_topic) select %s, prefix, %s "
        "from unnest(%s::text[]) prefix on conflict do nothing",
        (group, newest, list(prefixes)),
    )


async def later_topics(conn: Connection, group: int, names: Sequence[str]) -> list[str]:
    """Those of the topics that were created after a group had begun to read by a pattern of theirs.

    Whichever: a member of another release may name a wider or narrower one than those before it.
    """
    cursor = await conn.execute(
        "select t.name from txmsg.topic t where t.name = any(%s) and exists (select from txmsg.group_prefix p "
        "where p.group_id = %s and starts_with(t.name, p.prefix) and t.id > p.newest_topic)",
        (list(names), group),
    )
    return [name for (name,) in await cursor.fetchall()]


_LATEST = """
    coalesce((select m.queue_offset + 1 from txmsg.message m
               where m.segment = s.id and m.queue = q.id order by m.queue_offset desc limit 1),
             (select m.queue_offset + 1 from txmsg.message m
               where m.segment = -s.id and m.queue = q.id order by m.queue_offset desc limit 1),
             (select b.base from txmsg.segment_base b where b.segment = s.id and b.queue = q.id), 0)"""


async def subscribe_at(conn: Connection, group: int, queue_ids: Sequence[QueueId], *, at_us: int | None) -> None:
    """Where a group begins that is new to a topic with these queues: after all there is, or at a time (us since 1970).

    One that has a cursor in any of them is left alone, and begins queues that the topic has got since at their start.
    All queues at once, whichever broker delivers them: else what is sent meanwhile to one that is loaded later would be
    skipped.
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
        prepare=False,
    )
