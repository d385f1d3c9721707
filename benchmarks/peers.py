"""Delivery beside two job queues that a Python user would pick on PostgreSQL: procrastinate and pgqueuer.

The same work for each: so many messages (jobs) of 100 bytes are enqueued in batches of 500, then one process has
an `async def` handler run that does nothing, until all are done or the time is up. On the same server with the same
settings, each in a fresh database, with few waiting and with many. They do other things as well, as txmsg does; what is
compared is a queue's delivery only. Settings are the fastest found among those that their documentation offers:
procrastinate with several workers and finished jobs deleted, pgqueuer with several, large batches, and asyncpg.

Then one caller sends one message (job) after the other, beside a plain INSERT; and beside pgmq, if a directory is given
in which PostgreSQL finds extension/pgmq.control and its SQL.

    python -m benchmarks.peers [--quick] [--json] [--waiting N ...] [--seconds S] [--pgmq DIRECTORY]
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

import asyncpg
import procrastinate
from pgqueuer import AsyncpgDriver, Job, Queries, QueueManager
from procrastinate.types import JSONDict

from benchmarks.load import CONCURRENCY, run, send, send_alone
from benchmarks.surroundings import broker_process, parser_of, private_server, progress_of
from txmsg.broker import migrate
from txmsg.client import AsyncConsumer
from txmsg.message import ReceivedMessage

WAITING, WAITING_QUICK = (10_000, 200_000), (2_000, 10_000)
SECONDS, SECONDS_QUICK = 20.0, 4.0
BODY = "x" * 100
BATCH = 500
PROCRASTINATE_WORKERS, PROCRASTINATE_JOBS_AT_ONCE = 4, 20
PGQUEUER_WORKERS, PGQUEUER_BATCH = 2, 300


class Meter:
    """Counts handler calls, and computes their rate from the first one on."""

    def __init__(self, count: int, seconds: float) -> None:
        self._left = count
        self._seconds = seconds
        self._done = 0
        self._began_at = self._ended_at = 0.0
        self._all = asyncio.Event()

    def tick(self) -> None:
        self._ended_at = time.perf_counter()
        if not self._done:
            self._began_at = self._ended_at
        self._done += 1
        if self._done == self._left:
            self._all.set()

    async def rate(self) -> float:
        """Return the rate once all are done or the time is up."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all.wait(), self._seconds)
        if self._done < 2:
            raise RuntimeError(f"{self._done} handlers were called in {self._seconds} s")
        return (self._done - 1) / (self._ended_at - self._began_at)


Rates = tuple[float, float]
"""Enqueued per second, handled per second."""


async def with_txmsg(url: str, waiting: int, seconds: float) -> Rates:
    migrate.upgrade(url)
    with broker_process(url) as broker:
        sent_per_s = await send(broker.address, "bench.peers", waiting, len(BODY))
        meter = Meter(waiting, seconds)
        consumer = AsyncConsumer(broker.address, group="bench", concurrency=CONCURRENCY)

        @consumer.subscribe("bench.peers")
        async def handle(_: ReceivedMessage) -> None:
            meter.tick()

        async with consumer:
            return sent_per_s, await meter.rate()


async def with_procrastinate(url: str, waiting: int, seconds: float) -> Rates:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=2, max_size=10 * PROCRASTINATE_WORKERS)
    app = procrastinate.App(connector=connector)
    meter = Meter(waiting, seconds)

    @app.task(name="handle", queue="bench")
    async def handle(body: str) -> None:
        meter.tick()

    batch: list[JSONDict] = [{"body": BODY}] * BATCH
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began_at = time.perf_counter()
        for _ in range(waiting // BATCH):
            await handle.batch_defer_async(*batch)
        enqueued_per_s = waiting / (time.perf_counter() - began_at)
        workers = [
            asyncio.create_task(
                app.run_worker_async(
                    concurrency=PROCRASTINATE_JOBS_AT_ONCE, delete_jobs="successful", install_signal_handlers=False
                )
            )
            for _ in range(PROCRASTINATE_WORKERS)
        ]
        worked_per_s = await meter.rate()
        for worker in workers:
            worker.cancel()  # its way to be stopped; it waits for running handlers
        await asyncio.gather(*workers, return_exceptions=True)
    return enqueued_per_s, worked_per_s


async def with_pgqueuer(url: str, waiting: int, seconds: float) -> Rates:
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    meter = Meter(waiting, seconds)

    async def handle(_: Job) -> None:
        meter.tick()

    managers = [QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(url)))) for _ in range(PGQUEUER_WORKERS)]
    for each in managers:
        each.entrypoint("handle")(handle)
    began_at = time.perf_counter()
    for _ in range(waiting // BATCH):
        await queries.enqueue(["handle"] * BATCH, [BODY.encode()] * BATCH, [0] * BATCH)
    enqueued_per_s = waiting / (time.perf_counter() - began_at)
    async with asyncio.TaskGroup() as workers:
        for each in managers:
            workers.create_task(each.run(batch_size=PGQUEUER_BATCH))
        worked_per_s = await meter.rate()
        for each in managers:
            each.shutdown.set()
    await connection.close()
    return enqueued_per_s, worked_per_s


SYSTEMS: dict[str, Callable[[str, int, float], Awaitable[Rates]]] = {
    "txmsg": with_txmsg,
    "procrastinate": with_procrastinate,
    "pgqueuer": with_pgqueuer,
}


# ---- one caller, one message a call


async def alone_txmsg(url: str, seconds: float) -> list[float]:
    migrate.upgrade(url)
    with broker_process(url) as broker:
        return await send_alone(broker.address, "bench.peers", seconds, len(BODY))


async def alone_insert(url: str, seconds: float) -> list[float]:
    connection = await asyncpg.connect(url)
    await connection.execute("create table job (id bigint generated always as identity primary key, body text)")
    return await _one_by_one(lambda: connection.execute("insert into job (body) values ($1)", BODY), seconds)


async def alone_pgqueuer(url: str, seconds: float) -> list[float]:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
    await queries.install()
    return await _one_by_one(lambda: queries.enqueue("handle", BODY.encode()), seconds)


async def alone_procrastinate(url: str, seconds: float) -> list[float]:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="handle", queue="bench")
    async def handle(body: str) -> None:
        pass

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        return await _one_by_one(lambda: handle.defer_async(body=BODY), seconds)


