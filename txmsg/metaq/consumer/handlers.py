"""Calls the handlers of a consumer for the messages of a lane, one after the other. Knows no log."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from txmsg.consumer.subscriptions import Handler
from txmsg.metaq.consumer.lane import Chunk
from txmsg.metaq.consumer.retries import Tried
from txmsg.runtime.threads import DaemonThreads
from txmsg.runtime.user_function import in_handler

_FAILED_S_MAX = 0.2
"""How long what failed may wait for more of its chunk, until it is kept."""


class Handlers:
    """The handlers by topic. `def` ones run on threads, as many lanes at once; `async def` ones on the loop."""

    def __init__(self, group: str, handlers: Mapping[str, Handler], concurrency: int) -> None:
        self._group = group
        self._handlers = handlers
        self._threads = DaemonThreads(concurrency, name=f"txmsg-log-{group}")
        self._context = contextvars.copy_context()
        self._context.run(in_handler.set, True)

    def close(self) -> None:
        """Takes nothing more. Does not wait."""
        self._threads.shutdown()

    async def run(self, chunk: Chunk, is_stopping: Callable[[], bool], *, ordered: bool) -> None:
        """Handles the chunk's messages until one fails (ordered), or it is told to stop. The chunk notes how far."""
        turn = _Turn(chunk, is_stopping, ordered)
        while turn.goes_on():
            handler = self._handler_of(turn)
            if handler is None:
                chunk.fail(f"no handler for this topic in group {self._group}, in the process that had the message")
            elif handler.function.is_coroutine:
                await self._in_context(self._on_loop(turn, handler))
            else:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(
                    self._threads, self._context.copy().run, self._on_thread, turn, handler, loop
                )

    async def _in_context(self, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.get_running_loop().create_task(work, context=self._context.copy())

    async def _on_loop(self, turn: _Turn, handler: Handler) -> None:
        while turn.goes_on() and self._handler_of(turn) is handler:
            try:
                await handler.function.on_loop(turn.next.message)
            except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses the message
                turn.chunk.fail(handler.text_of(turn.next.message, exc))
            else:
                turn.chunk.succeeded()

    def _on_thread(self, turn: _Turn, handler: Handler, loop: asyncio.AbstractEventLoop) -> None:
        while turn.goes_on() and self._handler_of(turn) is handler:
            try:
                handler.function.on_thread(turn.next.message, loop)
            except Exception as exc:  # noqa: BLE001 - whatever a handler raises refuses the message
                turn.chunk.fail(handler.text_of(turn.next.message, exc))
            else:
                turn.chunk.succeeded()

    def _handler_of(self, turn: _Turn) -> Handler | None:
        return self._handlers.get(turn.next.message.topic)


class _Turn:
    """How long a chunk is gone on with."""

    def __init__(self, chunk: Chunk, is_stopping: Callable[[], bool], ordered: bool) -> None:
        self.chunk = chunk
        self._is_stopping = is_stopping
        self._ordered = ordered
        self._until = time.monotonic() + _FAILED_S_MAX

    @property
    def next(self) -> Tried:
        return self.chunk.tried[self.chunk.done]

    def goes_on(self) -> bool:
        chunk = self.chunk
        if chunk.done == len(chunk.tried) or self._is_stopping():
            return False
        return not chunk.failed or (not self._ordered and time.monotonic() < self._until)
