"""Threads that send for each other: the choice of a leader, and the fallback of the others if it cannot continue."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.waiting import until
from txmsg.client.sending import thread_lane, waiting
from txmsg.client.sending.batch import EndEntry
from txmsg.client.sending.coalescer import Coalescer
from txmsg.client.sending.thread_lane import FailedRequest, ThreadLane, ThreadWaiter
from txmsg.client.sending.waiting import IN_FLIGHT_MAX
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown
from txmsg.message import TransactionState
from txmsg.runtime.process import LoopThread, shared_loop

SHARD = b"h" * 16
WAIT_S = 60.0
PATIENCE_S = 2 * WAIT_S
"""Timeout of sending threads: longer than a test's, so that a thread that is not woken fails the test."""


class Broker:
    """Records requests of threads and of the event loop. Those of threads end as `outcome` defines."""

    def __init__(self) -> None:
        self.from_threads: list[list[EndEntry]] = []
        self.from_loop: list[list[EndEntry]] = []
        self.retried: list[FailedRequest[EndEntry]] = []
        self.release = threading.Event()
        self.release.set()
        self.outcome: Callable[[list[EndEntry]], FailedRequest[EndEntry] | None] = self.take
        self.crowd: Callable[[], int] = lambda: 1

    def take(self, entries: list[EndEntry]) -> None:
        for entry in entries:
            entry.succeed(SHARD)

    def attempt(self, entries: list[EndEntry], until: float) -> FailedRequest[EndEntry] | None:
        self.from_threads.append(entries)
        if not self.release.wait(until - time.monotonic()):
            return FailedRequest(entries, OutcomeUnknown("the leader has no more time"))
        return self.outcome(entries)

    async def send(self, entries: list[EndEntry]) -> None:
        self.from_loop.append(entries)
        self.take(entries)

    async def retry(self, failed: FailedRequest[EndEntry]) -> None:
        self.retried.append(failed)
        self.take(failed.entries)


class Lane:
    """A lane on the event loop of the process, and threads that send."""

    def __init__(self, loop: LoopThread, threads: ThreadPoolExecutor) -> None:
        self.broker = Broker()
        self._loop = loop
        self._threads = threads
        self._numbers = iter(range(100_000))

        async def made() -> ThreadLane[EndEntry]:
            coalescer = Coalescer(self.broker.send, timeout_s=20, loop=loop.loop)
            return ThreadLane(
                coalescer,
                self.broker.attempt,
                self.broker.retry,
                timeout_s=20,
                loop=loop.loop,
                crowd=lambda: self.broker.crowd(),  # noqa: PLW0108 - tests set another one later
            )

        self.lane = loop.call(made())

    def send(self, wait_s: float = PATIENCE_S) -> bytes:
        waiter: ThreadWaiter[EndEntry] = ThreadWaiter()
        entry = EndEntry(next(self._numbers).to_bytes(16, "big"), TransactionState.COMMIT, waiter)
        return self.lane.send_and_wait(entry, waiter, wait_s)

    def submit(self, wait_s: float = PATIENCE_S) -> Future[bytes]:
        """Start a thread that sends."""
        return self._threads.submit(self.send, wait_s)

    def sending(self, count: int, wait_s: float = PATIENCE_S) -> list[Future[bytes]]:
        """Start so many sending threads and return when all have arrived."""
        items = self.lane.items()
        futures = [self.submit(wait_s) for _ in range(count)]
        until(lambda: self.lane.items() == items + count)
        return futures

    def fill(self, wait_s: float = PATIENCE_S) -> list[Future[bytes]]:
        """Start as many leaders as allowed, whose requests are pending until they are released."""
        self.broker.release.clear()
        leaders = []
        for count in range(1, IN_FLIGHT_MAX + 1):
            leaders += self.sending(1, wait_s)
            until(lambda count=count: len(self.broker.from_threads) == count)  # type: ignore[misc]
        return leaders

    def close(self) -> Any:
        return self._threads.submit(self._loop.call, self.lane.drain())


@pytest.fixture
def lane() -> Iterator[Lane]:
    with ThreadPoolExecutor(40) as threads:
        made = Lane(shared_loop(), threads)
        yield made
        made.broker.release.set()


def results(futures: list[Future[bytes]]) -> list[bytes]:
    return [future.result(WAIT_S) for future in futures]


def sizes(requests: list[list[EndEntry]]) -> list[int]:
    return [len(request) for request in requests]


def test_a_single_thread_sends_without_the_event_loop(lane: Lane) -> None:
    assert [lane.send(), lane.send()] == [SHARD] * 2
    assert sizes(lane.broker.from_threads) == [1, 1]
    assert not lane.broker.from_loop


def test_calls_during_pending_requests_share_the_next_request(lane: Lane) -> None:
    leaders = lane.fill()
    followers = lane.sending(10)
    assert sizes(lane.broker.from_threads) == [1] * IN_FLIGHT_MAX
    lane.broker.release.set()
    assert results([*leaders, *followers]) == [SHARD] * (IN_FLIGHT_MAX + 10)
    assert sizes(lane.broker.from_threads) == [*[1] * IN_FLIGHT_MAX, 10]
    assert not lane.broker.from_loop


