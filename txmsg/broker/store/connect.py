"""How a broker connects to the Notify database: writer sessions, a pool, and now and then a session for upkeep.

Translates the driver's errors: a caller that gets BrokerUnavailable from here may try again.
"""

from __future__ import annotations

import asyncio
import math
import select
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

import psycopg
from psycopg import AsyncConnection, sql
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout
from psycopg_pool.pool_async import StopWorker

from txmsg.broker.incarnation import Incarnation
from txmsg.broker.store.arrays import register_arrays
from txmsg.broker.store.prepared import PreparedConnection
from txmsg.errors import BrokerUnavailable, StorageError
from txmsg.runtime.postgres import ENCODING, FORM, KEEPALIVES, PINNED, SERVER_KEEPALIVES, cut, pin

OTHER_INCARNATION = "TX007"
"""SQLSTATE: the database has gone back, or was restarted, since what is in memory was read."""
UNKNOWN_ID = "TX008"
"""SQLSTATE: a batch names a queue or a producer that is not there, from memory that is out of date."""


Connection: TypeAlias = AsyncConnection[Any]


class Pool(AsyncConnectionPool[AsyncConnection[Any]]):
    """Connections to one Notify database, and which incarnation of it the broker's memory is of."""

    incarnation: Incarnation
    trouble: Exception | None = None
    """Why the last attempt to connect failed; None: it did not."""

    async def _connect(self, timeout: float | None = None) -> AsyncConnection[Any]:
        try:
            connection = await super()._connect(timeout)
        except Exception as exc:
            self.trouble = exc
            raise
        self.trouble = None
        return connection

    def without_connection(self, exc: PoolTimeout) -> BrokerUnavailable:
        """The error for who got no connection in time: by itself, the pool says only that."""
        if self.trouble is not None:
            return unavailable(self.trouble)
        found = self.get_stats()
        return BrokerUnavailable(
            f"no connection to the Notify database is free: {exc}; {found['pool_size']} of at most "
            f"{found['pool_max']} are in use, or being made"
        )

    @classmethod
    async def worker(cls, q: Any) -> None:
        """Makes connections until the pool is closed, or this task is cancelled.

        psycopg_pool takes a cancellation that comes while it connects for a failure to connect, and goes on: a loop
        that ends would wait for it for ever.
        """
        await super().worker(cast(Any, _UntilCancelled(q)))


class _UntilCancelled:
    """A queue that ends a worker which was cancelled."""

    def __init__(self, tasks: asyncio.Queue[Any]) -> None:
        self._tasks = tasks

    async def get(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            return StopWorker.__new__(StopWorker)  # of no pool: a worker only looks at its type
        return await self._tasks.get()


TRANSIENT = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.IdleInTransactionSessionTimeout,
    psycopg.errors.ReadOnlySqlTransaction,
    PoolTimeout,
    PoolClosed,
    OSError,
)
"""What the driver raises when the database is away or restarts, or has ended a session that stood still."""

POOL_SIZE_MAX: Final = 8
ADMIN_POOL_SIZE_MAX: Final = 4
"""For administration; further requests wait for a connection."""
SESSIONS_MAX: Final = POOL_SIZE_MAX + ADMIN_POOL_SIZE_MAX + 5
"""Of a broker: those of its pools, of three writers and the listener, and one for upkeep."""

_PARAMETERS: dict[str, Any] = {"connect_timeout": 5, "client_encoding": ENCODING, **KEEPALIVES}

_CHANNEL: Final = "txmsg"
"""The channel on which brokers notify each other."""
_CHECK_S_MAX = 5.0
_FRESH_S = 1.0
"""A connection that was good so recently is not checked before it is used again."""
_SETUP_S_MAX = 5.0
_SESSION_S_MAX = 30.0
_UPKEEP_S_MAX = 120.0
_UPKEEP_IDLE_S_MAX = 30.0


class _Connection(PreparedConnection):
    """One that is closed when a statement on it is cancelled.

    The driver would ask the server to cancel and wait for that, twice 5 s with a server that says nothing: too long for
    a stop. Statements are short, and an abandoned transaction has its timeout in the server.
    """

    used_at = -math.inf
    """When the last session with it ended well, by the monotonic clock."""
    afterwards: list[Callable[[], None]]
    """What to do when the session with it has ended well."""

    async def cancel_safe(self, *, timeout: float = 0.0) -> None:
        cut(self)


