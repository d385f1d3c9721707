"""The link of a consumer to its broker: messages in flight, keepalives, and reports of deliveries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.answered_brokers import AnsweredBrokers
from tests.waiting import until_async
from txmsg.client.receiving.arrivals import Arrival
from txmsg.client.receiving.broker_failures import PAUSE_S_MAX
from txmsg.client.receiving.fetch_budget import FetchAllowance, FetchBounds
from txmsg.client.receiving.link import Link
from txmsg.client.receiving.member import ConsumerMember
from txmsg.client.receiving.settling import FAILURES_MAX
from txmsg.client.receiving.shard import Shard
from txmsg.client.receiving.unsettled import DeliveredBatch
from txmsg.client.receiving.visibility import RENEWALS
from txmsg.consumer.counts import ConsumerCounts
from txmsg.consumer.failures import HandlerFailure
from txmsg.errors import OutcomeUnknown, ProtocolError, Unauthenticated
from txmsg.wire.method import Method
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify

HAND = DeliveredBatch(7, 1, 3)
VISIBILITY_TIMEOUT_S = 60.0


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time the test can advance."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": Loop}


@pytest.fixture
async def loop() -> Loop:
    running = asyncio.get_running_loop()
    assert isinstance(running, Loop)
    return running


class Broker(AnsweredBrokers):
    """A broker that answers each call with the reply set by the test; then with nothing, and slowly."""

    def __init__(self) -> None:
        super().__init__(["b:1"])
        self.replies: list[pb.ReceiveReply] = []
        self.unreadable = 0
        """Number of unreadable replies."""
        self.held: asyncio.Queue[list[pb.Receipt]] = asyncio.Queue()
        self.expired: list[pb.Receipt] = []
        self.holds_polls = False
        self.failures = 0
        """Number of failing calls that request no messages."""
        self.refuses = False
        """True if calls that request no messages are refused."""
        self.lost_polls = 0
        """Number of failing polls, after the last reply."""
        self.gate = asyncio.Event()
        """Calls that request no messages wait while it is closed."""
        self.gate.set()
        self.settling = 0
        """Number of such waiting calls."""
        self.acks: list[pb.Receipt] = []
        """Receipts acknowledged in answered calls."""
        self.refused: list[pb.Receipt] = []
        """Refusals in answered calls."""
        self.lines: list[tuple[int, int, int]] = []
        """For each call with a line: the line, the last received token, and the number of requested messages."""
        self.numbers: list[int] = []
        """The numbers of the same calls."""
        self.asked: Callable[[int], object] = lambda size_bytes: None
        """Called for each poll with the number of requested bytes."""
        self.free: list[tuple[int, int]] = []
        """Queues with epochs that the client has reported as not held."""
        self.poll_gate = asyncio.Event()
        """Polls wait while it is closed."""
        self.poll_gate.set()

    async def answer(self, address: str, method: Method[Any, Any], request: pb.ReceiveRequest) -> pb.ReceiveReply:
        assert method is Notify.receive
        self.free += [(receipt.queue_id, receipt.epoch) for receipt in request.free]
        if request.line:
            self.lines.append((request.line, request.received, request.max_messages))
            self.numbers.append(request.call)
        if request.max_messages:
            self.asked(request.max_bytes)
            await self.poll_gate.wait()
        else:
            self.settling += 1
            await self.gate.wait()
            self.settling -= 1
            if self.failures:
                self.failures -= 1
                raise OutcomeUnknown("the connection was lost")
            if self.refuses:
                raise Unauthenticated("the token is revoked")
            self.acks.extend(request.acks)
            self.refused.extend(refusal.receipt for refusal in request.refusals)
        if request.held:
            self.held.put_nowait(list(request.held))
            return pb.ReceiveReply(expired=self.expired)
        if self.unreadable:
            self.unreadable -= 1
            raise ProtocolError("a reply cannot be read")
        if self.replies:
            return self.replies.pop()
        if self.lost_polls and request.max_messages:
            self.lost_polls -= 1
            raise OutcomeUnknown("the connection was lost")
        if self.holds_polls and request.max_messages:
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)
        return pb.ReceiveReply()


def columns(*offsets: int, hand: DeliveredBatch = HAND, attempt: int = 1, body: bytes = b"x") -> pb.DeliveredColumns:
    count = len(offsets)
    return pb.DeliveredColumns(
        topic="t",
        receipt=hand.receipt(offsets),
        transaction_id=bytes(16 * count),
        body=[body] * count,
        born_at_us=[0] * count,
        stored_at_us=[0] * count,
        attempt=[attempt] * count,
    )


def new_link(
    broker: Broker,
    take: Callable[[Arrival], None] = lambda _: None,
    *,
    visibility_timeout_s: float = VISIBILITY_TIMEOUT_S,
    out_size_bytes_max: int = 1000,
    shard: Shard | None = None,
    counts: ConsumerCounts | None = None,
) -> Link:
    member = ConsumerMember(group="g", client_id="c", subscriptions=(), counts=counts or ConsumerCounts())
    bounds = FetchBounds(out_min=10, visibility_timeout_s=visibility_timeout_s, out_size_bytes_max=out_size_bytes_max)
    return Link(shard or Shard(broker), "b:1", member, bounds, take)


@asynccontextmanager
async def filled_link(
    *, visibility_timeout_s: float = VISIBILITY_TIMEOUT_S, counts: ConsumerCounts | None = None
) -> AsyncIterator[tuple[Link, Broker]]:
    """A link that holds offsets 5, 6, 8 and 9 of one queue."""
    broker, got = Broker(), asyncio.Event()
    broker.replies = [pb.ReceiveReply(batches=[columns(5, 6, attempt=2), columns(8, 9)])]
    taken: list[int | None] = []

    def take(arrival: Arrival) -> None:
        taken.extend(message.offset for message in arrival.messages)
        if len(taken) == 4:
            got.set()

    link = new_link(broker, take, visibility_timeout_s=visibility_timeout_s, counts=counts)
    tasks = [asyncio.create_task(link.run()), asyncio.create_task(link.extend_visibility())]
    try:
        await got.wait()
        yield link, broker
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_messages_of_a_queue_delivered_in_two_parts_are_all_held() -> None:
    async with filled_link() as (link, _):
        assert all(link.deliveries.holds(HAND, offset, now()) for offset in (5, 6, 8, 9))
        assert not link.deliveries.holds(HAND, 7, now())
        assert not link.deliveries.holds(HAND, 5, now() + 2 * VISIBILITY_TIMEOUT_S)


async def test_a_broker_is_told_at_once_that_no_message_of_a_queue_is_held() -> None:
    broker = Broker()
    broker.replies = [pb.ReceiveReply(awaited=[HAND.receipt([])])]
    running = asyncio.create_task(new_link(broker).run())
    await until_async(lambda: broker.free == [(HAND.queue_id, HAND.epoch)])
    running.cancel()
    await asyncio.wait([running])


async def test_a_broker_is_told_when_the_last_message_of_a_queue_is_settled() -> None:
    """This holds for messages of any link; later deliveries with a lower epoch are refused."""
    broker, dead = Broker(), Broker()
    of_dead = Shard(dead)
    shard = replace(of_dead, brokers=broker)
    later = HAND._replace(epoch=HAND.epoch + 1)
    got = asyncio.Event()
    dead.replies, dead.holds_polls = [pb.ReceiveReply(batches=[columns(5, 6)])], True
    before = new_link(dead, lambda _: got.set(), shard=of_dead)
    link = new_link(broker, shard=shard)
    tasks = [asyncio.create_task(before.run())]
    await got.wait()
    broker.replies, broker.holds_polls = [pb.ReceiveReply(awaited=[later.receipt([])])], True
    tasks.append(asyncio.create_task(link.run()))
    await until_async(lambda: not shard.epochs.is_current(HAND.queue_id, HAND.epoch, now()))
    before.deliveries.ack(HAND, 5)
    assert broker.free == []
    before.deliveries.drop(HAND, 6)
    await until_async(lambda: broker.free == [(later.queue_id, later.epoch)])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_polls_request_no_more_bytes_than_fit_and_wait_for_a_quarter_to_be_free() -> None:
    broker = Broker()
    broker.replies = [
        pb.ReceiveReply(batches=[columns(8, body=b"x" * 20)]),
        pb.ReceiveReply(batches=[columns(5, 6, body=b"x" * 30)]),
    ]
    broker.holds_polls = True
    asked = asyncio.Queue[int]()
    broker.asked = asked.put_nowait
    link = new_link(broker, out_size_bytes_max=100)
    running = asyncio.create_task(link.run())
    assert await asked.get() == 100
    assert await asked.get() == 40
    await until_async(lambda: link.out == 3)  # 20 free bytes are too few for another poll
    link.deliveries.ack(HAND, 5)
    assert await asked.get() == 50
    assert asked.empty()
    await link.flush(VISIBILITY_TIMEOUT_S)
    running.cancel()
    await asyncio.wait([running])


async def test_keepalives_name_exactly_the_messages_still_held(loop: Loop) -> None:
    async with filled_link() as (link, broker):
        link.deliveries.ack(HAND, 5)
        link.deliveries.refuse(HAND, 8, HandlerFailure("boom"))
        link.deliveries.drop(HAND, 9)
        for _ in range(RENEWALS + 1):  # for longer than the visibility timeout
            loop.ahead_s += VISIBILITY_TIMEOUT_S / RENEWALS
            (receipt,) = await broker.held.get()
            assert receipt == HAND.receipt([6])
        assert link.deliveries.holds(HAND, 6, now())
        link.deliveries.ack(HAND, 6)
        assert not link.deliveries.holds(HAND, 6, now())


async def test_a_held_message_redelivered_is_handled_once_and_settled_for_both() -> None:
    broker, taken = Broker(), list[tuple[DeliveredBatch, int | None]]()
    again = HAND._replace(token=2)
    broker.replies = [
        pb.ReceiveReply(batches=[columns(5, 6, 7, 8, hand=again, attempt=2)]),
        pb.ReceiveReply(batches=[columns(5, 6, 7)]),
    ]
    broker.holds_polls = True
    link = new_link(broker, lambda it: taken.extend((it.hand, each.offset) for each in it.messages))
    running = asyncio.create_task(link.run())
    try:
        await until_async(lambda: link.out == 7)
        assert taken == [(HAND, 5), (HAND, 6), (HAND, 7), (again, 8)]
        assert link.deliveries.holds(HAND, 5, now() + VISIBILITY_TIMEOUT_S / 2)
        link.deliveries.ack(HAND, 5)
        link.deliveries.refuse(HAND, 6, HandlerFailure("boom"))
        link.deliveries.drop(HAND, 7)
        assert link.out == 1
        await link.flush(VISIBILITY_TIMEOUT_S)
        assert broker.acks == [HAND.receipt([5]), again.receipt([5])]
        assert broker.refused == [HAND.receipt([6]), again.receipt([6])]
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_handled_message_redelivered_before_its_acknowledgement_is_not_handled_again() -> None:
    async with filled_link() as (link, broker):
        again = HAND._replace(token=2)
        broker.gate.clear()
        link.deliveries.ack(HAND, 5)
        await until_async(lambda: broker.settling == 1)
        link.deliveries.ack(HAND, 6)
        broker.replies = [pb.ReceiveReply(batches=[columns(5, 6, hand=again, attempt=2)])]
        await until_async(lambda: not broker.replies)
        broker.gate.set()
        await until_async(lambda: sum(len(receipt.offset) for receipt in broker.acks) == 4)
        assert link.out == 2
        assert {(receipt.token, offset) for receipt in broker.acks for offset in receipt.offset} == {
            (1, 5),
            (1, 6),
            (2, 5),
            (2, 6),
        }


async def test_a_handled_message_redelivered_by_an_earlier_poll_is_not_handled_again() -> None:
    counts = ConsumerCounts()
    async with filled_link(counts=counts) as (link, broker):
        polls: list[int] = []
        broker.asked = polls.append
        broker.poll_gate.clear()
        await until_async(lambda: bool(polls))
        link.deliveries.ack(HAND, 5)
        await until_async(lambda: counts.acknowledged == 1)
        broker.replies = [pb.ReceiveReply(batches=[columns(5, hand=HAND._replace(token=2), attempt=2)])]
        broker.poll_gate.set()
        await until_async(lambda: counts.acknowledged == 2)
        assert broker.acks == [HAND.receipt([5]), HAND._replace(token=2).receipt([5])]
        assert link.out == 3
        broker.replies = [pb.ReceiveReply(batches=[columns(5, hand=HAND._replace(token=3), attempt=3)])]
        await until_async(lambda: link.out == 4)


async def test_messages_that_the_broker_took_back_are_not_handled(loop: Loop) -> None:
    async with filled_link() as (link, broker):
        loop.ahead_s += VISIBILITY_TIMEOUT_S / RENEWALS
        broker.expired = [HAND.receipt([6, 9])]
        await broker.held.get()
        await until_async(lambda: not link.deliveries.holds(HAND, 6, now()))  # until the reply is taken
        assert not link.deliveries.holds(HAND, 9, now())
        assert link.deliveries.holds(HAND, 5, now())
        for offset in (5, 6, 8, 9):
            link.deliveries.ack(HAND, offset)
        await link.idle()


async def test_messages_taken_back_by_the_broker_count_while_in_memory() -> None:
    """Their handlers continue, perhaps for long: messages fetched in their place would take additional memory."""
    broker = Broker()
    broker.replies = [pb.ReceiveReply(batches=[columns(5, 6, body=b"x" * 40)])]
    broker.holds_polls = True
    broker.expired = [HAND.receipt([5, 6])]
    asked = asyncio.Queue[int]()
    broker.asked = asked.put_nowait
    link = new_link(broker, visibility_timeout_s=1.0, out_size_bytes_max=100)
    tasks = [asyncio.create_task(link.run()), asyncio.create_task(link.extend_visibility())]
    try:
        assert await asked.get() == 100
        await broker.held.get()
        await until_async(lambda: not link.deliveries.holds(HAND, 5, now()))  # until the reply is taken
        link.deliveries.drop(HAND, 5)
        assert await asked.get() == 60
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_the_prefetch_limit_can_be_raised_while_a_link_runs() -> None:
    broker = Broker()
    broker.replies = [pb.ReceiveReply(batches=[columns(5, body=b"x" * 90)])]
    asked = asyncio.Queue[int]()
    broker.asked = asked.put_nowait
    link = new_link(broker, out_size_bytes_max=100)
    running = asyncio.create_task(link.run())
    try:
        assert await asked.get() == 100
        await until_async(lambda: link.out == 1)
        assert asked.empty()
        link.apply_bounds(FetchBounds(out_min=10, visibility_timeout_s=VISIBILITY_TIMEOUT_S, out_size_bytes_max=300))
        assert await asked.get() == 210
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_longer_visibility_timeout_applies_to_held_messages_at_once() -> None:
    async with filled_link(visibility_timeout_s=20.0) as (link, broker):
        link.apply_bounds(FetchBounds(out_min=10, visibility_timeout_s=600.0))
        (receipt,) = await broker.held.get()
        assert receipt == HAND.receipt([5, 6, 8, 9])
        await until_async(lambda: link.deliveries.holds(HAND, 5, now() + 500))


async def test_polled_messages_have_the_visibility_timeout_of_their_poll() -> None:
    broker, asked, may_answer = Broker(), asyncio.Queue[int](), asyncio.Event()
    broker.asked = asked.put_nowait
    broker.poll_gate = may_answer
    broker.replies = [pb.ReceiveReply(batches=[columns(5)])]
    link = new_link(broker, visibility_timeout_s=20.0)
    running = asyncio.create_task(link.run())
    try:
        await asked.get()
        link.apply_bounds(FetchBounds(out_min=10, visibility_timeout_s=600.0))
        may_answer.set()
        await until_async(lambda: link.deliveries.holds(HAND, 5, now() + 10))
        assert not link.deliveries.holds(HAND, 5, now() + 20)
    finally:
        running.cancel()
        await asyncio.wait([running])


def polling_link(broker: Broker) -> Link:
    """A link whose first poll returns offset 5; the next one waits in the broker."""
    broker.holds_polls = True
    broker.replies = [pb.ReceiveReply(batches=[columns(5)])]
    return new_link(broker)


async def test_a_stop_cancels_the_poll_and_reports_the_last_delivery() -> None:
    broker = Broker()
    link = polling_link(broker)
    running = asyncio.create_task(link.run())
    await until_async(lambda: len(broker.lines) == 2)
    link.stop()
    await running
    await link.flush(1.0)
    [(line, *first), second, last] = broker.lines
    assert (first, second, last) == ([0, 10], (line, HAND.token, 9), (line, HAND.token, 0))
    assert broker.numbers == [1, 2, 3]


@pytest.mark.parametrize("flushes", [True, False], ids=["at once", "after its handlers"])
async def test_a_stop_during_a_settlement_reports_the_last_delivery_after_it(flushes: bool) -> None:
    broker = Broker()
    link = polling_link(broker)
    running = asyncio.create_task(link.run())
    await until_async(lambda: len(broker.lines) == 2)
    broker.gate.clear()
    link.deliveries.ack(HAND, 5)
    await until_async(lambda: broker.settling)
    link.stop()
    await running
    flushing = asyncio.create_task(link.flush(60.0)) if flushes else None
    await asyncio.sleep(0)
    assert len(broker.lines) == 2
    broker.gate.set()
    await until_async(lambda: broker.lines[2:])
    assert broker.lines[2:] == [(broker.lines[0][0], HAND.token, 0)]
    await (flushing or link.flush(1.0))


async def test_a_lost_report_of_the_last_delivery_is_repeated() -> None:
    broker = Broker()
    link = polling_link(broker)
    running = asyncio.create_task(link.run())
    await until_async(lambda: len(broker.lines) == 2)
    broker.failures = 2
    link.stop()
    await running
    await link.flush(60.0)
    assert [(received, count) for _, received, count in broker.lines[2:]] == [(HAND.token, 0)] * 3


async def test_a_stop_after_a_lost_poll_reports_the_last_delivery() -> None:
    broker = Broker()
    link = polling_link(broker)
    broker.lost_polls = 1
    running = asyncio.create_task(link.run())
    await until_async(lambda: not broker.lost_polls)
    link.stop()  # while it pauses
    await running
    await link.flush(60.0)
    assert [(received, count) for _, received, count in broker.lines[1:]] == [(HAND.token, 9), (HAND.token, 0)]


async def test_reports_of_the_last_delivery_to_a_silent_broker_are_bounded() -> None:
    broker = Broker()
    link = polling_link(broker)
    running = asyncio.create_task(link.run())
    await until_async(lambda: len(broker.lines) == 2)
    broker.failures = 1_000_000
    link.stop()
    await running
    await link.flush(3600.0)
    assert broker.failures == 1_000_000 - FAILURES_MAX


async def test_acknowledgements_lost_with_a_keepalive_are_sent_again() -> None:
    broker = Broker()
    link = polling_link(broker)
    running = asyncio.create_task(link.run())
    await until_async(lambda: len(broker.lines) == 2)
    others, broker.gate = broker.gate, asyncio.Event()
    link.deliveries.ack(HAND, 5)
    keeping = asyncio.create_task(
        link._settling.settle([HAND.receipt([6])])
    )  # as the keeper does, before the timer has run
    await until_async(lambda: broker.settling)
    its, broker.gate = broker.gate, others
    await until_async(lambda: link._settling._timer is None and link._settling._sending is None)
    broker.failures = 1
    its.set()
    assert not await keeping
    await until_async(lambda: broker.acks)  # nothing else happens on this line
    assert broker.acks == [HAND.receipt([5])]
    link.stop()
    await running
    await link.flush(1.0)


async def test_acknowledgements_of_a_refused_client_wait_as_long_as_its_polls() -> None:
    broker = Broker()
    link = new_link(broker)
    broker.refuses = True
    link.deliveries.ack(HAND, 0)
    await until_async(lambda: link._settling._trouble.is_refused and link._settling._timer is not None)
    assert link._settling._timer is not None
    assert link._settling._timer.when() - now() > PAUSE_S_MAX
    broker.refuses = False
    await link._poller.poll(FetchAllowance(1, 1))  # rather than after the pause
    assert link._settling._timer is None
    await link.flush(5)
    assert [list(receipt.offset) for receipt in broker.acks] == [[0]]


async def test_an_unreadable_reply_is_not_reported_as_missing() -> None:
    """It would be redelivered forever, uncounted: a new line does not know of it, so its visibility timeout expires."""
    broker = Broker()
    broker.holds_polls, broker.unreadable = True, 1
    link = new_link(broker)
    running = asyncio.create_task(link.run())
    await until_async(lambda: len(broker.lines) == 2)
    link.stop()
    await running
    await link.flush(1.0)
    before, after, last = (line for line, *_ in broker.lines)
    assert before != after == last


async def test_a_paused_link_returns_messages_in_transit_and_polls_again_when_resumed() -> None:
    broker = Broker()
    broker.poll_gate.clear()
    asked: asyncio.Queue[int] = asyncio.Queue()
    broker.asked = asked.put_nowait
    link = new_link(broker)
    running = asyncio.create_task(link.run())
    await asked.get()
    link.pause()
    await until_async(lambda: len(broker.lines) == 2)  # the poll, and the report that nothing came of it
    assert broker.lines[1] == (broker.lines[0][0], 0, 0)
    assert asked.empty()
    link.resume()
    await asked.get()
    link.stop()
    broker.poll_gate.set()
    await asyncio.wait_for(running, 60)
