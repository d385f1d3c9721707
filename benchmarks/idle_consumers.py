"""Cost of idle consumers for a broker: CPU time of its process, PINGs included, per consumer.

Each consumer is a connection with what a real one has: an attach stream, and a receive that the broker holds. All are
in one process, which answers the broker's PINGs. A hundred consumers share a group. The cost of a broker without any is
measured first and taken off. In the end one message is sent: the exit status is 1 if it does not come once to each
group.

    python -m benchmarks.idle_consumers [--quick] [--json] [--consumers N]
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
from collections import Counter
from collections.abc import Set
from contextlib import AsyncExitStack

import psutil

from benchmarks.load import run
from benchmarks.surroundings import Broker, broker_process, notify_database, parser_of, progress_of
from txmsg.client import AsyncProducer
from txmsg.client.receiving.calls import CALL_GRACE_S
from txmsg.client.receiving.poller import POLL_WAIT_S
from txmsg.errors import BrokerUnavailable
from txmsg.message import Message
from txmsg.wire.channel import Channel
from txmsg.wire.v1.txmsg_pb2 import ClientFrame, Hello, ReceiveRequest, Subscription
from txmsg.wire.v1.txmsg_rpc import Notify

TOPIC = "bench.idle"
GROUP_SIZE = 100
CONNECTING_MAX = 50
TARGET_US = 10.0
ARRIVE_S_MAX = 120.0


class Consumers:
    """Connections that attach and wait for messages, and the deliveries by group."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._slots = asyncio.Semaphore(CONNECTING_MAX)
        self._stack = AsyncExitStack()
        self.connected = 0
        self.came: Counter[str] = Counter()
        self._came = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, count: int) -> None:
        """Add so many; return once all have asked for messages and the broker is idle."""
        self.tasks = [asyncio.create_task(self._consume(number)) for number in range(count)]
        while self.connected < count:
            for task in self.tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.1)

    async def reached(self, groups: Set[str]) -> None:
        """Return once messages have reached all of these."""
        while self.came.keys() < groups:
            self._came.clear()
            await self._came.wait()

    async def close(self) -> None:
        """Close all of them."""
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        await self._stack.aclose()

    async def _consume(self, number: int) -> None:
        group, client_id = f"idle-{number // GROUP_SIZE}", f"c{number}"
        wanted = [Subscription(topic=TOPIC, tags="*")]
        request = ReceiveRequest(
            group=group, client_id=client_id, subscriptions=wanted, visibility_timeout_ms=3_600_000, line=number + 1
        )
        async with self._slots:
            channel = await self._stack.enter_async_context(Channel(self._address))
            hello = ClientFrame(hello=Hello(client_id=client_id))
            stream = await channel.stream(Notify.attach, hello, timeout_s=30)
            await stream.receive()
            await channel.call(Notify.receive, request, timeout_s=30)  # the group is loaded
        request.max_messages = 1
        request.wait_ms = random.randrange(int(POLL_WAIT_S * 1000))  # so that they ask again at different times
        self.connected += 1
        while True:
            try:
                reply = await channel.call(Notify.receive, request, timeout_s=POLL_WAIT_S + CALL_GRACE_S)
            except BrokerUnavailable as exc:
                print(f"a consumer lost its broker: {exc}", file=sys.stderr)
                return
            request.wait_ms = int(POLL_WAIT_S * 1000)
            for columns in reply.batches:
                request.received = columns.receipt.token
                self.came[group] += len(columns.body)
                self._came.set()


def spent_s(process: psutil.Process) -> float:
    """Return the CPU time so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def share(broker: Broker, seconds: float) -> float:
    """Return the share of a core that the broker uses over so many seconds."""
    before_s = spent_s(broker.process)
    await asyncio.sleep(seconds)
    return (spent_s(broker.process) - before_s) / seconds


async def measure(broker: Broker, count: int, seconds: float) -> tuple[float, float, int]:
    """Return shares of a core without and with the consumers, and the groups without exactly one message."""
    alone = await share(broker, min(seconds, 10.0))
    consumers = Consumers(broker.address)
    await consumers.add(count)
    try:
        await asyncio.sleep(2)  # the work left by so many arrivals
        together = await share(broker, seconds)
        async with AsyncProducer(broker.address, group="bench") as producer:
            await producer.send(Message(TOPIC, b"body"))
        groups = {f"idle-{number // GROUP_SIZE}" for number in range(count)}
        try:
            async with asyncio.timeout(ARRIVE_S_MAX):
                await consumers.reached(groups)
        except TimeoutError:
            print("the message has not come to all groups", file=sys.stderr)
        return alone, together, sum(consumers.came[group] != 1 for group in groups)
    finally:
        await consumers.close()


def main() -> int:
    """Measure, print, and check that a message reaches every group."""
    parser = parser_of(__doc__, "1,000 consumers")
    parser.add_argument("--consumers", type=int, metavar="N", help="idle consumers")
    parser.add_argument("--seconds", type=float, help="how long is measured")
    options = parser.parse_args()
    count = options.consumers or (1_000 if options.quick else 10_000)
    seconds = options.seconds or 60.0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with notify_database(None) as url, broker_process(url) as broker, progress_of("idle consumers", 1) as step:
        alone, together, wrong = run(measure(broker, count, seconds))
        step()
    each_us = 1e6 * (together - alone) / count
    print(f"a broker without consumers: {alone:.4f} of a core; with {count:,} idle ones: {together:.4f}")
    print(f"an idle consumer: {each_us:.1f} us/s of a core (target <= {TARGET_US:g})")
    print(f"{wrong} groups did not get the message once")
    if options.json:
        figures = {"consumer_us_per_s": round(each_us, 2), "cores": round(together, 4), "alone": round(alone, 4)}
        print(json.dumps({**figures, "consumers": count, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
