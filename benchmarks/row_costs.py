"""Cost of the fence row and the inbox row for an application, by driver: CPU and round trips, beside its own row.

Four transactions take turns on one connection of a pool: with one insert; with a second one of the same kind, as of an
outbox table of one's own; with one insert in the local transaction of `@transactional_message`, behind the fence row;
with one in a handler under `@idempotent`, behind the inbox row. No broker is involved. CPU is that of this process, in
the turn that took least: other work on the machine adds to it, and never takes away. Round trips are counted by a relay
between driver and server: how often the client waits for the server, for one transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiomysql
import aiosqlite
import asyncpg
import psycopg
import pymysql
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from txmsg.checker.connections.opening import driver_of, driver_of_async
from txmsg.checker.fence import AsyncFence, Fence
from txmsg.checker.tables import create_tables
from txmsg.client.flows.flow import LocalTransaction
from txmsg.client.flows.flow_async import AsyncLocalTransaction
from txmsg.client.receiving.idempotent import idempotent
from txmsg.message import ReceivedMessage, new_transaction_id, new_transaction_id_bytes

BARE: Final = "bare"
OWN_ROW: Final = "own second row"
FENCE: Final = "fence row"
INBOX: Final = "inbox row"
KINDS: Final = (BARE, OWN_ROW, FENCE, INBOX)
TURNS: Final = 40
_WARM_UP: Final = 15
_COUNTED: Final = 10
ITEM: Final = "x" * 100
_TABLES: Final = {
    "postgresql": "create table {0} (id bigint generated always as identity primary key, item text not null)",
    "mysql": "create table {0} (id bigint auto_increment primary key, item text not null) engine=innodb",
    "sqlite": "create table {0} (id integer primary key, item text not null)",
}
_ORDER = text("insert into bench_orders (item) values (:item)")
_OUTBOX = text("insert into bench_outbox (item) values (:item)")
DRIVERS: Final = {
    "postgresql": ("psycopg", "psycopg2", "psycopg_async", "asyncpg"),
    "mysql": ("pymysql", "aiomysql"),
    "sqlite": ("pysqlite", "aiosqlite"),
}
"""Names of drivers in SQLAlchemy's URLs."""
ALONE: Final = {
    "postgresql": ("psycopg", "psycopg_async", "asyncpg"),
    "mysql": ("pymysql", "aiomysql"),
    "sqlite": ("sqlite3", "aiosqlite"),
}
_ASYNC: Final = ("psycopg_async", "asyncpg", "aiomysql", "aiosqlite")

