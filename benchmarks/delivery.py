"""Messages per second that reach the handlers of a group, beside merely reading the same rows from the table.

Claims (docs/performance.md): >= 100,000/s to one group; a p50 of <= 10 ms from send to handler at 1,000/s. Everything
runs on this machine: PostgreSQL, broker, and the consumer with its handlers. Each message must reach each group exactly
once, or the exit status is 1.

    python -m benchmarks.delivery [--quick] [--json] [--storage URL]
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import median

import psycopg

from benchmarks.load import CONCURRENCY, WAIT_S_MAX, Arrivals, consume, run, send
from benchmarks.surroundings import broker_process, notify_database, parser_of, progress_of
from txmsg.client import AsyncConsumer, AsyncProducer, Consumer
from txmsg.message import Message, ReceivedMessage

SIZES_BYTES = (100, 1024, 10 * 1024)
GROUPS = 10
LATENCY_RATE_PER_S = 1000
READ_COUNT = 1000


async def deliver(address: str, topic: str, count: int, groups: list[str]) -> tuple[float, int]:
    """Return messages per second reaching `async def` handlers of all groups, and the number of duplicates."""
    arrivals = [Arrivals() for _ in groups]
    await asyncio.gather(
        *(consume(address, topic, group, count, each) for group, each in zip(groups, arrivals, strict=True))
    )
    took_s = max(each.ended_at for each in arrivals) - min(each.began_at for each in arrivals)
    return count * len(groups) / took_s, sum(each.repeated for each in arrivals)


async def deliver_by_threads(address: str, topic: str, count: int, group: str) -> tuple[float, int]:
    """Return the same with `def` handlers on threads."""
    arrivals = Arrivals()
    consumer = Consumer(address, group=group, concurrency=16)
    consumer.subscribe(topic)(arrivals.note)
    with arrivals.expect(count) as reached, consumer:
        async with asyncio.timeout(WAIT_S_MAX):
            await reached.wait()
    return count / (arrivals.ended_at - arrivals.began_at), arrivals.repeated


async def latencies(address: str, seconds: float) -> tuple[float, float]:
    """Return p50 and p99 in ms from before `send` to the handler, at a steady rate."""
    topic, found_s = "bench.latency", list[float]()
    count = round(seconds * LATENCY_RATE_PER_S)
    arrivals = Arrivals()
    consumer = AsyncConsumer(address, group="latency", concurrency=CONCURRENCY)

    @consumer.subscribe(topic)
    async def handle(message: ReceivedMessage) -> None:
        found_s.append(time.perf_counter() - float(message.body))
        arrivals.note(message)

    with arrivals.expect(count) as reached:
        async with consumer, AsyncProducer(address, group="bench") as producer:
            began_at = time.perf_counter()
            async with asyncio.TaskGroup() as sends:
                for place in range(count):
                    await asyncio.sleep(max(0.0, began_at + place / LATENCY_RATE_PER_S - time.perf_counter()))
                    sends.create_task(producer.send(Message(topic, repr(time.perf_counter()).encode())))
            async with asyncio.timeout(WAIT_S_MAX):
                await reached.wait()
    ordered = sorted(found_s)
    return median(ordered) * 1000, ordered[len(ordered) * 99 // 100] * 1000


def read_rows(url: str, topic: str, count: int) -> float:
    """Return rows per second when one session merely reads the topic's messages, queue by queue: the reference."""
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
    """Measure, print, and check that every message arrived once."""
    parser = parser_of(__doc__, "fewer messages")
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
        broker_process(url) as broker,
        progress_of("delivery", steps) as step,
    ):
        address = broker.address
        for size_bytes, count in counts.items():
            topic = f"bench.size-{size_bytes}"
            result[f"send_{size_bytes}_per_s"] = run(send(address, topic, count, size_bytes))
            step()
            rate_per_s, again = run(deliver(address, topic, count, ["one"]))
            result[f"deliver_{size_bytes}_per_s"], repeated = rate_per_s, repeated + again
            step()
        count = counts[SIZES_BYTES[0]]
        topic = f"bench.size-{SIZES_BYTES[0]}"
        rate_per_s, again = run(deliver_by_threads(address, topic, count, "threads"))
        result["deliver_threads_per_s"], repeated = rate_per_s, repeated + again
        step()
        result["read_per_s"] = read_rows(url, topic, count)
        step()
        rate_per_s, again = run(deliver(address, topic, count, groups))
        result["deliver_ten_groups_per_s"], repeated = rate_per_s, repeated + again
        step()
        p50_ms, p99_ms = run(latencies(address, 5 if options.quick else 30))
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
    sys.exit(main())
