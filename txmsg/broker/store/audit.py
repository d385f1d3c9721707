"""Statements on the audit log: entries written with the changes that they record, pages of entries, and retention."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from txmsg.administration.audit import AuditEntry, AuditPage, AuditQuery
from txmsg.broker.store.connect import Connection, Pool, after_session, session
from txmsg.wire.caller import Caller
from txmsg.wire.changes import State, change_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_FORGOTTEN_AT_ONCE: Final = 10_000


async def record(
    conn: Connection,
    action: str,
    target: str,
    *,
    before: State = None,
    after: State = None,
    caller: Caller | None = None,
) -> None:
    """Add an entry in the caller's transaction, and log it at the end of the session, after the commit.

    caller: the author of the change, if it is not the caller of the request that is being answered.
    """
    change = change_of(action, target, before=before, after=after, caller=caller)
    await conn.execute(ENTRY, change._asdict())
    # Logged only once it is committed: a log line of a change that was rolled back would be a false record.
    after_session(conn, change.log_change)


ENTRY: Final = """
insert into txmsg.audit (who, address, action, target, before, after)
select %(who)s, %(address)s, %(action)s, %(target)s, %(before)s::jsonb, %(after)s::jsonb
"""
"""The statement that adds an entry; also usable within a caller's statement, as `{ENTRY} from ...`, with the fields of
a change."""


def difference(before: DataclassInstance, after: DataclassInstance, *without: str) -> tuple[State, State]:
    """Return the fields in which two states differ, before and after, for `record`."""
    old, new = asdict(before), asdict(after)
    # Only the fields that differ: entries are read by people, and settings of a topic are many.
    changed = [name for name in new if old[name] != new[name] and name not in without]
    return {name: old[name] for name in changed}, {name: new[name] for name in changed}


class AuditLog:
    """The audit log of one Notify database. Every method is its own transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def record(
        self, action: str, target: str, *, before: State = None, after: State = None, caller: Caller | None = None
    ) -> None:
        """Add an entry for a change that a transaction of ours does not make."""
        async with session(self._pool) as conn:
            await record(conn, action, target, before=before, after=after, caller=caller)

    async def list(self, query: AuditQuery) -> AuditPage:
        """Return a page of entries. Implements the method `AuditService.list`."""
        async with session(self._pool) as conn, conn.cursor(row_factory=class_row(AuditEntry)) as cursor:
            await cursor.execute(_LIST, asdict(query))
            entries = await cursor.fetchall()
        # The statement reads one entry more than the limit, which tells whether another page follows.
        more = len(entries) > query.limit
        return AuditPage(entries=entries[: query.limit], next=entries[query.limit - 1].id if more else None)

    async def forget_entries(self, keep_s: float) -> int:
        """Remove entries older than keep_s seconds, at most as many as one statement removes. Returns their number."""
        async with session(self._pool) as conn:
            cursor = await conn.execute("select txmsg.forget_audit(%s, %s)", (keep_s, _FORGOTTEN_AT_ONCE))
            ((gone,),) = await cursor.fetchall()
            return int(gone)


_LIST = """
select id, at, who, address, action, target, before, after from txmsg.audit
 where (%(before_id)s::bigint is null or id < %(before_id)s)
   and (%(since)s::timestamptz is null or at >= %(since)s)
   and %(who)s::text in ('', who)
   and (%(action)s::text in ('', action) or starts_with(action, %(action)s || '.'))
   and %(target)s::text in ('', target)
 order by id desc limit %(limit)s + 1
"""
