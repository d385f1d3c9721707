"""The metrics of a broker: counts of its parts, and figures of the database, read now and then.

The parts do not know of metrics. The database is asked at a scrape, but only as often as that costs it little (see
`Lookup`): the figures of 10,000 groups take it a while, and every broker asks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from shutil import disk_usage
from typing import Any, Final

from txmsg.broker.journal import ENTRIES_MAX
from txmsg.broker.parts import BrokerParts, StorageParts
from txmsg.broker.store import figures as store
from txmsg.broker.store.connect import Pool, session
from txmsg.broker.store.delivery import open_segment
from txmsg.checks.brokers import BROKER_DRAINED, NO_LEASES, NOTHING_WRITTEN, STOPPING
from txmsg.checks.database import DATABASE_AWAY
from txmsg.errors import CODES
from txmsg.metrics.calls import put_calls
from txmsg.metrics.catalogue import ERROR, GROUP, NAMED_MAX, OTHER, TOPIC, ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.metrics.lookup import Lookup

_ANSWER_S_MAX: Final = 5.0
_STATES: Final = ("new", "in_doubt", "parked")


@dataclass(frozen=True, slots=True)
class _DatabaseReading:
    """The figures of one reading of the database."""

    groups: list[store.GroupFigures]
    group_count: int
    topics: list[tuple[str | None, int, int]]
    halves: dict[str, store.HalfFigures]
    overdue_check_s: float
    slot_kept_bytes: int
    dead_brokers: int
    disk_free_ratio: float | None


class DatabaseFigures(Lookup[_DatabaseReading]):
    """The figures of the database as last read. `pool`: one whose statements have a timeout."""

    def __init__(self, pool: Pool) -> None:
        super().__init__("figures of the database", self._read_database)
        self._pool = pool

    async def _read_database(self) -> _DatabaseReading:
        async with session(self._pool, timeout_s=_ANSWER_S_MAX) as conn:
            segment = await open_segment(conn)
            return _DatabaseReading(
                groups=await store.group_figures(conn, segment, named_max=NAMED_MAX),
                group_count=await store.group_count(conn),
                topics=await store.topic_figures(conn, segment, named_max=NAMED_MAX),
                halves={found.state: found for found in await store.half_figures(conn)},
                overdue_check_s=await store.overdue_check_s(conn),
                slot_kept_bytes=await store.slot_kept_bytes(conn),
                dead_brokers=await store.dead_brokers(conn),
                disk_free_ratio=await _free_ratio(await store.data_directory(conn)),
            )

    def put_figures(self, figures: Figures) -> None:
        """Add the figures of the last reading, if any."""
        found = self.found
        figures.put("txmsg_database_figures_age_seconds", self.age_s())
        figures.put("txmsg_database_figures_seconds", self.took_s)
        if found is None:
            return
        figures.put("txmsg_slot_kept_bytes", found.slot_kept_bytes)
        figures.put("txmsg_brokers_dead", found.dead_brokers)
        if found.disk_free_ratio is not None:
            figures.put("txmsg_disk_free_ratio", found.disk_free_ratio)
        _put_groups(figures, found.groups)
        figures.put("txmsg_groups", found.group_count)
        figures.put("txmsg_group_pairs", sum(of.pairs for of in found.groups))
        figures.put("txmsg_topics", sum(count for _, count, _ in found.topics))
        for topic, _, messages in found.topics:
            figures.put("txmsg_topic_messages_total", messages, **{TOPIC: topic or OTHER})
        figures.put("txmsg_half_overdue_seconds", found.overdue_check_s)
        for state in _STATES:
            # A state without transactions is exported as 0: a series that disappears would look as if it were unknown.
            of_state = found.halves.get(state, store.HalfFigures(state, 0, 0.0))
            figures.put("txmsg_halves", of_state.transactions, state=state)
            figures.put("txmsg_half_oldest_seconds", of_state.oldest_s, state=state)


def _put_groups(figures: Figures, groups: Sequence[store.GroupFigures]) -> None:
    for of in groups:
        figures.add("txmsg_group_processed_messages_total", of.processed, **_labels(of, is_named=of.is_first))
        labels = _labels(of, is_named=of.is_urgent)
        figures.add("txmsg_group_lag_messages", of.waiting, **labels)
        figures.add("txmsg_group_retrying_messages", of.retrying, **labels)
        figures.add("txmsg_group_dead_letters", of.dead, **labels)
        if of.oldest_s is not None:
            figures.raise_to("txmsg_group_lag_seconds", of.oldest_s, **labels)
        elif not of.waiting:
            figures.raise_to("txmsg_group_lag_seconds", 0, **labels)


def _labels(of: store.GroupFigures, *, is_named: bool) -> dict[str, str]:
    group, topic = (of.group, of.topic) if is_named and of.group and of.topic else (OTHER, OTHER)
    return {GROUP: group, TOPIC: topic}


async def _free_ratio(directory: str | None) -> float | None:
    if directory is None or not os.path.isdir(directory):
        return None
    try:
        usage = await asyncio.to_thread(disk_usage, directory)
    except OSError:  # the directory is another user's: the other figures do not depend on it
        return None
    return usage.free / usage.total


def unready(parts: BrokerParts) -> str:
    """Return the reason why a broker should get no traffic; empty if it may."""
    membership, writers = parts.delivering.membership, parts.sending.writers
    if parts.stop.is_set():
        return STOPPING.found(process="broker").what
    if membership.is_cut_off:
        return DATABASE_AWAY.found().what
    if writers.trouble:
        return NOTHING_WRITTEN.found(error=writers.trouble).what
    if membership.is_draining:
        told = "the broker is drained: it accepts no messages"
        return BROKER_DRAINED.found(told, broker=parts.config.broker_id).what
    if not membership.leases.is_held():
        return NO_LEASES.found().what
    return ""


class BrokerFigures:
    """All metrics of a broker, read on request."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self.database = DatabaseFigures(parts.storage.admin_pool)

    async def read(self, with_database: bool = True) -> Figures:
        """Return the metrics that this broker exports.

        with_database: with the figures of the database, which take longer.
        """
        if with_database:
            await self.database.refresh_if_old()
        figures = Figures(ExportingProcess.BROKER)
        figures.put("txmsg_ready", not unready(self._parts))
        put_calls(figures, self._parts.shared)
        _put_sending(figures, self._parts)
        _put_checks(figures, self._parts)
        _put_delivery(figures, self._parts)
        _put_storage(figures, self._parts.storage)
        _put_cluster(figures, self._parts)
        if with_database:
            self.database.put_figures(figures)
        return figures


