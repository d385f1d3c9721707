"""A periodic task: repeats a step, and logs its errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from txmsg.errors import BrokerUnavailable
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


async def repeat(
    what: str,
    step: Callable[[], Awaitable[object]],
    interval_s: float,
    *,
    soon: asyncio.Event | None = None,
    closed: asyncio.Event | None = None,
) -> None:
    """Repeat a step every interval_s until `closed` is set, or cancellation; at once when `soon` is set.

    Closing must set `soon`, too. `what` names the task in the log, where an unavailable database is reported once.
    """
    closed = closed or asyncio.Event()
    is_away = False
    while not closed.is_set():
        if soon is not None:
            # Before the step: a change that is announced while the step runs may be missed by it, and must start
            # another one.
            soon.clear()
        try:
            await step()
            is_away = False
        except BrokerUnavailable as exc:
            _log.log(
                logging.DEBUG if is_away else logging.WARNING,
                "broker.task_failed",
                "%(task)s: %(error)s; retrying",
                task=what,
                error=exc,
            )
            is_away = True
        except Exception:  # noqa: BLE001 - the root of a task
            _log.exception("broker.task_failed", "%(task)s failed; retrying", task=what)
            is_away = False
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await (soon or closed).wait()
