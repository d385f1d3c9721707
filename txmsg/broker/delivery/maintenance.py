"""The periodic steps of delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from txmsg.broker.delivery.group import Group
from txmsg.broker.delivery.handover import is_finished, notes_to_clear, notes_to_renew
from txmsg.broker.delivery.loader import Loader, settings_of
from txmsg.broker.delivery.patterns import Patterns
from txmsg.broker.delivery.state import DeliveryState
from txmsg.broker.delivery.values import TopicQueues
from txmsg.broker.delivery.writer import ProgressWriter
from txmsg.broker.periodic import repeat
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.broker.store import delivery as store
from txmsg.broker.store import retries as retries_store
from txmsg.broker.store.connect import Connection
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)
_KEYS_PER_STATEMENT = 1000
_GROUPS_DELETED_AT_ONCE = 100


class Maintenance:
    """The steps that delivery repeats, each in a task of its own."""

    def __init__(
        self, state: DeliveryState, writer: ProgressWriter, loader: Loader, topics: TopicQueues, patterns: Patterns
    ) -> None:
        self._state = state
        self._writer = writer
        self._loader = loader
        self._topics = topics
        self._patterns = patterns
        self.gained = asyncio.Event()
        """Set when new queues are to be loaded."""
        self.changed = asyncio.Event()
        """Set when an operator has changed a group."""
        self._settings_seen: tuple[int, tuple[int, ...]] | None = None

    async def run(self) -> None:
        """Repeat the steps until `state.closed` is set, or cancellation."""
        async with asyncio.TaskGroup() as tasks:
            for step, interval_s, soon in self.steps():
                what = f"delivery {step.__name__}"
                tasks.create_task(repeat(what, step, interval_s, soon=soon, closed=self._state.closed), name=what)

    def steps(self) -> Sequence[tuple[Callable[[], Awaitable[None]], float, asyncio.Event | None]]:
        """Return the steps, the seconds between two runs of each, and the event that starts it at once."""
        config = self._state.config
        return (
            (self._writer.flush_once, config.flush_s, None),
            (self.expire_once, config.expire_s, None),
            (self.retries_once, config.retry_poll_s, self._state.retries_due),
            (self.poll_once, config.poll_s, None),
            (self.notes_once, config.poll_s, None),
            (self.queues_once, config.poll_s, self.gained),
            (self.patterns_once, config.poll_s, None),
            (self.settings_once, config.settings_s, self.changed),
            (self.keys_once, config.settings_s, None),
            (self.upkeep_once, config.upkeep_s, None),
        )

    async def expire_once(self) -> None:
        """Write messages that were not settled in time as retries, and repeat interrupted writes."""
        now = self._state.monotonic()
        for group in list(self._state.busy):
            group.expire(now)
            feeds = list(group.busy)
            await self._writer.try_to_write_outcomes(group, feeds)
            for feed in feeds:
                self._state.read_soon(feed)  # for messages that have returned unread
            if group.sweep():
                self._state.busy.discard(group)
        self._state.settlements.settled()

    async def retries_once(self) -> None:
        """Read due retries of topics that members ask for into memory, as far as there is room."""
        now = self._state.monotonic()
        for group in self._state.busy:
            if group.retries.ready_count:
                group.retries.keep_queues(group.asked_for(now))
        if not self._state.groups or not self._state.leases.is_held():
            return
        async with self._state.session() as conn:
            # One statement finds the groups with due retries, so that idle groups cost nothing.
            for name in await retries_store.groups_with_due_retries(conn):
                if name in self._state.groups:
                    await self._read_retries(conn, self._state.groups[name], now)

    async def _read_retries(self, conn: Connection, group: Group, now: float) -> None:
        retries, feeds, is_paused = group.retries, group.asked_for(now), group.members.pause.is_on
        count = retries.room_count()
        if not feeds or not count or (is_paused and retries.ready_count):
            return
        # In a group that parks keys a dead letter blocks its key, so no message may be ready behind one that could
        # become a dead letter.
        behind_count, behind_size_bytes = (0, 0) if group.settings.parks_keys else retries.room_behind()
        rows = await retries_store.due_retries(
            conn,
            group.id,
            list(feeds),
            retries.known(),
            count=1 if is_paused else count,
            size_bytes=retries.room_bytes(),
            behind_count=0 if is_paused else behind_count,
            behind_size_bytes=behind_size_bytes,
        )
        rows = [row for row in rows if group.feeds.get(row.queue_id) is feeds[row.queue_id]]  # not those lost meanwhile
        # A redriven dead letter waits for the message of its key that is in flight.
        rows = [
            row for row in rows if (key := row.message.ordering_key) is None or feeds[row.queue_id].window.block(key)
        ]
        if rows:
            ready_count = retries.ready_count
            retries.put_retries(rows)
            self._state.busy.add(group)
            group.wake({feeds[queue_id].topic for queue_id, *_ in rows}, retries.ready_count - ready_count)

    async def poll_once(self) -> None:
        """Read the ends of queues to which other brokers may have written, for topics that members wait for."""
        self._state.waiting = +self._state.waiting  # drops zeros
        queue_ids = sorted(
            queue_id
            for queue_id, feeds in self._state.feeds_of.items()
            if any(feed.topic in self._state.waiting for feed in islice(feeds, 1))
        )
        if queue_ids and self._state.leases.is_held():
            async with self._state.session() as conn:
                ends = await store.queue_ends(conn, await store.open_segment(conn), queue_ids)
            self._state.wake(ends)
        for feed in list(self._state.behind):
            self._state.read_soon(feed)

    async def notes_once(self) -> None:
        """Open queues whose former messages have expired, and renew or clear notes of ordered messages in flight."""
        now = self._state.monotonic()
        feeds = self._state.busy_feeds()
        for feed in feeds:
            if feed.opens_at is not None and feed.opens_at <= now:
                feed.opens_at = None
                feed.group.wake_all()
        if due := notes_to_renew(feeds, now):
            await self._writer.note_in_flight(due, max(feed.noted_s for feed in due))
        await self._writer.note_in_flight(notes_to_clear(feeds, now), None)

    async def queues_once(self) -> None:
        """Begin to deliver queues that were leased by this broker, or added to topics, since groups subscribed."""
        for topic in [topic for topic, groups in self._state.groups_of.items() if groups]:
            queues = await self._topics.find_queues(topic)  # empty if the topic was deleted: this must not create it
            readable = frozenset(queue_id for queue_id, _ in queues)
            if self._state.readable.get(topic) != readable:
                self._state.readable[topic] = readable
                for group in self._state.groups_of[topic]:
                    group.allow(topic, readable)
            if queues:
                await self._loader.more_queues(topic, queues)

    async def patterns_once(self) -> None:
        """Find topics that were created, and that members ask for by patterns."""
        await self._patterns.look_once()

    async def settings_once(self) -> None:
        """Read the settings of groups when any has changed. Drops groups that were deleted."""
        if not self._state.groups or not self._state.leases.is_held():
            return
        async with self._state.session() as conn:
            # The number of loads is part of the version: a group that was loaded meanwhile may have older settings, and
            # then all are read once more.
            seen = (self._state.loaded_count, await groups_store.groups_version(conn))
            if seen == self._settings_seen:
                return
            groups = list(self._state.groups.values())
            rows = await groups_store.group_rows(conn, [group.id for group in groups])
        for group in groups:
            row = rows.get(group.id)
            if row is None:
                self._state.drop_group(group, "the group was deleted")
            elif row.version != group.settings.version:
                group.settings = settings_of(row, self._state.config)
                group.members.limit(
                    group.settings.deliver_rate_max, self._state.monotonic(), stopped=group.settings.stopped
                )
                _log.info(
                    "group.settings_changed",
                    "group %(group)s: settings of version %(version)d are applied",
                    group=group.name,
                    version=row.version,
                )
                if await self._loader.seek(group):
                    self.gained.set()
        self._settings_seen = seen

    async def upkeep_once(self) -> None:
        """Record which groups are used, drop idle ones from memory, and delete those that have expired."""
        now, ttl_s = self._state.monotonic(), 2 * self._state.config.upkeep_s
        used = [group.id for group in self._state.groups.values() if group.members.is_used(now, ttl_s)]
        if not self._state.leases.is_held():
            return
        async with self._state.session() as conn:
            await groups_store.touch_groups(conn, used)
            # Just after the clock was set forward the other brokers have not touched their groups yet, which would look
            # unused.
            may_delete = not self._state.leases.clock.was_set_forward(now, ttl_s)
            for name in await groups_store.delete_unused_groups(conn, _GROUPS_DELETED_AT_ONCE) if may_delete else ():
                _log.info(
                    "group.expired",
                    "group %(group)s was not used for as long as it is kept, and is deleted",
                    group=name,
                )
        for group in list(self._state.groups.values()):  # their ready messages take memory from others
            if not group.members.is_used(now, self._state.config.member_ttl_s) and is_finished(
                list(group.feeds.values())
            ):
                self._state.drop_group(group, "no member asked for its messages")

    async def keys_once(self) -> None:
        """Unblock ordering keys that nothing blocks any more, as when a dead letter was purged."""
        for group in list(self._state.busy):
            blocked = [(feed.queue_id, key) for feed in group.busy for key in feed.window.blocked_keys()]
            for start in range(0, len(blocked), _KEYS_PER_STATEMENT):
                # Under the lock of `writing`, as `free_keys` requires: of two sessions that do not see each other's
                # rows, neither would free the head of a key.
                async with group.writing, self._state.session() as conn:
                    chunk = blocked[start : start + _KEYS_PER_STATEMENT]
                    self._state.freed(group, await retries_store.free_keys(conn, group.id, chunk))
