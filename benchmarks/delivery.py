"""How many messages per second reach the handlers of a group, beside merely reading the same rows from the table.

Claims (docs/performance.md): >= 100,000/s to one group; a p50 of <= 10 ms from send to handler at 1,000/s. Everything
runs on this machine: PostgreSQL, broker, and the consumer with its handlers. Each message must reach each group exactly
once, or the exit status is 1.

    python -m benchmarks.delivery [--quick] [--json] [--storage URL]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.surroundings import broker_process, notify_database, progress_of
from txmsg.client import AsyncConsumer, AsyncProducer, Consumer
from txmsg.message import Message, ReceivedMessage

SIZES_BYTES = (100, 1024, 10 * 1024)
GROUPS = 10
LATENCY_RATE_PER_S = 1000
CONCURRENCY = 100
READ_COUNT = 1000
WAIT_S_MAX = 600.0


class Counter:
    """Counts the messages of one group, each once; knows when all have come."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.began_at = 0.0
        self.ended_at = 0.0
        self.repeated = 0
        self._seen: set[tuple[int | None, int | None]] = set()
        self._loop = asyncio.get_running_loop()
        self._all = asyncio.Event()

    def count(self, message: ReceivedMessage) -> None:
        """From any thread."""
        if not self._seen:
            self.began_at = time.perf_counter()
        place = (message.queue, message.offset)
        if place in self._seen:
            self.repeated += 1
        self._seen.add(place)
        if len(self._seen) == self.expected:
            self.ended_at = time.perf_counter()
            self._loop.call_soon_threadsafe(self._all.set)

    async def all(self) -> None:
        """Returns when every message has come."""
        async with asyncio.timeout(WAIT_S_MAX):
            await self._all.wait()


