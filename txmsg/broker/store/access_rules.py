"""Statements on access rules, and the SQL condition by which lists hide names from users.

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
"""Maximum number of rules: each broker holds all of them in memory."""


def is_visible(column: str) -> str:
    """Return an SQL condition: the user may see the name in this column.

    Its parameters `exact` and `prefixes` are fields of Names. It limits a page and the place where the next page
    begins.
    """
    return f"({column} = any(%(exact)s::text[]) or {column} ^@ any(%(prefixes)s::text[]))"


class AccessRules:
    """The rules of one Notify database. Every method is its own transaction; changes notify the brokers."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self) -> Sequence[Rule]:
        """Return all rules."""
        async with session(self._pool) as conn:
            cursor = await conn.execute("select subject, action, kind, pattern from txmsg.access_rule")
            return [
                Rule(subject, Action(action), ResourceKind(kind), pattern)
                for subject, action, kind, pattern in await cursor.fetchall()
            ]

    async def roles_of(self, user: str) -> Sequence[str]:
        """Return the roles of a user. Raises MisuseError if the user does not exist."""
        async with session(self._pool) as conn:
            cursor = await conn.execute("select roles from txmsg.access_user where name = %s", (user,))
            row = await cursor.fetchone()
        if row is None:
            raise MisuseError(f"there is no user {user}: make one with `txmsg user create {user}`, or give {ROLE}NAME")
        roles: Sequence[str] = row[0]
        return roles

    async def add(self, rule: Rule) -> bool:
        """Add a rule and return True; return False if it existed.

        Raises MisuseError for a rule above the maximum, or of a user that does not exist.
        """
        async with session(self._pool) as conn, conn.transaction():
            # Before the count: `begin_change` locks the one row of access_version, so changes run one after the other
            # and the count cannot be exceeded by two that run at the same time.
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
        """Remove a rule. Returns True if it existed."""
        async with session(self._pool) as conn, conn.transaction():
            await begin_change(conn)
            gone = await conn.execute(
                "delete from txmsg.access_rule where (subject, action, kind, pattern) = (%s, %s, %s, %s)",
                (rule.subject, rule.action, rule.kind, rule.pattern),
            )
            if gone.rowcount:
                await audit.record(conn, "rule.deny", rule.subject, before={"rule": str(rule)})
            return gone.rowcount == 1