@contextmanager
def answering_within(connection: AsyncConnection[Any], timeout_s: float) -> Iterator[None]:
    """Cuts the connection if the block takes longer, and raises BrokerUnavailable.

    For a database, or something before it, that keeps the connection and says nothing more: no keepalive notices. Not
    asyncio.timeout: the driver answers a cancellation by asking that same database to cancel, and waits for it.
    """
    is_late = False

    def cut_off() -> None:
        nonlocal is_late
        is_late = True
        cut(connection)

    timer = asyncio.get_running_loop().call_later(timeout_s, cut_off)
    try:
        yield
    except psycopg.Error as exc:
        if is_late:
            raise BrokerUnavailable(f"the Notify database did not answer within {timeout_s:g} s") from exc
        raise
    finally:
        timer.cancel()


async def connect_writer(
    url: str, *, lock_timeout_s: float, transaction_timeout_s: float, statement_timeout_s: float | None = None
) -> PreparedConnection:
    """The session that calls the batch function: in autocommit, no wait without an end.

    Plans are generic and never a sequential scan: half_message looks empty to statistics at most moments, and a
    plan made then would be remembered when it is not. Commits wait for no standby unless a batch says so itself;
    statement_timeout_s ends such a wait, even if its broker is gone (default: transaction_timeout_s).
    """
    connection = await _Connection.connect(
        url, autocommit=True, application_name="txmsg writer", prepare_threshold=None, **_PARAMETERS
    )
    try:
        await _set_up_writer(
            connection, lock_timeout_s, transaction_timeout_s, statement_timeout_s or transaction_timeout_s
        )
    except BaseException:
        await connection.close()
        raise
    return connection


async def _set_up_writer(
    connection: AsyncConnection[Any], lock_timeout_s: float, transaction_timeout_s: float, statement_timeout_s: float
) -> None:
    register_arrays(connection)
    settings = {
        "lock_timeout": f"{lock_timeout_s * 1000:.0f}ms",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "jit": "off",
        "synchronous_commit": "local",
        "statement_timeout": f"{statement_timeout_s * 1000:.0f}ms",
        "transaction_timeout": f"{transaction_timeout_s * 1000:.0f}ms",
    }
    await _set(connection, settings)


async def notify(conn: Connection, *notices: str) -> None:
    """Notifies all listening brokers, including this one, if and when the caller's transaction commits."""
    await conn.execute("select pg_notify(%s, n) from unnest(%s::text[]) n", (_CHANNEL, list(notices)))


async def connect_listener(url: str) -> Connection:
    """A session that receives what brokers `notify`: "KIND TEXT"."""
    connection = await _Connection.connect(url, autocommit=True, application_name="txmsg listener", **_PARAMETERS)
    try:
        await _set(connection, {})
        with answering_within(connection, _SETUP_S_MAX):
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(_CHANNEL)))
    except BaseException:
        await connection.close()
        raise
    return connection


async def _set(connection: AsyncConnection[Any], settings: Mapping[str, str]) -> None:
    with answering_within(connection, _SETUP_S_MAX):
        await pin(connection, {**PINNED, **SERVER_KEEPALIVES, **settings})


def open_pool(
    url: str, *, size_max: int = POOL_SIZE_MAX, idle_in_transaction_s: float = 5.0, statement_timeout_s: float = 0.0
) -> Pool:
    """Connections for delivery and checks, or for administration. Open it with `await pool.open()`.

    idle_in_transaction_s: after that the server ends a session that does nothing within a transaction: its broker is
    paused or cut off, and what it has locked (such as the delivery lease) would stop the others. statement_timeout_s:
    after that the server ends a statement. 0: never, though `session` may have given it up.
    """

    async def configure(connection: AsyncConnection[Any]) -> None:
        register_arrays(connection)
        await _set(
            connection,
            {
                # Cursors and leases wait for no standby: what is replicated is a beginning of all that was written, so
                # a cursor is never ahead of its messages.
                "synchronous_commit": "local",
                "idle_in_transaction_session_timeout": f"{idle_in_transaction_s * 1000:.0f}ms",
                "statement_timeout": f"{statement_timeout_s * 1000:.0f}ms",
            },
        )

    pool = Pool(
        url,
        connection_class=_Connection,
        min_size=1,
        max_size=size_max,
        open=False,
        timeout=5.0,
        reconnect_timeout=1.0,
        kwargs={"autocommit": True, "application_name": "txmsg broker", **_PARAMETERS},
        configure=configure,
        check=_check,
    )
    pool.incarnation = Incarnation()
    return pool


