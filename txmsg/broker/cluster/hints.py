"""Announces the ends of queues of other brokers, by NOTIFY, so that they deliver without waiting for their next poll.

A lost announcement is not repeated: the others find the messages without it, a little later. Never one per message: a
NOTIFY takes a global lock when it commits (decision 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from txmsg.broker.store.connect import Pool, notify, session
from txmsg.errors import BrokerUnavailable
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

KIND = "ends"
"""The first word of a notice that announces ends."""
_HINT_PAUSE_S = 0.02
"""Seconds between announcements: at most 50 a second."""
_PAYLOAD_LENGTH_MAX = 7000  # PostgreSQL takes 7,999 bytes


class Hints:
    """The ends of queues that other brokers deliver, and that they do not know yet."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ends: dict[int, int] = {}
        self._has_ends = asyncio.Event()

    def hint(self, ends: Mapping[int, int]) -> None:
        """Announce the ends of these queues (by id) soon, in one notification."""
        for queue_id, end in ends.items():
            self._ends[queue_id] = max(end, self._ends.get(queue_id, 0))
        if ends:
            self._has_ends.set()

    async def hint_once(self) -> None:
        """Send the ends that `hint` has collected, in one transaction."""
        ends, self._ends = self._ends, {}
        self._has_ends.clear()
        if ends:
            async with session(self._pool) as conn:
                await notify(conn, *_payloads(ends))

    async def run(self) -> None:
        """Repeat `hint_once`, when there is something to announce, until cancelled."""
        while True:
            await self._has_ends.wait()
            try:
                await self.hint_once()
            except BrokerUnavailable as exc:
                _log.debug(
                    "cluster.notice_failed",
                    "the ends of queues were not announced to other brokers: %(error)s",
                    error=exc,
                )
            except Exception:  # noqa: BLE001 - the root of a task
                _log.exception("cluster.notice_failed", "the ends of queues were not announced to other brokers")
            # After sending, not before: the first end after a quiet time is announced at once.
            await asyncio.sleep(_HINT_PAUSE_S)


def _payloads(ends: Mapping[int, int]) -> list[str]:
    """Return texts such as "ends 7:100 8:20", each short enough for a notice."""
    payloads: list[str] = []
    payload = ""
    for queue_id, end in ends.items():
        if len(payload) > _PAYLOAD_LENGTH_MAX:
            payloads.append(payload)
            payload = ""
        payload = f"{payload or KIND} {queue_id}:{end}"
    return [*payloads, payload]


def ends_of(text: str) -> dict[int, int]:
    """Return the ends, by queue id, in a notice after KIND. Other programs may write to the channel."""
    ends: dict[int, int] = {}
    for word in text.split():
        queue_id, _, end = word.partition(":")
        if queue_id.isdecimal() and end.isdecimal():
            ends[int(queue_id)] = int(end)
    return ends