def _put_sending(figures: Figures, parts: BrokerParts) -> None:
    config, counts, writers = parts.config, parts.service.counts, parts.sending.writers.by_name
    for name, writer in writers.items():
        figures.put("txmsg_writer_batch_items", writer.counts.items, writer=name)
        figures.put("txmsg_writer_batch_seconds", writer.counts.seconds, writer=name)
        figures.put("txmsg_writer_repeats_total", writer.counts.repeats, writer=name)
        figures.put("txmsg_writer_waiting_items", writer.waiting_items, writer=name)
        figures.put("txmsg_writer_waiting_bytes", writer.waiting_size_bytes, writer=name)
        figures.put_bound(f"writer_{name}_items", writer.waiting_items, config.waiting_items_max)
        figures.put_bound(f"writer_{name}_bytes", writer.waiting_size_bytes, config.waiting_size_bytes_max)
    figures.put("txmsg_stored_messages_total", sum(writer.counts.halves for writer in writers.values()), kind="half")
    figures.put("txmsg_stored_messages_total", sum(writer.counts.plain for writer in writers.values()), kind="plain")
    for outcome, decided_by, count in (
        ("commit", "client", counts.committed_by_client),
        ("commit", "check", counts.committed_by_check),
        ("commit", "person", counts.committed_by_person),
        ("rollback", "client", counts.rolled_back_by_client),
        ("rollback", "check", counts.rolled_back_by_check),
        ("rollback", "person", counts.rolled_back_by_person),
        ("unknown", "client", counts.unknown_by_client),
    ):
        figures.put("txmsg_outcomes_total", count, outcome=outcome, decided_by=decided_by)
    figures.put_each("txmsg_item_errors_total", ERROR, {**dict.fromkeys(CODES, 0), **counts.refused})
    figures.put("txmsg_scheduled_released_total", parts.sending.scheduler.released)


