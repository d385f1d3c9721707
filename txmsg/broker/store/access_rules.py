"""Statements on rules of access, and the condition by which lists hide names from users.

`store.users` reads the rules into the snapshot that guards decide by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txmsg.broker.store import audit
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.users import begin_change
from txmsg.errors import MisuseError
from txmsg.wire.access.rules import ROLE, Action, ResourceKind, Rule

_RULES_MAX: Final = 10_000
"""Each broker has all of them in memory."""


def is_visible(column: str) -> str:
    """A condition: the user may see the name in this column. Its parameters `exact` and `prefixes` are fields of Names.

    It limits a page and the place where the next page begins.
    """
    return f"({column} = any(%(exact)s::text[]) or {column} ^@ any(%(prefixes)s::text[]))"


class AccessRules:
    """The rules of one Notify database. Every method is its own transaction; changes notify the brokers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self) -> Sequence[Rule]:
        """All of them."""
        async with session(self._pool) as conn:
            cursor = await conn.execute("select subject, action, kind, pattern from txmsg.access_rule")
            return [
                Rule(subject, Action(action), ResourceKind(kind), pattern)
                for subject, action, kind, pattern in await cursor.fetchall()
            ]

    async def roles_of(self, user: str) -> Sequence[str]:
        """Raises MisuseError if there is no such user."""
        async with session(self._pool) as conn:
            cursor = await conn.execute("select roles from txmsg.access_user where name = %s", (user,))
            row = await cursor.fetchone()
        if row is None:
            raise MisuseError(f"there is no user {user}: make one with `txmsg user create {user}`, or give {ROLE}NAME")
        roles: Sequence[str] = row[0]
        return roles

    async def add(self, rule: Rule) -> bool:
        """Whether it was not there. Raises MisuseError for a rule too many, or of a user that is not there."""
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            if not rule.subject.startswith(ROLE):
                cursor = await conn.execute("select from txmsg.access_user where name = %s", (rule.subject,))
                if await cursor.fetchone() is None:
                    raise MisuseError(
                        f"there is no user {rule.subject}: make one with `txmsg user create {rule.subject}`, or give "
                        f"{ROLE}NAME"
                    )
            ((count,),) = await (await conn.execute("select count(*) from txmsg.access_rule")).fetchall()
            if count >= _RULES_MAX:
                raise MisuseError(
                    f"there are {count} rules, as many as may be: give roles rights, and users roles, or use prefixes"
                )
            made = await conn.execute(
                "insert into txmsg.access_rule (subject, action, kind, pattern) values (%s, %s, %s, %s) "
                "on conflict do nothing",
                (rule.subject, rule.action, rule.kind, rule.pattern),
            )
            if made.rowcount:
                await audit.record(conn, "rule.allow", rule.subject, after={"rule": str(rule)})
            return made.rowcount == 1

    async def remove(self, rule: Rule) -> bool:
        """Whether it was there."""
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            gone = await conn.execute(
                "delete from txmsg.access_rule where (subject, action, kind, pattern) = (%s, %s, %s, %s)",
                (rule.subject, rule.action, rule.kind, rule.pattern),
            )
            if gone.rowcount:
                await audit.record(conn, "rule.deny", rule.subject, before={"rule": str(rule)})
            return gone.rowcount == 1
