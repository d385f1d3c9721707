"""A member of a consumer group of a log: joins, takes its share of the queues, fetches ahead, can be moved and paused.

Its subclasses decide what is done with fetched messages. Delivery is at least once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from txmsg.consumer.counts import ConsumerCounts
from txmsg.consumer.lifecycle import AsyncLifecycle
from txmsg.consumer.options import ConsumerOptions
from txmsg.errors import BrokerUnavailable, MisuseError, TxmsgError
from txmsg.metaq.consumer.balance import Balance
from txmsg.metaq.consumer.fetcher import Fetcher
from txmsg.metaq.consumer.lane import Lane
from txmsg.metaq.consumer.options import LogOptions
from txmsg.metaq.group.assignment import averaged
from txmsg.metaq.interface import LogAccess, LogGroupSettings
from txmsg.metaq.location import open_log
from txmsg.runtime.logs import EventLog
from txmsg.runtime.threads import DaemonThreads

_log = EventLog(__name__)

LogChoice: TypeAlias = str | os.PathLike[str] | LogAccess
"""The directory of a log, the address of its server, or an open log."""

BALANCE_S = 0.5
"""Seconds between two checks of the group's members; offsets are stored as often."""
RETRY_S = 5.0
"""Seconds until a failure of unknown cause is retried."""
_IDLE_S = 0.05