async def fill(address: str, topic: str, count: int, size_bytes: int) -> float:
    """Sends `count` messages in batches; messages per second."""
    body = b"x" * size_bytes
    per_batch = min(500, 4 * 1024 * 1024 // size_bytes)
    began_at = time.perf_counter()
    async with AsyncProducer(address, group="bench", timeout_s=60) as producer:
        slots = asyncio.Semaphore(8)

        async def one(batch: int) -> None:
            async with slots:
                await producer.send_many([Message(topic, body)] * batch)

        batches = [per_batch] * (count // per_batch) + [count % per_batch]
        await asyncio.gather(*(one(batch) for batch in batches))
    return count / (time.perf_counter() - began_at)


async def drain(address: str, topic: str, count: int, groups: list[str]) -> tuple[float, int]:
    """Messages per second reaching `async def` handlers, all groups together, and how many came twice."""
    counters = [Counter(count) for _ in groups]
    consumers = []
    for group, counter in zip(groups, counters, strict=True):
        consumer = AsyncConsumer(address, group=group, concurrency=CONCURRENCY)

        async def handle(message: ReceivedMessage, counter: Counter = counter) -> None:
            counter.count(message)

        consumer.subscribe(topic)(handle)
        consumers.append(consumer)
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    await asyncio.gather(*(counter.all() for counter in counters))
    took_s = max(each.ended_at for each in counters) - min(each.began_at for each in counters)
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    return count * len(groups) / took_s, sum(each.repeated for each in counters)


async def drain_by_threads(address: str, topic: str, count: int, group: str) -> tuple[float, int]:
    """The same with `def` handlers on threads."""
    counter = Counter(count)
    consumer = Consumer(address, group=group, concurrency=16)
    consumer.subscribe(topic)(counter.count)
    with consumer:
        await counter.all()
    return count / (counter.ended_at - counter.began_at), counter.repeated


async def latencies(address: str, seconds: float) -> tuple[float, float]:
    """p50 and p99 in ms from before `send` to the handler, at a steady rate."""
    topic, found_s = "bench.latency", list[float]()
    count = round(seconds * LATENCY_RATE_PER_S)
    counter = Counter(count)
    consumer = AsyncConsumer(address, group="latency", concurrency=CONCURRENCY)

    @consumer.subscribe(topic)
    async def handle(message: ReceivedMessage) -> None:
        found_s.append(time.perf_counter() - float(message.body))
        counter.count(message)

    async with consumer, AsyncProducer(address, group="bench") as producer:
        began_at = time.perf_counter()
        async with asyncio.TaskGroup() as sends:
            for place in range(count):
                await asyncio.sleep(max(0.0, began_at + place / LATENCY_RATE_PER_S - time.perf_counter()))
                sends.create_task(producer.send(Message(topic, repr(time.perf_counter()).encode())))
        await counter.all()
    ordered = sorted(found_s)
    return median(ordered) * 1000, ordered[len(ordered) * 99 // 100] * 1000


def read_rows(url: str, topic: str, count: int) -> float:
    """Rows per second when one session merely reads the topic's messages, queue by queue: the reference."""
    statement = (
        "select queue_offset, transaction_id, n, key, tag, headers, body, born_at, stored_at from txmsg.message "
        "where queue = %s and queue_offset >= %s and queue_offset < %s order by queue_offset"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        queues = connection.execute(
            "select q.id from txmsg.queue q join txmsg.topic t on t.id = q.topic_id where t.name = %s", (topic,)
        ).fetchall()
        read = 0
        began_at = time.perf_counter()
        for (queue,) in queues:
            start = 0
            with connection.cursor(binary=True) as cursor:
                while rows := cursor.execute(statement, (queue, start, start + READ_COUNT)).fetchall():
                    read += len(rows)
                    start += len(rows)
        took_s = time.perf_counter() - began_at
    assert read == count, f"{read} rows are in the table, {count} were sent"
    return count / took_s


def main() -> int:
    """Measures, prints, and checks that every message came once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer messages: under a minute in all")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--storage", help="a Notify database of your own; default: a fresh embedded one")
    options = parser.parse_args()
    counts = dict(
        zip(SIZES_BYTES, (200_000, 100_000, 10_000) if options.quick else (1_000_000, 400_000, 40_000), strict=True)
    )
    groups = [f"group-{number}" for number in range(GROUPS)]
    result: dict[str, float] = {}
    repeated = 0
    steps = 2 * len(SIZES_BYTES) + 4
    with (
        notify_database(options.storage) as url,
        broker_process(url) as address,
        progress_of("delivery", steps) as step,
    ):
        for size_bytes, count in counts.items():
            topic = f"bench.size-{size_bytes}"
            result[f"send_{size_bytes}_per_s"] = asyncio.run(fill(address, topic, count, size_bytes))
            step()
            rate_per_s, again = asyncio.run(drain(address, topic, count, ["one"]))
            result[f"deliver_{size_bytes}_per_s"], repeated = rate_per_s, repeated + again
            step()
        count = counts[SIZES_BYTES[0]]
        topic = f"bench.size-{SIZES_BYTES[0]}"
        rate_per_s, again = asyncio.run(drain_by_threads(address, topic, count, "threads"))
        result["deliver_threads_per_s"], repeated = rate_per_s, repeated + again
        step()
        result["read_per_s"] = read_rows(url, topic, count)
        step()
        rate_per_s, again = asyncio.run(drain(address, topic, count, groups))
        result["deliver_ten_groups_per_s"], repeated = rate_per_s, repeated + again
        step()
        p50_ms, p99_ms = asyncio.run(latencies(address, 5 if options.quick else 30))
        step()
    result["ratio_read"] = result[f"deliver_{SIZES_BYTES[0]}_per_s"] / result["read_per_s"]
    for size_bytes in SIZES_BYTES:
        print(
            f"{size_bytes:6d} B: sent in batches {result[f'send_{size_bytes}_per_s']:10,.0f}/s   "
            f"delivered to one group {result[f'deliver_{size_bytes}_per_s']:10,.0f}/s"
        )
    print(f"{SIZES_BYTES[0]:6d} B to handlers on threads: {result['deliver_threads_per_s']:,.0f}/s")
    print(f"{SIZES_BYTES[0]:6d} B to {GROUPS} groups, together: {result['deliver_ten_groups_per_s']:,.0f}/s")
    print(
        f"merely reading the rows: {result['read_per_s']:,.0f}/s; one group gets {result['ratio_read']:.2f} of it; "
        f"{repeated} messages came twice"
    )
    print(f"from send to handler at {LATENCY_RATE_PER_S:,}/s: p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms")
    if options.json:
        figures = {name: round(value, 3) for name, value in result.items()}
        print(json.dumps({**figures, "latency_p50_ms": p50_ms, "latency_p99_ms": p99_ms, "repeated": repeated}))
    return 1 if repeated else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    sys.exit(main())
