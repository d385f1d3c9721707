"""How long sending and delivery stand still when a broker of three dies under load, or is stopped for maintenance.

Claims (docs/performance.md): after a kill, sends go on within 2 s, the dead broker's queues are delivered again within
10 s, and nothing acknowledged is lost. One producer and one consumer know all brokers; eight callers send steadily.
When the queues are spread, a broker is killed, and started again; then one is stopped in order. The same is measured
over the seconds before, when nothing happened. The exit status is 1 if an acknowledged message was not delivered.

    python -m benchmarks.failover [--quick] [--json] [--rounds N]
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from itertools import count as count_up
from itertools import pairwise

import psycopg

from benchmarks.load import run
from benchmarks.surroundings import Broker, broker_process, notify_database, parser_of, progress_of
from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown
from txmsg.message import Message, ReceivedMessage

TOPIC = "bench.failover"
BROKERS, QUEUES = 3, 12
CALLERS, BATCH, RATE_PER_S = 8, 20, 4000
SPREAD_S_MAX = 60.0
BEFORE_S, AFTER_S = 5.0, 15.0
LAST_S_MAX = 60.0


class Load:
    """What was acknowledged and what came, and when."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.producer = AsyncProducer(addresses, group="bench")
        self.consumer = AsyncConsumer(addresses, group="bench")
        self.consumer.subscribe(TOPIC)(self._handle)
        self.sent_at: list[float] = []
        self.came_at: defaultdict[int, list[float]] = defaultdict(list)
        self.acknowledged = 0
        self.lost: set[int] = set()
        """Acknowledged and not received, so far."""
        self.repeated = 0
        self.sending = True
        self.failed = 0
        self._received: set[int] = set()
        self._numbers = count_up()
        self._news = asyncio.Event()

    async def _handle(self, message: ReceivedMessage) -> None:
        number = int.from_bytes(message.body)
        assert message.queue is not None
        self.came_at[message.queue].append(time.monotonic())
        self.repeated += number in self._received
        self._received.add(number)
        self.lost.discard(number)
        self._news.set()

    async def send_steadily(self) -> None:
        """One caller: the next batch when the last one is answered, but not before its time."""
        due_at = time.monotonic()
        while self.sending:
            numbers = [next(self._numbers) for _ in range(BATCH)]
            try:
                await self.producer.send_many([Message(TOPIC, number.to_bytes(8)) for number in numbers])
            except (BrokerUnavailable, OutcomeUnknown):
                self.failed += 1
            else:
                self.sent_at.append(time.monotonic())
                self.acknowledged += BATCH
                self.lost.update(number for number in numbers if number not in self._received)
            due_at = max(due_at + CALLERS * BATCH / RATE_PER_S, time.monotonic() - 1)
            await asyncio.sleep(max(0.0, due_at - time.monotonic()))

    async def settled(self) -> None:
        """Returns when all that was acknowledged has come, or does not come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_S_MAX):
                while self.lost:
                    self._news.clear()
                    await self._news.wait()


def longest_pause_s(times: Sequence[float], start: float, end: float) -> float:
    """The longest time between two of these events, from start to end."""
    within = [start, *sorted(each for each in times if start < each < end), end]
    return max(later - earlier for earlier, later in pairwise(within))


def queues_of(url: str) -> dict[str, list[int]]:
    """The numbers of the topic's queues by the address of the broker that delivers them."""
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
    """Returns when each broker has its share of the queues."""
    async with asyncio.timeout(SPREAD_S_MAX):
        while True:
            found = await asyncio.to_thread(queues_of, url)
            if sorted(len(found.get(each.address, ())) for each in brokers) == [QUEUES // BROKERS] * BROKERS:
                return found
            await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Of one death: the longest time without a send acknowledged, and without a delivery from a queue of the dead."""

    how: str
    send_s: float
    deliver_s: float
    send_before_s: float
    deliver_before_s: float


async def one_death(url: str, load: Load, one: Broker, brokers: Sequence[Broker], how: signal.Signals) -> Pauses:
    """Ends one of the brokers, and watches what stands still."""
    queues = (await spread(url, brokers))[one.address]
    await asyncio.sleep(BEFORE_S)
    died_at = time.monotonic()
    await asyncio.to_thread(one.end, how)
    await asyncio.sleep(AFTER_S)
    before, after = (died_at - BEFORE_S, died_at), (died_at, died_at + AFTER_S)
    return Pauses(
        how="killed" if how is signal.SIGKILL else "stopped",
        send_s=longest_pause_s(load.sent_at, *after),
        deliver_s=max(longest_pause_s(load.came_at[queue], *after) for queue in queues),
        send_before_s=longest_pause_s(load.sent_at, *before),
        deliver_before_s=max(longest_pause_s(load.came_at[queue], *before) for queue in queues),
    )


async def measure(url: str, rounds: int) -> tuple[list[Pauses], Load]:
    """Kills and stops brokers by turns; the pauses, and what was recorded."""
    found = []
    with ExitStack() as running, progress_of("failover", 2 * rounds) as step:

        def start(address: str = "127.0.0.1:0") -> Broker:
            return running.enter_context(broker_process(url, "--topic-queues", str(QUEUES), listen=address))

        brokers = [start() for _ in range(BROKERS)]
        load = Load([each.address for each in brokers])
        async with load.producer, load.consumer:
            async with asyncio.TaskGroup() as callers:
                for _ in range(CALLERS):
                    callers.create_task(load.send_steadily())
                for how in (signal.SIGKILL, signal.SIGTERM) * rounds:
                    ended = brokers.pop(0)
                    found.append(await one_death(url, load, ended, [ended, *brokers], how))
                    brokers.append(await asyncio.to_thread(start, ended.address))
                    step()
                load.sending = False
            await load.settled()
    return found, load


def main() -> int:
    """Measures, prints, and checks that nothing was lost."""
    parser = parser_of(__doc__, "one kill and one stop")
    parser.add_argument("--rounds", type=int, metavar="N", help="so many kills and so many stops")
    parser.add_argument("--storage", help="a Notify database of your own; default: a fresh embedded one")
    options = parser.parse_args()
    with notify_database(options.storage) as url:
        found, load = run(measure(url, options.rounds or (1 if options.quick else 4)))
    for each in found:
        print(
            f"{each.how:8}without a send {each.send_s:6.2f} s (before {each.send_before_s:.2f} s)   "
            f"without a delivery of its queues {each.deliver_s:6.2f} s (before {each.deliver_before_s:.2f} s)"
        )
    print(
        f"{load.acknowledged:,} messages acknowledged, {len(load.lost)} of them lost; "
        f"{load.repeated} deliveries repeated, {load.failed} of {len(load.sent_at) + load.failed:,} calls failed"
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