class AsyncMember(AsyncLifecycle):
    """A member of a consumer group of a log. Each queue belongs to one member, which gets its messages in order."""

    takes_patterns = False

    def __init__(self, log: LogChoice, group: str, options: ConsumerOptions, of_log: LogOptions) -> None:
        super().__init__(group, options)
        self._where = log
        self._credential: dict[str, Any] = {"tls": options.tls, "token": options.token}
        self._is_passing = options.broadcast is True
        self._options = of_log
        self._clock: Callable[[], float] = time.time
        self._balance_s = BALANCE_S

    def _begin(self) -> None:
        super()._begin()
        self._counts = ConsumerCounts()
        self._is_paused = False
        self._settings = LogGroupSettings()
        self._access: LogAccess | None = None

    # ---- what becomes of what it has fetched

    @abstractmethod
    def _open_reader(self, access: LogAccess) -> None:
        """Create the object that messages are passed to. `_balance`, `_fetcher` and `_room` exist."""

    @abstractmethod
    async def _close_reader(self) -> None:
        """Close the reader, when the member has left."""

    @abstractmethod
    def _stop_reading(self) -> None:
        """Pass on no more messages."""

    @abstractmethod
    def _on_ready(self, lane: Lane) -> None:
        """Notify the reader that a lane may have messages to pass on."""

    @abstractmethod
    def _apply_settings(self, settings: LogGroupSettings) -> None:
        """Apply the settings of operators for the group; ready lanes are reported again."""

    def _on_error(self) -> None:
        """Notify the reader that a lane stands still because of an error."""

    # ---- life

    async def _open(self) -> None:
        self._threads = DaemonThreads(2, name=f"txmsg-log-{self.group}")
        self._member_thread = DaemonThreads(1, name=f"txmsg-member-{self.group}")
        try:
            access = await self._opened()
        except BaseException:
            self._threads.shutdown()
            self._member_thread.shutdown()
            raise
        handlers = self._subscriptions.handlers
        self._room = asyncio.Event()
        """Set when a lane has passed messages on, so that more can be fetched."""
        self._balance = Balance(
            access,
            self.group,
            self._subscriptions.wanted,
            start=self._start,
            strategy=self._options.strategy or averaged,
            zone=self._options.zone,
            reads_retries=bool(handlers),
            list_counts={topic: handler.list_count for topic, handler in handlers.items()},
            thread=self._member_thread,
            on_ready=self._on_ready,
            on_settings=self._take_settings,
        )
        self._balance.is_paused = self._is_paused
        self._fetcher = Fetcher(
            access,
            self._balance.lanes,
            self.group,
            missing=self._options.missing,
            are_polled=not handlers,
            thread=self._threads,
            clock=self._now,
        )
        self._open_reader(access)
        self._access = access  # last: with it, other threads look at all the above for figures
        self._loops = [
            asyncio.create_task(self._repeat(self._balance_once), name=f"txmsg-balance-{self.group}"),
            asyncio.create_task(self._repeat(self._fetch_once), name=f"txmsg-fetch-{self.group}"),
        ]

    async def _opened(self) -> LogAccess:
        where = self._where
        if not isinstance(where, str | os.PathLike):
            return where
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(open_log, where, **self._credential)
        )

    async def _close(self) -> None:
        assert self._access is not None
        self._stop_reading()
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if not await self._balance.leave(self.close_timeout_s):
            _log.warning(
                "consumer.closed_early",
                "group %(group)s: handlers still ran after %(timeout_s)s s; their messages are redelivered",
                group=self.group,
                timeout_s=self.close_timeout_s,
            )
        await self._close_reader()
        await self._close_log(self._access)
        self._threads.shutdown()
        self._member_thread.shutdown()

    async def _close_log(self, access: LogAccess) -> None:
        def close() -> None:
            if self._is_passing:
                _delete_passing(access, self.group)
            if access is not self._where:
                access.close()

        await asyncio.get_running_loop().run_in_executor(self._member_thread, close)

    # ---- in the background

    def _now(self) -> float:
        return self._clock()

    async def _repeat(self, once: Callable[[], Any]) -> None:
        told = ""
        while True:
            try:
                await once()
                told = ""
            except (TxmsgError, OSError) as exc:
                self._counts.failed_calls += 1
                if str(exc) != told:
                    level = logging.WARNING if isinstance(exc, BrokerUnavailable) else logging.ERROR
                    _log.log(
                        level,
                        "member.retries",
                        "group %(group)s is interrupted, and retries: %(error)s",
                        group=self.group,
                        error=exc,
                    )
                told = str(exc)
                await asyncio.sleep(self._balance_s)
            except Exception:  # noqa: BLE001 - the root of a task, where a strategy of the user's may have failed
                self._counts.failed_calls += 1
                _log.exception("member.failed", "group %(group)s is interrupted, and retries", group=self.group)
                await asyncio.sleep(RETRY_S)

    async def _balance_once(self) -> None:
        await self._balance.step()
        for lane in list(self._balance.lanes.values()):
            self._on_ready(lane)  # messages may have become due
        await asyncio.sleep(self._balance_s)

    async def _fetch_once(self) -> None:
        ready = await self._fetcher.step()
        for lane in ready:
            self._on_ready(lane)
        if any(lane.error for lane in self._balance.lanes.values()):
            self._on_error()
        if not ready and not self._fetcher.has_waited:
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_S):
                    await self._room.wait()

    # ---- paused

    def _pause_or_resume(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        if self._loop is not None and self._closing is None:
            self._loop.call_soon_threadsafe(self._tell_lanes)

    def _tell_lanes(self) -> None:
        self._balance.is_paused = self._is_paused
        self._set_paused(list(self._balance.lanes.values()), self._is_paused)

    def _set_paused(self, lanes: Iterable[Lane], is_paused: bool) -> None:
        for lane in lanes:
            lane.is_paused = is_paused
            if not is_paused:
                self._on_ready(lane)
        self._room.set()

    # ---- what operators set

    def _take_settings(self, settings: LogGroupSettings) -> None:
        if settings == self._settings:
            return
        self._settings = settings
        self._apply_settings(settings)
        for lane in list(self._balance.lanes.values()):
            self._on_ready(lane)
        _log.info(
            "member.settings_taken",
            "group %(group)s %(state)s, by its settings in the log: concurrency at most %(concurrency)s, "
            "%(rate)s messages per second",
            group=self.group,
            state="is stopped" if settings.stopped else "runs",
            concurrency=settings.concurrency or "that of its subscriptions",
            rate=settings.rate_per_s or "any number of",
        )

    # ---- what it has

    def queues(self) -> list[tuple[str, int]]:
        """Return the queues that this member owns now: topic and number."""
        self._require_started()
        return sorted((topic, queue) for topic, queue in self._balance.lanes if topic in self._subscriptions.wanted)

    @property
    def missed_count(self) -> int:
        """Messages that this consumer could not fetch: deleted by retention, or marked as missing in the log."""
        return self._fetcher.missed_count if self._access is not None else 0

    def _require_started(self) -> LogAccess:
        if self._access is None:
            raise MisuseError(f"the consumer of group {self.group} was not started: start it first")
        return self._access


def _delete_passing(access: LogAccess, group: str) -> None:
    """Delete the group of a broadcasting member without a name, and those that killed members have left."""
    base = group.rpartition("%")[0]
    for other in access.groups():
        if re.fullmatch(re.escape(base) + "%[0-9a-f]{32}", other):
            with suppress(TxmsgError):  # it has members, or another member deletes it
                access.delete_group(other)
