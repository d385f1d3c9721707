"""Statements on the schemas of topics. Compatibility of schemas is decided by those who register them."""

from __future__ import annotations

from dataclasses import asdict

from psycopg.rows import class_row

from txmsg.administration.schemas import VERSIONS_MAX, SchemaPage, SchemaQuery
from txmsg.broker.store import audit
from txmsg.broker.store.access_rules import is_visible
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.creators import creator
from txmsg.errors import MisuseError, UnknownTopic
from txmsg.message.typed.registry import SchemaVersion
from txmsg.wire.access.rules import ALL_NAMES, Names


class TopicSchemas:
    """The schemas of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self, query: SchemaQuery, *, names: Names = ALL_NAMES) -> SchemaPage:
        """Return a page of versions, of topics within `names`."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(SchemaVersion)) as cursor:
            await cursor.execute(_LIST, asdict(query) | names._asdict())
            found = await cursor.fetchall()
        return SchemaPage(schemas=found[: query.limit], more=len(found) > query.limit)

    async def register(self, topic: str, version: int, content_type: str, schema: str, *, after: int) -> bool:
        """Add a version if `after` is the latest one. Raises UnknownTopic, and MisuseError for one too many.

        Returns False if another version was registered since `after`.
        """
        async with session(self._pool) as conn, conn.transaction():
            # The topic's row is locked, as by a change of the topic: of two that register at the same time, the second
            # sees the version of the first.
            found = await conn.execute("select id from txmsg.topic where name = %s for no key update", (topic,))
            if (row := await found.fetchone()) is None:
                raise UnknownTopic(f"topic {topic!r} is unknown: it was deleted just now; register again")
            (topic_id,) = row
            cursor = await conn.execute(_LATEST, (topic_id,))
            ((latest, count),) = await cursor.fetchall()
            if latest != after:
                return False
            if count >= VERSIONS_MAX:
                raise MisuseError(
                    f"topic {topic!r} has {count} versions of its schema, the most that are kept: use another topic"
                )
            await conn.execute(_ADD, (topic_id, version, content_type, schema, creator()))
            await audit.record(conn, "schema.register", topic, after={"version": version, "content_type": content_type})
            return True

    async def delete(self, topic: str, version: int, *, also_latest: bool, dry_run: bool = False) -> None:
        """Remove a version. Raises UnknownTopic, and MisuseError for one that does not exist, or is the latest one.

        also_latest: the latest one, too. dry_run: only raise.
        """
        async with session(self._pool) as conn, conn.transaction():
            found = await conn.execute("select id from txmsg.topic where name = %s for no key update", (topic,))
            if (row := await found.fetchone()) is None:
                raise UnknownTopic(f"topic {topic!r} is unknown: `txmsg schema list` names those with schemas")
            cursor = await conn.execute(_VERSIONS, row)
            versions = [each for (each,) in await cursor.fetchall()]
            if version not in versions:
                there = f"there are {', '.join(map(str, versions))}" if versions else "none is registered"
                raise MisuseError(f"topic {topic!r} has no version {version} of a schema: {there}")
            if version == versions[-1] and not also_latest:
                raise MisuseError(
                    f"version {version} of the schema of topic {topic!r} is the latest one, with which the next is "
                    "compared: register that first, or say --latest"
                )
            if dry_run:
                return
            await conn.execute(_REMOVE, (*row, version))
            await audit.record(conn, "schema.delete", topic, before={"version": version})


_LIST = f"""
select t.name as topic, s.version, s.content_type, s.schema::json as schema, s.registered_at, s.registered_by
  from txmsg.topic_schema s join txmsg.topic t on t.id = s.topic_id
 where %(topic)s::text in ('', t.name) and {is_visible("t.name")}
   and (t.name, s.version) > (%(after_topic)s::text, %(after_version)s::int)
 order by t.name, s.version limit %(limit)s + 1
"""
_LATEST = "select coalesce(max(version), 0), count(*) from txmsg.topic_schema where topic_id = %s"
_VERSIONS = "select version from txmsg.topic_schema where topic_id = %s order by version"
_REMOVE = "delete from txmsg.topic_schema where topic_id = %s and version = %s"
_ADD = """
insert into txmsg.topic_schema (topic_id, version, content_type, schema, registered_by) values (%s, %s, %s, %s, %s)
"""
