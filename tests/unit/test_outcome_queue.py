"""Outcomes that are sent in groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from txmsg.client.sending.batch import EndEntry
from txmsg.client.sending.outcome_queue import GROUP_S, OutcomeQueue
from txmsg.message import TransactionState

SHARD = b"h" * 16


class Loop(asyncio.BaseEventLoop):
    """An event loop that runs when told, at the set time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.soon: list[Callable[[], object]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.before_call: Callable[[], object] | None = None

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(self, callback, *args, context=None):  # type: ignore[no-untyped-def,override]
        before, self.before_call = self.before_call, None
        if before is not None:
            before()
        self.soon.append(callback)

    def call_at(self, when, callback, *args, context=None):  # type: ignore[no-untyped-def,override]
        self.later.append((when, callback))

    def run_at(self, now: float) -> None:
        self.now = now
        soon, self.soon = self.soon, []
        due = [callback for when, callback in self.later if when <= now]
        self.later = [(when, callback) for when, callback in self.later if when > now]
        for callback in [*soon, *due]:
            callback()


class Sent:
    """A queue on such a loop, with the numbers of the outcomes sent."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.numbers: list[int] = []
        self.queue = OutcomeQueue(self.loop, self._send)

    def _send(self, shard: bytes, entry: EndEntry) -> None:
        assert shard == SHARD
        self.numbers.append(int.from_bytes(entry.transaction_id, "big"))

    def add(self, number: int) -> None:
        self.queue.add(SHARD, EndEntry(number.to_bytes(16, "big"), TransactionState.COMMIT, None))


@pytest.fixture
def sent() -> Iterator[Sent]:
    sent = Sent()
    yield sent
    sent.loop.close()


def test_first_outcome_after_a_pause_is_sent_at_once(sent: Sent) -> None:
    for number, now in enumerate((1000.0, 1000.0 + 2 * GROUP_S, 1000.0 + 4 * GROUP_S)):
        sent.add(number)
        sent.loop.run_at(now)
        assert sent.numbers == list(range(number + 1))


def test_outcomes_of_the_next_milliseconds_are_sent_together_with_one_wakeup(sent: Sent) -> None:
    sent.add(0)
    sent.loop.run_at(1000.0)
    wakes = 0
    for number in range(1, 6):
        sent.add(number)
        wakes += len(sent.loop.soon)
        sent.loop.run_at(1000.0 + number * GROUP_S / 8)
        assert sent.numbers == [0]
    sent.loop.run_at(1000.0 + GROUP_S)
    assert sent.numbers == [0, 1, 2, 3, 4, 5]
    assert wakes == 1


def test_closing_sends_what_waits_and_then_each_outcome_at_once(sent: Sent) -> None:
    sent.add(0)
    sent.loop.run_at(1000.0)
    sent.add(1)
    sent.queue.close()
    assert sent.numbers == [0, 1]
    sent.add(2)  # of a transaction that commits while half messages are drained
    sent.loop.run_at(1000.0)
    assert sent.numbers == [0, 1, 2]


def test_interrupted_thread_strands_neither_its_outcome_nor_that_of_another_thread(sent: Sent) -> None:
    def interrupt() -> None:
        sent.add(1)  # another thread sees that a flush is due, and asks for none
        raise KeyboardInterrupt

    sent.loop.before_call = interrupt
    with pytest.raises(KeyboardInterrupt):
        sent.add(0)
    sent.loop.run_at(1000.0)
    assert sent.numbers == [0, 1]
