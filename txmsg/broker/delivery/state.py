"""All that delivery has in memory: the groups, the feeds of each queue, and which of them is read next.

Knows no database. When the database or the leases are lost, everything goes, and is read again from the cursors.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from txmsg.broker.cluster import Leases
from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.handing import Settling
from txmsg.broker.delivery.holding import Given, given_of
from txmsg.broker.delivery.memory import Memory
from txmsg.broker.delivery.turns import Turns
from txmsg.errors import BrokerUnavailable

__all__ = ["State"]

_log = logging.getLogger(__name__)


class State:
    """What this broker delivers at this moment, under its leases.

    known: queues of which it is known who delivers them. leaving: queues that another broker is to deliver. draining:
    no receive waits any more. closed: delivery ends. given: of queues that were dropped, by group and queue.

    So that a round costs nothing for idle groups, it walks one of these instead of all feeds. busy: all groups with a
    busy feed or a retry in memory, and perhaps some that are idle by now. behind: feeds with more to read, which no
    reader will read yet. waiting: how many receives wait for messages of a topic. groups_of: the groups that read a
    topic. readable: which of its queues they may read, as last looked at.
    """

    def __init__(self, leases: Leases, config: DeliveryConfig) -> None:
        self.leases = leases
        self.monotonic = leases.monotonic
        self.config = config
        self.groups: dict[str, Group] = {}
        self.loaded_count = 0
        """How many groups were loaded so far."""
        self.feeds_of: defaultdict[int, set[Feed]] = defaultdict(set)
        self.busy: set[Group] = set()
        self.behind: set[Feed] = set()
        self.waiting: Counter[str] = Counter()
        self.groups_of: defaultdict[str, set[Group]] = defaultdict(set)
        self.readable: dict[str, frozenset[int]] = {}
        self.ends: dict[int, int] = {}
        self.memory = Memory(config.memory_size_bytes_max)
        self.to_read: Turns[Feed] = Turns()  # bounded by the feeds: each is in it once at most
        self.reads = asyncio.Semaphore(0)  # as many as there are in to_read
        self.known: set[int] = set()
        self.leaving: set[int] = set()
        self.settling = Settling()
        self.given: dict[tuple[int, int], Given] = {}
        self.draining = False
        self.closed = asyncio.Event()

    def busy_feeds(self) -> list[Feed]:
        """The feeds of all groups that are busy, and perhaps some that no longer are."""
        return [feed for group in self.busy for feed in group.busy]

    def is_delivered(self, feed: Feed) -> bool:
        """Whether this very feed is still in use: its queue may have gone meanwhile, or have come again."""
        group = self.groups.get(feed.group.name)
        return group is feed.group and group.feeds.get(feed.queue_id) is feed

    @contextmanager
    def waiting_for(self, topics: Iterable[str]) -> Iterator[None]:
        """A receive waits for messages of these topics."""
        self.waiting.update(iter(topics))
        try:
            yield
        finally:
            self.waiting.subtract(iter(topics))

    def wake(self, ends: Mapping[int, int]) -> None:
        """Queues (by id) now end before these offsets: members that wait for them get the new messages at once."""
        for queue_id, end in ends.items():
            if end <= self.ends.get(queue_id, -1):
                continue  # all its feeds know
            self.ends[queue_id] = end
            for feed in self.feeds_of.get(queue_id, ()):
                feed.end = max(feed.end, end)
                self.read_soon(feed)

    def read_soon(self, feed: Feed) -> None:
        """Lets a reader fill the window if there is something to read, little left, and room for a useful read.

        If there is something but not the rest, the feed is looked at again by the next poll.
        """
        window, config = feed.window, self.config
        if feed.queued or feed.leaving:
            return
        is_short = feed.group.members.pause.is_on or self.memory.is_full
        if window.has_unread and not (is_short and window.ready_count):
            feed.rewind()
        self.behind.discard(feed)
        if window.position >= feed.end and not window.has_unread:
            return
        is_low = window.ready_count * 2 < (1 if is_short else config.read_count_max)
        room = window.room_count()
        if is_low and (room * 4 >= config.read_count_max or (room and feed.group.has_waiting)):
            feed.queued = True
            self.to_read.put(feed.group.id, feed)
            self.reads.release()
        else:
            self.behind.add(feed)

    def was_read(self, feed: Feed) -> None:
        """A reader is done with it. If it read nothing, the next poll looks at the feed again."""
        feed.queued = False
        if self.is_delivered(feed):
            self.behind.add(feed)

    def add(self, group: Group, topics: Iterable[str], feeds: Iterable[Feed]) -> None:
        """Begins to deliver these topics to a group, and of their queues these."""
        if group.name not in self.groups:
            self.groups[group.name] = group
            self.loaded_count += 1
            group.on_busy = partial(self.busy.add, group)
        group.add(topics, feeds)
        for topic in topics:
            self.groups_of[topic].add(group)
        for feed in feeds:
            feed.leaving = feed.queue_id in self.leaving  # its hand-over may have begun meanwhile
            feed.readable = feed.queue_id in self.readable.get(feed.topic, {feed.queue_id})
            feed.end = max(feed.end, self.ends.get(feed.queue_id, 0))
            self.feeds_of[feed.queue_id].add(feed)
            self.read_soon(feed)

    def remove(self, group: Group, queue_ids: Collection[int]) -> None:
        """Forgets the windows and retries of these queues, for one group."""
        for feed in group.remove(queue_ids):
            self.feeds_of[feed.queue_id].remove(feed)
            self.behind.discard(feed)

    def drop_group(self, group: Group, why: str) -> None:
        """Forgets one group. Waiting members get BrokerUnavailable, and load it anew when they ask again."""
        if self.groups.get(group.name) is group:
            del self.groups[group.name]
            self.busy.discard(group)
            for topic in group.topics:
                self.groups_of[topic].remove(group)
            self.remove(group, list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))

    def drop(self, why: str) -> None:
        """Forgets the leases and everything in memory. Waiting members get BrokerUnavailable."""
        if not self.closed.is_set() and (self.leases.is_member or self.groups):
            _log.warning("delivery stops until this broker has joined again: %s", why)
        self.leases.lose(why)
        now = self.monotonic()
        self.given = {key: each for key, each in self.given.items() if each.noted_until > now}
        self.given.update(given_of(self.busy_feeds(), now))
        groups, self.groups = self.groups, {}
        for index in (self.feeds_of, self.busy, self.behind, self.groups_of, self.readable):
            index.clear()
        self.ends.clear()  # a database that comes back may be a standby that did not get everything
        self.known.clear()
        self.leaving.clear()
        for group in groups.values():
            group.remove(list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))
