"""Limits on the number of topics and groups that a user may create. The caller owns the transaction."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from txmsg.broker.store.connect import Connection
from txmsg.errors import PermissionDenied
from txmsg.wire.caller import current_usage

Created: TypeAlias = Literal["topics", "groups"]
_TABLE: Final[dict[Created, str]] = {"topics": "txmsg.topic", "groups": "txmsg.consumer_group"}


def creator() -> str | None:
    """Return the user whose call is being answered; None without authentication."""
    usage = current_usage()
    return None if usage is None else usage.user


async def check_created(conn: Connection, what: Created) -> None:
    """Raise PermissionDenied if the caller has created more than it may, including this transaction's creations.

    Locks the user's row, and counts then: of two transactions that take the last place, the second sees the first.
    """
    usage = current_usage()
    most = 0 if usage is None else getattr(usage.limits, what)
    if usage is None or not most:
        return
    await conn.execute("select from txmsg.access_user where name = %s for no key update", (usage.user,))
    cursor = await conn.execute(f"select count(*) from {_TABLE[what]} where created_by = %s", (usage.user,))
    ((count,),) = await cursor.fetchall()
    if count > most:
        raise PermissionDenied(
            f"user {usage.user} has created {most} {what}, as many as it may: nothing was done; delete some, or raise "
            f"its limit with `txmsg user limit {usage.user} --{what}-max N`"
        )
