"""Fetches for the lanes of a consumer, within bounds, and decides where lanes continue whose offsets are not kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from typing import Final

from txmsg.errors import OffsetOutOfRange, OffsetsMissing, TxmsgError
from txmsg.metaq.consumer.lane import Lane
from txmsg.metaq.consumer.options import Missing
from txmsg.metaq.interface import Fetched, LogAccess, LogQueue
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

WAITING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of batches that are fetched and not handled, in one consumer; a single batch may be larger."""
LANE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of batches that are fetched and not handled, of one queue."""
_FETCH_BYTES: Final = 1024 * 1024
_WAIT_S: Final = 0.25
_RETRY_S: Final = 5.0
_TELL_S: Final = 60.0


class Fetcher:
    """Fetches for all lanes at once.

    are_polled: batches are passed on whole. thread: of its own, for calls that wait.
    """

    def __init__(
        self,
        access: LogAccess,
        lanes: Mapping[LogQueue, Lane],
        group: str,
        *,
        missing: Missing,
        are_polled: bool,
        thread: Executor,
        clock: Callable[[], float],
    ) -> None:
        self._access = access
        self._lanes = lanes
        self._group = group
        self._missing = missing
        self._are_polled = are_polled
        self._thread = thread
        self._clock = clock
        self._turn = 0
        self.has_waited = False
        """True if the last step has waited for new messages."""
        self.missed_count = 0
        """Messages that were deleted or missing before they could be fetched."""

    async def step(self) -> list[Lane]:
        """Fetch once, waiting a little for new messages, and return the lanes that have got something."""
        wanted, room_bytes = self._wanted()
        self.has_waited = False
        if not wanted:
            return []
        # It waits only if every lane can be fetched: otherwise a lane that gets room would wait for messages of others.
        self.has_waited = len(wanted) == sum(not lane.is_paused and lane.error is None for lane in self._lanes.values())
        checked = {
            queue for queue, offset in wanted.items() if self._are_polled or self._lanes[queue].unreadable_at == offset
        }
        fetched = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._fetched, wanted, room_bytes, checked
        )
        ready: list[Lane] = []
        for result in fetched:
            lane = self._lanes.get(result.queue)
            # The fetch ran on a thread, and the loop may have moved lanes meanwhile: what was fetched for another
            # offset is dropped.
            if lane is None or lane.fetch_offset != wanted[result.queue] or lane.is_stopping:
                continue  # given back, or moved, meanwhile
            if result.error is not None:
                self._settle(lane, result.error)
            else:
                lane.error = None
                lane.add(result.batches)
                ready.append(lane)
        return ready

    def _fetched(self, wanted: Mapping[LogQueue, int], room_bytes: int, checked: Collection[LogQueue]) -> list[Fetched]:
        """Fetch from the log, and check that messages are readable.

        checked: queues whose messages are checked here; others are when handlers get them.
        """
        found = self._access.fetch(wanted, size_bytes_max=room_bytes, wait_s=_WAIT_S if self.has_waited else 0.0)
        return [each.readable() if each.queue in checked else each for each in found]

    def _wanted(self) -> tuple[dict[LogQueue, int], int]:
        """Return the offsets of lanes that have room, beginning with another lane each time, and the bytes that may be
        fetched.
        """
        room_bytes = WAITING_BYTES_MAX - sum(lane.waiting_bytes for lane in self._lanes.values())
        lanes = [lane for lane in self._lanes.values() if self._has_room(lane)]
        if not lanes or room_bytes <= 0:
            return {}, 0
        # The log fills the size in the given order, so another lane is first each time, and none starves.
        self._turn = (self._turn + 1) % len(lanes)
        turned = lanes[self._turn :] + lanes[: self._turn]
        return {lane.queue: lane.fetch_offset for lane in turned}, min(room_bytes, _FETCH_BYTES)

    def _has_room(self, lane: Lane) -> bool:
        if lane.is_paused or lane.is_stopping or lane.waiting_bytes >= LANE_BYTES_MAX:
            return False
        # What is damaged may be repaired; what the policy stands still for, only a seek moves.
        return lane.error is None or (not isinstance(lane.error, OffsetOutOfRange) and self._clock() >= lane.retry_at)

    def _settle(self, lane: Lane, error: TxmsgError) -> None:
        if not isinstance(error, OffsetOutOfRange) or self._missing == "error":
            now = self._clock()
            if lane.error is None or now >= lane.told_at + _TELL_S:
                _log.error(
                    "member.fetch_failed",
                    "group %(group)s cannot fetch messages: %(error)s",
                    group=self._group,
                    error=error,
                )
                lane.told_at = now
            lane.error, lane.retry_at = error, now + _RETRY_S
            return
        offset = lane.fetch_offset
        if isinstance(error, OffsetsMissing):
            to, missed = error.end, error.end - offset
        elif offset > error.end:  # the log was truncated: new messages come there
            to, missed = error.end, 0
        else:
            to = error.begin if self._missing == "earliest" else error.end
            missed = to - offset
        self.missed_count += missed
        _log.error(
            "member.missed",
            "group %(group)s missed %(messages)d messages, and continues at offset %(offset)d: %(error)s",
            group=self._group,
            messages=missed,
            offset=to,
            error=error,
        )
        lane.skip_to(to)
