"""The cost of a decorated call beside the same transaction without a message, and beside an outbox row of one's own.

Claim (docs/performance.md): the main job, `@transactional_message` around a function that inserts one order, against
the transaction alone; with a row in an outbox table in the same transaction; with that row and a process that relays
the rows to the broker (until the last one is there, which the rate includes); and the late flow. By a thread that
pauses between its calls, of which the rate says nothing, by threads with psycopg, by tasks with psycopg and asyncpg,
and by processes of tasks with psycopg, each making one call after the other. All kinds take turns, so what else the
machine does hits all of them; the ratios are what to read. CPU is that of the application, without the relay's. Orders,
outbox rows and messages are counted afterwards: if they are fewer than the calls, the exit status is 1.

    python -m benchmarks.decorated [--quick] [--json]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from statistics import median
from typing import Any

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.surroundings import broker_process, fresh_database, parser_of, private_server, progress_of
from txmsg import AsyncProducer, FenceCheckListener, Message, Producer, create_tables, transactional_message

TOPIC = "bench.decorated"
THREADS = (1, 4, 16)
PAUSE_S = 0.005
"""Between the calls of a service with little to do: what goes on after a call does not delay the next one."""
TASKS = {"psycopg": (1, 16, 64), "asyncpg": (16,)}
PROCESSES = 4
TASKS_OF_PROCESSES = (1, 16)
TURNS = 4
REFERENCE = "outbox row"
RELAYED = "outbox row, relayed"
KINDS = ("bare", REFERENCE, RELAYED, "decorated", "alongside", "late flow")
_MESSAGES = ("decorated", "alongside", "late flow")
_RELAY_ROWS = 500
_RELAY_PAUSE_S = 0.01
_DRAIN_S_MAX = 60.0

_TABLES = """
create table orders (id bigint generated always as identity primary key, item text not null);
create table outbox (id bigint generated always as identity primary key, body bytea not null)
"""
_ORDER = text("insert into orders (item) values (:item)")
_OUTBOX = text("insert into outbox (body) values (:body)")
ITEM = "x" * 100
BODY = b'{"item": "' + ITEM.encode() + b'"}'

Work = Callable[[], object]
AsyncWork = Callable[[], Awaitable[object]]
Turn = Callable[[str, float, "Taken"], None]
"""Lets all callers make calls of this kind, one after the other, for so many seconds."""


@dataclass(slots=True)
class Taken:
    """The time of the turns of one kind."""

    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One kind of calls by so many callers. cpu_us: of the application, for each call."""

    callers: str
    kind: str
    calls: int
    rate_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    rate_ratio: float
    """To the outbox row of the same callers."""
    p50_ratio: float


@dataclass(frozen=True, slots=True)
class Place:
    """The databases and the broker of a run."""

    database: str
    broker: str

    def url(self, driver: str) -> str:
        return self.database.replace("postgresql:", f"postgresql+{driver}:")

    def count(self, table: str) -> int:
        with psycopg.connect(self.database) as connection:
            row = connection.execute(f"select count(*) from {table}").fetchone()
        assert row is not None
        return int(row[0])


# ---- the relay of the reference


def relay(database: str, broker: str, ready: Event, stop: Event) -> None:
    """Sends what is in the outbox table, and deletes it. Runs in a process of its own until it is told to stop."""
    with psycopg.connect(database) as connection, Producer(broker, group="bench-relay") as producer:
        ready.set()
        while not stop.is_set():
            with connection.transaction():
                rows = connection.execute(
                    "delete from outbox where id in (select id from outbox order by id limit %s for update skip locked)"
                    " returning body",
                    (_RELAY_ROWS,),
                ).fetchall()
                producer.send_many([Message(TOPIC, bytes(body)) for (body,) in rows])
            if not rows:
                stop.wait(_RELAY_PAUSE_S)


@contextmanager
def relaying(place: Place) -> Iterator[None]:
    """A relay that runs beside the block."""
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=relay, args=(place.database, place.broker, ready, stop), daemon=True)
    process.start()
    try:
        if not ready.wait(_DRAIN_S_MAX):
            raise TimeoutError(f"the relay did not start within {_DRAIN_S_MAX:g} s")
        yield
    finally:
        stop.set()
        process.join(10)
        process.kill()


# ---- what is measured


def works_of(producer: Producer, maker: sessionmaker[Session]) -> Mapping[str, Work]:
    """Each kind of call, for threads."""

    def bare() -> None:
        with maker() as session:
            session.execute(_ORDER, {"item": ITEM})
            session.commit()

    def outbox_row() -> None:
        with maker() as session:
            session.execute(_ORDER, {"item": ITEM})
            session.execute(_OUTBOX, {"body": BODY})
            session.commit()

    @transactional_message(producer, topic=TOPIC, session=maker)
    def place_order(session: Session, item: str) -> None:
        session.execute(_ORDER, {"item": item})

    @transactional_message(producer, topic=TOPIC, session=maker, half="alongside")
    def place_alongside(session: Session, item: str) -> None:
        session.execute(_ORDER, {"item": item})

    def late() -> None:
        with maker() as session, producer.transaction(session) as tx:
            session.execute(_ORDER, {"item": ITEM})
            tx.send(Message(TOPIC, BODY))

    return {
        "bare": bare,
        REFERENCE: outbox_row,
        RELAYED: outbox_row,
        "decorated": lambda: place_order(ITEM),
        "alongside": lambda: place_alongside(ITEM),
        "late flow": late,
    }


