"""Connections to the Notify database: writer sessions, a pool, and occasional sessions for upkeep.

Translates the driver's errors: a caller that gets BrokerUnavailable from here may retry.
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
"""SQLSTATE: the database returned to an earlier state, or restarted, since the broker's memory was read."""
UNKNOWN_ID = "TX008"
"""SQLSTATE: a batch names a queue or a producer that does not exist: the broker's memory is out of date."""


Connection: TypeAlias = AsyncConnection[Any]


class Pool(AsyncConnectionPool[AsyncConnection[Any]]):
    """Connections to one Notify database, and the incarnation of it that the broker's memory reflects."""

    incarnation: Incarnation
    trouble: Exception | None = None
    """The error of the last attempt to connect; None if it succeeded."""

    async def _connect(self, timeout: float | None = None) -> AsyncConnection[Any]:
        try:
            connection = await super()._connect(timeout)
        except Exception as exc:
            self.trouble = exc
            raise
        self.trouble = None
        return connection

    def without_connection(self, exc: PoolTimeout) -> BrokerUnavailable:
        """Return the error for a caller that got no connection in time, with the last failure to connect."""
        if self.trouble is not None:
            return unavailable(self.trouble)
        found = self.get_stats()
        return BrokerUnavailable(
            f"no connection to the Notify database is free: {exc}; {found['pool_size']} of at most "
            f"{found['pool_max']} are in use, or being made"
        )

    @classmethod
    async def worker(cls, q: Any) -> None:
        """Make connections until the pool is closed, or this task is cancelled.

        psycopg_pool takes a cancellation that arrives while it connects for a failure to connect, and continues: a loop
        that ends would wait for it forever.
        """
        await super().worker(cast(Any, _UntilCancelled(q)))


class _UntilCancelled:
    """A queue of tasks that stops a worker which was cancelled."""

    def __init__(self, tasks: asyncio.Queue[Any]) -> None:
        self._tasks = tasks

    async def get(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            # psycopg_pool catches the cancellation, but `cancelling` keeps counting it.
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
"""The driver's errors when the database is away, restarts, or has ended an idle session."""

POOL_SIZE_MAX: Final = 8
ADMIN_POOL_SIZE_MAX: Final = 4
"""Connections for administration; further requests wait for one."""
SESSIONS_MAX: Final = POOL_SIZE_MAX + ADMIN_POOL_SIZE_MAX + 5
"""Sessions of a broker: those of its pools, of three writers and the listener, and one for upkeep."""

_PARAMETERS: dict[str, Any] = {"connect_timeout": 5, "client_encoding": ENCODING, **KEEPALIVES}

_CHANNEL: Final = "txmsg"
"""The channel on which brokers notify each other."""
_CHECK_S_MAX = 5.0
_FRESH_S = 1.0
"""Seconds for which a connection that was good is not checked before it is used again."""
_SETUP_S_MAX = 5.0
_SESSION_S_MAX = 30.0
_UPKEEP_S_MAX = 120.0
_UPKEEP_IDLE_S_MAX = 30.0


class _Connection(PreparedConnection):
    """A connection that is closed when a statement on it is cancelled.

    The driver would ask the server to cancel and wait for that, twice 5 s with a server that does not answer: too long
    for a stop. Statements are short, and an abandoned transaction has its timeout in the server.
    """

    used_at = -math.inf
    """End of the last session that ended well, by the monotonic clock."""
    afterwards: list[Callable[[], None]]
    """Functions to call when the session has ended well."""

    async def cancel_safe(self, *, timeout: float = 0.0) -> None:
        cut(self)


@contextmanager
def answering_within(connection: AsyncConnection[Any], timeout_s: float) -> Iterator[None]:
    """Cut the connection and raise BrokerUnavailable if the block takes longer than timeout_s.

    For a database, or a proxy before it, that keeps the connection and does not answer: TCP keepalives do not notice
    that. Not asyncio.timeout: the driver answers a cancellation by asking that same database to cancel, and waits for
    it.
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
    """Return the session that calls the batch function: in autocommit, every wait bounded.

    Plans are generic and never a sequential scan: half_message looks empty to statistics at most moments, and a plan
    made then would be kept when it is not. Commits wait for no standby unless a batch asks for it; statement_timeout_s
    ends such a wait, even if its broker is gone (default: transaction_timeout_s).
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
        # Compiling takes longer than any of these statements, of which each reads few rows.
        "jit": "off",
        "synchronous_commit": "local",
        "statement_timeout": f"{statement_timeout_s * 1000:.0f}ms",
        "transaction_timeout": f"{transaction_timeout_s * 1000:.0f}ms",
    }
    await _set(connection, settings)


