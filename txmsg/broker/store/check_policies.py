"""Statements on the check policies of producer groups that differ from the broker's settings."""

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
    """The check settings of a producer group. None: the broker's setting applies."""

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
        """Return the settings of groups that have any of their own."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
            await cursor.execute("select * from txmsg.check_policy")
            return await cursor.fetchall()

    async def list(
        self, limit: int, *, after: str = "", contains: str = "", names: Names = ALL_NAMES
    ) -> Sequence[CheckPolicyRow]:
        """Return the settings of the first producer groups by name, within `names`.

        after: only names behind this one. contains: only names that contain this, ignoring case.
        """
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
            await cursor.execute(_LIST, {"after": after, "contains": contains, "limit": limit, **names._asdict()})
            return await cursor.fetchall()

    async def find_policy(self, group: str) -> CheckPolicyRow | None:
        """Return the settings of a producer group; None if the group has never sent a half message."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
            await cursor.execute(f"{_SELECT} where group_name = %s", (group,))
            return await cursor.fetchone()

    async def set(self, row: CheckPolicyRow) -> None:
        """Write all settings of a group, and notify the brokers."""
        values = {name: getattr(row, name) for name in CheckPolicyRow.__slots__}
        async with session(self._pool) as conn, conn.transaction():
            async with conn.cursor(row_factory=class_row(CheckPolicyRow)) as cursor:
                await cursor.execute(
                    # Locked, so that of two changes at the same time the audit log has the state that each has
                    # replaced.
                    "select * from txmsg.check_policy where group_name = %s for update",
                    (row.group_name,),
                )
                own = await cursor.fetchone() or CheckPolicyRow(group_name=row.group_name)
            await conn.execute(_SET, values)
            await notify(conn, "checks")
            before, after = audit.difference(own, row)
            await audit.record(conn, "group.checks", row.group_name, before=before, after=after)


# From the producers, so that groups without settings of their own are found, too.
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
