"""The contents of memory: the groups, the feeds of each queue, and the queue of feeds to read.

Valid as long as the database answers and the leases hold. When either is lost, everything is dropped, and read again
from the cursors.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Generic, TypeVar
from uuid import UUID

from txmsg.broker.cluster import Leases
from txmsg.broker.delivery.delivery_config import DeliveryConfig
from txmsg.broker.delivery.group import Group, GroupQueueReader
from txmsg.broker.delivery.handover import OrderedInFlight, ordered_in_flight
from txmsg.broker.delivery.values import DeliveryCounts
from txmsg.broker.delivery.window import WindowMemory
from txmsg.broker.journal import JournalBuffer
from txmsg.broker.store.connect import Connection, Pool, session
from txmsg.broker.store.incarnation import current_incarnation
from txmsg.broker.store.retries import FreedKeys
from txmsg.errors import BrokerUnavailable
from txmsg.message import QueueId
from txmsg.runtime.logs import EventLog

T = TypeVar("T")

_log = EventLog(__name__)


class FairQueue(Generic[T]):
    """A queue of items that have owners: first in, first out for each owner, round robin among the owners.

    So a group with a thousand queues to read does not delay the others.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, owner: Hashable, item: T) -> None:
        """Append an item to those of its owner."""
        self._waiting.setdefault(owner, deque()).append(item)

    def pop(self) -> T:
        """Remove and return the next item. IndexError if the queue is empty."""
        if not self._waiting:
            raise IndexError("the queue is empty")
        owner, items = next(iter(self._waiting.items()))
        item = items.popleft()
        if items:
            self._waiting.move_to_end(owner)
        else:
            del self._waiting[owner]
        return item


