"""Connections for delivery's steps. Losing one loses what is in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from txmsg.broker.delivery.state import State
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.delivery import Connection
from txmsg.broker.store.incarnation import current_incarnation
from txmsg.errors import BrokerUnavailable

__all__ = ["Database"]


class Database:
    """The Notify database as delivery uses it."""

    def __init__(self, pool: Pool, state: State) -> None:
        self._pool = pool
        self._state = state

    async def incarnation(self) -> UUID:
        """Of the database, as known; BrokerUnavailable if it is not and cannot be read."""
        return await current_incarnation(self._pool)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        """A connection for one step. If the database is away, everything in memory is dropped: BrokerUnavailable."""
        try:
            async with session(self._pool, timeout_s=self._state.config.statement_timeout_s) as conn:
                yield conn
        except BrokerUnavailable as exc:
            self._state.drop(str(exc))
            raise
