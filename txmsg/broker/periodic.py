"""A periodic task: repeats a step, and logs what it raises."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from txmsg.errors import BrokerUnavailable

_log = logging.getLogger(__name__)


async def repeat(
    step: Callable[[], Awaitable[None]], interval_s: float, closed: asyncio.Event, soon: asyncio.Event | None = None
) -> None:
    """Repeats a step every interval_s until `closed`; at once when `soon` is set, which closing must set too."""
    while not closed.is_set():
        try:
            if soon is not None:
                soon.clear()
            await step()
        except BrokerUnavailable as exc:
            _log.debug("%s", exc)  # logged where the database was lost
        except Exception:  # noqa: BLE001 - the root of a task
            _log.exception("a periodic step failed; it is tried again")
        try:
            async with asyncio.timeout(interval_s):
                await (soon or closed).wait()
        except TimeoutError:
            continue
