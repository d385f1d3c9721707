"""Pause of sending and delivery when one of three brokers dies under load, or is stopped for maintenance.

Claims (docs/performance.md): after a kill, sends go on within 2 s, the dead broker's queues are delivered again within
10 s, and nothing acknowledged is lost. Twelve producers, one call at a time each, and one consumer know all
brokers. When the queues are spread, a broker is killed, and started again; then one is stopped in order. What is
measured is the longest call, and the longest way of a message through a queue of that broker, of those that began from
a second before to fifteen after it; and over the seconds before. The exit status is 1 if an acknowledged message was
not delivered.

    python -m benchmarks.failover [--quick] [--json] [--rounds N]
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import count as count_up
from struct import Struct

import psycopg

from benchmarks.load import run
from benchmarks.surroundings import Broker, broker_process, notify_database, parser_of, progress_of
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown
from txmsg.message import Message, ReceivedMessage

TOPIC = "bench.failover"
BROKERS, QUEUES = 3, 12
CALLERS, BATCH, RATE_PER_S = 12, 20, 4000
SPREAD_S_MAX = 60.0
BEFORE_S, UNDER_WAY_S, AFTER_S = 6.0, 1.0, 15.0
"""Calls begun in the last second before a death may be affected by it."""
LAST_S_MAX = 60.0
_BODY = Struct(">Qd")
"""A number, and the time of sending."""


class Load:
    """Acknowledged and received messages, the duration of each call, and the transit time of each message."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.producers = [AsyncProducer(addresses, group="bench") for _ in range(CALLERS)]
        self.consumer = AsyncConsumer(addresses, group="bench")
        self.consumer.subscribe(TOPIC)(self._handle)
        self.calls_s: list[tuple[float, float]] = []
        """Begin and duration of each call."""
        self.ways_s: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        """By queue, the time of sending and the transit time of each message to its handler."""
        self.acknowledged = 0
        self.lost: set[int] = set()
        """Acknowledged and not received, so far."""
        self.repeated = 0
        self.failed = 0
        self.sending = True
        self._received: set[int] = set()
        self._numbers = count_up()
        self._news = asyncio.Event()

    async def _handle(self, message: ReceivedMessage) -> None:
        number, sent_at = _BODY.unpack(message.body)
        assert message.queue is not None
        if number in self._received:
            self.repeated += 1
            return
        self._received.add(number)
        self.ways_s[message.queue].append((sent_at, time.monotonic() - sent_at))
        self.lost.discard(number)
        self._news.set()

    async def send_steadily(self, producer: AsyncProducer) -> None:
        """Run one caller: it sends the next batch after the last answer, but not before its time."""
        due_at = time.monotonic()
        while self.sending:
            numbers, began_at = [next(self._numbers) for _ in range(BATCH)], time.monotonic()
            try:
                await producer.send_many([Message(TOPIC, _BODY.pack(number, began_at)) for number in numbers])
            except (BrokerUnavailable, OutcomeUnknown):
                self.failed += 1
            else:
                self.acknowledged += BATCH
                self.lost.update(number for number in numbers if number not in self._received)
            self.calls_s.append((began_at, time.monotonic() - began_at))
            due_at = max(due_at + CALLERS * BATCH / RATE_PER_S, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))

    async def settled(self) -> None:
        """Return once all acknowledged messages have arrived, or will not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S_MAX):
                while self.lost:
                    self._news.clear()
                    await self._news.wait()

    def longest(self, queues: Sequence[int], start: float, end: float) -> tuple[float, float]:
        """Return the longest call and the longest transit time through these queues, begun from start to end."""
        ways_s = (each for queue in queues for each in self.ways_s[queue])
        return _longest(self.calls_s, start, end), _longest(ways_s, start, end)


def _longest(taken_s: Iterable[tuple[float, float]], start: float, end: float) -> float:
    return max((took_s for began_at, took_s in taken_s if start <= began_at < end), default=0.0)


def queues_of(url: str) -> dict[str, list[int]]:
    """Return the numbers of the topic's queues by the address of the broker that delivers them."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            """
            select b.address, q.number from txmsg.queue_lease l join txmsg.broker b on b.id = l.broker_id
              join txmsg.queue q on q.id = l.queue_id join txmsg.topic t on t.id = q.topic_id
             where t.name = %s and l.wanted_by is null and b.expires_at > now()
            """,
            (TOPIC,),
        ).fetchall()
    for address, number in rows:
        found[address].append(number)
    return found


async def spread(url: str, brokers: Sequence[Broker]) -> dict[str, list[int]]:
    """Return once each broker has its share of the queues."""
    async with asyncio.timeout(SPREAD_S_MAX):
        while True:
            found = await asyncio.to_thread(queues_of, url)
            if sorted(len(found.get(each.address, ())) for each in brokers) == [QUEUES // BROKERS] * BROKERS:
                return found
            await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class BrokerDeath:
    """The longest call and transit time through queues of a dying broker, after its death and before."""

    how: str
    send_s: float
    deliver_s: float
    send_before_s: float
    deliver_before_s: float


async def kill_one(url: str, load: Load, one: Broker, brokers: Sequence[Broker], how: signal.Signals) -> BrokerDeath:
    """Stop one of the brokers, and measure the pause."""
    queues = (await spread(url, brokers))[one.address]
    await asyncio.sleep(BEFORE_S)
    died_at = time.monotonic()
    await asyncio.to_thread(one.end, how)
    await asyncio.sleep(AFTER_S)
    send_before_s, deliver_before_s = load.longest(queues, died_at - BEFORE_S, died_at - UNDER_WAY_S)
    send_s, deliver_s = load.longest(queues, died_at - UNDER_WAY_S, time.monotonic())
    return BrokerDeath(
        how="killed" if how is signal.SIGKILL else "stopped",
        send_s=round(send_s, 3),
        deliver_s=round(deliver_s, 3),
        send_before_s=round(send_before_s, 3),
        deliver_before_s=round(deliver_before_s, 3),
    )


async def measure(url: str, rounds: int) -> tuple[list[BrokerDeath], Load]:
    """Kill and stop brokers by turns; return the pauses and all recorded data."""
    found = []
    with ExitStack() as running, progress_of("failover", 2 * rounds) as step:

        def start(address: str = "127.0.0.1:0") -> Broker:
            return running.enter_context(broker_process(url, "--topic-queues", str(QUEUES), listen=address))

        brokers = [start() for _ in range(BROKERS)]
        load = Load([each.address for each in brokers])
        async with AsyncExitStack() as clients:
            await clients.enter_async_context(load.consumer)
            for producer in load.producers:
                await clients.enter_async_context(producer)
            async with asyncio.TaskGroup() as callers:
                for producer in load.producers:
                    callers.create_task(load.send_steadily(producer))
                for how in (signal.SIGKILL, signal.SIGTERM) * rounds:
                    ended = brokers.pop(0)
                    found.append(await kill_one(url, load, ended, [ended, *brokers], how))
                    brokers.append(await asyncio.to_thread(start, ended.address))
                    step()
                load.sending = False
            await load.settled()
    return found, load


def main() -> int:
    """Measure, print, and check that no message was lost."""
    parser = parser_of(__doc__, "one kill and one stop")
    parser.add_argument("--rounds", type=int, metavar="N", help="so many kills and so many stops")
    parser.add_argument("--storage", help="a Notify database of your own; default: a fresh embedded one")
    options = parser.parse_args()
    with notify_database(options.storage) as url:
        found, load = run(measure(url, options.rounds or (1 if options.quick else 4)))
    for each in found:
        print(
            f"{each.how:8}longest call {each.send_s:6.2f} s (before {each.send_before_s:.2f} s)   "
            f"longest way through its queues {each.deliver_s:6.2f} s (before {each.deliver_before_s:.2f} s)"
        )
    print(
        f"{load.acknowledged:,} messages acknowledged, {len(load.lost)} of them lost; "
        f"{load.repeated} deliveries repeated, {load.failed} of {len(load.calls_s):,} calls failed"
    )
    if options.json:
        print(
            json.dumps(
                {
                    "deaths": [asdict(each) for each in found],
                    "acknowledged": load.acknowledged,
                    "lost": len(load.lost),
                    "repeated": load.repeated,
                    "failed_calls": load.failed,
                }
            )
        )
    return 1 if load.lost else 0


if __name__ == "__main__":
    sys.exit(main())