def test_a_failed_request_and_those_behind_it_continue_on_the_event_loop(lane: Lane) -> None:
    leaders = lane.fill()
    followers = lane.sending(10)
    lane.broker.outcome = lambda entries: FailedRequest(entries, BrokerUnavailable("it has gone"))
    lane.broker.release.set()
    assert results([*leaders, *followers]) == [SHARD] * (IN_FLIGHT_MAX + 10)
    assert sizes(lane.broker.from_threads) == [1] * IN_FLIGHT_MAX
    assert all(str(failed.error) == "it has gone" for failed in lane.broker.retried)
    assert sum(len(failed.entries) for failed in lane.broker.retried) == IN_FLIGHT_MAX
    assert sum(sizes(lane.broker.from_loop)) == 10

    lane.broker.outcome = lane.broker.take  # and threads send by themselves again
    until(lambda: lane.send() and len(lane.broker.from_threads) > IN_FLIGHT_MAX)


def test_a_leader_that_times_out_does_not_shorten_the_wait_of_followers(lane: Lane) -> None:
    leaders = lane.fill(wait_s=2.0)
    followers = lane.sending(5)
    for leader in leaders:
        with pytest.raises(OutcomeUnknown, match="still being tried"):
            leader.result(WAIT_S)
    assert results(followers) == [SHARD] * 5


def test_a_follower_that_stopped_waiting_is_still_sent(lane: Lane) -> None:
    leaders = lane.fill()
    [follower] = lane.sending(1, wait_s=0.1)
    with pytest.raises(OutcomeUnknown, match="still being tried"):
        follower.result(WAIT_S)
    until(lambda: sizes(lane.broker.from_loop) == [1])
    lane.broker.release.set()
    assert results(leaders) == [SHARD] * IN_FLIGHT_MAX


def test_closing_sends_waiting_calls_and_refuses_new_ones(lane: Lane) -> None:
    leaders = lane.fill()
    followers = lane.sending(5)
    closing = lane.close()
    assert results(followers) == [SHARD] * 5  # by the loop
    with pytest.raises(MisuseError, match="closed"):
        lane.send()
    assert not closing.done()
    lane.broker.release.set()
    closing.result(WAIT_S)
    assert results(leaders) == [SHARD] * IN_FLIGHT_MAX


TRACED = {
    str(module.__file__): Path(str(module.__file__)).read_text().splitlines() for module in (thread_lane, waiting)
}


def interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Return True if the call was interrupted, as by Ctrl-C, at its n-th execution of lines of TRACED.

    Not at a line with `with`: it is executed again at the end, where an interruption would keep the lock.
    """
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        text = TRACED.get(frame.f_code.co_filename)
        if text is None:
            return None
        if event == "line" and not text[frame.f_lineno - 1].lstrip().startswith("with "):
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    assert seen < line
    return False


def assert_goes_on(lane: Lane, company: list[Future[bytes]], line: int) -> None:
    """Check that all others get their answers and that threads send by themselves again."""
    lane.broker.release.set()
    company += [lane.submit() for _ in range(2)]
    assert results(company) == [SHARD] * len(company), f"interrupted at line {line}"
    sent = len(lane.broker.from_threads)
    until(lambda: lane.send() and len(lane.broker.from_threads) > sent, why=f"interrupted at line {line}")
    assert not lane.lane._leaders, f"interrupted at line {line}"


@pytest.mark.parametrize("items_max", [100, 2], ids=["whole", "split"])
@pytest.mark.parametrize("error", [None, BrokerUnavailable("it has gone")], ids=["succeeds", "fails"])
def test_a_leader_interrupted_at_any_line_strands_no_other_caller(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, error: BrokerUnavailable | None, items_max: int
) -> None:
    monkeypatch.setattr(thread_lane, "IN_FLIGHT_MAX", 1)
    monkeypatch.setattr(waiting, "ITEMS_SPLIT", items_max)
    broker = lane.broker
    company: list[Future[bytes]] = []

    def come() -> None:
        before = lane.lane._waiting.items
        company.extend([lane.submit() for _ in range(3)])
        until(lambda: lane.lane._waiting.items == before + 3)

    def crowd() -> int:
        """Let others arrive before the leader takes waiting calls."""
        broker.crowd = lambda: 1
        come()
        return 1

    def outcome(entries: list[EndEntry]) -> FailedRequest[EndEntry] | None:
        """Let others arrive during its request."""
        broker.outcome = broker.take
        come()
        if error is not None:
            return FailedRequest(entries, error)
        broker.take(entries)
        return None

    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        company.clear()
        broker.crowd, broker.outcome = crowd, outcome
        was_interrupted = interrupted_at(line, lane.send)
        broker.crowd, broker.outcome = (lambda: 1), broker.take
        assert_goes_on(lane, company, line)
    assert line > 30


def test_a_follower_interrupted_at_any_line_of_its_timeout_strands_no_other_caller(lane: Lane) -> None:
    def send() -> None:
        with pytest.raises(OutcomeUnknown, match="still being tried"):
            lane.send(wait_s=0.0)

    line, was_interrupted = 0, True
    while was_interrupted:
        line += 1
        lane.broker.from_threads.clear()
        company = lane.fill()
        was_interrupted = interrupted_at(line, send)
        company += [lane.submit() for _ in range(3)]
        assert_goes_on(lane, company, line)
    assert line > 20
