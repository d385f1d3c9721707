"""A member of a group of a log whose messages are handled by functions: a subscription with source="log".

Private: applications declare subscriptions. A handler that raises has its message retried through %RETRY%GROUP, so
after later ones, or, with `ordered`, while its queue waits; when its retries are used up it goes to %DLQ%GROUP. After
a crash, up to half a second of handled messages is redelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from txmsg.consumer.lifecycle import WithHandlers
from txmsg.consumer.options import ConsumerOptions
from txmsg.consumer.subscriptions import ConcurrencyShare
from txmsg.metaq.consumer.lane import Lane
from txmsg.metaq.consumer.member import AsyncMember, LogChoice
from txmsg.metaq.consumer.options import LogOptions
from txmsg.metaq.consumer.workers import LaneWorkers
from txmsg.metaq.interface import LogAccess, LogGroupSettings
from txmsg.metrics.figures import Figures

_OPTIONS: Final = ConsumerOptions()
_OF_LOG: Final = LogOptions()


class AsyncPushConsumer(AsyncMember, WithHandlers):
    """A member of a consumer group of a log that has handlers, one for each topic."""

    def __init__(
        self, log: LogChoice, group: str, options: ConsumerOptions = _OPTIONS, of_log: LogOptions = _OF_LOG
    ) -> None:
        super().__init__(log, group, options, of_log)

    def pause(self) -> None:
        """Call no handlers until `resume`; running ones finish. Returns at once. Any thread may call it."""
        self._pause_or_resume(True)

    def resume(self) -> None:
        """End `pause`."""
        self._pause_or_resume(False)

    async def stop_group(self) -> None:
        """Stop its group in all processes, until `start_group`; as `txmsg group stop --log` does."""
        await self._alter_group(stopped=True)

    async def start_group(self) -> None:
        """End `stop_group`, or `txmsg group stop --log`."""
        await self._alter_group(stopped=False)

    async def _alter_group(self, *, stopped: bool) -> None:
        alter = partial(self._require_started().alter_group, self.group, stopped=stopped)
        await asyncio.get_running_loop().run_in_executor(self._threads, alter)

    def hands_on(self) -> bool:
        """Return True if handlers may begin: not after `pause`, in a stopped group, or after the close.

        Any thread may read it.
        """
        return not (self._is_paused or self._settings.stopped or self._workers.is_stopping)

    def _set_apart(self, topics: Sequence[str], *, concurrency: int, list_count: int) -> None:
        """Give the handlers of topics a concurrency of their own, and lists; for applications, before the start."""
        share = ConcurrencyShare(concurrency)
        for topic in topics:
            handler = self._subscriptions.handlers[topic]
            handler.share, handler.list_count = share, list_count

    def _put_figures(self, figures: Figures) -> None:
        """Add its metrics, for `txmsg.metrics.ClientCollector`."""
        lanes = [] if self._access is None else list(self._balance.lanes.values())
        self._counts.put_figures(figures, self.group, held=sum(lane.held_count for lane in lanes))
        running = [] if self._access is None else self._workers.running()
        self._subscriptions.put_figures(figures, (run.handler for run in running))

    def _open_reader(self, access: LogAccess) -> None:
        self._workers = LaneWorkers(
            access,
            self.group,
            self._subscriptions.handlers,
            concurrency=self._concurrency,
            ordered=self._options.ordered,
            threads=self._threads,
            clock=self._now,
            counts=self._counts,
            room=self._room,
        )

    async def _close_reader(self) -> None:
        await self._workers.close()

    def _stop_reading(self) -> None:
        self._workers.is_stopping = True

    def _apply_settings(self, settings: LogGroupSettings) -> None:
        self._workers.apply_settings(settings)

    def _on_ready(self, lane: Lane) -> None:
        self._workers.put_lane(lane)
