"""A queue that a member owns: its fetched messages, those being handled, and its position. Pure: no I/O.

The messages of a lane are handled one at a time, those of different lanes side by side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

from txmsg.consumer.failures import HandlerFailure
from txmsg.errors import CorruptLog, UnreadableMessage
from txmsg.message import ReceivedMessage
from txmsg.metaq.consumer.retries import Tried, tried_of
from txmsg.metaq.format.batch import LogBatch
from txmsg.metaq.interface import LogQueue
from txmsg.wire.tags import TagExpression

CHUNK_COUNT = 128
"""Messages of a queue that are passed to its handler together, one after the other."""


def chunk_count_of(list_count: int) -> int:
    """Return the same for a handler of lists: enough for full lists, since none goes beyond a chunk."""
    return -(-CHUNK_COUNT // list_count) * list_count


@dataclass(slots=True)
class Chunk:
    """Consecutive messages of a lane, being handled. Its handler records its progress in it."""

    tried: Sequence[Tried]
    offsets: Sequence[int]
    """The offset of each message in the lane's own queue, and the one at which the lane continues after the last."""
    done: int = 0
    failed: list[Tried] = field(default_factory=list)
    first_failed: int | None = None
    """The offset of the first message that failed and is stored nowhere else yet."""
    keep_at: float | None = None
    """The time, by the loop's clock, at which failed messages are stored even if more of the chunk could be handled."""

    @property
    def is_done(self) -> bool:
        """True if every message was handled, or has failed."""
        return self.done == len(self.tried)

    @property
    def next(self) -> ReceivedMessage:
        """The message to be handled next."""
        return self.tried[self.done].message

    @property
    def offset(self) -> int:
        """The offset before which everything is handled, or stored in the retries."""
        return self.offsets[self.done] if self.first_failed is None else self.first_failed

    def together(self, topic: str, count: int) -> list[ReceivedMessage]:
        """Return the next messages of one topic, at most this many."""
        following = (tried.message for tried in self.tried[self.done : self.done + count])
        return list(takewhile(lambda message: message.topic == topic, following))

    def succeeded(self) -> None:
        """Record that the next message was handled."""
        self.done += 1

    def fail(self, failure: HandlerFailure) -> None:
        """Record that the next message failed."""
        if self.first_failed is None:
            self.first_failed = self.offsets[self.done]
        self.failed.append(self.tried[self.done].failed(failure))
        self.done += 1


