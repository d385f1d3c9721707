"""The mirror: catch-up rate of a tailer, its lag under load, and its cost for the broker.

Claims (docs/performance.md): it catches up with >= 100,000 rows/s; at 5,000 messages/s the p99 from a message's
stored_at to a reader of the log is <= 50 ms. All on this machine: PostgreSQL, broker, tailer, sender and reader.

Catching up, by turns: a tailer that was away, and pg_recvlogical, which reads the same from a copy of the tailer's slot
and throws it away. Each turn has a slot of its own, made before the messages were sent. Then a new mirror is made,
which reads the table.
What it costs, by turns: sending in batches to a broker whose database is mirrored, and to one on another server whose
database is not. In the end every log is compared with its table; the exit status is 1 unless they are equal.

    python -m benchmarks.tailer [--quick] [--json] [--rows N] [--turns N] [--seconds S]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import psycopg

from benchmarks.load import run, send
from benchmarks.surroundings import (
    broker_process,
    fresh_database,
    parser_of,
    private_server,
    progress_of,
    tailer_process,
)
from benchmarks.turns import Compared, by_turns
from txmsg.binlog.verifier.compare import verify
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.programs import binaries_dir
from txmsg.client import AsyncProducer
from txmsg.message import Message
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.store.reader import LogReader

TOPIC = "bench.mirrored"
QUEUES = 4
PRIMED = 1_000
"""Messages mirrored before the tailer was stopped."""
RATES_PER_S = (1_000, 5_000, 20_000)
WAIT_S_MAX = 600.0
TICK_S = 0.01
KAFKA_TICK_S = 0.1
"""Polling interval for Kafka, where a poll costs more."""
BODY = b"x" * 100


# ---- catching up


def copy_slot(url: str, mirror: str, copy: str) -> None:
    """Create a slot at the position of the mirror's slot."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_copy_logical_replication_slot(slot_name, %s) from pg_replication_slots where slot_name like %s",
            (copy, f"txmsg\\_{mirror}\\_%"),
        )


def caught_up(url: str, mirror: str, log: Path | str, count: int) -> tuple[float, float]:
    """Return messages per second from when a tailer reads its slot until it has all messages.

    And what it needed of a core, in us per message.
    """
    with tailer_process(url, log, "--name", mirror) as process:
        began_at, there, used_s = time.perf_counter(), mirrored(log), cpu_s(process)
        await_mirrored(log, count)
        took_s = time.perf_counter() - began_at
        return (count - there) / took_s, (cpu_s(process) - used_s) / (count - there) * 1e6