async def alone_pgmq(directory: Path, url: str, seconds: float) -> list[float]:
    connection = await asyncpg.connect(url)
    await connection.execute("select set_config('extension_control_path', $1, false)", f"$system:{directory}")
    await connection.execute("create extension pgmq")
    await connection.execute("select pgmq.create('bench')")
    message = json.dumps({"body": BODY})
    return await _one_by_one(lambda: connection.execute("select pgmq.send('bench', $1::jsonb)", message), seconds)


async def _one_by_one(send_one: Callable[[], Awaitable[object]], seconds: float) -> list[float]:
    """Return the seconds of each."""
    took_s: list[float] = []
    until = time.perf_counter() + seconds
    while (start := time.perf_counter()) < until:
        await send_one()
        took_s.append(time.perf_counter() - start)
    return took_s


Alone = Callable[[str, float], Awaitable[list[float]]]
ALONE: dict[str, Alone] = {
    "txmsg": alone_txmsg,
    "INSERT": alone_insert,
    "pgqueuer": alone_pgqueuer,
    "procrastinate": alone_procrastinate,
}


def main() -> int:
    """Measure and print."""
    parser = parser_of(__doc__, f"{WAITING_QUICK[-1]:,} waiting, {SECONDS_QUICK:g} seconds of work")
    parser.add_argument("--waiting", type=int, nargs="+", metavar="N", help="messages waiting: multiples of 500")
    parser.add_argument("--seconds", type=float, metavar="S", help="work for so long at most")
    parser.add_argument("--pgmq", type=Path, metavar="DIRECTORY", help="one caller sends by pgmq, too")
    options = parser.parse_args()
    waiting = options.waiting or (WAITING_QUICK if options.quick else WAITING)
    seconds = options.seconds or (SECONDS_QUICK if options.quick else SECONDS)
    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)  # it tells each cancelled worker
    figures: dict[str, dict[int, Rates]] = {name: {} for name in SYSTEMS}
    alone = dict(ALONE)
    if options.pgmq is not None:
        alone["pgmq"] = partial(alone_pgmq, options.pgmq)
    one_caller: dict[str, dict[str, float]] = {}
    with private_server() as server, progress_of("peers", len(SYSTEMS) * len(waiting) + len(alone)) as step:
        for count in waiting:
            for name, measure in SYSTEMS.items():
                url = server.create_database(f"{name}_{count}")
                figures[name][count] = run(_measured(measure, url, count, seconds))
                step()
        for name, send_alone_by in alone.items():
            took_s = run(_alone(send_alone_by, server.create_database(f"alone_{name.lower()}"), seconds))
            one_caller[name] = {
                "send_per_s": round(len(took_s) / sum(took_s), 1),
                "p50_ms": round(median(took_s) * 1000, 3),
            }
            step()
    for name, of_counts in figures.items():
        for count, (enqueued_per_s, worked_per_s) in of_counts.items():
            print(
                f"{name:14}{'' if name == 'txmsg' else version(name):8}{count:9,d} waiting: "
                f"enqueued {enqueued_per_s:10,.0f}/s   handled {worked_per_s:10,.0f}/s, "
                f"{worked_per_s / figures['txmsg'][count][1]:.3f} of txmsg's"
            )
    for name, figure in one_caller.items():
        print(f"{name:14} one caller: {figure['send_per_s']:10,.0f}/s   p50 {figure['p50_ms']:6.2f} ms")
    if options.json:
        rates = {
            name: {
                count: {"enqueue_per_s": round(enqueued, 1), "handle_per_s": round(worked, 1)}
                for count, (enqueued, worked) in of_counts.items()
            }
            for name, of_counts in figures.items()
        }
        print(json.dumps({**rates, "one_caller": one_caller}))
    return 0


async def _measured(
    measure: Callable[[str, int, float], Awaitable[Rates]], url: str, waiting: int, seconds: float
) -> Rates:
    return await measure(url, waiting, seconds)


async def _alone(send_one: Alone, url: str, seconds: float) -> list[float]:
    return await send_one(url, seconds)


if __name__ == "__main__":
    sys.exit(main())