def async_works_of(producer: AsyncProducer, maker: async_sessionmaker[AsyncSession]) -> Mapping[str, AsyncWork]:
    """Each kind of call, for tasks."""

    async def bare() -> None:
        async with maker() as session:
            await session.execute(_ORDER, {"item": ITEM})
            await session.commit()

    async def outbox_row() -> None:
        async with maker() as session:
            await session.execute(_ORDER, {"item": ITEM})
            await session.execute(_OUTBOX, {"body": BODY})
            await session.commit()

    @transactional_message(producer, topic=TOPIC, session=maker)
    async def place_order(session: AsyncSession, item: str) -> None:
        await session.execute(_ORDER, {"item": item})

    @transactional_message(producer, topic=TOPIC, session=maker, half="alongside")
    async def place_alongside(session: AsyncSession, item: str) -> None:
        await session.execute(_ORDER, {"item": item})

    async def late() -> None:
        async with maker() as session, producer.transaction(session) as tx:
            await session.execute(_ORDER, {"item": ITEM})
            tx.send(Message(TOPIC, BODY))

    return {
        "bare": bare,
        REFERENCE: outbox_row,
        RELAYED: outbox_row,
        "decorated": lambda: place_order(ITEM),
        "alongside": lambda: place_alongside(ITEM),
        "late flow": late,
    }


@contextmanager
def threads(place: Place, callers: int, pause_s: float = 0.0) -> Iterator[Turn]:
    """Callers that are threads. pause_s: before each call."""
    engine = create_engine(place.url("psycopg"), pool_size=callers)
    with Producer(place.broker, group="bench", check_listener=FenceCheckListener(engine)) as producer:
        works = works_of(producer, sessionmaker(engine))

        def turn(kind: str, seconds: float, into: Taken) -> None:
            def call(until: float) -> None:
                while time.perf_counter() < until:
                    if pause_s:  # even a sleep of 0 s would give way to other threads
                        time.sleep(pause_s)
                    start = time.perf_counter()
                    works[kind]()
                    into.latencies_s.append(time.perf_counter() - start)

            until = time.perf_counter() + seconds
            each = [threading.Thread(target=call, args=(until,)) for _ in range(callers)]
            for thread in each:
                thread.start()
            for thread in each:
                thread.join()

        yield turn
    engine.dispose()


