"""Work measured by benchmarks: messages sent in batches, transactions, messages delivered to a group's handlers.

Rates are messages (or transactions) per second. Each message is sent once; `Arrivals` knows whether it came once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.message import Message, ReceivedMessage, TransactionState

T = TypeVar("T")

CONCURRENCY = 100
WAIT_S_MAX = 1800.0
STREAMS = 8
"""Concurrent batches."""
BATCH_COUNT = 500
BATCH_SIZE_BYTES = 4 * 1024 * 1024

_runner = asyncio.Runner()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like `asyncio.run`, but on one loop: connections belong to the loop they were created on."""
    return _runner.run(work)


class Arrivals:
    """Messages of one topic received by one group: a bitmap per queue, so that ten million need ten megabytes."""

    def __init__(self) -> None:
        self.count = 0
        self.repeated = 0
        """Duplicated messages."""
        self.out_of_order = 0
        """Messages received not directly after their predecessor in the queue."""
        self.began_at = 0.0
        self.ended_at = 0.0
        self._target = 0
        self._reached = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._seen: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._next: defaultdict[int, int] = defaultdict(int)

    @contextmanager
    def expect(self, count: int) -> Iterator[asyncio.Event]:
        """Clear the event until so many more have arrived. Records the time from the first to the last of them."""
        self.began_at = self.ended_at = 0.0
        self._target, self._reached, self._loop = self.count + count, asyncio.Event(), asyncio.get_running_loop()
        yield self._reached
        self._loop = None

    def note(self, message: ReceivedMessage) -> None:
        """Record a message, from any thread."""
        queue, offset = message.queue, message.offset
        assert queue is not None
        assert offset is not None
        with self._lock:
            if not self.began_at:
                self.began_at = time.perf_counter()
            seen = self._seen[queue]
            if offset >= len(seen):
                seen.extend(bytes(offset + 1))  # at least twice as long as it was
            if seen[offset]:
                self.repeated += 1
                return
            seen[offset] = 1
            if offset != self._next[queue]:
                self.out_of_order += 1
            self._next[queue] = offset + 1
            self.count += 1
            if self.count == self._target and self._loop is not None:
                self.ended_at = time.perf_counter()
                self._loop.call_soon_threadsafe(self._reached.set)

    def missing(self) -> int:
        """Return the number of skipped offsets: 0 if every queue was dense from its first message on."""
        return sum(seen.rfind(1) + 1 - seen.count(1) for seen in self._seen.values())


async def send_streams(address: str, streams: Sequence[Iterable[Sequence[Message]]]) -> float:
    """Send the batches of each stream in sequence, the streams concurrently; return messages per second."""
    count = 0

    async def send_all(producer: AsyncProducer, stream: Iterable[Sequence[Message]]) -> None:
        nonlocal count
        for batch in stream:
            await producer.send_many(batch)
            count += len(batch)

    async with AsyncProducer(address, group="bench", timeout_s=60) as producer:
        began_at = time.perf_counter()
        await asyncio.gather(*(send_all(producer, stream) for stream in streams))
        return count / (time.perf_counter() - began_at)


async def send(address: str, topic: str, count: int, size_bytes: int = 100) -> float:
    """Send messages in batches; return messages per second."""
    message = Message(topic, b"x" * size_bytes)
    batches = batched([message] * count, min(BATCH_COUNT, BATCH_SIZE_BYTES // size_bytes))
    return await send_streams(address, [batches] * STREAMS)  # one iterator: each takes the next batch


def batched(messages: Sequence[Message], count: int = BATCH_COUNT) -> Iterator[Sequence[Message]]:
    """Yield the messages in slices of so many."""
    return (messages[start : start + count] for start in range(0, len(messages), count))


async def send_transactions(
    address: str, topic: str, callers: int, seconds: float, size_bytes: int = 200
) -> list[float]:
    """Send half messages and commits by so many coroutines; return the seconds of each transaction."""
    message = Message(topic, b"x" * size_bytes)
    took_s: list[float] = []

    async with AsyncProducer(address, group="bench") as producer:

        async def caller(until: float) -> None:
            while (start := time.perf_counter()) < until:
                half = await producer.half([message])
                await producer.end(half, TransactionState.COMMIT)
                took_s.append(time.perf_counter() - start)

        until = time.perf_counter() + seconds
        await asyncio.gather(*(caller(until) for _ in range(callers)))
    return took_s


async def send_alone(address: str, topic: str, seconds: float, size_bytes: int = 200) -> list[float]:
    """Send plain messages by one coroutine; return the seconds of each."""
    message = Message(topic, b"x" * size_bytes)
    took_s: list[float] = []
    async with AsyncProducer(address, group="bench") as producer:
        until = time.perf_counter() + seconds
        while (start := time.perf_counter()) < until:
            await producer.send(message)
            took_s.append(time.perf_counter() - start)
    return took_s


async def consume(address: str, topic: str, group: str, count: int, arrivals: Arrivals) -> float:
    """Return messages per second reaching an `async def` handler, for the next `count` of a group.

    A few more may come while the consumer stops; `arrivals` has them.
    """
    consumer = AsyncConsumer(address, group=group, concurrency=CONCURRENCY)

    @consumer.subscribe(topic)
    async def handle(message: ReceivedMessage) -> None:
        arrivals.note(message)

    with arrivals.expect(count) as reached:
        async with consumer, asyncio.timeout(WAIT_S_MAX):
            await reached.wait()
    return count / (arrivals.ended_at - arrivals.began_at)
