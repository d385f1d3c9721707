"""The business database of all clients: what local transactions write, and the effects of handlers.

`sale` goes with the fence. `attempt` belongs to the classic listener, which must itself know what may still commit: an
attempt is running until its local transaction makes it done, or the listener gives it up; never both.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from txmsg import ReceivedMessage, TransactionState
from txmsg.tables import metadata

GIVE_UP_S = 3.0

_TABLES = (
    "create table sale (serial text primary key)",
    "create table attempt (serial text primary key, state text not null default 'running', "
    "begun_at timestamptz not null default now())",
    # No key: two effects of one message must be seen, not refused.
    "create table effect (group_name text not null, body text not null)",
)


def engine_of(url: str) -> AsyncEngine:
    """An engine that notices soon when its database is gone."""
    return create_async_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1),
        pool_size=20,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 5, "tcp_user_timeout": 5000, "options": "-c statement_timeout=5000"},
    )


async def create_tables(url: str) -> None:
    engine = engine_of(url)
    async with engine.begin() as connection:
        for statement in _TABLES:
            await connection.execute(text(statement))
        await connection.run_sync(metadata.create_all)
    await engine.dispose()


async def sell(session: AsyncSession, serial: str) -> None:
    """The local transaction of those with a fence."""
    await session.execute(text("insert into sale values (:serial)"), {"serial": serial})


async def take_effect(session: AsyncSession, group: str, body: str) -> None:
    """What a handler does to its database."""
    await session.execute(text("insert into effect values (:group, :body)"), {"group": group, "body": body})


async def begin_attempt(engine: AsyncEngine, serial: str) -> None:
    """To be on disk before the half message is sent."""
    async with engine.begin() as connection:
        await connection.execute(text("insert into attempt (serial) values (:serial)"), {"serial": serial})


async def finish_attempt(engine: AsyncEngine, serial: str, state: TransactionState) -> bool:
    """The local transaction of those without a fence. False: the listener has given it up."""
    async with engine.begin() as connection:
        done = await connection.execute(
            text("update attempt set state = :state where serial = :serial and state = 'running'"),
            {"serial": serial, "state": "done" if state is TransactionState.COMMIT else "given up"},
        )
        return done.rowcount == 1


class AttemptListener:
    """The classic CheckMessageListener: it knows its attempts, and gives up what has taken too long."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def check(self, message: ReceivedMessage) -> TransactionState:
        serial = message.body.decode().partition("/")[0]
        async with self._engine.begin() as connection:
            await connection.execute(
                text(
                    "update attempt set state = 'given up' where serial = :serial and state = 'running' "
                    "and begun_at < now() - make_interval(secs => :give_up_s)"
                ),
                {"serial": serial, "give_up_s": GIVE_UP_S},
            )
            # Read anew: a local transaction that held the row may have made it done meanwhile.
            found = await connection.execute(
                text("select state from attempt where serial = :serial"), {"serial": serial}
            )
            state = found.scalar_one()
        if state == "running":
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT if state == "done" else TransactionState.ROLLBACK
