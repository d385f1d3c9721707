"""All that delivery has in memory: the groups, the feeds of each queue, and which of them is read next.

Knows no database. When the database or the leases are lost, everything goes, and is read again from the cursors.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping

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
    """

    def __init__(self, leases: Leases, config: DeliveryConfig) -> None:
        self.leases = leases
        self.monotonic = leases.monotonic
        self.config = config
        self.groups: dict[str, Group] = {}
        self.feeds_of: defaultdict[int, list[Feed]] = defaultdict(list)
        self.ends: dict[int, int] = {}
        self.memory = Memory(config.memory_size_bytes_max)
        self.to_read: Turns[Feed] = Turns()  # bounded by the feeds: each is in it once at most
        self.readable = asyncio.Semaphore(0)  # as many as there are in to_read
        self.known: set[int] = set()
        self.leaving: set[int] = set()
        self.settling = Settling()
        self.given: dict[tuple[int, int], Given] = {}
        self.draining = False
        self.closed = asyncio.Event()

    def feeds(self) -> list[Feed]:
        """The feeds of all groups."""
        return [feed for group in self.groups.values() for feed in group.feeds.values()]

    def is_delivered(self, feed: Feed) -> bool:
        """Whether this very feed is still in use: its queue may have gone meanwhile, or have come again."""
        group = self.groups.get(feed.group.name)
        return group is feed.group and group.feeds.get(feed.queue_id) is feed

    def wake(self, ends: Mapping[int, int]) -> None:
        """Queues (by id) now end before these offsets: members that wait for them get the new messages at once."""
        for queue_id, end in ends.items():
            self.ends[queue_id] = max(end, self.ends.get(queue_id, 0))
            for feed in self.feeds_of.get(queue_id, ()):
                feed.end = max(feed.end, end)
                self.read_soon(feed)

    def read_soon(self, feed: Feed) -> None:
        """Lets a reader fill the window if there is something to read, little left, and room for a useful read."""
        window, config = feed.window, self.config
        if feed.queued or feed.leaving:
            return
        is_short = feed.group.members.pause.is_on or self.memory.is_full
        if window.has_unread and not (is_short and window.ready_count):
            feed.rewind()
        if window.position >= feed.end or window.ready_count * 2 >= (1 if is_short else config.read_count_max):
            return
        room = window.room_count()
        if room * 4 >= config.read_count_max or (room and feed.group.has_waiting):
            feed.queued = True
            self.to_read.put(feed.group.id, feed)
            self.readable.release()

    def remove(self, group: Group, queue_ids: Collection[int]) -> None:
        """Forgets the windows and retries of these queues, for one group."""
        for feed in group.remove(queue_ids):
            self.feeds_of[feed.queue_id].remove(feed)

    def drop_group(self, group: Group, why: str) -> None:
        """Forgets one group. Waiting members get BrokerUnavailable, and load it anew when they ask again."""
        if self.groups.get(group.name) is group:
            del self.groups[group.name]
            self.remove(group, list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))

    def drop(self, why: str) -> None:
        """Forgets the leases and everything in memory. Waiting members get BrokerUnavailable."""
        if not self.closed.is_set() and (self.leases.is_member or self.groups):
            _log.warning("delivery stops until this broker has joined again: %s", why)
        self.leases.lose(why)
        now = self.monotonic()
        self.given = {key: each for key, each in self.given.items() if each.noted_until > now}
        self.given.update(given_of(self.feeds(), now))
        groups, self.groups = self.groups, {}
        self.feeds_of.clear()
        self.ends.clear()  # a database that comes back may be a standby that did not get everything
        self.known.clear()
        self.leaving.clear()
        for group in groups.values():
            group.remove(list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))