@contextmanager
def tasks(place: Place, callers: int, driver: str) -> Iterator[Turn]:
    """Callers that are tasks."""
    engine = create_async_engine(place.url(driver), pool_size=callers)
    producer = AsyncProducer(place.broker, group="bench", check_listener=FenceCheckListener(engine))
    loop = asyncio.new_event_loop()  # it runs between turns, too, as that of a service does
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    run(producer.start())
    works = async_works_of(producer, async_sessionmaker(engine))

    async def turn(kind: str, seconds: float, into: Taken) -> None:
        async def call(until: float) -> None:
            while (start := time.perf_counter()) < until:
                await works[kind]()
                into.latencies_s.append(time.perf_counter() - start)

        until = time.perf_counter() + seconds
        await asyncio.gather(*(call(until) for _ in range(callers)))

    try:
        yield lambda kind, seconds, into: run(turn(kind, seconds, into))
    finally:
        run(producer.close())
        run(engine.dispose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def processes(place: Place, callers: int) -> Iterator[Turn]:
    """PROCESSES that have a producer, a pool and so many tasks each, as the processes of a service do."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for _ in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve_turns, args=(place, callers, theirs), daemon=True)
            process.start()
            theirs.close()  # or the end of the process would not be the end of what is read here
            stack.callback(process.join, _DRAIN_S_MAX)
            stack.callback(ours.send, None)
            pipes.append(ours)

        def turn(kind: str, seconds: float, into: Taken) -> None:
            for pipe in pipes:
                pipe.send((kind, seconds))
            for taken in [pipe.recv() for pipe in pipes]:
                into.latencies_s += taken.latencies_s
                into.cpu_s += taken.cpu_s

        yield turn


def serve_turns(place: Place, callers: int, pipe: Connection) -> None:
    """One of the processes: makes the turns that it is told, and says what they took."""
    with tasks(place, callers, "psycopg") as turn:
        for kind, seconds in iter(pipe.recv, None):
            taken, cpu = Taken(), time.process_time()
            turn(kind, seconds, taken)
            taken.cpu_s = time.process_time() - cpu
            pipe.send(taken)


CALLERS: Mapping[str, Callable[[Place], AbstractContextManager[Turn]]] = {
    "1 thread, pausing": partial(threads, callers=1, pause_s=PAUSE_S),
    **{f"{n} threads": partial(threads, callers=n) for n in THREADS},
    **{
        f"{n} tasks ({driver})": partial(tasks, callers=n, driver=driver)
        for driver, counts in TASKS.items()
        for n in counts
    },
    **{f"{PROCESSES} processes of {n} tasks (psycopg)": partial(processes, callers=n) for n in TASKS_OF_PROCESSES},
}


def wait_until_relayed(place: Place) -> None:
    """Returns when the outbox table is empty."""
    deadline = time.monotonic() + _DRAIN_S_MAX
    while place.count("outbox"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the relay did not empty the outbox table within {_DRAIN_S_MAX:g} s")
        time.sleep(_RELAY_PAUSE_S)


@contextmanager
def timed(kind: str, place: Place, taken: dict[str, Taken]) -> Iterator[Taken]:
    """One turn of a kind, until its messages are at the broker, as far as anything waits for that."""
    into = taken.setdefault(kind, Taken())
    if kind == RELAYED:  # what the turn before has left
        with psycopg.connect(place.database, autocommit=True) as connection:
            connection.execute("truncate outbox")
    with relaying(place) if kind == RELAYED else ExitStack():
        began, cpu = time.perf_counter(), time.process_time()
        yield into
        into.cpu_s += time.process_time() - cpu
        if kind == RELAYED:
            wait_until_relayed(place)
        into.seconds += time.perf_counter() - began


def compare(place: Place, callers: str, seconds: float, step: Callable[[], None]) -> list[Figure]:
    """All kinds by these callers."""
    taken: dict[str, Taken] = {}
    with CALLERS[callers](place) as turn:
        for kind in KINDS:  # fills pools and caches
            turn(kind, 0.2, Taken())
        for _ in range(TURNS):
            for kind in KINDS:
                with timed(kind, place, taken) as into:
                    turn(kind, seconds / TURNS, into)
                step()
    return figures(callers, taken)


def figures(callers: str, taken: Mapping[str, Taken]) -> list[Figure]:
    """Return the figures that are printed, with the ratios to the outbox row."""

    def rate(of: Taken) -> float:
        return len(of.latencies_s) / of.seconds

    reference = taken[REFERENCE]
    return [
        Figure(
            callers=callers,
            kind=kind,
            calls=len(of.latencies_s),
            rate_per_s=round(rate(of), 1),
            p50_ms=round(median(of.latencies_s) * 1000, 3),
            p99_ms=round(sorted(of.latencies_s)[len(of.latencies_s) * 99 // 100] * 1000, 3),
            cpu_us=round(of.cpu_s / len(of.latencies_s) * 1e6, 1),
            rate_ratio=round(rate(of) / rate(reference), 3),
            p50_ratio=round(median(of.latencies_s) / median(reference.latencies_s), 3),
        )
        for kind, of in taken.items()
    ]


def main() -> int:
    """Measures, prints, and counts what is in the tables."""
    parser = parser_of(__doc__, "one second per figure")
    parser.add_argument("--seconds", type=float, help="per figure (default: 6; quick: 1)")
    parser.add_argument("--callers", help='only these, such as "1 threads" or "processes"')
    options = parser.parse_args()
    seconds = options.seconds or (1.0 if options.quick else 6.0)
    cases = [callers for callers in CALLERS if (options.callers or "") in callers]
    found: list[Figure] = []
    with (
        private_server() as server,
        broker_process(notify := fresh_database(server, "bench")) as broker,
        progress_of("decorated", len(cases) * TURNS * len(KINDS)) as step,
    ):
        place = Place(server.create_database("business"), broker.address)
        with psycopg.connect(place.database, autocommit=True) as connection:
            connection.execute(_TABLES)
        engine = create_engine(place.url("psycopg"))
        create_tables(engine)
        engine.dispose()
        for callers in cases:
            with psycopg.connect(place.database, autocommit=True) as connection:
                connection.execute("truncate orders, outbox, txmsg_fence")
            messages = _messages(notify)
            figs = compare(place, callers, seconds, step)
            found += figs
            orders = sum(each.calls for each in figs)
            sent = sum(each.calls for each in figs if each.kind in (*_MESSAGES, RELAYED))
            if place.count("orders") < orders or _messages(notify) - messages < sent:
                print(f"{callers}: fewer orders or messages are stored than calls were made", file=sys.stderr)
                return 1
    for figure in found:
        print(
            f"{figure.callers:35} {figure.kind:20} {figure.rate_per_s:8,.0f}/s  p50 {figure.p50_ms:7.2f} ms  p99"
            f" {figure.p99_ms:7.2f} ms  CPU {figure.cpu_us:6,.0f} us  of an outbox row: rate {figure.rate_ratio:5.2f},"
            f" p50 {figure.p50_ratio:5.2f}"
        )
    if options.json:
        print(json.dumps([asdict(figure) for figure in found]))
    return 0


def _messages(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(*) from txmsg.message").fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    sys.exit(main())
