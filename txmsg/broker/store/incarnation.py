"""Reads the incarnation of the Notify database, and refuses memory of an earlier one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import psycopg

from txmsg.broker.store.connect import Pool, session, unavailable
from txmsg.errors import BrokerUnavailable

_READ_S_MAX = 10.0


async def current_incarnation(pool: Pool, *, timeout_s: float = _READ_S_MAX) -> UUID:
    """Return the incarnation of the broker's memory; read it, and begin it if necessary, if none is known.

    To be called before anything in memory is used, and passed to the statement that depends on it. Raises
    BrokerUnavailable.
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
    """Guard reads that are to be kept in memory: raises BrokerUnavailable if the incarnation has ended meanwhile."""
    begun = await current_incarnation(pool)
    yield begun
    # Checked at the end: rows that were read from the earlier state look like any others.
    if pool.incarnation.id != begun:
        raise BrokerUnavailable("the Notify database returned to an earlier state while it was read: retry")