def _put_checks(figures: Figures, parts: BrokerParts) -> None:
    checks, counts = parts.checking.checks, parts.checking.checks.counts
    figures.put("txmsg_checks_total", counts.asked)
    answers = {"commit": counts.committed, "rollback": counts.rolled_back, "unknown": counts.unknown}
    figures.put_each("txmsg_check_answers_total", "outcome", answers)
    figures.put("txmsg_halves_parked_total", counts.parked)
    figures.put("txmsg_checks_in_flight", checks.in_flight)
    figures.put("txmsg_attached_clients", len(parts.checking.clients))
    figures.put_bound("checks_in_flight", checks.in_flight, parts.config.check_loop.in_flight_max)


def _put_delivery(figures: Figures, parts: BrokerParts) -> None:
    delivering, state = parts.delivering, parts.delivering.delivery.state
    counts = state.counts
    figures.put("txmsg_delivered_messages_total", counts.delivered)
    figures.put("txmsg_acknowledged_messages_total", counts.acknowledged)
    figures.put("txmsg_refused_messages_total", counts.refused)
    figures.put("txmsg_expired_messages_total", counts.expired)
    figures.put("txmsg_late_messages_total", counts.late)
    figures.put("txmsg_retries_total", counts.retries)
    figures.put("txmsg_dead_letters_total", counts.dead_letters)
    unreadable = parts.sending.bodies.unreadable
    found = {"erased": unreadable.erased, "expired": unreadable.expired, "damaged": unreadable.damaged}
    figures.put_each("txmsg_unreadable_messages_total", "reason", found)
    figures.put("txmsg_delivery_groups", len(state.groups))
    figures.put("txmsg_delivery_paused_groups", sum(group.members.pause.is_on for group in state.groups.values()))
    figures.put("txmsg_delivery_waiting_receives", sum(state.waiting.values()))
    figures.put("txmsg_delivery_in_flight_messages", sum(feed.window.in_flight_count for feed in state.busy_feeds()))
    figures.put("txmsg_delivery_memory_bytes", state.memory.size_bytes)
    figures.put_bound("delivery_memory", state.memory.size_bytes, state.memory.size_bytes_max)
    figures.put("txmsg_journal_entries_total", delivering.journal_writer.written)
    figures.put("txmsg_journal_lost_entries_total", delivering.journal.lost)
    figures.put_bound("journal", delivering.journal.waiting, ENTRIES_MAX)


def _put_storage(figures: Figures, storage: StorageParts) -> None:
    config, kept = storage.config, storage.segments.kept
    figures.put("txmsg_segments", len(kept))
    figures.put("txmsg_segments_bytes", sum(segment.size_bytes for segment in kept))
    figures.put("txmsg_segment_oldest_seconds", max((it.age_s for it in kept if it.state == "closed"), default=0))
    figures.put("txmsg_retention_seconds", config.retention_s)
    figures.put("txmsg_retention_limit_bytes", config.retention_size_bytes)
    figures.put("txmsg_segments_dropped_total", storage.retention.counts.segments)
    figures.put("txmsg_unread_dropped_messages_total", storage.retention.counts.unread_messages)
    figures.put_bound("segments", len(kept), config.segments_max)


def _put_cluster(figures: Figures, parts: BrokerParts) -> None:
    membership, storage = parts.delivering.membership, parts.storage
    figures.put("txmsg_database_reachable", not membership.is_cut_off)
    figures.put("txmsg_lease_held", membership.leases.is_held())
    figures.put("txmsg_leases", len(membership.leases.epochs()))
    figures.put("txmsg_lease_losses_total", membership.leases.losses)
    figures.put("txmsg_brokers", len(membership.brokers))
    figures.put("txmsg_draining", membership.is_draining)
    for name, pool in (("delivery", storage.pool), ("administration", storage.admin_pool)):
        found: dict[str, Any] = pool.get_stats()  # without what has not happened yet
        size, waiting = found.get("pool_size", 0), found.get("requests_waiting", 0)
        errors = found.get("requests_errors", 0) + found.get("connections_errors", 0) + found.get("connections_lost", 0)
        figures.put("txmsg_database_sessions", size, pool=name)
        figures.put("txmsg_database_waiting", waiting, pool=name)
        figures.put("txmsg_database_requests_total", found.get("requests_num", 0), pool=name)
        figures.put("txmsg_database_used_seconds_total", found.get("usage_ms", 0) / 1000, pool=name)
        figures.put("txmsg_database_wait_seconds_total", found.get("requests_wait_ms", 0) / 1000, pool=name)
        figures.put("txmsg_database_errors_total", errors, pool=name)
        figures.put_bound(f"sessions_{name}", size - found.get("pool_available", 0), found.get("pool_max", 1))
