"""Batches for a caller that asks for them, instead of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from txmsg.message import ReceivedMessage
from txmsg.metaq.consumer.balance import Balance
from txmsg.metaq.consumer.lane import Lane
from txmsg.metaq.format.batch import LogBatch
from txmsg.metaq.interface import LogQueue
from txmsg.wire.tags import TagExpression


@dataclass(frozen=True, slots=True)
class PolledBatch:
    """Consecutive messages of a queue, reduced to those with the subscribed tags."""

    batch: LogBatch
    wanted: TagExpression

    @property
    def topic(self) -> str:
        """The topic."""
        return self.batch.topic

    @property
    def queue(self) -> int:
        """The queue's number."""
        return self.batch.queue

    @property
    def end_offset(self) -> int:
        """The offset after the last message."""
        return self.batch.end_offset

    def to_arrow(self) -> pa.RecordBatch:
        """Return the messages as columns, on the log's own bytes when they are not compressed. Schema: SCHEMA."""
        return self.batch.to_arrow(self.wanted)

    def messages(self) -> Iterator[ReceivedMessage]:
        """Return the messages one by one."""
        return self.batch.messages(self.wanted)


def packed_headers_of(batches: Sequence[PolledBatch]) -> list[bytes | None]:
    """Return the headers of all messages, as they are stored."""
    return [packed for batch in batches for packed in batch.to_arrow()["headers"].to_pylist()]


class LanePolls:
    """The batches that one caller polls from the lanes.

    A lane whose batch was polled counts as busy until the next poll.

    room: set when a lane has room again.
    """

    def __init__(self, balance: Balance, room: asyncio.Event) -> None:
        self._balance = balance
        self._room = room
        self._polled: dict[LogQueue, tuple[Lane, int]] = {}
        self._turn = 0
        self.is_ending = False
        self.is_group_stopped = False
        """True if an operator has stopped the group: polls return nothing."""
        self.ready = asyncio.Event()
        """Set when a lane has a batch, or an error."""

    async def poll(self, timeout_s: float, count_max: int) -> list[PolledBatch]:
        """Return the next batches; none if nothing comes in time, or after the close.

        Raises the error that stops a lane.
        """
        self.end_poll()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            self.ready.clear()
            found = [] if self.is_ending else self._popped(count_max)
            left_s = deadline - loop.time()
            if found or left_s <= 0 or self.is_ending:
                return found
            for lane in self._balance.lanes.values():
                if lane.error is not None and not lane.is_stopping:
                    raise lane.error
            try:
                async with asyncio.timeout(left_s):
                    await self.ready.wait()
            except TimeoutError:
                return []

    def _popped(self, count_max: int) -> list[PolledBatch]:
        if self.is_group_stopped:
            return []
        lanes = [lane for lane in self._balance.lanes.values() if not lane.is_stopping and not lane.is_paused]
        if lanes:
            self._turn = (self._turn + 1) % len(lanes)  # another one first each time
        found: list[PolledBatch] = []
        for lane in lanes[self._turn :] + lanes[: self._turn]:
            while len(found) < count_max and (batch := lane.pop_batch()) is not None:
                found.append(PolledBatch(batch, lane.wanted))
                self._polled[lane.queue] = (lane, batch.end_offset)
                # The lane counts as busy until the next poll, so that its queue is not released while the caller
                # handles the batch.
                lane.idle.clear()
        self._room.set()
        return found

    def end_poll(self) -> None:
        """Record that the polled batches are processed: their lanes may be released."""
        for lane, _ in self._polled.values():
            lane.idle.set()

    async def commit(self) -> None:
        """Store the offsets after what was polled."""
        polled, self._polled = self._polled, {}
        for queue, (lane, offset) in polled.items():
            # The queue may belong to another member by now, or to a new lane after a seek: its offset is not stored.
            if self._balance.lanes.get(queue) is lane:
                lane.offset = offset
            lane.idle.set()
        await self._balance.store()

    def forget_queue(self, queue: LogQueue) -> None:
        """Exclude this queue's polled messages from the next commit: it continues at another offset."""
        if (polled := self._polled.pop(queue, None)) is not None:
            polled[0].idle.set()