class Lane:
    """An owned queue, from an offset on."""

    def __init__(
        self,
        queue: LogQueue,
        offset: int,
        wanted: TagExpression,
        *,
        is_retry: bool = False,
        chunk_count: int = CHUNK_COUNT,
    ) -> None:
        self.queue = queue
        self._chunk_count = chunk_count
        self.wanted = wanted
        self.is_retry = is_retry
        self.offset = offset
        """The offset to be handled next."""
        self.stored = offset
        """The stored value of `offset`."""
        self.fetch_offset = offset
        """The offset to be fetched next."""
        self.unreadable_at: int | None = None
        """The offset of the last message that could not be read."""
        self.waiting_bytes = 0
        """Bytes of batches that were fetched and are not handled."""
        self.is_paused = False
        self.is_stopping = False
        """True if its handler must end after the current message."""
        self.blocked_until = 0.0
        """The time, by the consumer's clock, before which nothing is handled."""
        self.error: Exception | None = None
        """The reason why nothing more is fetched."""
        self.told_at = self.retry_at = 0.0
        """The times, by the consumer's clock, at which the error was logged and at which it is tried again."""
        self.chunk: Chunk | None = None
        self.idle = asyncio.Event()
        """Set while nothing of it is being handled."""
        self.idle.set()
        self._batches: deque[LogBatch] = deque()
        self._messages: Iterator[ReceivedMessage] | None = None
        self._pending: deque[Tried] = deque()
        self._offsets: deque[int] = deque()

    # ---- what was fetched

    def add(self, batches: Sequence[LogBatch]) -> None:
        """Add batches that were fetched at `fetch_offset`."""
        for batch in batches:
            self._batches.append(batch)
            self.waiting_bytes += batch.size_bytes
            self.fetch_offset = batch.end_offset

    def pop_batch(self) -> LogBatch | None:
        """Remove and return the next batch as a whole."""
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self.waiting_bytes -= batch.size_bytes
        return batch

    def move_to(self, offset: int) -> None:
        """Continue at this offset, and drop what was fetched. Only while it is idle."""
        assert self.idle.is_set()
        self._batches.clear()
        self._pending.clear()
        self._offsets.clear()
        self._messages = None
        self.waiting_bytes = 0
        self.offset = self.fetch_offset = offset
        self.blocked_until = 0.0
        self.error = None

    def skip_to(self, offset: int) -> None:
        """Continue fetching at this offset; batches fetched before are still handled, or committed by the caller that
        polled them.
        """
        if self.offset == self.fetch_offset:
            self.offset = offset
        self.fetch_offset = offset

    # ---- what is handled

    def next_chunk(self, now_us: int) -> Chunk | None:
        """Return the next messages to be handled; None if there are none, or the first is not due yet."""
        self._fill()
        if not self._pending:
            return None
        if (due_at_us := self._pending[0].due_at_us) > now_us:
            self.blocked_until = due_at_us / 1_000_000
            return None
        count = len(self._pending)
        if self.is_retry:
            # Within a retry queue messages are due in order, so the first one that is not due ends the chunk.
            count = next((place for place, tried in enumerate(self._pending) if tried.due_at_us > now_us), count)
        offsets = [*list(self._offsets)[:count], self._offsets[count] if count < len(self._pending) else self._after()]
        return Chunk(list(self._pending)[:count], offsets)

    def settle(self, chunk: Chunk) -> None:
        """Record that the messages before the chunk's offset are handled, or stored in the retries; those after it are
        pending.
        """
        self.offset = chunk.offset
        while self._offsets and self._offsets[0] < self.offset:
            self._pending.popleft()
            self._offsets.popleft()

    def replace_first(self, tried: Tried) -> None:
        """Keep a failed message as the next one."""
        self._pending[0] = tried

    def _fill(self) -> None:
        while len(self._pending) < self._chunk_count:
            if self._messages is None:
                if not self._batches:
                    break
                self._messages = self._batches[0].messages(self.wanted)
            try:
                message = next(self._messages, None)
            except UnreadableMessage as exc:
                self._end_before(exc)
                break
            if message is None:
                batch = self.pop_batch()
                assert batch is not None
                self._messages = None
                if not self._pending:
                    self.offset = batch.end_offset
                continue
            assert message.offset is not None
            self._pending.append(_tried_of(message) if self.is_retry else Tried(message))
            self._offsets.append(message.offset)

    def _end_before(self, error: UnreadableMessage) -> None:
        """Have the message fetched once more, without those before it: then the error is the queue's."""
        assert error.next_offset is not None
        self._batches.clear()
        self._messages = None
        self.waiting_bytes = 0
        # Messages before it are delivered first. The message itself is fetched again as the first one, where its error
        # is that of the queue.
        self.fetch_offset = self.unreadable_at = error.next_offset - 1
        if not self._pending:
            self.offset = self.fetch_offset

    def _after(self) -> int:
        """Return the offset at which it continues after all pending messages."""
        if self._messages is not None or not self._offsets:
            return self._offsets[-1] + 1
        return self._batches[0].base_offset if self._batches else self.fetch_offset

    @property
    def has_batches(self) -> bool:
        """True if there is a batch to be polled."""
        return bool(self._batches)

    @property
    def has_work(self) -> bool:
        """True if there may be a message to be handled."""
        return bool(self._batches or self._pending)

    @property
    def held_count(self) -> int:
        """The number of messages of its chunk that are not handled yet."""
        chunk = self.chunk
        return 0 if chunk is None else len(chunk.tried) - chunk.done

    @property
    def position(self) -> int:
        """The offset to be stored now."""
        return self.offset if self.chunk is None else self.chunk.offset


def _tried_of(copy: ReceivedMessage) -> Tried:
    """Return the failed message that a copy is of.

    A message that another program appended is not a copy: it has no handler, and ends as a dead letter.
    """
    with suppress(CorruptLog):
        return tried_of(copy)
    return Tried(copy)
