"""Writes what must not be forgotten: cursors, what became of failures, and for how long consumers hold messages."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

from psycopg.errors import ForeignKeyViolation

from txmsg.broker.cluster import Leases, Membership
from txmsg.broker.delivery.database import Database
from txmsg.broker.delivery.failures import write_first_failures, write_retry_outcomes
from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.handing import still_out
from txmsg.broker.delivery.holding import MARGIN_S
from txmsg.broker.delivery.state import State
from txmsg.broker.store import delivery as store
from txmsg.broker.store import leases as leases_store
from txmsg.broker.store import retries as failures_store
from txmsg.errors import BrokerUnavailable

__all__ = ["Writing"]

_log = logging.getLogger(__name__)
_CURSORS_PER_STATEMENT = 1000


class Writing:
    """Writes under the leases of the queues concerned; what has lost its lease is not written, and goes.

    flushing: held while cursors are written.
    """

    def __init__(self, state: State, database: Database, membership: Membership) -> None:
        self._state = state
        self._database = database
        self._membership = membership
        self.flushing = asyncio.Lock()

    async def finish(self, feeds: Sequence[Feed]) -> None:
        """Gives nothing more of these, waits a little for what consumers have of them, and writes how far they are.

        Raises BrokerUnavailable.
        """
        for feed in feeds:
            feed.leaving = True
        feeds = [feed for feed in feeds if feed.group in self._state.busy]  # all others are finished
        await self._state.settling.wait(lambda: not still_out(feeds), self._state.config.hand_over_s)
        by_group: defaultdict[Group, list[Feed]] = defaultdict(list)
        for feed in feeds:
            by_group[feed.group].append(feed)
        for group, its_feeds in by_group.items():
            await self.try_to_write_outcomes(group, its_feeds)
        await self.note_held([feed for feed in feeds if feed.held_until and not still_out([feed])], None)
        await self.flush_once()

    async def flush_once(self) -> None:
        """Writes the cursors that moved. What is no longer this broker's is dropped."""
        async with self.flushing:
            await self._flush()

    async def _flush(self) -> None:
        dirty = [feed for feed in self._state.busy_feeds() if feed.window.is_dirty]
        dirty.sort(key=lambda feed: (feed.group.id, feed.queue_id))
        for start in range(0, len(dirty), _CURSORS_PER_STATEMENT):
            async with self._database.session() as conn:
                chunk = [
                    feed for feed in dirty[start : start + _CURSORS_PER_STATEMENT] if self._state.is_delivered(feed)
                ]
                stale = await _write_progress(conn, self._state.leases, chunk)
            for feed in filter(self._state.is_delivered, stale):
                _log.warning("group %s: %s is no longer this broker's", feed.group.name, feed)
                self._state.remove(feed.group, [feed.queue_id])
                self._membership.doubt()

    async def write_outcomes(self, group: Group, feeds: Iterable[Feed]) -> None:
        """Makes failures durable, then counts them as acked. One transaction, which holds the leases concerned.

        Raises BrokerUnavailable if a lease is over, as when the topic was deleted, or the group is not there any more.
        """
        async with group.writing:
            failing = [
                (feed, each) for feed in feeds if (each := feed.window.failing()) and self._state.is_delivered(feed)
            ]
            outcomes = group.retrying.outcomes()
            if not failing and not outcomes:
                return
            self._state.leases.require()
            incarnation = self._state.leases.incarnation
            leases = {feed.queue_id: feed.epoch for feed, _ in failing}
            leases |= {queue_id: group.feeds[queue_id].epoch for queue_id, _ in outcomes}
            failing.sort(key=lambda item: item[0].queue_id)
            keys = {(feed.queue_id, key) for feed, each in failing for key in feed.window.keys_of(each)}
            keys |= {(queue_id, each.ordering_key) for (queue_id, _), each in outcomes.items() if each.ordering_key}
            try:
                async with self._database.session() as conn, conn.transaction():
                    is_held = await leases_store.hold(conn, incarnation, self._state.leases.broker_id, leases)
                    if is_held:
                        for feed, failures in failing:
                            await write_first_failures(conn, feed, failures, group.settings)
                        await write_retry_outcomes(conn, group, outcomes)
                        free = await failures_store.free_keys(conn, group.id, sorted(keys)) if keys else []
                        if group.members.pause.is_failing():
                            at_most = self._state.config.pause_retries
                            group.members.retries = await failures_store.count_retries(conn, group.id, at_most)
            except ForeignKeyViolation as exc:
                raise BrokerUnavailable(f"group {group.name} was deleted: retry") from exc
            if not is_held:  # raised here, not within the session, which would drop all other queues, too
                self._membership.doubt()
                raise BrokerUnavailable("leases of these queues are over: another broker delivers them, or nobody")
            for feed, failures in failing:
                feed.window.stored(failures)
                self._state.read_soon(feed)
            group.retrying.written(outcomes)
            group.release(free)

    async def try_to_write_outcomes(self, group: Group, feeds: Iterable[Feed]) -> None:
        """As `write_outcomes`; what cannot be written now stays for the next time, and keeps no other group waiting."""
        try:
            await self.write_outcomes(group, feeds)
        except BrokerUnavailable as exc:
            _log.debug("group %s: what failed is not written yet: %s", group.name, exc)

    async def note_held(self, feeds: Sequence[Feed], visibility_timeout_s: float | None) -> None:
        """Has cursors say for how long consumers may hold ordered messages from now on; None: they hold none."""
        feeds = [feed for feed in feeds if self._state.is_delivered(feed)]
        if not feeds:
            return
        now = self._state.monotonic()
        held_s = None if visibility_timeout_s is None else visibility_timeout_s + MARGIN_S
        cursors = [(feed.group.id, feed.queue_id, feed.epoch) for feed in feeds]
        leases, incarnation = self._state.leases, self._state.leases.incarnation
        async with self._database.session() as conn:
            noted = await store.note_held(conn, incarnation, leases.broker_id, cursors, held_s)
        if noted < len(feeds):
            self._membership.doubt()
            raise BrokerUnavailable("leases of these queues are over: another broker delivers them, or nobody")
        for feed in feeds:
            feed.held_until = 0.0 if held_s is None else now + held_s
            feed.held_s = max(feed.held_s, visibility_timeout_s or 0.0)
            feed.idle_since = None


async def _write_progress(conn: store.Connection, leases: Leases, feeds: Sequence[Feed]) -> list[Feed]:
    """Writes the cursors of these feeds; returns those whose leases are over. One statement."""
    progress = [feed.window.progress() for feed in feeds]
    written = await store.write_cursors(
        conn,
        leases.incarnation,
        leases.broker_id,
        [
            store.CursorWrite(feed.group.id, feed.queue_id, feed.epoch, each.next_offset, each.acked)
            for feed, each in zip(feeds, progress, strict=True)
        ],
    )
    stale: list[Feed] = []
    for feed, each in zip(feeds, progress, strict=True):
        if (feed.group.id, feed.queue_id) in written:
            feed.window.written(each)
        else:
            stale.append(feed)
    return stale
