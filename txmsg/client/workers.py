"""Runs the handlers of a consumer: some on the loop, some on threads, so many of each at once.

Knows messages and handlers; of the wire only that a `Link` is told what became of each message. Nothing here costs a
turn of the loop per message: quick handlers are called one after the other.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from txmsg.client.hooks import ConsumerHooks
from txmsg.client.link import Hand, Link
from txmsg.consumer.subscriptions import Handler
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import in_handler

_log = logging.getLogger(__name__)

_CANCEL_S_MAX = 1.0
"""How long a cancelled handler may take to end."""
_TURN_COUNT = 50
"""Messages handled in one turn of the loop, when no handler waits for anything."""


class Job(NamedTuple):
    """One message to be handled. From `late_at` (of the loop) its handler takes longer than the visibility timeout."""

    link: Link
    hand: Hand
    message: ReceivedMessage
    handler: Handler
    late_at: float

    def is_useless(self, now: float) -> bool:
        """Whether somebody else is given it, for the broker heard nothing of us for too long. Then it is told so."""
        assert self.message.offset is not None
        if self.link.holds(self.hand, self.message.offset, now):
            return False
        _log.warning(
            "group %s: a message of topic %r that waited here is given to somebody else: its broker did not hear of "
            "this process within visibility_timeout_s, has ended, or has handed the queue over",
            self.handler.group,
            self.handler.topic,
        )
        return True

    def drop(self) -> None:
        """Tells the link that it is not settled. On the loop."""
        assert self.message.offset is not None
        self.link.drop(self.hand, self.message.offset)

    def settle(self, error: str | None) -> None:
        """Tells the link. On the loop."""
        assert self.message.offset is not None
        if error is None:
            self.link.ack(self.hand, self.message.offset)
        else:
            self.link.refuse(self.hand, self.message.offset, error)


class LoopWorkers:
    """Coroutines that call `async def` handlers. `put` hands them jobs; it is bounded by what links fetch."""

    def __init__(self, count: int, hooks: ConsumerHooks | None = None) -> None:
        self._hooks = hooks or ConsumerHooks()
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[Job] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._waking = False
        self._in_turn = 0
        self._closed = False
        self.running: list[Job | None] = [None] * count
        self._context = contextvars.copy_context()
        self._context.run(in_handler.set, True)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        for place in range(count):
            self._begin(place)

    def put(self, jobs: list[Job]) -> None:
        """To be called on the loop."""
        self.revive()
        self._jobs.extend(jobs)
        self._wake_one()

    def revive(self) -> None:
        """Puts others in the place of those who ended: a handler may cancel its own task, or that of the next one."""
        for place, task in self._tasks.items():
            if task.done() and not self._closed:
                self._begin(place)

    async def close(self) -> None:
        """Ends all; what is being handled is cancelled and comes again. A handler that goes on is not waited for."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        _, left = await asyncio.wait(self._tasks.values(), timeout=_CANCEL_S_MAX)
        if left:
            _log.warning("%d handlers went on after they were cancelled; they are not waited for", len(left))

    def _wake_one(self) -> None:
        # One at a time: with quick handlers the first has done all before a second would begin.
        if self._idle and not self._waking and self._jobs:
            self._waking = True
            self._idle.pop().set_result(None)

    def _begin_turn(self) -> None:
        self._in_turn = 0

    async def _work(self, place: int) -> None:
        while not self._closed:
            if not self._jobs:
                self.running[place] = None
                await self._wait()
                continue
            if self._in_turn >= _TURN_COUNT:
                await asyncio.sleep(0)
                continue
            if self._in_turn == 0:
                self._loop.call_soon(self._begin_turn)
            self._in_turn += 1
            job = self._jobs.popleft()
            self._wake_one()
            if job.is_useless(self._loop.time()):
                job.drop()
                continue
            self.running[place] = job
            try:
                self._hooks.before_handler(job.message)
                await job.handler.function.on_loop(job.message)
            except asyncio.CancelledError:
                job.drop()
                raise
            except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses the message
                job.settle(job.handler.text_of(job.message, exc))
            else:
                job.settle(None)

    def _begin(self, place: int) -> None:
        self._tasks[place] = self._loop.create_task(self._work(place), context=self._context.copy())

    async def _wait(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(waiting)
        try:
            await waiting
        finally:
            if waiting in self._idle:  # cancelled, not woken
                self._idle.remove(waiting)
            else:
                self._waking = False


class ThreadWorkers:
    """Threads that call `def` handlers. What became of messages goes to the loop in batches."""

    def __init__(self, count: int, hooks: ConsumerHooks | None = None, *, name: str) -> None:
        self._hooks = hooks or ConsumerHooks()
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._done: deque[Callable[[], None]] = deque()
        self._telling = False
        self._closed = False
        self.running: list[Job | None] = [None] * count
        self._context = contextvars.copy_context()
        self._context.run(in_handler.set, True)
        for place in range(count):
            # Daemons, so that a handler that never returns does not keep the program from ending after a stop.
            threading.Thread(target=self._work, args=(place,), name=f"{name}-{place}", daemon=True).start()

    def put(self, jobs: list[Job]) -> None:
        """To be called on the loop."""
        for job in jobs:
            self._jobs.put(job)

    def close(self) -> None:
        """Ends each thread when its handler returns; a message that is not settled by now comes again."""
        self._closed = True
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self, place: int) -> None:
        while (job := self._jobs.get()) is not None and not self._closed:
            if job.is_useless(self._loop.time()):
                self._tell_soon(job.drop)
                continue
            self.running[place] = job
            try:
                self._hooks.before_handler(job.message)
                self._context.copy().run(job.handler.function.on_thread, job.message, self._loop)
            except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses the message
                self._tell_soon(partial(job.settle, job.handler.text_of(job.message, exc)))
            else:
                self._tell_soon(partial(job.settle, None))
            self.running[place] = None

    def _tell_soon(self, done: Callable[[], None]) -> None:
        self._done.append(done)
        if not self._telling and not self._closed:
            self._telling = True
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody is there to be told
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._telling = False  # before looking: what is appended after this look is told by another one
        while self._done:
            self._done.popleft()()
