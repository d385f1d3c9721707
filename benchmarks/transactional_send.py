"""Transactional sends (half message, then commit) per second, beside the same function called directly.

Two references call the function on the same database in the same run: pgbench in batches of 200, beside 256 callers;
and psycopg with one message a call, beside one caller, who also sends plain messages. Everything runs on this machine:
callers, broker and PostgreSQL. The rows found in the tables afterwards must equal the number claimed, or the exit
status is 1.

    python -m benchmarks.transactional_send [--quick] [--json] [--storage URL]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

import psycopg

from benchmarks.load import run, send_alone, send_transactions
from benchmarks.surroundings import broker_process, notify_database, parser_of, pgbench_path, progress_of
from tests.batch_calls import apply_batch, write_batch
from txmsg.client import Producer
from txmsg.message import Message, TransactionState, new_transaction_id

TOPIC = "bench.send"
BODY = b"x" * 200
ASYNC_CALLERS = (1, 16, 64, 256, 1024)
SYNC_THREADS = (1, 16, 64)
PGBENCH_BATCH = 200
SETTINGS = ("server_version", "fsync", "synchronous_commit", "wal_level", "shared_buffers", "commit_delay")

_HALVES = apply_batch(
    segment=":segment",
    half_id=":ids::uuid[]",
    half_n=f"array_fill(0::int2, array[{PGBENCH_BATCH}])",
    half_queue=":queues::int[]",
    half_producer=f"array_fill(1, array[{PGBENCH_BATCH}])",
    half_body=f"array_fill('\\x{BODY.hex()}'::bytea, array[{PGBENCH_BATCH}])",
    half_born_at=f"array_fill(now(), array[{PGBENCH_BATCH}])",
)
PGBENCH_SCRIPT = f"""\
select array_agg(uuidv7()) as ids, array_agg(1 + i % 4) as queues from generate_series(1, {PGBENCH_BATCH}) i \\gset
select count(*) from {_HALVES};
select count(*) from {apply_batch(segment=":segment", commit=":ids::uuid[]")};
"""
"""Calls as the broker makes them: 200 halves, then their commits."""


_ALONE_TYPES = {"id": "uuid", "n": "int2", "queue": "int", "body": "bytea", "born_at": "timestamptz"}
_ALONE_COLUMNS = {f"{kind}_{name}": of for kind in ("half", "plain") for name, of in _ALONE_TYPES.items()}
_ALONE_COLUMNS |= {"half_producer": "int", "commit": "uuid"}
ALONE_STATEMENT = "call " + write_batch(
    segment="%(segment)s", **{name: f"%({name})s::{of}[]" for name, of in _ALONE_COLUMNS.items()}
)
_NOTHING: list[Any] = []
ALONE_SETTINGS = {"plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "jit": "off"}
"""Those of a broker's session that decide how the function is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement. Latency is half plus commit, as the caller waits for it."""

    callers: int
    rate_per_s: float
    p50_ms: float
    p99_ms: float
    sends: int


