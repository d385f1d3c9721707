"""Deletes rows of the fence that are no longer needed. Each step owns its transactions."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import Connection, bindparam, delete, select

from txmsg.checker.tables import ID, Ago, fence_table
from txmsg.errors import MisuseError
from txmsg.message import TransactionId
from txmsg.runtime.durations import Seconds, in_seconds

PURGE_AGE_S_MIN = 600.0
"""No row younger than this is purged: without its row, a paused transaction could commit after its rollback."""

_PURGE_BATCH = 1000

# In the order of the key, without an index on created_at: that would cost every business transaction a write, and ids
# begin with their time, so that one walk along the key reads the old rows first and each row once.
_SELECT_OLD = (
    select(fence_table.c.transaction_id)
    .where(fence_table.c.created_at < Ago(bindparam("older_than_s")))
    .where(fence_table.c.transaction_id > bindparam("after", type_=ID))
    .order_by(fence_table.c.transaction_id)
    .limit(_PURGE_BATCH)
)


def check_age(older_than_s: Seconds) -> float:
    """Return the age in seconds. Raises MisuseError below PURGE_AGE_S_MIN."""
    age_s = in_seconds(older_than_s)
    if not age_s >= PURGE_AGE_S_MIN:  # so that nan is refused, too
        raise MisuseError(
            f"purge of fence rows older than {age_s} s: at least {PURGE_AGE_S_MIN:.0f} s are needed, or a "
            "transaction that was paused could commit after its message was dropped"
        )
    return age_s


def old_rows(connection: Connection, older_than_s: float, after: UUID) -> list[TransactionId]:
    with connection.begin():
        found = connection.execute(_SELECT_OLD, {"older_than_s": older_than_s, "after": after}).scalars()
        return [TransactionId(transaction_id) for transaction_id in found]


def without(ids: list[TransactionId], held: Collection[TransactionId]) -> list[TransactionId]:
    kept = set(held)
    return [transaction_id for transaction_id in ids if transaction_id not in kept]


def delete_rows(connection: Connection, ids: list[TransactionId]) -> int:
    if not ids:
        return 0
    with connection.begin():
        return connection.execute(delete(fence_table).where(fence_table.c.transaction_id.in_(ids))).rowcount
