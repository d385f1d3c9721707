"""Every statement on when half messages of producer groups are checked, where that is not as the broker says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.rows import class_row

from txmsg.broker.store import audit
from txmsg.broker.store.access_rules import is_visible
from txmsg.broker.store.connect import Pool, notify, session
from txmsg.wire.access.rules import ALL_NAMES, Names


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicyRow:
    """The settings of a producer group. None: the broker's."""

    group_name: str
    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: int | None = None
    no_client_park_s: float | None = None


class CheckPolicyStore:
    """The check policies of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def own(self) -> Sequence[CheckPolicyRow]:
        """Those of groups that have any of their own."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
            await cursor.execute("select * from txmsg.check_policy")
            return await cursor.fetchall()

    async def list(
        self, limit: int, *, after: str = "", contains: str = "", names: Names = ALL_NAMES
    ) -> Sequence[CheckPolicyRow]:
        """Of the first producer groups by name among these, after this one and with this in their names."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
            await cursor.execute(_LIST, {"after": after, "contains": contains, "limit": limit, **names._asdict()})
            return await cursor.fetchall()

    async def find_policy(self, group: str) -> CheckPolicyRow | None:
        """Of a producer group; None: there is none of this name, for it has never sent a half message."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
            await cursor.execute(f"{_SELECT} where group_name = %s", (group,))
            return await cursor.fetchone()

    async def set(self, row: CheckPolicyRow) -> None:
        """Writes all settings of a group, and tells the brokers."""
        values = {name: getattr(row, name) for name in CheckPolicyRow.__slots__}
        async with session(self._pool) as conn, conn.transaction():
            async with conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
                await cursor.execute(
                    "select * from txmsg.check_policy where group_name = %s for update", (row.group_name,)
                )
                own = await cursor.fetchone() or CheckPolicyRow(group_name=row.group_name)
            await conn.execute(_SET, values)
            await notify(conn, "checks")
            before, after = audit.difference(own, row)
            await audit.record(conn, "group.checks", row.group_name, before=before, after=after)


_SELECT = """
select group_name, c.first_check_s, c.check_interval_s, c.checks_max, c.no_client_park_s
  from (select distinct group_name from txmsg.producer where id <> 0) p
  left join txmsg.check_policy c using (group_name)
"""

_LIST = f"""{_SELECT}
 where group_name > %(after)s and strpos(lower(group_name), lower(%(contains)s)) > 0
   and {is_visible("group_name")}
 order by group_name limit %(limit)s
"""

_SET = """
insert into txmsg.check_policy (group_name, first_check_s, check_interval_s, checks_max, no_client_park_s)
values (%(group_name)s, %(first_check_s)s, %(check_interval_s)s, %(checks_max)s, %(no_client_park_s)s)
on conflict (group_name) do update
   set first_check_s = excluded.first_check_s, check_interval_s = excluded.check_interval_s,
       checks_max = excluded.checks_max, no_client_park_s = excluded.no_client_park_s
"""
