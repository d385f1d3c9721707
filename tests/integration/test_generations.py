"""Effects under `@idempotent` happen once per requested delivery: random histories of a group against a model.

A message is to take effect once, and once more for each request since it did: `seek --again` to it or before it, or a
redrive of its dead letter. A plain seek, a takeover, a lost acknowledgement or a retry asks for nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from tests.integration.delivery_harness import AT_ONCE, Delivered, Notify, T, delivering, each_of, notify_at, poll
from txmsg.administration.dead_letters import DeadLetterBatch, DeadLetterFilter
from txmsg.administration.groups import GroupChange, Seek
from txmsg.broker.delivery import Delivery
from txmsg.broker.delivery.values import Refusal
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.dead_letters import DeadLetters
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.checker.tables import create_tables
from txmsg.client import idempotent
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.wire.start import Start

LeasedQueue = tuple[int, int]
"""A message: queue number and offset."""

QUEUES = 2
STEPS = 60


class History:
    """A group, its inbox, and the model: the request under which each message was last delivered and last handled."""

    def __init__(self, notify: Notify, stack: AsyncExitStack, seed: int) -> None:
        self.notify, self.stack, self.seed, self.random = notify, stack, seed, random.Random(seed)
        self.asked: dict[LeasedQueue, int] = {}
        self.handled: Counter[LeasedQueue] = Counter()
        self.held: list[tuple[Delivered, int]] = []
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []
        self._brokers = 0
        self._effects = 0
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
        stack.callback(engine.dispose)
        create_tables(engine)

        @idempotent(sessionmaker(engine), group="g")
        def handler(session: Session, message: ReceivedMessage) -> None:
            self._effects += 1

        self._handler = handler

    # ---- brokers

    async def open(self) -> None:
        self.pool = open_pool(self.notify.url)
        await self.pool.open()
        self.stack.push_async_callback(self.pool.close)
        self.admin, self.dead = GroupAdministration(self.pool), DeadLetters(self.pool)
        await self._next_broker()
        await self.add()
        await self.take(1)
        await self.admin.alter(GroupChange(group="g", retries_max=1))

    async def _next_broker(self) -> None:
        self._brokers += 1
        self.broker = await self.stack.enter_async_context(AsyncExitStack())
        self.delivery: Delivery = await self.broker.enter_async_context(
            delivering(self.notify, f"b{self._brokers}", background=False, graceful=False, backoff=AT_ONCE)
        )

    async def takeover(self) -> None:
        if is_crash := self.random.random() < 0.5:
            self.notify.bury(f"b{self._brokers}")
        else:
            await self.delivery.close()
        await self.broker.aclose()
        await self._next_broker()
        self.told[-1] += " after a crash" if is_crash else ""

    # ---- messages

    async def add(self) -> None:
        ends = await self.notify.add(3)
        for number, queue_id in enumerate(await self.notify.queue_ids()):
            for offset in range(ends[queue_id] - 3, ends[queue_id]):
                self.asked[number, offset] = 1
        self.delivery.wake(ends)

    async def take(self, count: int) -> Sequence[Delivered]:
        await self.delivery.receive(poll("g", "c", T, 0, 0, 60))  # loads what is not
        await self.delivery.maintenance.queues_once()
        await self.delivery.maintenance.poll_once()
        await self.delivery.maintenance.retries_once()
        while len(self.delivery._state.to_read):
            await self.delivery.reader.read_once(self.delivery._state.to_read.pop())
        return each_of(await self.delivery.receive(poll("g", "c", T, count, 0, 60)))

    async def consume(self, *, is_well: bool = False) -> int:
        got = await self.take(self.random.randint(1, 8))
        for message in got:
            place = (message.queue, message.offset)
            what = "handled" if is_well else self.random.choice(["handled", "lost", "failed", "held"])
            self.counts[what] += 1
            if what == "held":
                self.held.append((message, self.asked[place]))
            else:
                await self.handle(message, self.asked[place], what)
        return len(got)

    async def let_go(self) -> None:
        """Settle messages of a consumer that has held them for long: they may belong to another by now."""
        if self.held:
            await self.handle(*self.held.pop(0), "handled")

    async def handle(self, each: Delivered, asked: int, what: str) -> None:
        """Handle messages. lost: the effects are committed, and the process ends before it acknowledges."""
        place = (each.queue, each.offset)
        if what != "failed":
            effects = self._effects
            self._handler(
                ReceivedMessage("t", each.body, id_bytes=each.transaction_id, n=each.n, generation=each.generation)
            )
            must = asked > self.handled[place]
            assert (self._effects > effects) == must, (
                f"{place} of generation {each.generation}: {'no effect' if must else 'an effect'}, asked {asked}, "
                f"handled under {self.handled[place]}, in the history of seed {self.seed} after " + "; ".join(self.told)
            )
            self.handled[place] = max(self.handled[place], asked)
        if what == "handled":
            await self.delivery.settle("g", "c", [each.receipt], [])
        else:
            await self.delivery.settle("g", "c", [], [Refusal(each.receipt, what, None)])

    # ---- requests

    async def seek(self, *, again: bool) -> None:
        number = self.random.randrange(QUEUES)
        kept = 1 + max(offset for queue, offset in self.asked if queue == number)
        to = self.random.randint(0, kept)
        await self.admin.seek(Seek(group="g", topic="t", queue=number, to=Start.offset(to), again=again))
        await self.delivery.maintenance.settings_once()
        self.told[-1] += f" of {number} to {to}"
        if again:
            for queue, offset in self.asked:
                self.asked[queue, offset] += queue == number and offset >= to

    async def seek_again(self) -> None:
        await self.seek(again=True)

    async def seek_plainly(self) -> None:
        await self.seek(again=False)

    async def redrive(self) -> None:
        dead = self.notify.query(
            "select q.number, d.queue_offset from txmsg.dead_letter d join txmsg.queue q on q.id = d.queue_id"
        )
        redriven = await self.dead.redrive(DeadLetterBatch(which=DeadLetterFilter(group="g")))
        assert redriven.count == len(dead)
        self.counts["redriven"] += len(dead)
        for number, offset in dead:
            self.asked[number, offset] += 1

    # ---- histories

    async def play(self) -> None:
        await self.open()
        steps: list[Callable[[], Awaitable[object]]] = [
            self.add,
            self.let_go,
            self.seek_again,
            self.seek_plainly,
            self.redrive,
            self.takeover,
        ]
        for _ in range(STEPS):
            step = self.random.choice([*steps, *[self.consume] * 6])
            self.told.append(step.__name__)
            await step()
            self.counts[step.__name__] += 1
        while self.held:
            await self.let_go()
        self.told.append("the end")
        await self.redrive()
        for _ in range(2):  # all requests were fulfilled, and nothing more happens
            await self.admin.seek(Seek(group="g", topic="t", to=Start.earliest()))
            await self.delivery.maintenance.settings_once()
            while await self.consume(is_well=True):
                pass
            assert self.handled == Counter(self.asked)


async def test_each_message_takes_effect_once_per_requested_delivery(notify_url: str, seed: int) -> None:
    async with notify_at(notify_url, queues=QUEUES) as notify, AsyncExitStack() as stack:
        history = History(notify, stack, seed)
        await history.play()

        assert all(history.counts[what] for what in ("handled", "lost", "failed", "held", "takeover"))


def again_at(offset: int) -> Seek:
    return Seek(group="g", topic="t", queue=0, to=Start.offset(offset), again=True)


async def test_generation_ranges_are_bounded_and_removed_when_unused(notify_url: str) -> None:
    async with notify_at(notify_url) as notify, AsyncExitStack() as stack:
        history = History(notify, stack, 0)
        await history.open()
        notify.query(
            "update txmsg.cursor set again_from = array(select generate_series(0, 999)), "
            "again_generations = array(select generate_series(1, 1000)), generation = 1000"
        )
        notify.query(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at) "
            "select 1, (select id from txmsg.queue), g, gen_random_uuid(), 0, '', now() "
            "from generate_series(3, 1001) g"
        )
        with pytest.raises(MisuseError, match="1000 different offsets"):
            await history.admin.seek(again_at(1001))
        await history.admin.seek(again_at(3))
        ((starts, generations),) = notify.query("select again_from, again_generations from txmsg.cursor")
        assert (starts, generations[:3], generations[3] > 1000) == ([0, 1, 2, 3], [1, 2, 3], True)
        notify.rotate()
        notify.query("update txmsg.segment set dropping = true where state = 'closed'")
        notify.query("update txmsg.segment_base set base = 1002 where segment = 2")
        await history.admin.seek(again_at(1002))
        ((starts,),) = notify.query("select again_from from txmsg.cursor")
        assert starts == [3, 1002]
