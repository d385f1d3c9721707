"""Statements on settings at run time: present values, changes, and their history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from psycopg.rows import class_row

from txmsg.administration.settings import SettingChange
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Connection, Pool, notify, session
from txmsg.errors import MisuseError

NOTICE: Final = "settings"
"""The kind of notice that announces a change."""
SETTINGS_MAX: Final = 10_000
SIZE_BYTES_MAX: Final = 16 * 1024**2
"""Bytes of all values together: each broker holds them in memory, and sends them in one reply."""
_KEPT_MAX: Final = 100
_UNSET_KEPT_S: Final = 90 * 86_400.0
"""Seconds for which the history of a setting is kept after it was unset. A broker must read within this time."""


class SettingStore:
    """The settings at run time of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def version(self) -> int:
        """Return the version of the newest change; 0 if there is none."""
        async with session(self._pool) as conn:
            return await _version(conn)

    async def changed_since(self, version: int) -> Sequence[SettingChange]:
        """Return the newest change of each setting with a change after this version, in the order of versions."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(SettingChange)) as cursor:
            await cursor.execute(_CHANGED, {"version": version})
            return await cursor.fetchall()

    async def history(self, name: str) -> Sequence[SettingChange]:
        """Return the kept changes of a setting, newest first; without a name the newest of all settings."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(SettingChange)) as cursor:
            if name:
                await cursor.execute(f"{_SELECT} where name = %s order by version desc", (name,))
            else:
                await cursor.execute(f"{_SELECT} order by version desc limit %s", (_KEPT_MAX,))
            return await cursor.fetchall()

    async def change(
        self,
        name: str,
        value: str | None,
        *,
        expected: int | None,
        changed_by: str,
        check: Callable[[Mapping[str, str]], None] | None = None,
    ) -> SettingChange:
        """Set or unset a setting, and notify the brokers. value None: unset.

        expected: the version that it must be at, 0: not set before. check: called with the values that are set for
        brokers, which no other change alters meanwhile; an exception of it undoes everything. Raises MisuseError if it
        is at another version, or there are too many settings.
        """
        async with session(self._pool) as conn, conn.transaction():
            # Versions are assigned in the order of commits: a broker that has seen one has seen all before it. A
            # sequence would not do, because its numbers are taken before the commit.
            await conn.execute("select pg_advisory_xact_lock(7708, 0)")
            cursor = await conn.execute(_NOW, {"name": name})
            row = await cursor.fetchone()
            assert row is not None
            current, old, count, size_bytes = row
            if expected is not None and expected != current:
                raise MisuseError(
                    f"{name} is at version {current}, not {expected}: look at it with `txmsg config history {name}`, "
                    "and change it again"
                )
            if value is not None and (count >= SETTINGS_MAX or size_bytes + len(value.encode()) > SIZE_BYTES_MAX):
                raise MisuseError(
                    f"{name} is too much: {count} other settings are set, with {size_bytes} bytes; the maximum is "
                    f"{SETTINGS_MAX} settings and {SIZE_BYTES_MAX} bytes, so unset some"
                )
            if check is not None:
                # Under the lock, so that the settings with which the new value is checked are those beside which it
                # will stand.
                of_brokers = await conn.execute(_OF_BROKERS)
                check(dict(await of_brokers.fetchall()))
            async with conn.cursor(row_factory=class_row(SettingChange)) as made:
                await made.execute(_CHANGE, {"name": name, "value": value, "by": changed_by})
                changed = await made.fetchone()
            assert changed is not None
            await conn.execute(_FORGET, {"name": name, "kept": _KEPT_MAX})
            await conn.execute(_FORGET_UNSET, {"kept_s": _UNSET_KEPT_S})
            await notify(conn, NOTICE)
            action = "setting.unset" if value is None else "setting.set"
            after = {"value": value, "version": changed.version, "changed_by": changed_by}
            await audit.record(conn, action, name, before={"value": old, "version": current}, after=after)
            return changed


async def _version(conn: Connection) -> int:
    cursor = await conn.execute("select coalesce(max(version), 0) from txmsg.setting_change")
    row = await cursor.fetchone()
    assert row is not None
    version: int = row[0]
    return version


_SELECT = "select version, name, value, changed_at, changed_by from txmsg.setting_change"

_CHANGED = """
select * from (
    select distinct on (name) version, name, value, changed_at, changed_by
      from txmsg.setting_change where version > %(version)s order by name, version desc) newest
 order by version
"""

_NOW = """
select coalesce((select max(version) from txmsg.setting_change where name = %(name)s), 0),
       (select value from txmsg.setting_change where name = %(name)s order by version desc limit 1),
       count(value), coalesce(sum(octet_length(value)), 0)
  from (select distinct on (name) value from txmsg.setting_change
         where name <> %(name)s order by name, version desc) newest
"""

_OF_BROKERS = """
select name, value from (
    select distinct on (name) name, value from txmsg.setting_change
     where not starts_with(name, 'app.') order by name, version desc) newest
 where value is not null
"""

_CHANGE = """
insert into txmsg.setting_change (version, name, value, changed_by)
select coalesce(max(version), 0) + 1, %(name)s, %(value)s, %(by)s from txmsg.setting_change
returning version, name, value, changed_at, changed_by
"""

_FORGET = """
delete from txmsg.setting_change
 where name = %(name)s and version <= (
       select version from txmsg.setting_change where name = %(name)s order by version desc offset %(kept)s limit 1)
"""

# The newest change of all stays, so that no version is given twice: it was made in this transaction.
_FORGET_UNSET = """
delete from txmsg.setting_change old
 using (select distinct on (name) name, value, changed_at from txmsg.setting_change order by name, version desc) newest
 where old.name = newest.name and newest.value is null
       and newest.changed_at < now() - make_interval(secs => %(kept_s)s)
"""
