"""Cost of the fence: a business transaction that inserts one order, with its fence row and without.

Claim (docs/performance.md): the row costs one more statement and no more commits. Both kinds take turns of a tenth of
the time each, on the same connections, so what else the machine does hits both; the ratio is what to read. The rows
found in the tables afterwards must equal the number claimed, or the exit status is 1.

Then, for each driver: what the fence row and the inbox row add to a transaction, in CPU and in round trips, beside a
second row of the same kind (row_costs.py).

    python -m benchmarks.fence [--quick] [--json] [--costs] [--database URL]
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, event, func, insert, select
from sqlalchemy.orm import Session

from benchmarks.row_costs import Cost, costs_of
from benchmarks.surroundings import parser_of, progress_of
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.checker.fence import Fence
from txmsg.checker.tables import create_tables, fence_table
from txmsg.message import new_transaction_id

CALLERS = (1, 8)
TURNS = 10  # of each kind
COST_CALLS, COST_CALLS_QUICK = 25, 5  # of each kind in each of many turns
ITEM = "x" * 200

orders = Table(
    "txmsg_bench_orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("item", String(200), nullable=False),
)


@dataclass(slots=True, kw_only=True)
class Kind:
    """Transactions of one kind, over all their turns."""

    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def rate_per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def quantile_ms(self, percent: int) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[len(ordered) * percent // 100] * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One comparison. Latency is that of the whole transaction for its caller."""

    database: str
    callers: int
    plain_per_s: float
    plain_p50_ms: float
    fenced_per_s: float
    fenced_p50_ms: float
    fenced_p99_ms: float
    ratio: float
    """Ratio of the rates: 1.0 for a fence without cost."""
    p50_cost_ms: float
    plain: int
    fenced: int
    """Number of transactions."""


def place_order(engine: Engine, fence: Fence | None) -> None:
    """Run the measured transaction."""
    with Session(engine) as session:
        if fence is not None:
            fence.write(session, new_transaction_id())
        session.execute(insert(orders).values(item=ITEM))
        session.commit()


def compare(engine: Engine, callers: int, seconds: float) -> Figure:
    """Run both kinds in turns, on so many threads."""
    fence = Fence(engine)
    plain, fenced = Kind(), Kind()
    for _ in range(TURNS):
        for kind, work in ((plain, lambda: place_order(engine, None)), (fenced, lambda: place_order(engine, fence))):
            _take_turn(kind, work, callers, seconds / (2 * TURNS))
    return Figure(
        database=engine.dialect.name,
        callers=callers,
        plain_per_s=round(plain.rate_per_s, 1),
        plain_p50_ms=round(plain.quantile_ms(50), 3),
        fenced_per_s=round(fenced.rate_per_s, 1),
        fenced_p50_ms=round(fenced.quantile_ms(50), 3),
        fenced_p99_ms=round(fenced.quantile_ms(99), 3),
        ratio=round(fenced.rate_per_s / plain.rate_per_s, 3),
        p50_cost_ms=round((median(fenced.latencies_s) - median(plain.latencies_s)) * 1000, 3),
        plain=len(plain.latencies_s),
        fenced=len(fenced.latencies_s),
    )


def _take_turn(kind: Kind, work: Callable[[], None], callers: int, seconds: float) -> None:
    def call(until: float) -> None:
        while (start := time.perf_counter()) < until:
            work()
            kind.latencies_s.append(time.perf_counter() - start)

    began = time.perf_counter()
    threads = [threading.Thread(target=call, args=(began + seconds,)) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kind.seconds += time.perf_counter() - began


@contextmanager
def databases(url: str | None) -> Iterator[list[Engine]]:
    """Return the given databases, or a fresh embedded PostgreSQL and a fresh SQLite file."""
    if url is not None:
        engines = [_prepared(url)]
        yield engines
        orders.drop(engines[0])
        engines[0].dispose()
        return
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
        with EmbeddedPostgres(Path(directory) / "postgres") as server:
            postgres = server.create_database("bench").replace("postgresql:", "postgresql+psycopg:")
            engines = [_prepared(postgres), _prepared(f"sqlite:///{directory}/bench.db")]
            yield engines
            for engine in engines:
                engine.dispose()


def _prepared(url: str) -> Engine:
    engine = create_engine(url, pool_size=max(CALLERS), connect_args={"timeout": 60} if "sqlite" in url else {})
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _record: connection.execute("pragma journal_mode = wal"))
    orders.metadata.drop_all(engine)
    orders.metadata.create_all(engine)
    create_tables(engine)
    return engine


def count(engine: Engine, table: Table) -> int:
    """Return the number of committed rows."""
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar_one()


def main() -> int:
    """Measure, print, and compare with the rows in the tables."""
    parser = parser_of(__doc__, "four seconds per figure")
    parser.add_argument("--costs", action="store_true", help="only what the rows cost by driver")
    parser.add_argument("--database", help="a business database of your own, as SQLAlchemy names it (MariaDB, say)")
    options = parser.parse_args()
    seconds = 4.0 if options.quick else 16.0
    figures: list[Figure] = []
    costs: list[Cost] = []
    wrong = []
    with databases(options.database) as engines, progress_of("fence", len(engines) * len(CALLERS)) as step:
        for engine in engines:
            if options.costs:
                break
            fence_rows_before = count(engine, fence_table)
            own = [compare(engine, max(CALLERS), 0.5)]  # connects, and warms caches; counted by its rows only
            for callers in CALLERS:
                own.append(compare(engine, callers, seconds))
                step()
            claimed = sum(each.plain + each.fenced for each in own), sum(each.fenced for each in own)
            rows = count(engine, orders), count(engine, fence_table) - fence_rows_before
            if rows != claimed:
                wrong.append(f"{engine.dialect.name}: orders and fence rows {rows}, claimed {claimed}")
            figures += own[1:]
        for engine in engines:
            with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as directory:
                costs += costs_of(engine.url, COST_CALLS_QUICK if options.quick else COST_CALLS, Path(directory))
    for each in figures:
        print(
            f"{each.database:10} {each.callers:2d} callers: "
            f"plain {each.plain_per_s:8,.0f}/s p50 {each.plain_p50_ms:6.2f} ms   "
            f"fenced {each.fenced_per_s:8,.0f}/s p50 {each.fenced_p50_ms:6.2f} ms   ratio {each.ratio:.3f}"
        )
    for cost in costs:
        trips = "" if cost.round_trips is None else f"{cost.round_trips} round trips (+{cost.added_round_trips})"
        print(f"{cost.driver:22} {cost.kind:14} {cost.cpu_us:7.1f} us (+{cost.added_us:5.1f})   {trips}")
    if options.json:
        print(json.dumps({"figures": [asdict(each) for each in figures], "costs": [asdict(each) for each in costs]}))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
