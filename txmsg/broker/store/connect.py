"""How a broker connects to the Notify database: one writer session, and a pool for everything else.

Translates the driver's errors: whoever gets BrokerUnavailable from here may try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from txmsg.broker.store.arrays import register_arrays
from txmsg.errors import BrokerUnavailable, StorageError

__all__ = ["TRANSIENT", "connect_writer", "open_pool", "session"]

Pool = AsyncConnectionPool[AsyncConnection[Any]]

TRANSIENT = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    PoolTimeout,
    PoolClosed,
    OSError,
)
"""What the driver raises when the database is away or restarts, or has ended a session that stood still."""

_KEEPALIVES: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


_SERVER_KEEPALIVES = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15s",
}
"""The same from the other side: how soon the server ends the session of a broker that was cut off. By the defaults of
most systems it would keep it for two hours. A session on a Unix socket passes over them."""


async def connect_writer(url: str, *, lock_timeout_s: float, transaction_timeout_s: float) -> AsyncConnection[Any]:
    """The session that calls the batch function: autocommit, READ COMMITTED, no wait without an end.

    Plans are generic and never a sequential scan: half_message looks empty to statistics at most moments, and a
    plan made then would be remembered when it is not.
    """
    connection = await AsyncConnection.connect(
        url, autocommit=True, application_name="txmsg writer", prepare_threshold=0, **_KEEPALIVES
    )
    register_arrays(connection)
    settings = {
        "default_transaction_isolation": "read committed",
        "lock_timeout": f"{lock_timeout_s * 1000:.0f}ms",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "jit": "off",
        "synchronous_commit": "on",
        **_SERVER_KEEPALIVES,
    }
    if connection.info.server_version >= 170000:
        settings["transaction_timeout"] = f"{transaction_timeout_s * 1000:.0f}ms"
    await _set(connection, settings)
    return connection


async def _set(connection: AsyncConnection[Any], settings: Mapping[str, str]) -> None:
    await connection.execute(
        "select set_config(name, value, false) from unnest(%s::text[], %s::text[]) as setting(name, value)",
        (list(settings), list(settings.values())),
    )


def open_pool(url: str, *, size_max: int = 8, idle_in_transaction_s: float = 5.0) -> Pool:
    """Connections for delivery, checks and administration. Open it with `await pool.open()`.

    idle_in_transaction_s: after that the server ends a session that does nothing within a transaction: its broker is
    paused or cut off, and what it has locked (such as the delivery lease) would stop the others.
    """

    async def configure(connection: AsyncConnection[Any]) -> None:
        await _set(
            connection,
            {
                # Whatever the database's default is: a rotation must see every batch that it waited for.
                "default_transaction_isolation": "read committed",
                "idle_in_transaction_session_timeout": f"{idle_in_transaction_s * 1000:.0f}ms",
                **_SERVER_KEEPALIVES,
            },
        )

    return AsyncConnectionPool(
        url,
        min_size=1,
        max_size=size_max,
        open=False,
        timeout=5.0,
        reconnect_timeout=1.0,
        kwargs={"autocommit": True, "application_name": "txmsg broker", **_KEEPALIVES},
        configure=configure,
        check=AsyncConnectionPool.check_connection,
    )


@asynccontextmanager
async def session(pool: Pool) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection from the pool, in autocommit. Raises BrokerUnavailable while the database is away."""
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        async with pool.connection() as connection:
            # The pool waits by asyncio.wait_for, which before Python 3.12 may lose a cancellation that comes together
            # with the connection; a loop would then go on for ever.
            if task.cancelling() > cancelled_before:
                raise asyncio.CancelledError
            yield connection
    except psycopg.errors.InsufficientPrivilege as exc:
        raise StorageError(
            f"the broker's role may not use the tables of the Notify database ({exc.diag.message_primary}): run the "
            "broker as the role that ran `txmsg db upgrade`"
        ) from exc
    except TRANSIENT as exc:
        raise BrokerUnavailable(f"the Notify database is away: {exc}") from exc