def cpu_s(process: psutil.Process) -> float:
    """Return the core seconds of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def rebuilt_per_s(url: str, log: Path | str, count: int, mirror: str = "rebuilt") -> float:
    """Return messages per second of a new mirror, which reads the table, from its first ones until the table's end.

    Then it tails.
    """
    with ThreadPoolExecutor(1) as other:
        begun = other.submit(_begun, log)
        with tailer_process(url, log, "--name", mirror):
            ended_at = time.perf_counter()
        there, began_at = begun.result()
        assert mirrored(log) == count
        return (count - there) / (ended_at - began_at)


def _begun(log: Path | str) -> tuple[int, float]:
    return await_mirrored(log, 1), time.perf_counter()


def await_mirrored(log: Path | str, count: int) -> int:
    """Wait until the log has so many messages or more; return their number."""
    deadline = time.monotonic() + WAIT_S_MAX
    while (found := mirrored(log)) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the log holds {found} of {count} messages after {WAIT_S_MAX:g} s")
        time.sleep(TICK_S if isinstance(log, Path) else KAFKA_TICK_S)
    return found


def mirrored(log: Path | str) -> int:
    """Return the number of messages in the log: in a directory, or in a Kafka."""
    if isinstance(log, str):
        return sum(kept.end for kept in _opened(log).ranges(_queues()).values())
    if not (log / "commitlog").is_dir():
        return 0
    reader = LogReader(log)
    return sum(reader.queue(TOPIC, queue).end_offset() for queue in range(QUEUES))


@cache
def _opened(where: str) -> LogAccess:
    return open_log(where)


def received_per_s(url: str, mirror: str, slot: str, count: int) -> float:
    """Return messages per second that PostgreSQL's own receiver reads from a slot, up to the server's position."""
    with psycopg.connect(url, autocommit=True) as connection:
        [(end,)] = connection.execute("select pg_current_wal_lsn()")
    command = [
        *(str(binaries_dir() / "pg_recvlogical"), "--dbname", url, "--slot", slot, "--start", "--no-loop"),
        *("--endpos", end, "--file", "/dev/null", "--fsync-interval", "0"),
        *("--option", "proto_version=1", "--option", f"publication_names=txmsg_{mirror}", "--option", "binary=true"),
    ]
    began_at = time.perf_counter()
    subprocess.run(command, check=True)
    return count / (time.perf_counter() - began_at)


def catch_up(server: EmbeddedPostgres, directory: Path, rows: int, turns: int) -> tuple[Compared, float, float, int]:
    """Return rates by turns, core us per message, the rate of a new mirror, and the number of differing messages."""
    url = fresh_database(server, "catch_up")
    found: dict[str, Compared] = {}
    names = [f"turn{turn}" for turn in range(turns)]
    with broker_process(url, "--topic-queues", str(QUEUES)) as broker:
        run(send(broker.address, TOPIC, PRIMED))
        for name in names:
            with tailer_process(url, directory / name, "--name", name):
                await_mirrored(directory / name, PRIMED)
            copy_slot(url, name, f"copy_{name}")
        run(send(broker.address, TOPIC, rows))
    wrong, used_us = 0, list[float]()

    def tailed() -> dict[str, float]:
        rate_per_s, us = caught_up(url, name, directory / name, PRIMED + rows)
        used_us.append(us)
        return {"catch_up": rate_per_s}

    for name in names:
        by_turns(
            tailed,
            lambda: {"catch_up": received_per_s(url, name, f"copy_{name}", rows)},  # noqa: B023
            found,
        )
        wrong += differing(url, directory / name)
    rebuilt = rebuilt_per_s(url, directory / "rebuilt", PRIMED + rows)
    wrong += differing(url, directory / "rebuilt")
    return found["catch_up"], median(used_us), rebuilt, wrong


def differing(url: str, log: Path | str) -> int:
    """Return the number of messages that differ between log and table."""
    report = verify(url, log, wait_s=WAIT_S_MAX)
    for each in report.differences:
        print(each, file=sys.stderr)
    return sum(report.differing.values())


# ---- lag


class Lags:
    """A reader of a log on its own thread: the latency of each message since it was stored."""

    def __init__(self, log: Path) -> None:
        self._log = open_log(str(log))
        self._wanted = {queue: each.end for queue, each in self._log.ranges(_queues()).items()}
        self._found_us: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self._thread = threading.Thread(target=self._read, name="lags")
        self._ended = threading.Event()

    def _read(self) -> None:
        while not self._ended.is_set():
            for each in self._log.fetch(self._wanted, wait_s=0.2):
                now_us = time.time_ns() // 1000
                for batch in each.batches:
                    stored_at = batch.to_arrow()["stored_at"].cast("int64").to_numpy()
                    self._found_us.append(now_us - stored_at)
                    self._wanted[each.queue] = batch.end_offset

    def __enter__(self) -> Lags:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._log.close()

    def of(self, count: int) -> tuple[float, float]:
        """Return p50 and p99 in ms, once so many messages have arrived."""
        deadline = time.monotonic() + WAIT_S_MAX
        while sum(map(len, self._found_us)) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{sum(map(len, self._found_us))} of {count} messages came to the log's reader")
            time.sleep(TICK_S)
        p50, p99 = np.percentile(np.concatenate(self._found_us), (50, 99)) / 1000
        return float(p50), float(p99)


def _queues() -> list[LogQueue]:
    return [LogQueue(TOPIC, number) for number in range(QUEUES)]


async def send_steadily(address: str, rate_per_s: int, seconds: float) -> int:
    """Send at a steady rate, a small batch at each tick; return the number sent."""
    message, sent, began_at = Message(TOPIC, BODY), 0, time.perf_counter()
    async with AsyncProducer(address, group="bench", timeout_s=60) as producer, asyncio.TaskGroup() as sends:
        while (passed_s := time.perf_counter() - began_at) < seconds:
            due = round(passed_s * rate_per_s) - sent
            if due:
                sends.create_task(producer.send_many([message] * min(due, 1000)))
                sent += min(due, 1000)
            await asyncio.sleep(TICK_S)
    return sent


# ---- cost


@contextmanager
def broker_on(server: EmbeddedPostgres, name: str) -> Iterator[tuple[str, str]]:
    """Yield a fresh database and the address of its broker."""
    url = fresh_database(server, name)
    with broker_process(url, "--topic-queues", str(QUEUES)) as broker:
        yield url, broker.address


def beside_a_broker(
    server: EmbeddedPostgres, other: EmbeddedPostgres, log: Path, seconds: float, turns: int
) -> tuple[dict[str, float], Compared, int]:
    """Return lags by rate, the cost of mirroring for sending, and the number of differing messages."""
    lags: dict[str, float] = {}
    costs: dict[str, Compared] = {}
    count = round(seconds * 10_000)
    with (
        broker_on(server, "mirrored") as (url, address),
        broker_on(other, "bare") as (_, bare_address),
        tailer_process(url, log),
    ):
        sent = 0

        def mirrored_turn() -> dict[str, float]:
            nonlocal sent
            rate = run(send(address, TOPIC, count))
            sent += count
            await_mirrored(log, sent)  # or the other one would be slowed by it
            return {"send": rate}

        mirrored_turn()
        run(send(bare_address, TOPIC, count))
        for rate_per_s in RATES_PER_S:
            with Lags(log) as reader:
                more = run(send_steadily(address, rate_per_s, seconds))
                sent += more
                p50_ms, p99_ms = reader.of(more)
            lags |= {f"lag_{rate_per_s}_p50_ms": round(p50_ms, 2), f"lag_{rate_per_s}_p99_ms": round(p99_ms, 2)}
        for _ in range(turns):
            by_turns(mirrored_turn, lambda: {"send": run(send(bare_address, TOPIC, count))}, costs)
        return lags, costs["send"], differing(url, log)


def main() -> int:
    """Measure, print, and compare every log with its table."""
    parser = parser_of(__doc__, "100,000 rows, one turn")
    parser.add_argument("--rows", type=int, metavar="N", help="messages to catch up with")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long each rate is sent")
    options = parser.parse_args()
    rows = options.rows or (100_000 if options.quick else 2_000_000)
    turns = options.turns or (1 if options.quick else 3)
    seconds = options.seconds or (3.0 if options.quick else 20.0)
    with (
        tempfile.TemporaryDirectory(prefix="txmsg-bench-") as name,
        progress_of("tailer", 2) as step,
        ExitStack() as stack,
    ):
        with private_server() as server:
            rates, used_us, rebuilt, wrong = catch_up(server, Path(name), rows, turns)
        step()
        server, other = (stack.enter_context(private_server()) for _ in range(2))
        lags, cost, differed = beside_a_broker(server, other, Path(name) / "beside", seconds, turns)
        wrong += differed
        step()
    print(
        f"catching up with {rows:,} messages: {rates.rate:,.0f}/s   pg_recvlogical {rates.reference:,.0f}/s   "
        f"ratio {rates.ratio:.3f}   {used_us:.1f} us of a core for each"
    )
    print(f"a new mirror, from the table: {rebuilt:,.0f}/s")
    for rate_per_s in RATES_PER_S:
        p50_ms, p99_ms = lags[f"lag_{rate_per_s}_p50_ms"], lags[f"lag_{rate_per_s}_p99_ms"]
        print(f"behind at {rate_per_s:6,}/s: p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms")
    print(f"sent while mirrored: {cost.rate:,.0f}/s   not mirrored {cost.reference:,.0f}/s   ratio {cost.ratio:.3f}")
    print(f"{wrong} messages of the logs differ from their tables")
    if options.json:
        more = {"catch_up_cpu_us": round(used_us, 2), "rebuild_per_s": round(rebuilt, 1)}
        figures = rates.figures("catch_up") | more | lags | cost.figures("send")
        print(json.dumps(figures | {"wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
