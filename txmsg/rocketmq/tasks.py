"""Runs background tasks, which no call waits for. Belongs to one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


class Tasks:
    """The parent of background tasks: logs their exceptions, and ends them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run a coroutine in a new task."""
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self, grace_s: float = 0.0) -> None:
        """Give tasks grace_s to end by themselves, then cancel them. Returns when all have ended."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(
                "rocketmq.task_failed", "%(task)s failed unexpectedly: %(error)r", task=task.get_name(), error=error
            )
