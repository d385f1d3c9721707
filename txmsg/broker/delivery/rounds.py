"""What delivery does again and again: steps named `..._once`, each of which `run` repeats. Also the readers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from txmsg.broker.delivery.database import Database
from txmsg.broker.delivery.group import Feed
from txmsg.broker.delivery.handing import is_settled
from txmsg.broker.delivery.holding import expiring, idle
from txmsg.broker.delivery.loading import Loader, settings_of
from txmsg.broker.delivery.reader import read_feed
from txmsg.broker.delivery.repeating import repeat
from txmsg.broker.delivery.state import State
from txmsg.broker.delivery.values import Topics
from txmsg.broker.delivery.writing import Writing
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.broker.store import delivery as store
from txmsg.broker.store import retries as failures_store
from txmsg.errors import BrokerUnavailable

__all__ = ["Rounds"]

_log = logging.getLogger(__name__)
_KEYS_PER_STATEMENT = 1000
_GROUPS_DELETED_AT_ONCE = 100
_SMALL_READ = (10, 64 * 1024)
"""Messages and bytes that are read at a time when memory is full, or for a probe."""


class Rounds:
    """The steps, and two reasons to hurry. gained: there are new queues to load; changed: a group, by somebody."""

    def __init__(self, state: State, database: Database, writing: Writing, loader: Loader, topics: Topics) -> None:
        self._state = state
        self._database = database
        self._writing = writing
        self._loader = loader
        self._topics = topics
        self.gained = asyncio.Event()
        self.changed = asyncio.Event()
        self._settings_seen: tuple[int, tuple[int, ...]] | None = None

    async def run(self) -> None:
        """Repeats the steps until `state.closed` is set, or cancellation."""
        async with asyncio.TaskGroup() as tasks:
            for step, interval_s, soon in self.steps():
                tasks.create_task(repeat(step, interval_s, self._state.closed, soon), name=f"delivery {step.__name__}")
            readers = [
                tasks.create_task(self._read(), name="delivery reader") for _ in range(self._state.config.readers)
            ]
            await self._state.closed.wait()
            for reader in readers:
                reader.cancel()

    def steps(self) -> Sequence[tuple[Callable[[], Awaitable[None]], float, asyncio.Event | None]]:
        """The steps, the seconds between two runs of each, and what is set to run it at once."""
        config = self._state.config
        return (
            (self._writing.flush_once, config.flush_s, None),
            (self.expire_once, config.expire_s, None),
            (self.retries_once, config.retry_poll_s, None),
            (self.poll_once, config.poll_s, None),
            (self.holding_once, config.poll_s, None),
            (self.queues_once, config.poll_s, self.gained),
            (self.settings_once, config.settings_s, self.changed),
            (self.keys_once, config.settings_s, None),
            (self.upkeep_once, config.upkeep_s, None),
        )

    async def expire_once(self) -> None:
        """Makes retries of what was not settled in time, and finishes writes that were interrupted."""
        now = self._state.monotonic()
        for group in list(self._state.busy):
            group.expire(now)
            feeds = list(group.busy)
            await self._writing.try_to_write_outcomes(group, feeds)
            for feed in filter(self._state.is_delivered, feeds):
                self._state.read_soon(feed)  # what has come back unread
            if group.sweep():
                self._state.busy.discard(group)
        self._state.settling.settled()

    async def retries_once(self) -> None:
        """Reads the retries that are due into memory, as far as there is room, of the topics that members ask for."""
        now = self._state.monotonic()
        for group in self._state.busy:
            if group.retrying.ready_count:
                group.retrying.keep(group.asked_for(now))
        if not self._state.groups or not self._state.leases.is_held():
            return
        async with self._database.session() as conn:
            for name in await failures_store.groups_with_due_retries(conn):
                if (known := self._state.groups.get(name)) is None:
                    continue
                group, box, feeds = known, known.retrying, known.asked_for(now)
                count = 1 if group.members.pause.is_on else box.room_count()
                if not feeds or not box.room_count() or (group.members.pause.is_on and box.ready_count):
                    continue
                rows = await failures_store.due_retries(
                    conn, group.id, list(feeds), box.known(), count=count, size_bytes=box.room_bytes()
                )
                rows = [row for row in rows if group.feeds.get(row[0]) is feeds[row[0]]]  # others have gone meanwhile
                # What was redelivered on request waits for the message of its key that is out.
                rows = [row for row in rows if row[3][9] is None or feeds[row[0]].window.hold(row[3][9])]
                box.put(rows)
                if rows:
                    self._state.busy.add(group)
                group.wake({feeds[queue_id].topic for queue_id, *_ in rows}, len(rows))

    async def poll_once(self) -> None:
        """Looks for messages that other brokers wrote to queues for which somebody waits."""
        self._state.waiting = +self._state.waiting  # without those of which none is left
        queue_ids = sorted(
            queue_id
            for queue_id, feeds in self._state.feeds_of.items()
            if any(feed.topic in self._state.waiting for feed in islice(feeds, 1))
        )
        if queue_ids and self._state.leases.is_held():
            async with self._database.session() as conn:
                ends = await store.queue_ends(conn, await store.open_segment(conn), queue_ids)
            self._state.wake(ends)
        for feed in list(self._state.behind):
            self._state.read_soon(feed)

    async def holding_once(self) -> None:
        """Opens queues whose former messages nobody holds any more; keeps true what cursors say of those given here."""
        now = self._state.monotonic()
        feeds = self._state.busy_feeds()
        for feed in feeds:
            if feed.opens_at is not None and feed.opens_at <= now:
                feed.opens_at = None
                feed.group.wake_all()
        if held := expiring(feeds, now):
            await self._writing.note_held(held, max(feed.held_s for feed in held))
        await self._writing.note_held(idle(feeds, now), None)

    async def queues_once(self) -> None:
        """Begins to deliver the queues that this broker or their topics have got since they were subscribed to."""
        for topic in [topic for topic, groups in self._state.groups_of.items() if groups]:
            queues = await self._topics.find(topic)  # none of one that was deleted: it is not made anew for this
            readable = frozenset(queue_id for queue_id, _ in queues)
            if self._state.readable.get(topic) != readable:
                self._state.readable[topic] = readable
                for group in self._state.groups_of[topic]:
                    group.allow(topic, readable)
            if queues:
                await self._loader.more_queues(topic, queues)

    async def settings_once(self) -> None:
        """Takes the settings of groups that a person has changed. A group that was deleted is dropped."""
        if not self._state.groups or not self._state.leases.is_held():
            return
        async with self._database.session() as conn:
            # A group that is being loaded may have the settings of before, so each that was loaded is looked at.
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
                group.members.limit(group.settings.deliver_rate_max, self._state.monotonic())
                _log.info("group %s: the settings are those of version %d now", group.name, row.version)
                if await self._loader.seek(group):
                    self.gained.set()
        self._settings_seen = seen

    async def upkeep_once(self) -> None:
        """Notes which groups are used, forgets those that are not, and deletes what is kept only while it is used."""
        now, ttl_s = self._state.monotonic(), 2 * self._state.config.upkeep_s
        used = [group.id for group in self._state.groups.values() if group.members.is_used(now, ttl_s)]
        if not self._state.leases.is_held():
            return
        async with self._database.session() as conn:
            await groups_store.touch_groups(conn, used)
            for name in await groups_store.delete_unused_groups(conn, _GROUPS_DELETED_AT_ONCE):
                _log.info("group %s was not used for as long as it is kept, and is deleted", name)
        for group in list(self._state.groups.values()):  # what they hold ready would keep others from reading
            if not group.members.is_used(now, self._state.config.member_ttl_s) and is_settled(
                list(group.feeds.values())
            ):
                self._state.drop_group(group, "nobody asked for its messages")

    async def keys_once(self) -> None:
        """Lets the ordering keys go on that wait for nothing any more, as when a dead letter was purged."""
        for group in list(self._state.busy):
            held = [(feed.queue_id, key) for feed in group.busy for key in feed.window.held_keys()]
            for start in range(0, len(held), _KEYS_PER_STATEMENT):
                async with group.writing, self._database.session() as conn:
                    chunk = held[start : start + _KEYS_PER_STATEMENT]
                    group.release(await failures_store.free_keys(conn, group.id, chunk))

    async def read_once(self, feed: Feed) -> None:
        """Reads one feed once and wakes members for what was read."""
        try:
            if not self._state.is_delivered(feed):
                return
            count_max, size_bytes_max = self._state.config.read_count_max, self._state.config.window_size_bytes_max
            if self._state.memory.is_full or feed.group.members.pause.is_on:
                count_max, size_bytes_max = min(count_max, _SMALL_READ[0]), _SMALL_READ[1]
            async with self._database.session() as conn:
                count = await read_feed(conn, feed, count_max, size_bytes_max)
        finally:
            self._state.was_read(feed)
        if count:
            feed.group.wake((feed.topic,), count)
            self._state.read_soon(feed)

    async def _read(self) -> None:
        while True:
            await self._state.reads.acquire()
            feed = self._state.to_read.pop()
            try:
                await self.read_once(feed)
            except BrokerUnavailable as exc:
                _log.debug("%s", exc)
            except Exception:  # noqa: BLE001 - the root of a task
                _log.exception("reading %s failed; it is tried again", feed)
