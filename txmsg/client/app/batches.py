"""Messages that are handled together. Each call of `add` waits, like a call of a handler, until its list is handled."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

from txmsg.consumer.handler_rate import HandlerRate
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import NotBegun

_LINGER_S: Final = 0.005
"""Seconds that an incomplete list waits for more messages: messages that were delivered together are added one by
one."""
_CANCEL_S_MAX: Final = 1.0

_Failed = tuple[Exception, TracebackType | None]


class _Waiting(NamedTuple):
    message: ReceivedMessage
    settled: asyncio.Future[_Failed | None]
    context: contextvars.Context
    """The context of this message: a list is handled in that of its first one."""


class Batches:
    """Lists of up to `count` messages, `concurrency` of which are handled at once. Belongs to one loop.

    handle: handles a list; as `Router.subscribe` says of handlers of lists. How many messages wait is bounded by those
    who add them: a consumer adds no more than `count * concurrency`. pace: lists wait for it before they are made, so
    that they get longer meanwhile. begins: asked when a list could be made; where it says no, all that wait are left to
    come again. until_quiet: a list that is not full waits as long as more are added, not 5 ms in all: what is here
    already is added as the loop has turns for it.
    """

    def __init__(
        self,
        count: int,
        concurrency: int,
        handle: Callable[[list[ReceivedMessage]], Awaitable[Any]],
        *,
        name: str,
        pace: HandlerRate | None = None,
        begins: Callable[[], bool] = lambda: True,
        until_quiet: bool = False,
    ) -> None:
        self._count = count
        self._concurrency = concurrency
        self._handle = handle
        self._name = name
        self._pace = pace
        self._begins = begins
        self._waiting: deque[_Waiting] = deque()
        self._until_quiet = until_quiet
        self._has_grown = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def add(self, message: ReceivedMessage) -> None:
        """Return when the message was handled in a list. Raises the error of the message, or of its whole list, and
        NotBegun."""
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[_Failed | None] = loop.create_future()
        self._waiting.append(_Waiting(message, settled, contextvars.copy_context()))
        if len(self._waiting) >= self._count:
            self._begin_lists()
        elif self._timer is None:
            self._timer = loop.call_later(_LINGER_S, self._linger)
        else:
            self._has_grown = True
        failed = await settled
        if failed is not None:
            error, traceback = failed
            raise error.with_traceback(traceback)  # as it was raised: of many messages each would add its frames to it

    async def close(self) -> None:
        """Cancel the lists in progress, and wait up to a second for their end."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CANCEL_S_MAX)

    def _linger(self) -> None:
        if self._until_quiet and self._has_grown:
            self._has_grown = False
            self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self._linger)
        else:
            self._begin_lists()

    def _begin_lists(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and len(self._tasks) < self._concurrency:
            if not self._begins():
                # Taken out before they are answered: answering runs callbacks, which may add messages.
                left, self._waiting = self._waiting, deque()
                self._leave(left)
                return
            if self._pace is not None and (wait_s := self._pace.wait_s()):
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin_lists)
                return
            taken = [self._waiting.popleft() for _ in range(min(self._count, len(self._waiting)))]
            taken = [each for each in taken if not each.settled.done()]  # else cancelled
            if taken:
                if self._pace is not None:
                    self._pace.take_tokens(len(taken))
                work = self._work(taken)
                # In the context of the first message: a list can have only one, and that of the loop would lose the
                # trace altogether.
                task = asyncio.create_task(work, name=f"txmsg-batch-{self._name}", context=taken[0].context)
                self._tasks.add(task)
                task.add_done_callback(self._ended, context=contextvars.Context())

    def _leave(self, waiting: Iterable[_Waiting]) -> None:
        for each in waiting:
            if not each.settled.done():  # else cancelled
                each.settled.set_exception(NotBegun())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin_lists()

    async def _work(self, taken: list[_Waiting]) -> None:
        messages = [each.message for each in taken]
        results: list[Exception | None]
        try:
            results = results_of(await self._handle(messages), len(messages))
        except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses its messages
            results = [exc] * len(messages)
        except NotBegun:
            self._leave(taken)
            return
        except asyncio.CancelledError:
            for each in taken:
                each.settled.cancel()
            raise
        for each, result in zip(taken, results, strict=True):
            if not each.settled.done():
                each.settled.set_result(None if result is None else (result, result.__traceback__))


class BatchesOfQueues:
    """Batches of a log: a list is of one queue, in its order, and the next one begins when the list before has ended.

    concurrency: lists of different queues that are handled at once. Retries of messages come with those of their queue.
    """

    def __init__(
        self,
        count: int,
        concurrency: int,
        handle: Callable[[list[ReceivedMessage]], Awaitable[Any]],
        *,
        name: str,
        pace: HandlerRate | None = None,
        begins: Callable[[], bool] = lambda: True,
    ) -> None:
        room = asyncio.Semaphore(concurrency)

        async def handle_in_turn(messages: list[ReceivedMessage]) -> Any:
            async with room:
                if not begins():
                    raise NotBegun
                return await handle(messages)

        self._new = partial(Batches, count, 1, handle_in_turn, name=name, pace=pace, begins=begins, until_quiet=True)
        self._of: dict[tuple[str, int | None], Batches] = {}

    async def add(self, message: ReceivedMessage) -> None:
        """Add a message as `Batches.add`."""
        queue = message.topic, message.queue
        batches = self._of.get(queue)
        if batches is None:
            batches = self._of[queue] = self._new()
        await batches.add(message)

    async def close(self) -> None:
        """Close as `Batches.close`."""
        await asyncio.gather(*(batches.close() for batches in self._of.values()))


def results_of(returned: object, count: int) -> list[Exception | None]:
    """Return the error of each message, or None, by the return value of a handler of lists. Raises MisuseError."""
    if not isinstance(returned, list | tuple):
        return [None] * count
    if len(returned) != count:
        raise MisuseError(
            f"the handler of a list of {count} messages returned {shown(returned)}, which has {len(returned)} results: "
            "return one for each message, or nothing"
        )
    return [_failed(each) for each in returned]


def _failed(result: object) -> Exception | None:
    """Return the exception among results, if it is one. `gather` also returns CancelledError, which is not an
    Exception."""
    if isinstance(result, BaseException) and not isinstance(result, Exception):
        return RuntimeError(f"the handler of the list returned {result!r} for this message")
    return result if isinstance(result, Exception) else None