async def notify(conn: Connection, *notices: str) -> None:
    """Notify all listening brokers, including this one, if and when the caller's transaction commits."""
    await conn.execute("select pg_notify(%s, n) from unnest(%s::text[]) n", (_CHANNEL, list(notices)))


async def connect_listener(url: str) -> Connection:
    """Return a session that receives the notices of brokers: "KIND TEXT"."""
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
    """Return connections for delivery and checks, or for administration. Open it with `await pool.open()`.

    idle_in_transaction_s: the server ends a session that is idle in a transaction for so long: its broker is paused or
    cut off, and its locks (such as those of the delivery lease) would stop the others. statement_timeout_s: the server
    ends a statement after it. 0: never, though `session` may have given it up.
    """

    async def configure(connection: AsyncConnection[Any]) -> None:
        register_arrays(connection)
        await _set(
            connection,
            {
                # Cursors and leases wait for no standby: a standby has a beginning of all that was written, so a cursor
                # there is never ahead of its messages (decision 15).
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
        return  # the check is a round trip for each read of new messages
    with answering_within(connection, _CHECK_S_MAX):
        await AsyncConnectionPool.check_connection(connection)


def _has_news(connection: AsyncConnection[Any]) -> bool:
    """Return True if the server has sent something unasked, as when it ends the session."""
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN)
    return bool(readable.poll(0))


@asynccontextmanager
async def session(pool: Pool, *, timeout_s: float = _SESSION_S_MAX) -> AsyncIterator[AsyncConnection[Any]]:
    """Yield a connection from the pool, in autocommit. Raises BrokerUnavailable while the database is away or silent.

    timeout_s: for all that is done with the connection; a few seconds more may pass before there is one.
    """
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        async with pool.connection() as connection:
            # The pool waits by asyncio.wait_for, which before Python 3.12 may lose a cancellation that arrives together
            # with the connection; a loop would then run forever.
            if task.cancelling() > cancelled_before:
                raise asyncio.CancelledError
            with answering_within(connection, timeout_s):
                assert isinstance(connection, _Connection)
                connection.afterwards = []
                try:
                    yield connection
                    # Not after an error, which may mean that the server is gone: the next user checks the connection
                    # then.
                    connection.used_at = time.monotonic()
                    # The connection is in autocommit: all that the block has changed is committed here.
                    for act in connection.afterwards:
                        act()
                except psycopg.errors.ReadOnlySqlTransaction:
                    await (
                        connection.close()
                    )  # the server became a standby: the same address may lead to another primary
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
        # The detail is the incarnation that the statement named. It may have ended already by another call, and the
        # next one begun: `end` ignores it then.
        over = exc.diag.message_detail
        pool.incarnation.end_incarnation(UUID(over) if over else None, exc.diag.message_primary or str(exc))
        raise unavailable(exc) from exc


def after_session(conn: Connection, act: Callable[[], None]) -> None:
    """Call a function when this session has ended well, that is when its changes are committed."""
    assert isinstance(conn, _Connection)
    conn.afterwards.append(act)


@asynccontextmanager
async def upkeep_session(url: str) -> AsyncIterator[AsyncConnection[Any]]:
    """Yield a separate session, in autocommit, for work that waits and holds session locks; it ends with the block.

    The server ends it when its broker is paused: then another broker may do the work. Raises BrokerUnavailable.
    """
    try:
        connection = await _Connection.connect(url, autocommit=True, application_name="txmsg upkeep", **_PARAMETERS)
        try:
            settings = {
                "synchronous_commit": "local",
                # Advisory locks of the session end with it. Without the timeout those of a paused broker would last for
                # as long as the pause.
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
    """Yield a session with any database, in one read-only transaction, for an operator's own statement.

    Raises psycopg.Error.
    """
    # libpq takes a connect_timeout of 1 s as 2 s.
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
    """Return the error for callers, on one line, which says if the database is away, or reached and unable to work."""
    if isinstance(exc, BrokerUnavailable):
        return exc
    told = " ".join(str(exc).split())
    if isinstance(exc, psycopg.Error) and exc.sqlstate is not None:
        # Without detail and context: for an error within the batch function the latter is its whole text.
        return BrokerUnavailable(f"the Notify database cannot work now: {exc.diag.message_primary or told}")
    return BrokerUnavailable(f"the Notify database is away: {told}")
