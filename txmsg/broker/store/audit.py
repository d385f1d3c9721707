"""Every statement on the audit log: entries in the transactions of the changes they tell of, pages, and retention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg.rows import class_row

from txmsg.broker.store.connect import Connection, Pool, after_session, session
from txmsg.wire.caller import Caller
from txmsg.wire.changes import State, change_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_FORGOTTEN_AT_ONCE: Final = 10_000


class AuditRow(NamedTuple):
    """An entry. before, after: as JSON; None: nothing was, or is, there."""

    id: int
    at: datetime
    who: str
    address: str
    action: str
    target: str
    before: str | None
    after: str | None


class AuditFilter(NamedTuple):
    """Which entries: all that is said must hold. action: a whole one, or its first part, as `topic`."""

    since: datetime | None = None
    who: str | None = None
    action: str | None = None
    target: str | None = None


async def record(
    conn: Connection,
    action: str,
    target: str,
    *,
    before: State = None,
    after: State = None,
    caller: Caller | None = None,
) -> None:
    """Adds an entry in the caller's transaction, and logs it after the commit, at the end of the session.

    caller: who has done it, if not who makes the call that is being answered.
    """
    change = change_of(action, target, before=before, after=after, caller=caller)
    await conn.execute(ENTRY, change._asdict())
    after_session(conn, change.tell)


ENTRY: Final = """
insert into txmsg.audit (who, address, action, target, before, after)
select %(who)s, %(address)s, %(action)s, %(target)s, %(before)s::jsonb, %(after)s::jsonb
"""
"""Also for a statement of the caller's own, as `{ENTRY} from ...`, with the fields of a change."""


def difference(before: DataclassInstance, after: DataclassInstance, *without: str) -> tuple[State, State]:
    """The fields in which two states differ, for `record`."""
    old, new = asdict(before), asdict(after)
    changed = [name for name in new if old[name] != new[name] and name not in without]
    return {name: old[name] for name in changed}, {name: new[name] for name in changed}


class AuditLog:
    """The audit log of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def record(
        self, action: str, target: str, *, before: State = None, after: State = None, caller: Caller | None = None
    ) -> None:
        """Adds an entry for a change that is not made by a transaction of ours."""
        async with session(self._pool) as conn:
            await record(conn, action, target, before=before, after=after, caller=caller)

    async def list(self, which: AuditFilter, *, before_id: int | None, limit: int) -> Sequence[AuditRow]:
        """Up to `limit` entries, the newest first; those before the entry of this id."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(AuditRow)) as cursor:
            await cursor.execute(_LIST, which._asdict() | {"before_id": before_id, "limit": limit})
            return await cursor.fetchall()

    async def forget(self, keep_s: float) -> int:
        """Removes what is older, as far as one statement goes; how many."""
        async with session(self._pool) as conn:
            cursor = await conn.execute("select txmsg.forget_audit(%s, %s)", (keep_s, _FORGOTTEN_AT_ONCE))
            ((gone,),) = await cursor.fetchall()
            return int(gone)


_LIST = """
select id, at, who, address, action, target, before::text as before, after::text as after from txmsg.audit
 where (%(before_id)s::bigint is null or id < %(before_id)s)
   and (%(since)s::timestamptz is null or at >= %(since)s)
   and (%(who)s::text is null or who = %(who)s)
   and (%(action)s::text is null or action = %(action)s or starts_with(action, %(action)s || '.'))
   and (%(target)s::text is null or target = %(target)s)
 order by id desc limit %(limit)s
"""