async def _check(connection: AsyncConnection[Any]) -> None:
    is_fresh = isinstance(connection, _Connection) and time.monotonic() - connection.used_at < _FRESH_S
    if is_fresh and not connection.closed and not _has_news(connection):
        return  # a round trip for each read of new messages
    with answering_within(connection, _CHECK_S_MAX):
        await AsyncConnectionPool.check_connection(connection)


def _has_news(connection: AsyncConnection[Any]) -> bool:
    """Whether the server has said something of its own accord, as when it ends the session."""
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    return bool(readable.poll(0))


@asynccontextmanager
async def session(pool: Pool, *, timeout_s: float = _SESSION_S_MAX) -> AsyncIterator[AsyncConnection[Any]]:
    """A connection from the pool, in autocommit. Raises BrokerUnavailable while the database is away or says nothing.

    timeout_s: for all that is done with the connection; a few seconds more may go by before there is one.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        async with pool.connection() as connection:
            # The pool waits by asyncio.wait_for, which before Python 3.12 may lose a cancellation that comes together
            # with the connection; a loop would then go on for ever.
            if task.cancelling() > cancelled_before:
                raise asyncio.CancelledError
            with answering_within(connection, timeout_s):
                assert isinstance(connection, _Connection)
                connection.afterwards = []
                try:
                    yield connection
                    connection.used_at = time.monotonic()
                    for act in connection.afterwards:
                        act()
                except psycopg.errors.ReadOnlySqlTransaction:
                    await connection.close()  # a standby by now: behind the same address may be another primary
                    raise
    except psycopg.errors.InsufficientPrivilege as exc:
        raise StorageError(
            f"the broker's role may not use the tables of the Notify database ({exc.diag.message_primary}): run the "
            "broker as the role that ran `txmsg db upgrade`"
        ) from exc
    except PoolTimeout as exc:
        raise pool.without_connection(exc) from (pool.trouble or exc)
    except TRANSIENT as exc:
        raise unavailable(exc) from exc
    except psycopg.DatabaseError as exc:
        if exc.sqlstate != OTHER_INCARNATION:
            raise
        over = exc.diag.message_detail
        pool.incarnation.end_incarnation(UUID(over) if over else None, exc.diag.message_primary or str(exc))
        raise unavailable(exc) from exc


def after_session(conn: Connection, act: Callable[[], None]) -> None:
    """Has it done when this session has ended well, so when what it has changed is committed."""
    assert isinstance(conn, _Connection)
    conn.afterwards.append(act)


@asynccontextmanager
async def upkeep_session(url: str) -> AsyncIterator[AsyncConnection[Any]]:
    """A session of its own, in autocommit, for work that waits and holds locks of the session; ends with the block.

    The server ends it when its broker stands still: then another broker may do the work. Raises BrokerUnavailable.
    """
    try:
        connection = await _Connection.connect(url, autocommit=True, application_name="txmsg upkeep", **_PARAMETERS)
        try:
            settings = {
                "synchronous_commit": "local",
                "idle_session_timeout": f"{_UPKEEP_IDLE_S_MAX * 1000:.0f}ms",
            }
            await _set(connection, settings)
            with answering_within(connection, _UPKEEP_S_MAX):
                yield connection
        finally:
            await connection.close()
    except TRANSIENT as exc:
        raise unavailable(exc) from exc


@asynccontextmanager
async def query_session(url: str, *, timeout_s: float) -> AsyncIterator[AsyncConnection[Any]]:
    """A session with any database, in one transaction that only reads, for a statement of an operator's own.

    Raises psycopg.Error.
    """
    parameters = {**_PARAMETERS, "connect_timeout": max(2, math.ceil(timeout_s))}
    connection = await _Connection.connect(url, autocommit=True, application_name="txmsg alerts", **parameters)
    try:
        with answering_within(connection, timeout_s):
            timeouts = {"statement_timeout": f"{timeout_s * 1000:.0f}ms", "lock_timeout": f"{timeout_s * 1000:.0f}ms"}
            await pin(connection, {**FORM, **timeouts, "default_transaction_read_only": "on"})
            await connection.execute("begin read only")
        yield connection
    finally:
        await connection.close()


def unavailable(exc: Exception) -> BrokerUnavailable:
    """The error for callers: whether the database is away, or there and unable, and why. On one line."""
    if isinstance(exc, BrokerUnavailable):
        return exc
    told = " ".join(str(exc).split())
    if isinstance(exc, psycopg.Error) and exc.sqlstate is not None:
        # Without detail and context: for an error within the batch function the latter is its whole text.
        return BrokerUnavailable(f"the Notify database cannot work now: {exc.diag.message_primary or told}")
    return BrokerUnavailable(f"the Notify database is away: {told}")