def figure(callers: int, latencies_s: list[float], seconds: float) -> Figure:
    """The rate and percentiles of one run."""
    ordered = sorted(latencies_s)
    return Figure(
        callers=callers,
        rate_per_s=round(len(ordered) / seconds, 1),
        p50_ms=round(median(ordered) * 1000, 3),
        p99_ms=round(ordered[len(ordered) * 99 // 100] * 1000, 3),
        sends=len(ordered),
    )


async def run_async(address: str, callers: int, seconds: float) -> Figure:
    """`callers` coroutines, each sending one transaction after the other."""
    began = time.perf_counter()
    latencies_s = await send_transactions(address, TOPIC, callers, seconds, len(BODY))
    return figure(callers, latencies_s, time.perf_counter() - began)


async def run_plain(address: str, seconds: float) -> Figure:
    """One coroutine that sends one plain message after the other."""
    began = time.perf_counter()
    latencies_s = await send_alone(address, TOPIC, seconds, len(BODY))
    return figure(1, latencies_s, time.perf_counter() - began)


def run_threads(address: str, threads: int, seconds: float) -> Figure:
    """`threads` threads sharing one synchronous producer."""
    latencies_s: list[float] = []
    with Producer(address, group="bench") as producer:

        def caller(until: float) -> None:
            while (start := time.perf_counter()) < until:
                half = producer.half([Message(TOPIC, BODY)])
                producer.end(half, TransactionState.COMMIT)
                latencies_s.append(time.perf_counter() - start)

        began = time.perf_counter()
        workers = [threading.Thread(target=caller, args=(began + seconds,)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - began
    return figure(threads, latencies_s, took)


def run_pgbench(url: str, seconds: float) -> tuple[float, int]:
    """Transactions per second and their number when pgbench calls the batch function itself, in batches of 200."""
    with psycopg.connect(url, autocommit=True) as connection:
        segment = connection.execute("select id from txmsg.segment where state = 'open'").fetchone()
        assert segment is not None
        before = count_messages(url)
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(PGBENCH_SCRIPT)
        script.flush()
        arguments = ["-n", "-c", "2", "-j", "1", "-M", "prepared", "-T", str(round(seconds)), "-f", script.name]
        began = time.perf_counter()
        subprocess.run(
            [pgbench_path(), *arguments, "-D", f"segment={segment[0]}", url],
            check=True,
            capture_output=True,
            timeout=seconds + 60,
        )
        took = time.perf_counter() - began
    done = count_messages(url) - before
    return done / took, done


def run_psycopg(url: str, seconds: float) -> tuple[Figure, Figure]:
    """One caller of the function without broker and wire: half, then commit; and plain messages. Half the time each."""
    none: dict[str, list[Any]] = dict.fromkeys(_ALONE_COLUMNS, _NOTHING)
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in ALONE_SETTINGS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        segment = connection.execute("select id from txmsg.segment where state = 'open'").fetchone()
        assert segment is not None
        queues = [queue for (queue,) in connection.execute("select id from txmsg.queue order by id")]
        producer = connection.execute("select min(id) from txmsg.producer").fetchone()
        assert producer is not None

        def write(**columns: list[Any]) -> None:
            values: dict[str, Any] = {**none, **columns, "segment": segment[0]}
            connection.execute(ALONE_STATEMENT, values, prepare=True, binary=True)

        def message(kind: str) -> dict[str, list[Any]]:
            now = datetime.now(UTC)
            queue = queues[now.microsecond % len(queues)]
            columns: dict[str, list[Any]] = {
                "_id": [new_transaction_id()],
                "_n": [0],
                "_queue": [queue],
                "_body": [BODY],
                "_born_at": [now],
            }
            return {kind + name: column for name, column in columns.items()}

        def transaction() -> None:
            half = message("half")
            write(**half, half_producer=[producer[0]])
            write(commit=half["half_id"])

        return _alone(transaction, seconds / 2), _alone(lambda: write(**message("plain")), seconds / 2)


def _alone(work: Callable[[], None], seconds: float) -> Figure:
    latencies_s: list[float] = []
    began = time.perf_counter()
    while (start := time.perf_counter()) < began + seconds:
        work()
        latencies_s.append(time.perf_counter() - start)
    return figure(1, latencies_s, time.perf_counter() - began)


def count_messages(url: str) -> int:
    """The committed rows in the tables."""
    with psycopg.connect(url) as connection:
        row = connection.execute("select count(*) from txmsg.message").fetchone()
    assert row is not None
    return int(row[0])


def main() -> int:
    """Measures, prints, and compares with what is in the tables."""
    parser = parser_of(__doc__, "two seconds per figure")
    parser.add_argument("--seconds", type=float, help="per figure (default: 8; quick: 2)")
    parser.add_argument("--storage", help="a Notify database of your own; default: a fresh embedded one")
    options = parser.parse_args()
    seconds = options.seconds or (2.0 if options.quick else 8.0)
    steps = 4 + len(ASYNC_CALLERS) + len(SYNC_THREADS)
    with (
        notify_database(options.storage) as url,
        broker_process(url) as broker,
        progress_of("transactional send", steps) as step,
    ):
        address = broker.address
        run(run_async(address, 64, 1.0))  # warms caches and plans; counted by its rows only
        step()
        base = count_messages(url)
        with_async = []
        for callers in ASYNC_CALLERS:
            with_async.append(run(run_async(address, callers, seconds)))
            step()
        with_threads = []
        for threads in SYNC_THREADS:
            with_threads.append(run_threads(address, threads, seconds))
            step()
        plain = run(run_plain(address, seconds))
        step()
        rows = count_messages(url) - base
        alone, alone_plain = run_psycopg(url, seconds)
        step()
        pgbench_per_s, _ = run_pgbench(url, seconds)
        step()
        with psycopg.connect(url) as connection:
            settings = {}
            for name in SETTINGS:
                row = connection.execute("select current_setting(%s)", (name,)).fetchone()
                assert row is not None
                settings[name] = row[0]
    claimed = sum(each.sends for each in (*with_async, *with_threads, plain))
    at_256 = next(each for each in with_async if each.callers == 256)
    result = {
        "async": {each.callers: asdict(each) for each in with_async},
        "threads": {each.callers: asdict(each) for each in with_threads},
        "pgbench_per_s": round(pgbench_per_s, 1),
        "ratio_256": round(at_256.rate_per_s / pgbench_per_s, 3),
        "plain": asdict(plain),
        "psycopg": asdict(alone),
        "psycopg_plain": asdict(alone_plain),
        "ratio_1": round(with_async[0].p50_ms / alone.p50_ms, 3),
        "ratio_1_plain": round(plain.p50_ms / alone_plain.p50_ms, 3),
        "settings": settings,
        "rows": rows,
        "claimed": claimed,
    }
    for kind, figures in (
        ("async callers", with_async),
        ("async caller, plain", [plain]),
        ("sync threads", with_threads),
        ("caller of the function by psycopg", [alone]),
        ("caller of the function by psycopg, plain", [alone_plain]),
    ):
        for each in figures:
            print(
                f"{each.callers:5d} {kind}: {each.rate_per_s:10,.0f}/s   "
                f"p50 {each.p50_ms:8.2f} ms   p99 {each.p99_ms:8.2f} ms"
            )
    print(f"pgbench, batches of {PGBENCH_BATCH}: {pgbench_per_s:,.0f}/s; 256 callers reach {result['ratio_256']} of it")
    print(f"one caller waits {result['ratio_1']} times as long as by psycopg, plain {result['ratio_1_plain']} times")
    print(", ".join(f"{name}={value}" for name, value in settings.items()))
    print(f"rows in the tables: {rows:,}, claimed: {claimed:,}")
    if options.json:
        print(json.dumps(result))
    return 0 if rows == claimed else 1


if __name__ == "__main__":
    sys.exit(main())
