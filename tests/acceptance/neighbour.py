"""A well-behaved application beside a fault: it sends and receives transactions continuously."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from txmsg.client import AsyncConsumer, AsyncProducer
from txmsg.errors import TxmsgError
from txmsg.message import Message, MessageId, ReceivedMessage, TransactionState

TOPIC = "neighbour"
_WAIT_S = 120.0
_PAUSE_S = 0.01


class Neighbour:
    """Counts its messages sent and received. Safe to read from any thread."""

    def __init__(self) -> None:
        self.committed: list[MessageId] = []
        self.received: list[MessageId] = []
        self.errors: list[TxmsgError] = []
        self.pause_s_max = 0.0
        """The longest time without a committed transaction."""
        self._committed_at = time.monotonic()
        self._changed = threading.Condition()

    def goes_on(self, count: int = 20) -> None:
        """Return when `count` further transactions were committed and received; fails if not in time."""
        with self._changed:
            wanted = len(self.received) + count, len(self.committed) + count

            def is_there() -> bool:
                return len(self.received) >= wanted[0] and len(self.committed) >= wanted[1]

            assert self._changed.wait_for(is_there, _WAIT_S), f"the neighbour stands still: {self.errors[-3:]}"

    def _add(self, *, committed: MessageId | None = None, received: MessageId | None = None) -> None:
        with self._changed:
            if committed is not None:
                self.committed.append(committed)
                now = time.monotonic()
                self.pause_s_max = max(self.pause_s_max, now - self._committed_at)
                self._committed_at = now
            if received is not None:
                self.received.append(received)
            self._changed.notify_all()

    def _add_error(self, error: TxmsgError) -> None:
        with self._changed:
            self.errors.append(error)
            self._changed.notify_all()

    def _has_all(self) -> bool:
        return set(self.committed) <= set(self.received)

    async def run(self, address: str, *, timeout_s: float, stop: asyncio.Event) -> None:
        consumer = AsyncConsumer(address, group="neighbour")

        @consumer.subscribe(TOPIC)
        async def note(message: ReceivedMessage) -> None:
            self._add(received=message.id)

        async with consumer, AsyncProducer(address, group="neighbour", timeout_s=timeout_s) as producer:
            while not stop.is_set():
                try:
                    half = await producer.half([Message(TOPIC, b"hello")])
                    await producer.end(half, TransactionState.COMMIT)
                except TxmsgError as exc:
                    self._add_error(exc)
                else:
                    self._add(committed=MessageId(f"{half.transaction_id}.0"))
                await asyncio.sleep(_PAUSE_S)
            async with asyncio.timeout(_WAIT_S):
                while not self._has_all():  # noqa: ASYNC110 - what wakes it comes from other tasks, all through _add
                    await asyncio.sleep(_PAUSE_S)


@contextmanager
def neighbour(address: str, *, timeout_s: float = 90.0) -> Iterator[Neighbour]:
    """Run a neighbour in a thread. Fails unless all committed transactions were received at the end.

    timeout_s: of the producer. Failed calls are kept in `errors`; the test decides whether any may fail.
    """
    found = Neighbour()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    failure: list[BaseException] = []

    def work() -> None:
        try:
            loop.run_until_complete(found.run(address, timeout_s=timeout_s, stop=stop))
        except BaseException as exc:  # noqa: BLE001 - a thread's root: raised below
            failure.append(exc)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=work, name="neighbour")
    thread.start()
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(2 * _WAIT_S)
    assert not thread.is_alive(), "the neighbour does not end"
    if failure:
        missing = len(set(found.committed) - set(found.received))
        raise AssertionError(f"the neighbour failed; {missing} committed messages did not come") from failure[0]
    assert found.committed, "the neighbour has done nothing"
