"""Play a history on two real brokers and one real database, and judge its record.

Steps start in order; as many as the history's window allows are under way at once, so that their batches meet at locks,
in one broker and between the two. The seed fixes the steps; how they interleave inside is up to the processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, assert_never

from tests.going_back import GoingBack
from tests.model.broker import Broker
from tests.model.clients import PAUSE_S, Clients
from tests.model.history import (
    Begin,
    ByBroker,
    ByClient,
    Calm,
    Check,
    Claim,
    Copy,
    Crash,
    Cut,
    Finish,
    GoBack,
    Grow,
    History,
    Hold,
    Learn,
    Leave,
    Read,
    Release,
    Rotate,
    Send,
    Sever,
    Step,
    Tell,
    Trouble,
)
from tests.model.model import Defect, Seen, Violation, judge
from tests.model.scene import Scene
from tests.model.tables import Tables

ANSWER_S_MAX = 60.0
DECOY_QUEUES = 32
"""More than the topics of a history have."""


class StuckError(Exception):
    """Something in progress did not end."""


class Play:
    """A history being played."""

    def __init__(self, history: History, brokers: Sequence[Broker], tables: Tables, past: GoingBack) -> None:
        self.counts: Counter[str] = Counter()
        self._scene = Scene(history)
        self._brokers = brokers
        self._tables = tables
        self._past = past
        self._clients = Clients(self._scene, brokers)
        self.answer = self._clients.answer
        self._of_step: dict[int, tuple[Step, asyncio.Task[None]]] = {}
        self._last: dict[int, asyncio.Task[None]] = {}
        self._gone: set[int] = set()
        self._under_way: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Lock()
        self._positions: dict[int, int] = defaultdict(int)
        self._raised: list[Violation] = []

    async def play(self) -> list[Violation]:
        """Play to the end and return the violations."""
        self._scene.segment_max = await self._tables.segment()
        for broker in self._brokers:
            broker.new_topics(self._scene.history.queues)
        if any(isinstance(step, GoBack) for step in self._scene.history.steps):
            await self._without_sessions(self._past.keep)
        try:
            for step in self._scene.history.steps:
                await self._room(self._scene.history.window)
                self.counts["steps"] += 1
                await self._start(step)
                await asyncio.sleep(0)
            await self._end()
        except StuckError as exc:
            left = [*self._under_way]
            for task in left:
                task.cancel()
            await asyncio.wait(left)
            return [*self._raised, Violation(Defect.STUCK, str(exc))]
        finally:
            self.counts += self._clients.counts
        return [*self._raised, *judge(self._scene.record)]

    # ---- steps

    async def _start(self, step: Step) -> None:
        match step:
            case Send() | Begin() | Finish() | Tell() | Claim():
                task = self._go(step, self._act(step, self._last.get(step.crowd)))
                if not isinstance(step, Claim):  # any client may claim, concurrently with others
                    self._last[step.crowd] = task
            case Copy():
                self._go(step, self._clients.copy(step))
            case Leave() | Cut() | Sever() | Hold() | Release() | Crash():
                self._trouble(step)
            case Rotate() | Grow() | Learn() | Check():
                self._go(step, self._serve(step))
            case Read():
                self._go(step, self._read())
            case Calm():
                await self._calm()
            case GoBack():
                await self._go_back()
            case _:
                assert_never(step)

    def _trouble(self, step: Trouble) -> None:
        match step:
            case Leave():
                self._leave(step)
            case Cut():
                self._brokers[step.broker].cut(step)
            case Sever():
                self._brokers[step.broker].sever()
            case Hold():
                self._brokers[step.broker].hold()
            case Release():
                self._brokers[step.broker].release()
            case Crash():
                self.counts["crashes"] += 1
                self._go(step, self._crash(self._brokers[step.broker]))
            case _:
                assert_never(step)

    async def _serve(self, step: ByBroker) -> None:
        """Do the periodic work of a broker."""
        broker = self._brokers[step.broker]
        match step:
            case Rotate():
                self.counts["rotations"] += 1
                self._scene.segment_max += 1
                await broker.rotate()
            case Grow():
                self.counts["topics grown"] += 1
                await broker.grow(self._scene.topics, step.queues)
            case Learn():
                await broker.learn()
            case Check():
                await broker.check()
            case _:
                assert_never(step)

    async def _act(self, step: ByClient, before: asyncio.Task[None] | None) -> None:
        """Do the steps of a client in order, until it dies."""
        if before is not None:
            await asyncio.wait({before})
        if step.crowd in self._gone:
            return
        match step:
            case Send():
                await self._clients.send(step)
            case Begin():
                self._clients.begin(step)
            case Finish():
                self._clients.finish(step)
            case Tell():
                await self._clients.tell(step)
            case Claim():
                await self._clients.claim(step)

    def _leave(self, step: Leave) -> None:
        left, task = self._of_step.get(step.of, (None, None))
        if isinstance(left, Send | Tell | Claim) and task is not None and not task.done():
            self.counts["clients dead"] += 1
            self._gone.add(left.crowd)
            task.cancel()

    async def _crash(self, broker: Broker) -> None:
        await broker.restart()
        broker.new_topics(self._scene.history.queues)

    async def _read(self) -> None:
        """Read further, one read at a time, as a single subscriber does."""
        async with self._reading:
            begun = self._scene.moment()
            queues = await self._tables.queues(self._scene.topics)
            positions = {queue: self._positions[queue] for queue in queues}
            rows = await self._tables.messages(positions, self._scene.bodies, self._scene.numbers)
            for row in rows:
                self._positions[row.queue] = row.offset + 1
            self._scene.record.reads.append(Seen(begun, rows))
            await self._look_for_the_living()

    async def _look_for_the_living(self) -> None:
        alive = await self._tables.alive_again()
        numbers = self._scene.numbers
        self._scene.record.alive_again |= {numbers[each] for each in alive if each in numbers}

    # ---- waiting

    def _go(self, step: Step, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._of_step[step.number] = step, task
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            self._raised.append(Violation(Defect.REFUSED, f"raised: {exc!r}"))

    async def _room(self, count_max: int) -> None:
        """Wait until fewer than this many steps are in progress. Releases a held batch, which they may wait for."""
        now = asyncio.get_running_loop().time
        give_up_at = now() + ANSWER_S_MAX
        while len(self._under_way) >= count_max:
            done, _ = await asyncio.wait(self._under_way, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                for broker in self._brokers:
                    broker.release()
                if now() > give_up_at:
                    raise StuckError(f"{len(self._under_way)} requests have no answer after {ANSWER_S_MAX:.0f} s")

    async def _calm(self) -> None:
        """End all disturbances and wait until nothing is in progress, including requests of crashed brokers in the
        server.
        """
        for broker in self._brokers:
            broker.calm()
        await self._room(1)
        while await self._tables.batches_under_way():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(PAUSE_S)
        self._scene.segment_max = await self._tables.segment()

    async def _go_back(self) -> None:
        """Everything under way ends; then all that was stored since the beginning is gone, and its ids are others'."""
        self.counts["times gone back"] += 1
        await self._calm()
        await self._without_sessions(self._past.go_back)
        await self._tables.add_topic(f"decoy.{self._scene.topics[0]}", DECOY_QUEUES)
        self._positions.clear()
        self._scene.went_back()
        self._scene.segment_max = await self._tables.segment()

    async def _without_sessions(self, exchange: Callable[[], None]) -> None:
        await self._tables.close()
        await asyncio.to_thread(exchange)
        await self._tables.connect()

    async def _end(self) -> None:
        """All clients are gone. The checks decide what is left; then the tables are read."""
        await self._calm()
        self._clients.business.end()
        await self._read()
        ids = list(self._scene.numbers)
        now = asyncio.get_running_loop().time
        give_up_at = now() + ANSWER_S_MAX
        while await self._tables.undecided(ids) and now() < give_up_at and not self._scene.record.alive_again:
            await self._tables.make_due()
            for broker in self._brokers:
                await broker.check()
        await self._calm()
        await self._look_for_the_living()
        record, numbers = self._scene.record, self._scene.numbers
        record.undecided = {numbers[each] for each in await self._tables.undecided(ids)}
        queues = dict.fromkeys(await self._tables.queues(self._scene.topics), 0)
        record.rows = await self._tables.messages(queues, self._scene.bodies, numbers)
        record.rolled_back = [(numbers[each], segment) for each, segment in await self._tables.rolled_back(ids)]
        self.counts["messages"] += len(record.rows)
        self.counts["transactions"] += len(record.transactions)
