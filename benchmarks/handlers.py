"""The cost of a handler that writes one row in the inbox's transaction, beside a transaction of its own.

Claim (docs/performance.md): `@idempotent`, and a handler of an application that also sends in that transaction, against
the same handler with a session of its own, and against one without a database. 16 handlers at once, on threads
(psycopg) and as tasks (psycopg, asyncpg). For each kind so many messages wait at the broker before its consumer starts;
all kinds take turns. CPU is that of this process. Rows, and messages sent on, are counted afterwards: if they differ
from the messages handled, the exit status is 1.

    python -m benchmarks.handlers [--quick] [--json]
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.surroundings import broker_process, fresh_database, parser_of, private_server, progress_of
from txmsg import Message, Producer, ReceivedMessage, Start, Transaction, Txmsg, create_tables, idempotent

AT_ONCE = 16
TURNS = 3
REFERENCE = "own transaction"
SENDING = "idempotent, and sends on"
LISTS = "idempotent, lists of 50"
WRITING = (REFERENCE, "idempotent", LISTS, SENDING)
KINDS = ("no database", *WRITING)
_BATCH = 500
_LIST = 50
_WAIT_S_MAX = 300.0
_NEXT = "bench.next"
_ROW = text("insert into handled (kind) values (:kind)")

Handler = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Place:
    """The surroundings of handlers, and the messages that wait for each. database: an Engine or AsyncEngine."""

    broker: str
    database: Any
    count: int


@dataclass(slots=True)
class Taken:
    """The time of the turns of one kind."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One kind of handlers. cpu_us: of the application, for each message. ratio: of rates, to the own transaction."""

    handlers: str
    kind: str
    messages: int
    rate_per_s: float
    cpu_us: float
    ratio: float


@dataclass(slots=True)
class Countdown:
    """Is over when so many messages have been handled. They end on many threads."""

    left: int
    over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def one(self) -> None:
        with self._lock:
            self.left -= 1
            if self.left == 0:
                self.over.set()


def handlers_of(maker: sessionmaker[Session]) -> Mapping[str, Handler]:
    """Each kind, on threads."""

    def nothing(message: ReceivedMessage) -> None: ...

    def own(message: ReceivedMessage) -> None:
        with maker() as session:
            session.execute(_ROW, {"kind": REFERENCE})
            session.commit()

    @idempotent(maker)
    def once(session: Session, message: ReceivedMessage) -> None:
        session.execute(_ROW, {"kind": "idempotent"})

    @idempotent(maker)
    def together(session: Session, messages: list[ReceivedMessage]) -> None:
        session.execute(_ROW, [{"kind": LISTS} for _ in messages])

    def on(message: ReceivedMessage, session: Session, tx: Transaction) -> None:
        session.execute(_ROW, {"kind": SENDING})
        tx.send(Message(_NEXT, message.body))

    return dict(zip(KINDS, (nothing, own, once, together, on), strict=True))


def async_handlers_of(maker: async_sessionmaker[AsyncSession]) -> Mapping[str, Handler]:
    """Each kind, as tasks."""

    async def nothing(message: ReceivedMessage) -> None: ...

    async def own(message: ReceivedMessage) -> None:
        async with maker() as session:
            await session.execute(_ROW, {"kind": REFERENCE})
            await session.commit()

    @idempotent(maker)
    async def once(session: AsyncSession, message: ReceivedMessage) -> None:
        await session.execute(_ROW, {"kind": "idempotent"})

    @idempotent(maker)
    async def together(session: AsyncSession, messages: list[ReceivedMessage]) -> None:
        await session.execute(_ROW, [{"kind": LISTS} for _ in messages])

    async def on(message: ReceivedMessage, session: AsyncSession, tx: Transaction) -> None:
        await session.execute(_ROW, {"kind": SENDING})
        tx.send(Message(_NEXT, message.body))

    return dict(zip(KINDS, (nothing, own, once, together, on), strict=True))


def fill(broker: str, topic: str, count: int) -> None:
    """So many messages, which wait."""
    with Producer(broker, group="bench-fill") as producer:
        for n in range(0, count, _BATCH):
            producer.send_many([Message(topic, b"%d" % n) for n in range(n, min(n + _BATCH, count))])


