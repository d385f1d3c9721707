"""The business database of all clients: rows of local transactions, and effects of handlers.

`sale` goes with the fence. `attempt` belongs to the classic listener, which must itself know what may still commit: an
attempt is running until its local transaction makes it done, or the listener gives it up; never both.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from tests.chaos.history import serial_of
from txmsg import ReceivedMessage, TransactionState
from txmsg.checker.tables import metadata

GIVE_UP_S = 3.0

_ENGINE_OPTIONS: Mapping[str, Any] = {
    "pool_size": 15,
    "max_overflow": 0,  # five processes share the server's limit of 100
    "pool_pre_ping": True,
    "connect_args": {"connect_timeout": 5, "tcp_user_timeout": 5000, "options": "-c statement_timeout=5000"},
}
_TABLES = (
    "create table sale (serial text primary key)",
    "create table attempt (serial text primary key, state text not null default 'running', "
    "begun_at timestamptz not null default now())",
    # No key: two effects of one message must be seen, not refused.
    "create table effect (group_name text not null, body text not null)",
)


def async_engine_of(url: str) -> AsyncEngine:
    """Return an async engine that soon notices a lost database connection."""
    return create_async_engine(_with_psycopg(url), **_ENGINE_OPTIONS)


def engine_of(url: str) -> Engine:
    """Return the same for threads."""
    return create_engine(_with_psycopg(url), **_ENGINE_OPTIONS)


def _with_psycopg(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


def create_tables(url: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        for statement in _TABLES:
            connection.execute(text(statement))
        metadata.create_all(connection)
    engine.dispose()


def is_failed_by_handler(body: bytes, attempt: int, *, is_first: bool) -> bool:
    """Return True if a handler fails this message: some at first, and a few always, until they are redriven."""
    luck = zlib.crc32(body) % 500
    return (luck == 0 and is_first) or (0 < luck < 15 and attempt <= luck % 3 + 1)


# What follows is called by threads, and by coroutines through `run_sync`.


def sell(session: Session, serial: str) -> None:
    """Run the local transaction of producers with a fence."""
    session.execute(text("insert into sale values (:serial)"), {"serial": serial})


def take_effect(session: Session, group: str, body: str) -> None:
    """Write the effect of a handler."""
    session.execute(text("insert into effect values (:group, :body)"), {"group": group, "body": body})


def begin_attempt(connection: Connection, serial: str) -> None:
    """Record an attempt, which must be on disk before the half message is sent."""
    connection.execute(text("insert into attempt (serial) values (:serial)"), {"serial": serial})


def finish_attempt(connection: Connection, serial: str, state: TransactionState) -> bool:
    """Run the local transaction of producers without a fence. False: the listener has already given up the attempt."""
    done = connection.execute(
        text("update attempt set state = :state where serial = :serial and state = 'running'"),
        {"serial": serial, "state": "done" if state is TransactionState.COMMIT else "given up"},
    )
    return done.rowcount == 1


def check_attempt(connection: Connection, serial: str) -> TransactionState:
    """Return the outcome of an attempt; gives up one that took too long."""
    connection.execute(
        text(
            "update attempt set state = 'given up' where serial = :serial and state = 'running' "
            "and begun_at < now() - make_interval(secs => :give_up_s)"
        ),
        {"serial": serial, "give_up_s": GIVE_UP_S},
    )
    # Read again: a local transaction that held the row may have completed it meanwhile.
    found = connection.execute(text("select state from attempt where serial = :serial"), {"serial": serial})
    state = found.scalar_one()
    if state == "running":
        return TransactionState.UNKNOWN
    return TransactionState.COMMIT if state == "done" else TransactionState.ROLLBACK


class AsyncAttemptListener:
    """The classic CheckMessageListener: knows its attempts, and gives up those that took too long."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def check(self, message: ReceivedMessage) -> TransactionState:
        async with self._engine.begin() as connection:
            return await connection.run_sync(check_attempt, serial_of(message.body.decode()))


class AttemptListener:
    """The same on a thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def check(self, message: ReceivedMessage) -> TransactionState:
        with self._engine.begin() as connection:
            return check_attempt(connection, serial_of(message.body.decode()))
