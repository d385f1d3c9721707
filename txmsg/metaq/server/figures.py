"""The metrics of a MetaQ server: counters of its parts, and values that it reads of its log now and then."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from shutil import disk_usage

from txmsg.checks.brokers import STOPPING
from txmsg.checks.logs import LOG_FAILED, LOG_USERS_UNKNOWN
from txmsg.errors import CorruptLog, InvalidName, UnknownGroup
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.server.parts import MetaQParts
from txmsg.metaq.server.sessions import SESSIONS_MAX
from txmsg.metaq.store.log import LogSize
from txmsg.metrics.calls import put_calls
from txmsg.metrics.catalogue import GROUP, NAMED_MAX, OTHER, TOPIC, ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.metrics.lookup import Lookup
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class _Lag:
    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _LogReading:
    size: LogSize
    disk_free_ratio: float
    topic_count: int
    messages: dict[str, int]
    """Messages by topic; topics without a series of their own together."""
    group_count: int
    lags: dict[tuple[str, str], _Lag]
    """Lags by group and topic; those without a series of their own together."""
    pair_count: int


class LogFigures(Lookup[_LogReading]):
    """The metrics of the log's files, by topic and by group, as last read, on one of `readers`."""

    def __init__(self, log: LocalLog, readers: Executor) -> None:
        super().__init__("figures of the log", self._read_log)
        self._log = log
        self._readers = readers
        self._told: set[str] = set()
        """The reason why groups were left out, which is logged once."""

    def put_figures(self, figures: Figures) -> None:
        """Add the metrics that exist."""
        found = self.found
        figures.put("txmsg_log_figures_age_seconds", self.age_s())
        if found is None:
            return
        figures.put("txmsg_log_bytes", found.size.size_bytes)
        figures.put("txmsg_log_files", found.size.files)
        figures.put("txmsg_disk_free_ratio", found.disk_free_ratio)
        figures.put("txmsg_log_topics", found.topic_count)
        figures.put_each("txmsg_log_topic_messages_total", TOPIC, found.messages)
        figures.put("txmsg_log_groups", found.group_count)
        figures.put("txmsg_log_group_pairs", found.pair_count)
        for (group, topic), lag in found.lags.items():
            figures.put("txmsg_log_group_lag_messages", lag.messages, **{GROUP: group, TOPIC: topic})
            figures.put("txmsg_log_group_lag_seconds", lag.seconds, **{GROUP: group, TOPIC: topic})

    async def _read_log(self) -> _LogReading:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read_all)

    def _read_all(self) -> _LogReading:
        topics, groups = self._log.topics(), self._log.groups()
        messages: defaultdict[str, int] = defaultdict(int)
        for place, (topic, numbers) in enumerate(sorted(topics.items())):  # one by one: each holds up other readers
            ends = self._log.ranges([LogQueue(topic, number) for number in numbers]).values()
            messages[topic if place < NAMED_MAX else OTHER] += sum(kept.end for kept in ends)
        lags: dict[tuple[str, str], _Lag] = {}
        for group in groups:
            lags |= self._lags_of(group)
        disk = disk_usage(self._log.root)
        return _LogReading(
            size=self._log.size(),
            disk_free_ratio=disk.free / disk.total,
            topic_count=len(topics),
            messages=dict(messages),
            group_count=len(groups),
            lags=_named(lags),
            pair_count=len(lags),
        )

    def _lags_of(self, group: str) -> dict[tuple[str, str], _Lag]:
        try:
            queues = self._log.group(group).queues
        except UnknownGroup:  # deleted this moment
            return {}
        except (CorruptLog, InvalidName) as exc:  # the other groups are still reported
            if str(exc) not in self._told:
                self._told.add(str(exc))
                _log.warning("group.no_figures", "group %(group)s has no figures: %(error)s", group=group, error=exc)
            return {}
        messages: defaultdict[str, int] = defaultdict(int)
        behind: defaultdict[str, list[tuple[LogQueue, int]]] = defaultdict(list)
        for state in queues:
            offset = max(state.kept.begin, state.offset or 0)
            left = max(0, state.kept.end - offset)
            messages[state.queue.topic] += left
            if left:
                behind[state.queue.topic].append((state.queue, offset))
        return {(group, topic): _Lag(count, self._age_s(behind[topic])) for topic, count in messages.items()}

    def _age_s(self, behind: Sequence[tuple[LogQueue, int]]) -> float:
        """Return the seconds since the first of these messages was stored, by their batches."""
        stored_at_us = [
            fetched.batches[0].first_stored_at_us
            for queue, offset in behind
            for fetched in self._log.fetch({queue: offset}, size_bytes_max=1)
            if fetched.batches
        ]
        return max(0.0, time.time() - min(stored_at_us) / 1e6) if stored_at_us else 0.0