def take_turn(place: Place, kind: str, handler: Handler, topic: str, into: Taken) -> None:
    """One application with one handler, from its start until it has handled what waits."""
    fill(place.broker, topic, place.count)
    countdown = Countdown(place.count)
    app = Txmsg(place.broker, group=topic, database=place.database)
    batch = _LIST if kind == LISTS else None
    at_once = AT_ONCE if batch is None else 2
    app.subscribe(topic, group=topic, concurrency=at_once, batch=batch, start=Start.earliest())(handler)

    @app.middleware
    @contextmanager
    def counted(message: ReceivedMessage) -> Iterator[None]:
        yield
        countdown.one()

    began, cpu = time.perf_counter(), time.process_time()
    with app:
        if not countdown.over.wait(_WAIT_S_MAX):
            raise TimeoutError(f"{countdown.left} of {place.count} messages were not handled within {_WAIT_S_MAX:g} s")
        into.seconds += time.perf_counter() - began
        into.cpu_s += time.process_time() - cpu
    into.messages += place.count


def main() -> int:
    """Measures, prints, and counts what is in the tables."""
    parser = parser_of(__doc__, "500 messages a turn")
    parser.add_argument("--messages", type=int, help="of each kind in a turn (default: 3000; quick: 500)")
    options = parser.parse_args()
    count = options.messages or (500 if options.quick else 3000)
    figures: list[Figure] = []
    with (
        private_server() as server,
        broker_process(notify := fresh_database(server, "bench")) as broker,
        progress_of("handlers", 3 * TURNS * len(KINDS)) as step,
    ):
        business = server.create_database("business")

        def url(driver: str) -> str:
            return business.replace("postgresql:", f"postgresql+{driver}:")

        with psycopg.connect(business, autocommit=True) as connection:
            connection.execute("create table handled (id bigint generated always as identity, kind text)")
        engine = create_engine(url("psycopg"), pool_size=AT_ONCE)
        create_tables(engine)
        cases: list[tuple[str, Any, Mapping[str, Handler]]] = [
            ("threads (psycopg)", engine, handlers_of(sessionmaker(engine)))
        ]
        for driver in ("psycopg", "asyncpg"):
            async_engine = create_async_engine(url(driver), pool_size=AT_ONCE)
            cases.append((f"tasks ({driver})", async_engine, async_handlers_of(async_sessionmaker(async_engine))))
        for name, database, handlers in cases:
            taken = {kind: Taken() for kind in KINDS}
            for turn in range(TURNS):
                for place, (kind, handler) in enumerate(handlers.items()):
                    topic = f"bench.{len(figures)}.{turn}.{place}"
                    take_turn(Place(broker.address, database, count), kind, handler, topic, taken[kind])
                    step()
            own = taken[REFERENCE].messages / taken[REFERENCE].seconds
            figures += [
                Figure(
                    handlers=name,
                    kind=kind,
                    messages=of.messages,
                    rate_per_s=round(of.messages / of.seconds, 1),
                    cpu_us=round(of.cpu_s / of.messages * 1e6, 1),
                    ratio=round(of.messages / of.seconds / own, 3),
                )
                for kind, of in taken.items()
            ]
        engine.dispose()
        if not is_exact(business, notify, len(cases) * TURNS * count):
            return 1
    for figure in figures:
        print(
            f"{figure.handlers:18} {figure.kind:25} {figure.rate_per_s:8,.0f}/s  CPU {figure.cpu_us:6,.0f} us  of an"
            f" own transaction {figure.ratio:5.2f}"
        )
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures]))
    return 0


def is_exact(business: str, notify: str, expected: int) -> bool:
    """Return True if each kind that writes has as many rows as messages, and each message that was sent on is there."""
    with psycopg.connect(business) as connection:
        rows: dict[str, int] = dict(connection.execute("select kind, count(*) from handled group by kind").fetchall())
    with psycopg.connect(notify) as connection:
        sent = connection.execute(
            "select count(*) from txmsg.message join txmsg.queue on queue.id = message.queue"
            " join txmsg.topic on topic.id = queue.topic_id where topic.name = %s",
            (_NEXT,),
        ).fetchone()
    found = {**rows, "sent on": sent[0] if sent else 0}
    wanted = {**dict.fromkeys(WRITING, expected), "sent on": expected}
    if found != wanted:
        print(f"found {found}, expected {wanted}", file=sys.stderr)
    return found == wanted


if __name__ == "__main__":
    sys.exit(main())
