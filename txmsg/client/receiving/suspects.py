"""Suspects: messages that were lost with their consumers repeatedly are handled alone, for one may kill its process.

The broker counts such a loss only if the message was alone, as it is told before the handler begins. So a message that
kills its process becomes a dead letter, and no other does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from txmsg.client.receiving.delivery import MessageDelivery
from txmsg.consumer.isolation import isolation
from txmsg.consumer.workers import Workers
from txmsg.runtime.logs import EventLog
from txmsg.wire.codec import SUSPECT_FROM

_log = EventLog(__name__)

COUNTED_FROM: Final = 6
"""With so many consumers it was lost, although it was alone for longer: from now on its loss always counts."""
_ALONE_S: Final = 2.0
_GROWTH: Final = 4.0
_ALONE_S_MAX: Final = 32.0


def alone_s(losses: int) -> float:
    """Return the seconds that a message is alone at most, and that others are waited for before: 2, 8, 32, 32 ...

    Then others join it, for handlers may take hours. If it is lost after that, it does not count, and it is alone for
    longer the next time.
    """
    return min(_ALONE_S * _GROWTH ** min(losses - SUSPECT_FROM, 9), _ALONE_S_MAX)


class SuspectHandler:
    """Handles messages alone, one after the other. `run` ends only when it is cancelled. Belongs to one loop.

    How many wait is bounded by those who put them: a broker delivers one at a time.
    """

    def __init__(self, workers: Workers[MessageDelivery], group: str) -> None:
        self._workers = workers
        self._group = group
        self._waiting: asyncio.Queue[tuple[MessageDelivery, int]] = asyncio.Queue()

    def put_message(self, delivery: MessageDelivery, losses: int) -> None:
        """Queue a message that was lost with this many consumers. Until it is handled this process fetches nothing
        more."""
        isolation.want(1)
        self._waiting.put_nowait((delivery, losses))

    async def run(self) -> None:
        """Handle the queued messages, until cancelled."""
        try:
            while True:
                delivery, losses = await self._waiting.get()
                try:
                    await self._handle(delivery, losses)
                except Exception:  # noqa: BLE001 - a task's root
                    _log.exception(
                        "consumer.alone_failed",
                        "group %(group)s: what txmsg does around a handler that runs alone failed",
                        group=self._group,
                    )
                finally:
                    isolation.want(-1)
        finally:
            isolation.want(-self._waiting.qsize())

    async def _handle(self, delivery: MessageDelivery, losses: int) -> None:
        _log.info(
            "consumer.alone",
            "group %(group)s: message %(message_id)s of topic %(topic)r was lost with %(losses)d consumers, and is "
            "handled alone: it may be what ends them",
            group=self._group,
            message_id=delivery.message.id,
            topic=delivery.message.topic,
            losses=losses,
        )
        time_s, is_counted = alone_s(losses), losses >= COUNTED_FROM
        async with isolation.alone(time_s) as is_alone:
            # A loss beside other handlers proves nothing about this message, so the broker is told "alone" only if it
            # is true, or if the message has had all its chances.
            counts = is_alone or is_counted
            if counts and not await delivery.tell_alone(is_alone=True):
                await delivery.tell_alone(is_alone=False)  # it may have heard the first, but nothing begins
                delivery.end_run()
                return
            ended = self._workers.run_alone(delivery)
            if is_alone:
                with suppress(TimeoutError):
                    async with asyncio.timeout(time_s):
                        await ended.wait()
            if counts and not is_counted and not ended.is_set():
                await delivery.tell_alone(is_alone=False)