class SettlementWaits:
    """Wakes tasks that wait until messages are settled."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def settled(self) -> None:
        """Wake the waiting tasks: messages were settled, or have expired."""
        self._event.set()

    async def wait(self, is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until is_done() or the timeout. Returns True if it is done."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_done():
                    self._event.clear()
                    await self._event.wait()
        except TimeoutError:
            return False
        return True


class DeliveryState:
    """The groups and queues that this broker delivers, under its leases."""

    def __init__(
        self, pool: Pool, leases: Leases, config: DeliveryConfig, journal: JournalBuffer | None = None
    ) -> None:
        self._pool = pool
        self.journal = journal or JournalBuffer()
        self.leases = leases
        self.monotonic = leases.monotonic
        self.config = config
        self.memory = WindowMemory(config.memory_size_bytes_max)
        self.settlements = SettlementWaits()
        self.counts = DeliveryCounts()
        self.draining = False
        """True if receives do not wait any more."""
        self.closed = asyncio.Event()
        self.end_polls: Callable[[str, Collection[str]], None] = lambda group, client_ids: None
        """Ends waiting polls of these members, so that the replies ask for the messages that they hold."""
        self.retries_due = asyncio.Event()
        """Set when retries that are not in memory have become due: they are read at once."""
        self.groups: dict[str, Group] = {}
        self.loaded_count = 0
        """The number of groups loaded so far."""
        self.ends: dict[int, int] = {}
        """The offset after the last message of each queue, as far as known."""
        self.known: set[int] = set()
        """Queues that existed at a heartbeat: brokers have had the chance to lease them."""
        self.leaving: set[QueueId] = set()
        """Queues that are being handed over to another broker."""
        self.ordered_in_flight: dict[tuple[int, QueueId], OrderedInFlight] = {}
        """Ordered messages in flight of queues that were dropped, by group and queue."""
        self.to_read: FairQueue[GroupQueueReader] = FairQueue()  # bounded: a feed is in it once at most
        self.reads = asyncio.Semaphore(0)  # as many as there are in to_read
        # Indexes, so that a periodic step visits only groups and feeds with work, and idle groups cost nothing
        # (decision 48).
        self.busy: set[Group] = set()
        """All groups with a busy feed or a retry in memory, and perhaps some that are idle by now."""
        self.behind: set[GroupQueueReader] = set()
        """Feeds with more to read that no reader was told to read."""
        self.feeds_of: defaultdict[QueueId, set[GroupQueueReader]] = defaultdict(set)
        """The feeds of each queue."""
        self.groups_of: defaultdict[str, set[Group]] = defaultdict(set)
        """The groups that read a topic."""
        self.readable: dict[str, frozenset[int]] = {}
        """The readable queues of a topic, as of the last look-up."""
        self.waiting: Counter[str] = Counter()
        """The number of receives that wait for messages, by topic."""

    async def incarnation(self) -> UUID:
        """Return the current incarnation of the database. Raises BrokerUnavailable if it cannot be read."""
        return await current_incarnation(self._pool)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        """Yield a connection for one step.

        If the database is away, drop everything in memory and raise BrokerUnavailable.
        """
        try:
            async with session(self._pool, timeout_s=self.config.statement_timeout_s) as conn:
                yield conn
        except BrokerUnavailable as exc:
            self.drop(str(exc))
            raise

    def busy_feeds(self) -> list[GroupQueueReader]:
        """Return the feeds of all groups that are busy, and perhaps some that no longer are."""
        return [feed for group in self.busy for feed in group.busy]

    def is_delivered(self, feed: GroupQueueReader) -> bool:
        """Return True if this feed is still in use: its queue may have been lost, or lost and leased again."""
        group = self.groups.get(feed.group.name)
        return group is feed.group and group.feeds.get(feed.queue_id) is feed

    @contextmanager
    def waiting_for(self, topics: Iterable[str]) -> Iterator[None]:
        """Count a receive that waits for messages of these topics."""
        self.waiting.update(iter(topics))
        try:
            yield
        finally:
            self.waiting.subtract(iter(topics))

    def wake(self, ends: Mapping[int, int]) -> None:
        """Note that queues (by id) now end before these offsets: their feeds are read, and waiting members woken."""
        for queue_id, end in ends.items():
            if end <= self.ends.get(queue_id, -1):
                continue  # its feeds know already
            self.ends[queue_id] = end
            for feed in self.feeds_of.get(QueueId(queue_id), ()):
                feed.end = max(feed.end, end)
                self.read_soon(feed)

    def read_soon(self, feed: GroupQueueReader) -> None:
        """Let a reader fill the window if there is more to read, few messages are left, and a useful read has room.

        Otherwise, if there is more to read, the next poll tries again.
        """
        window, config = feed.window, self.config
        if feed.queued or feed.leaving:
            return
        is_short = feed.group.members.pause.is_on or self.memory.is_full
        # Not while a reader has the feed (`queued`): a rewind moves the position under it.
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

    def freed(self, group: Group, keys: FreedKeys) -> None:
        """Continue ordering keys of a group without messages in the table `retry`.

        For the others, whose first message is due now, retries are read at once.
        """
        group.unblock(keys.empty)
        if not all(group.retries.goes_on(queue_id, key) for queue_id, key in keys.due):
            self.retries_due.set()

    def was_read(self, feed: GroupQueueReader) -> None:
        """Note that a reader has finished with a feed. If nothing was read, the next poll tries again."""
        feed.queued = False
        if not feed.leaving:
            self.behind.add(feed)

    def add(self, group: Group, topics: Iterable[str], feeds: Iterable[GroupQueueReader]) -> None:
        """Begin to deliver these topics to a group, and these of their queues."""
        if group.name not in self.groups:
            self.groups[group.name] = group
            self.loaded_count += 1
            group.on_busy = partial(self.busy.add, group)
            group.counts = self.counts
            group.journal = self.journal
        group.add(topics, feeds)
        for topic in topics:
            self.groups_of[topic].add(group)
        for feed in feeds:
            feed.leaving = feed.queue_id in self.leaving  # its hand-over may have begun meanwhile
            feed.readable = feed.queue_id in self.readable.get(feed.topic, {feed.queue_id})
            feed.end = max(feed.end, self.ends.get(feed.queue_id, 0))
            self.feeds_of[feed.queue_id].add(feed)
            self.read_soon(feed)

    def remove(self, group: Group, queue_ids: Collection[QueueId]) -> None:
        """Drop the windows and retries of these queues, for one group."""
        for feed in group.remove(queue_ids):
            self.feeds_of[feed.queue_id].remove(feed)
            self.behind.discard(feed)

    def drop_group(self, group: Group, why: str) -> None:
        """Drop one group. Waiting members get BrokerUnavailable; the next receive loads it again."""
        if self.groups.get(group.name) is group:
            del self.groups[group.name]
            self.busy.discard(group)
            for topic in group.topics:
                self.groups_of[topic].remove(group)
            self.remove(group, list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))

    def drop(self, why: str) -> None:
        """Drop the leases and everything in memory. Waiting members get BrokerUnavailable."""
        if not self.closed.is_set() and (self.leases.is_member or self.groups):
            _log.warning(
                "delivery.stopped", "delivery stops until this broker has joined again: %(reason)s", reason=why
            )
        self.leases.lose(why)
        now = self.monotonic()
        # Kept over the loss: if the broker gets a queue back and no other one had it, it knows the exact deadlines of
        # its messages and waits only for these.
        former = self.ordered_in_flight.items()
        self.ordered_in_flight = {key: known for key, known in former if known.noted_until > now}
        self.ordered_in_flight |= ordered_in_flight(self.busy_feeds(), now)
        groups, self.groups = self.groups, {}
        for index in (self.feeds_of, self.busy, self.behind, self.groups_of, self.readable):
            index.clear()
        self.ends.clear()  # a database that comes back may be a standby without the last messages
        self.known.clear()
        self.leaving.clear()
        for group in groups.values():
            group.remove(list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))