Work = Callable[[], object]
AsyncWork = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one transaction. added_us, added_round_trips: beyond the bare one."""

    driver: str
    kind: str
    cpu_us: float
    round_trips: int | None
    """None: there is no server."""
    added_us: float
    added_round_trips: int | None


class Relay:
    """A relay between a driver and the unix socket of a server: counts round trips of a client."""

    def __init__(self, directory: Path, upstream: str) -> None:
        self.turns = 0
        self.path = str(directory / Path(upstream).name)
        self._upstream = upstream
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        self._server.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._server.close()
        os.unlink(self.path)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
            server.connect(self._upstream)
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            hears = True
            while True:
                # The server's first: what a client sends after it has read a reply comes later than the reply.
                ready = sorted(selector.select(), key=lambda each: each[0].fileobj is client)
                for key, _ in ready:
                    from_client = key.fileobj is client
                    try:
                        data = client.recv(65536) if from_client else server.recv(65536)
                    except OSError:
                        return
                    if not data:
                        return
                    if from_client and hears:
                        self.turns += 1
                    hears = not from_client
                    key.data.sendall(data)


def next_message() -> ReceivedMessage:
    """Return another message, as a handler gets it."""
    return ReceivedMessage("bench", b"{}", id_bytes=new_transaction_id_bytes())


# ---- SQLAlchemy


def works_of(maker: sessionmaker[Session], fence: Fence) -> Mapping[str, Work]:
    """Return each kind of transaction, in a session."""

    def insert_order(session: Session) -> None:
        session.execute(_ORDER, {"item": ITEM})

    def bare() -> None:
        with maker() as session:
            insert_order(session)
            session.commit()

    def own_row() -> None:
        with maker() as session:
            insert_order(session)
            session.execute(_OUTBOX, {"item": ITEM})
            session.commit()

    @idempotent(maker, group="bench")
    def handle(session: Session, _: ReceivedMessage) -> None:
        insert_order(session)

    return {
        BARE: bare,
        OWN_ROW: own_row,
        FENCE: lambda: LocalTransaction(fence, new_transaction_id(), "bench").run(maker, insert_order),
        INBOX: lambda: handle(next_message()),
    }


def async_works_of(maker: async_sessionmaker[AsyncSession], fence: AsyncFence) -> Mapping[str, AsyncWork]:
    """Return the same in an AsyncSession."""

    async def insert_order(session: AsyncSession) -> None:
        await session.execute(_ORDER, {"item": ITEM})

    async def bare() -> None:
        async with maker() as session:
            await insert_order(session)
            await session.commit()

    async def own_row() -> None:
        async with maker() as session:
            await insert_order(session)
            await session.execute(_OUTBOX, {"item": ITEM})
            await session.commit()

    @idempotent(maker, group="bench")
    async def handle(session: AsyncSession, _: ReceivedMessage) -> None:
        await insert_order(session)

    return {
        BARE: bare,
        OWN_ROW: own_row,
        FENCE: lambda: AsyncLocalTransaction(fence, new_transaction_id(), "bench").run(maker, insert_order),
        INBOX: lambda: handle(next_message()),
    }


# ---- drivers alone: one connection, given as a pool would


def driver_works_of(connection: Any, fence: Fence, mark: str) -> Mapping[str, Work]:
    """Return each kind on a connection of psycopg, sqlite3 or PyMySQL. mark: of a parameter."""
    driver = driver_of(connection)
    assert driver is not None
    order, outbox = (f"insert into {table} (item) values ({mark})" for table in ("bench_orders", "bench_outbox"))

    @contextmanager
    def give() -> Iterator[Any]:
        yield connection

    def insert(connection: Any, sql: str = order) -> None:
        connection.cursor().execute(sql, (ITEM,))

    def bare() -> None:
        with driver.transaction(connection):
            insert(connection)

    def own_row() -> None:
        with driver.transaction(connection):
            insert(connection)
            insert(connection, outbox)

    @idempotent(give, group="bench")
    def handle(connection: Any, _: ReceivedMessage) -> None:
        insert(connection)

    return {
        BARE: bare,
        OWN_ROW: own_row,
        FENCE: lambda: LocalTransaction(fence, new_transaction_id(), "bench").run(give, insert),
        INBOX: lambda: handle(next_message()),
    }


def async_driver_works_of(connection: Any, fence: AsyncFence, mark: str) -> Mapping[str, AsyncWork]:
    """Return the same for psycopg, asyncpg, aiosqlite or aiomysql."""
    driver = driver_of_async(connection)
    assert driver is not None
    order, outbox = (f"insert into {table} (item) values ({mark})" for table in ("bench_orders", "bench_outbox"))

    @asynccontextmanager
    async def give() -> AsyncIterator[Any]:
        yield connection

    async def insert(connection: Any, sql: str = order) -> None:
        if hasattr(connection, "fetchrow"):  # asyncpg
            await connection.execute(sql, ITEM)
        elif hasattr(connection, "execute"):
            await connection.execute(sql, (ITEM,))
        else:
            async with connection.cursor() as cursor:
                await cursor.execute(sql, (ITEM,))

    async def bare() -> None:
        async with driver.transaction(connection):
            await insert(connection)

    async def own_row() -> None:
        async with driver.transaction(connection):
            await insert(connection)
            await insert(connection, outbox)

    @idempotent(give, group="bench")
    async def handle(connection: Any, _: ReceivedMessage) -> None:
        await insert(connection)

    return {
        BARE: bare,
        OWN_ROW: own_row,
        FENCE: lambda: AsyncLocalTransaction(fence, new_transaction_id(), "bench").run(give, insert),
        INBOX: lambda: handle(next_message()),
    }


# ---- measuring

Found = dict[str, tuple[float, int | None]]
"""CPU in us and round trips, by the kind of transaction."""


async def measure(works: Mapping[str, Work | AsyncWork], turns: Callable[[], int] | None, calls: int) -> Found:
    """Return the cost of each kind. turns: round trips counted by a relay in this process, whose CPU is left out."""

    async def repeat(work: Work | AsyncWork, times: int) -> None:
        for _ in range(times):
            done = work()
            if done is not None:
                await done  # type: ignore[misc]

    for work in works.values():
        await repeat(work, _WARM_UP)
    if turns is not None:
        counted: Found = {}
        for kind, work in works.items():
            before = turns()
            await repeat(work, _COUNTED)
            counted[kind] = 0.0, round((turns() - before) / _COUNTED)
        return counted
    taken: dict[str, list[float]] = {kind: [] for kind in works}
    for _ in range(TURNS):
        for kind, work in works.items():
            began_s = time.process_time()
            await repeat(work, calls)
            taken[kind].append((time.process_time() - began_s) / calls * 1e6)
    return {kind: (min(each), None) for kind, each in taken.items()}


def costs_of(url: URL, calls: int, directory: Path) -> list[Cost]:
    """Return the costs of all drivers of a database, which gets tables. Counts round trips on unix sockets only."""
    dialect = url.get_backend_name().replace("mariadb", "mysql")
    url = url.set(drivername=dialect)
    engine = create_engine(_by(DRIVERS[dialect][0], url))
    with engine.begin() as connection:
        for table in ("bench_orders", "bench_outbox"):
            connection.execute(text(f"drop table if exists {table}"))
            connection.execute(text(_TABLES[dialect].format(table)))
    create_tables(engine)
    engine.dispose()
    costs = []
    for is_alone, drivers in ((False, DRIVERS[dialect]), (True, ALONE[dialect])):
        for driver in drivers:
            if driver == "psycopg2" and find_spec(driver) is None:
                continue  # no test needs it
            opened = _opened_alone if is_alone else _opened
            found = asyncio.run(_measured(opened, driver, url, None, calls))
            upstream = _socket_of(url)
            if upstream is not None:
                with Relay(directory, upstream) as relay:
                    through = asyncio.run(_measured(opened, driver, _through(url, relay), lambda: relay.turns, calls))
                found = {kind: (cpu, through[kind][1]) for kind, (cpu, _) in found.items()}
            costs += _compared(driver + (" alone" if is_alone else ", session"), found)
    return costs


def _compared(driver: str, found: Mapping[str, tuple[float, int | None]]) -> list[Cost]:
    bare_us, bare_trips = found[BARE]
    return [
        Cost(
            driver=driver,
            kind=kind,
            cpu_us=round(cpu_us, 1),
            round_trips=trips,
            added_us=round(cpu_us - bare_us, 1),
            added_round_trips=None if trips is None or bare_trips is None else trips - bare_trips,
        )
        for kind, (cpu_us, trips) in found.items()
    ]


async def _measured(opened: Any, driver: str, url: URL, turns: Callable[[], int] | None, calls: int) -> Found:
    async with AsyncExitStack() as stack:
        return await measure(await opened(driver, url, stack), turns, calls)


async def _opened(driver: str, url: URL, stack: AsyncExitStack) -> Mapping[str, Work | AsyncWork]:
    if driver in _ASYNC:
        async_engine = create_async_engine(_by(driver, url), **_POOL)
        stack.push_async_callback(async_engine.dispose)
        return async_works_of(async_sessionmaker(async_engine), AsyncFence(async_engine))
    engine = create_engine(_by(driver, url), **_POOL)
    stack.callback(engine.dispose)
    return works_of(sessionmaker(engine), Fence(engine))


async def _opened_alone(driver: str, url: URL, stack: AsyncExitStack) -> Mapping[str, Work | AsyncWork]:
    by_socket: dict[str, Any] = {"user": url.username, **url.query}  # of MySQL's drivers
    engine = create_engine(_by(DRIVERS[url.get_backend_name()][0], url))
    stack.callback(engine.dispose)
    connection: Any
    match driver:
        case "psycopg" | "psycopg_async":
            conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
            if driver == "psycopg":
                connection = psycopg.connect(conninfo, autocommit=True)
                stack.callback(connection.close)
                return driver_works_of(connection, Fence(engine), "%s")
            connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        case "asyncpg":
            connection = await asyncpg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
        case "pymysql":
            connection = pymysql.connect(database=url.database, **by_socket)
            stack.callback(connection.close)
            return driver_works_of(connection, Fence(engine), "%s")
        case "aiomysql":
            connection = await aiomysql.connect(db=url.database, **by_socket)
            stack.callback(connection.close)
            return async_driver_works_of(connection, AsyncFence(engine), "%s")
        case "sqlite3":
            connection = sqlite3.connect(str(url.database), isolation_level=None)
            stack.callback(connection.close)
            return driver_works_of(connection, Fence(engine), "?")
        case _:
            connection = await aiosqlite.connect(str(url.database), isolation_level=None)
    stack.push_async_callback(connection.close)
    return async_driver_works_of(connection, AsyncFence(engine), _MARKS[driver])


_MARKS: Final = {"psycopg_async": "%s", "asyncpg": "$1", "aiosqlite": "?"}
_POOL: Final[dict[str, Any]] = {"pool_size": 1, "max_overflow": 0}


def _by(driver: str, url: URL) -> URL:
    return url.set(drivername=f"{url.get_backend_name()}+{driver}")


def _socket_of(url: URL) -> str | None:
    if "unix_socket" in url.query:
        return str(url.query["unix_socket"])
    if "host" in url.query:
        return f"{url.query['host']}/.s.PGSQL.{url.port or url.query.get('port', 5432)}"
    return None


def _through(url: URL, relay: Relay) -> URL:
    if "unix_socket" in url.query:
        return url.update_query_dict({"unix_socket": relay.path})
    return url.update_query_dict({"host": str(Path(relay.path).parent)})