def _named(lags: Mapping[tuple[str, str], _Lag]) -> dict[tuple[str, str], _Lag]:
    """Return those that wait longest under their names, and the others together."""
    found = sorted(lags.items(), key=lambda item: (-item[1].seconds, -item[1].messages, item[0]))
    named, others = dict(found[:NAMED_MAX]), [lag for _, lag in found[NAMED_MAX:]]
    if others:
        messages, seconds = sum(lag.messages for lag in others), max(lag.seconds for lag in others)
        named[OTHER, OTHER] = _Lag(messages, seconds)
    return named


def unready(parts: MetaQParts) -> str:
    """Return the reason why a server should get no traffic; empty if it may."""
    if parts.stop.is_set():
        return STOPPING.found(process="server").what
    if (guard := parts.shared.guard) is not None and not guard.is_fresh:
        return LOG_USERS_UNKNOWN.found().what
    return LOG_FAILED.found(parts.appender.failure).what if parts.appender.failure else ""


def figures_of(parts: MetaQParts, log: LogFigures) -> Figures:
    """Return all metrics of a server."""
    figures = Figures(ExportingProcess.METAQ)
    figures.put("txmsg_ready", not unready(parts))
    put_calls(figures, parts.shared)
    counts, written, config = parts.appender.counts, parts.log.counts(), parts.config
    figures.put("txmsg_log_unsynced_bytes", written.unsynced_bytes)
    figures.put("txmsg_log_sync_seconds", written.syncs)
    figures.put("txmsg_log_deleted_files_total", written.deleted_files)
    figures.put("txmsg_log_retention_limit_bytes", config.log.retention_size_bytes or 0)
    figures.put("txmsg_log_append_seconds", counts.seconds)
    figures.put("txmsg_log_append_calls", counts.calls)
    figures.put("txmsg_log_appended_messages_total", counts.messages)
    figures.put("txmsg_log_appended_bytes_total", counts.bytes)
    figures.put("txmsg_log_append_errors_total", counts.errors)
    figures.put("txmsg_log_failed", bool(parts.appender.failure))
    figures.put("txmsg_log_delayed_messages", written.delayed_messages)
    figures.put("txmsg_log_delayed_late_seconds", written.delayed_late_s)
    _put_copies(figures, parts)
    figures.put("txmsg_log_waiting_fetches", parts.polls.count)
    figures.put("txmsg_log_members", len(parts.sessions))
    figures.put_bound("appending", parts.appender.size_bytes, config.appending_size_bytes_max)
    figures.put_bound("sending", parts.api.sending.held_bytes, config.sending_size_bytes_max)
    figures.put_bound("arriving", parts.shared.arriving_bytes, config.arriving_size_bytes_max)
    figures.put_bound("members", len(parts.sessions), SESSIONS_MAX)
    log.put_figures(figures)
    return figures


def _put_copies(figures: Figures, parts: MetaQParts) -> None:
    copies, follower, synced = parts.copies, parts.follower, parts.log.writer.synced
    figures.put("txmsg_log_copies", copies.in_touch())
    figures.put("txmsg_log_copies_missing", max(0, copies.required - copies.in_touch()))
    figures.put(
        "txmsg_log_copy_lag_bytes", max((max(0, synced - copy.position) for copy, _ in copies.all()), default=0)
    )
    figures.put("txmsg_log_copy_timeouts_total", copies.timeouts)
    figures.put("txmsg_log_follow_lag_bytes", 0 if follower is None else follower.behind_bytes)
    figures.put("txmsg_log_follow_silent_seconds", 0.0 if follower is None else follower.silent_s())
