"""Reads the incarnation of the Notify database, and tells which errors say that memory is of an earlier one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import psycopg

from txmsg.broker.store.connect import Pool, session, unavailable
from txmsg.errors import BrokerUnavailable

_READ_S_MAX = 10.0


async def current_incarnation(pool: Pool, *, timeout_s: float = _READ_S_MAX) -> UUID:
    """The one that memory is of; read, and begun if need be, when none is known. Raises BrokerUnavailable.

    To be taken before anything that is in memory is used, and given to the statement that rests on it.
    """
    known = pool.incarnation.id
    if known is not None:
        return known
    async with session(pool, timeout_s=timeout_s) as connection:
        try:
            cursor = await connection.execute("select txmsg.begin_incarnation(), shard from txmsg.notify_db")
        except psycopg.errors.FeatureNotSupported as exc:  # a hot standby cannot read what is unlogged
            await connection.close()  # behind the same address may be a primary by now
            raise unavailable(exc) from exc
        row = await cursor.fetchone()
    assert row is not None
    return pool.incarnation.begin_incarnation(*row)


@asynccontextmanager
async def same_incarnation(pool: Pool) -> AsyncIterator[UUID]:
    """For reading what is to be kept in memory: raises BrokerUnavailable if the incarnation has ended meanwhile."""
    begun = await current_incarnation(pool)
    yield begun
    if pool.incarnation.id != begun:
        raise BrokerUnavailable("the Notify database returned to an earlier state while it was read: retry")
