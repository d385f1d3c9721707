"""Delayed messages: the cost of millions of them for other messages, and their punctuality.

Claims (docs/performance.md): millions that wait for their time slow nothing; a message comes within a second of its
time, never before it. By turns on two databases with a broker each, one of which holds messages due in hours: plain
messages are sent and consumed. Then, on the first: messages due after one to three seconds are sent at 1,000/s, and
the time between when each is due and when its handler begins is measured; then as many as come due in one moment. The
exit status is 1 if a message came before its time, is missing, or came twice.

    python -m benchmarks.delayed [--quick] [--json]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import median

from benchmarks.load import CONCURRENCY, STREAMS, Arrivals, batched, consume, run, send, send_streams
from benchmarks.surroundings import Broker, broker_process, fresh_database, parser_of, private_server, progress_of
from benchmarks.turns import Compared, by_turns
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.message import Message, ReceivedMessage

PLAIN, SCHEDULED, PUNCTUAL = "bench.plain", "bench.scheduled", "bench.punctual"
RATE_PER_S = 1000
AFTER_S = (1.0, 3.0)
FAR_H = (6, 48)
DUE_S_MAX = 120.0
"""Seconds after which outstanding messages count as lost."""
BODY = b"x" * 100


@dataclass(slots=True)
class Setup:
    """A database with its broker, and a group's deliveries of the plain messages."""

    broker: Broker
    sent: int = 0
    arrivals: Arrivals = field(default_factory=Arrivals)

    def turn(self, count: int) -> dict[str, float]:
        """Send so many plain messages, and let the group consume them."""
        self.sent += count
        return {
            "send": run(send(self.broker.address, PLAIN, count)),
            "deliver": run(consume(self.broker.address, PLAIN, "bench", count, self.arrivals)),
        }

    @property
    def wrong(self) -> int:
        return self.arrivals.repeated + abs(self.sent - self.arrivals.count)


@contextmanager
def fresh_setup(server: EmbeddedPostgres, name: str) -> Iterator[Setup]:
    """Yield a fresh database with a broker."""
    with broker_process(fresh_database(server, name)) as broker:
        yield Setup(broker)


def schedule(address: str, count: int) -> float:
    """Send messages due in hours; return messages per second."""
    rng = random.Random(count)
    messages = [Message(SCHEDULED, BODY, deliver_after=timedelta(hours=rng.uniform(*FAR_H))) for _ in range(10_000)]
    batches = batched(messages * max(1, count // len(messages)))
    return run(send_streams(address, [batches] * STREAMS))  # one iterator: each takes the next batch


class Lateness:
    """Lateness of each message, by the time in its body."""

    def __init__(self) -> None:
        self.late_s: list[float] = []
        self.arrivals = Arrivals()

    async def handle(self, message: ReceivedMessage) -> None:
        self.late_s.append(time.time() - float(message.body))
        self.arrivals.note(message)

    def quantile_ms(self, percent: int) -> float:
        ordered = sorted(self.late_s)
        return ordered[len(ordered) * percent // 100] * 1000

    @property
    def early(self) -> int:
        """Return the number of messages that arrived early."""
        return sum(each < 0 for each in self.late_s)


def due_in(seconds: float) -> Message:
    """Return a message due then, with the time in its body in whole microseconds, as stored."""
    due_at = datetime.now(UTC) + timedelta(seconds=seconds)
    return Message(PUNCTUAL, repr(due_at.timestamp()).encode(), deliver_at=due_at)


async def steadily(address: str, seconds: float) -> Lateness:
    """Send messages at a steady rate, each due a little later."""
    lateness, count = Lateness(), round(seconds * RATE_PER_S)
    consumer = AsyncConsumer(address, group="punctual", concurrency=CONCURRENCY)
    consumer.subscribe(PUNCTUAL)(lateness.handle)
    with lateness.arrivals.expect(count) as reached:
        async with consumer, AsyncProducer(address, group="bench") as producer:
            began_at = time.perf_counter()
            async with asyncio.TaskGroup() as sends:
                for place in range(count):
                    await asyncio.sleep(max(0.0, began_at + place / RATE_PER_S - time.perf_counter()))
                    sends.create_task(producer.send(due_in(random.uniform(*AFTER_S))))
            async with asyncio.timeout(DUE_S_MAX):
                await reached.wait()
    return lateness


async def at_once(address: str, count: int) -> tuple[float, Lateness]:
    """Send so many messages due at one moment; return the rate of handling from then on."""
    lateness = Lateness()
    message = due_in(2 + count / 20_000)
    consumer = AsyncConsumer(address, group="punctual", concurrency=CONCURRENCY)
    consumer.subscribe(PUNCTUAL)(lateness.handle)
    with lateness.arrivals.expect(count) as reached:
        async with consumer, asyncio.timeout(DUE_S_MAX):
            await send_streams(address, [batched([message] * count)])
            await reached.wait()
    return count / max(lateness.late_s), lateness


def main() -> int:
    """Measure, print, and check that no message arrived early, twice or never."""
    parser = parser_of(__doc__, "200,000 scheduled, few turns")
    parser.add_argument("--scheduled", type=int, metavar="N", help="messages due in hours: in tens of thousands")
    parser.add_argument("--turns", type=int, metavar="N", help="turns of each")
    parser.add_argument("--count", type=int, metavar="N", help="messages of a turn")
    options = parser.parse_args()
    scheduled = options.scheduled or (200_000 if options.quick else 4_000_000)
    turns = options.turns or (3 if options.quick else 9)
    count = options.count or (50_000 if options.quick else 200_000)
    found: dict[str, Compared] = {}
    with (
        private_server() as server,
        fresh_setup(server, "scheduled") as many,
        fresh_setup(server, "none") as none,
        progress_of("delayed", turns + 3) as step,
    ):
        scheduled_per_s = schedule(many.broker.address, scheduled)
        step()
        for side in (many, none):
            side.turn(count)  # warms caches and plans
        for _ in range(turns):
            by_turns(lambda: many.turn(count), lambda: none.turn(count), found)
            step()
        steady = run(steadily(many.broker.address, 5 if options.quick else 60))
        step()
        burst_per_s, burst = run(at_once(many.broker.address, count))
        step()
    early = steady.early + burst.early
    wrong = many.wrong + none.wrong + early + steady.arrivals.repeated + burst.arrivals.repeated
    print(f"{scheduled:,} messages scheduled at {scheduled_per_s:,.0f}/s")
    for name, each in found.items():
        print(f"{name:8}{each.rate:10,.0f}/s   none scheduled {each.reference:10,.0f}/s   ratio {each.ratio:.3f}")
    print(
        f"{RATE_PER_S:,} due per second: after their time p50 {median(steady.late_s) * 1000:.1f} ms, "
        f"p99 {steady.quantile_ms(99):.1f} ms, at most {max(steady.late_s) * 1000:.1f} ms"
    )
    print(f"{count:,} due in one moment: {burst_per_s:,.0f}/s, the last {max(burst.late_s):.2f} s after it")
    print(f"{wrong} messages before their time, missing or twice")
    if options.json:
        figures = {key: value for name, each in found.items() for key, value in each.figures(name).items()}
        print(
            json.dumps(
                {
                    **figures,
                    "scheduled": scheduled,
                    "schedule_per_s": round(scheduled_per_s, 1),
                    "late_p50_ms": round(median(steady.late_s) * 1000, 2),
                    "late_p99_ms": round(steady.quantile_ms(99), 2),
                    "late_max_ms": round(max(steady.late_s) * 1000, 2),
                    "burst_per_s": round(burst_per_s, 1),
                    "wrong": wrong,
                }
            )
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
