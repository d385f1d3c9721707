"""Loads groups into memory: reads their cursors, and builds their windows."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from txmsg.broker.cluster import Leases, Membership
from txmsg.broker.delivery.delivery_config import DeliveryConfig, GroupDeliverySettings
from txmsg.broker.delivery.group import Group, GroupQueueReader
from txmsg.broker.delivery.handover import OrderedInFlight
from txmsg.broker.delivery.members import Members, Pause
from txmsg.broker.delivery.retries import Retries
from txmsg.broker.delivery.state import DeliveryState
from txmsg.broker.delivery.values import TopicQueues
from txmsg.broker.delivery.window import InFlightWindow, WindowMemory
from txmsg.broker.delivery.writer import ProgressWriter
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.broker.store import delivery as store
from txmsg.broker.store import retries as retries_store
from txmsg.broker.store.connect import Connection
from txmsg.broker.store.consumer_groups import GroupRow
from txmsg.errors import BrokerUnavailable
from txmsg.message import QueueId, QueueNumber
from txmsg.message.typed.names import is_pattern, prefix_of
from txmsg.runtime.backoff import Backoff
from txmsg.runtime.logs import EventLog
from txmsg.wire.start import Start
from txmsg.wire.tags import TagExpression

_log = EventLog(__name__)


class LeasedQueue(NamedTuple):
    """A queue that this broker delivers: its topic, its number there, and the epoch of its lease."""

    topic: str
    number: QueueNumber
    epoch: int


class Loader:
    """Loads groups, and the queues that this broker leases, into memory. One load per group at a time."""

    def __init__(
        self, state: DeliveryState, membership: Membership, writer: ProgressWriter, topics: TopicQueues
    ) -> None:
        self._state = state
        self._membership = membership
        self._writer = writer
        self._topics = topics
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def group(
        self,
        name: str,
        wants: Mapping[str, TagExpression],
        start: Start | None,
        asked: Collection[str] | None = None,
        *,
        newest: int = 0,
    ) -> Group:
        """Return the group in memory, with the queues of these topics; load what is missing.

        asked: the names and patterns in the request, if patterns found some of the topics: those are not created.
        newest: the highest id of a topic when they were found; of later topics the group gets all messages, for any
        `start`.
        """
        if self._state.draining:
            raise BrokerUnavailable("this broker is closing: ask another one")
        group = self._state.groups.get(name)
        patterns = _Matched(wants.keys() if asked is None else asked, newest)
        begins = frozenset() if start is None or start.kind == "earliest" else patterns.all
        if group is not None and all(topic in group.topics for topic in wants) and group.patterns >= begins:
            return group
        async with self._loading(name):  # checked again inside: another member may have loaded it meanwhile
            group = self._state.groups.get(name)
            missing = [topic for topic in wants if group is None or topic not in group.topics]
            if group is None or missing or not group.patterns >= begins:
                group = await self._load(name, missing, start, patterns)
            return group

    async def more_queues(self, topic: str, queues: Sequence[tuple[int, int]]) -> None:
        """Begin to deliver queues that this broker has leased since the groups of the topic were loaded."""
        leased = await self._leased(topic, queues)
        groups = self._state.groups_of[topic]
        if all(len(self._state.feeds_of[queue_id]) == len(groups) for queue_id in leased):
            return
        for group in [group for group in groups if not group.feeds.keys() >= leased.keys()]:
            async with self._loading(group.name):
                if self._state.groups.get(group.name) is group:  # else it was deleted, or loaded again
                    await self._load(group.name, [topic])

    async def seek(self, group: Group) -> bool:
        """Drop the queues for which an operator has requested a seek. Returns True if there are any.

        They are loaded again from the new position.
        """
        async with self._state.session() as conn:
            sought = await store.sought_queues(conn, group.id)
        # Ordered messages in flight would delay the queue until they expire, so it is finished in order first, as for a
        # hand-over.
        ordered = [feed for queue_id in sought if (feed := group.feeds.get(queue_id)) is not None and feed.noted_until]
        try:
            await self._writer.finish(ordered)
        finally:
            # Three locks, always in this order. Loading: a window that is being loaded has read the old position.
            # Flushing: a cursor that is being written would bring the old position back. Writing: failures on their way
            # to their tables would not be seen by the next load.
            async with self._loading(group.name), self._writer.flushing, group.writing:
                self._state.remove(group, sought)
        if sought:
            _log.info(
                "group.moved",
                "group %(group)s continues at other positions in %(queues)d queues",
                group=group.name,
                queues=len(sought),
            )
        return bool(sought)

    def _loading(self, name: str) -> asyncio.Lock:
        """Return the lock that is held while a group of this name is loaded. Weak: it lives while it is used."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _load(
        self, name: str, topics: Sequence[str], start: Start | None = None, patterns: _Matched | None = None
    ) -> Group:
        """Begin to deliver topics, or new queues of them, to a group from its cursors."""
        queues_of: dict[str, Sequence[tuple[int, int]]] = {}
        incarnation = await self._state.incarnation()  # first: everything read from here on is of this one
        known = self._state.groups.get(name)
        leased: dict[QueueId, LeasedQueue] = {}
        named = [topic for topic in topics if patterns is None or topic in patterns.asked]
        for error in (await self._topics.make_missing(named)).values():
            raise error
        for topic in topics:
            # What a pattern has found may have been deleted since, which must not create it.
            queues_of[topic] = await (self._topics.ensure if topic in named else self._topics.find_queues)(topic)
            found = await self._leased(topic, queues_of[topic])
            loaded = () if known is None else known.feeds
            leased |= {queue_id: queue for queue_id, queue in found.items() if queue_id not in loaded}
        self._state.leases.require()
        async with self._state.session() as conn, conn.transaction():
            group = known or await _load_group(conn, name, self._state.config)
            if start is not None and start.kind != "earliest":
                at_us = start.value if start.kind == "time" else None
                later = await _later(conn, group, patterns, topics)
                for topic in topics:
                    queue_ids = [QueueId(queue_id) for queue_id, _ in queues_of[topic]]
                    if topic not in later:
                        await groups_store.subscribe_at(conn, group.id, queue_ids, at_us=at_us)
            former = await self._former(conn, group.id, leased)
            feeds = await _load_feeds(
                *(conn, incarnation, group, leased, self._state.config, self._state.memory),
                leases=self._state.leases,
            )
        self._state.leases.require()
        if self._state.groups.get(name) is not known:
            raise BrokerUnavailable("delivery has started again from its stored cursors: retry")
        epochs = self._state.leases.epochs()
        # The event loop ran other tasks during the statements: leases may have been lost, and even leased again under a
        # new epoch. From here on nothing is awaited until the feeds are added.
        feeds = [feed for feed in feeds if epochs.get(feed.queue_id) == feed.epoch]  # the others were lost
        if len(feeds) < len(leased):
            self._membership.reread_leases()
        if known is None:
            group.members.limit(
                group.settings.deliver_rate_max, self._state.monotonic(), stopped=group.settings.stopped
            )
        for feed in feeds:
            if feed.opens_at is not None and feed.queue_id in former:
                # No other broker had the queue, so the deadlines in memory are exact, and earlier than the noted time.
                until = min(feed.opens_at, former[feed.queue_id].until)
                feed.opens_at = until if until > self._state.monotonic() else None
            if feed.opens_at is not None:
                _log.info(
                    "delivery.queue_waits",
                    "group %(group)s: topic %(topic)s queue %(queue)d waits %(wait_s).0f s: ordered messages that were "
                    "delivered before may be in flight",
                    group=group.name,
                    topic=feed.topic,
                    queue=feed.number,
                    wait_s=feed.opens_at - self._state.monotonic(),
                )
        self._state.add(group, topics, feeds)
        if awaited := {client_id for feed in feeds if feed.opens_at is not None for client_id in feed.awaits}:
            self._state.end_polls(group.name, awaited)
        return group

    async def _former(
        self, conn: Connection, group_id: int, queue_ids: Collection[QueueId]
    ) -> dict[QueueId, OrderedInFlight]:
        """Return the messages in flight of queues (by id) that this broker lost, and no other broker has had since."""
        lost = self._state.ordered_in_flight
        known = {queue_id: lost[group_id, queue_id] for queue_id in queue_ids if (group_id, queue_id) in lost}
        # The epoch in the cursor's row proves it: any other broker would have raised it by claiming the cursor. The
        # lock on the rows keeps that true until they are claimed here.
        epochs = await store.cursor_epochs(conn, group_id, list(known)) if known else {}
        return {queue_id: known[queue_id] for queue_id, epoch in epochs.items() if known[queue_id].epoch == epoch}

    async def _leased(self, topic: str, queues: Sequence[tuple[int, int]]) -> dict[QueueId, LeasedQueue]:
        """Return the queues of a topic that this broker delivers, by id."""
        if not self._state.known.issuperset(queue_id for queue_id, _ in queues):
            await self._membership.step_once()  # they may be so new that no broker has leased them
            self._state.known.update(queue_id for queue_id, _ in queues)
        epochs = self._state.leases.epochs()
        return {
            QueueId(queue_id): LeasedQueue(topic, QueueNumber(number), epochs[QueueId(queue_id)])
            for queue_id, number in queues
            if queue_id in epochs and queue_id not in self._state.leaving
        }


class _Matched(NamedTuple):
    """The names and patterns of a request, and the highest id of a topic when the patterns were matched."""

    asked: Collection[str]
    newest: int

    @property
    def all(self) -> frozenset[str]:
        """The patterns."""
        return frozenset(each for each in self.asked if is_pattern(each))


async def _later(conn: Connection, group: Group, patterns: _Matched | None, topics: Sequence[str]) -> set[str]:
    """Return those of the topics that were created after the group had begun to read by a pattern that matches them."""
    if patterns is None or not patterns.all:
        return set()
    prefixes = list(map(prefix_of, patterns.all))
    await groups_store.begin_prefixes(conn, group.id, prefixes, patterns.newest)
    group.patterns |= patterns.all
    matched = [topic for topic in topics if topic not in patterns.asked]
    return set(await groups_store.later_topics(conn, group.id, matched))


async def _load_group(conn: Connection, name: str, config: DeliveryConfig) -> Group:
    """Return the group without feeds; create it if it is new."""
    row = await groups_store.group_row(conn, name)
    if row is None:
        # A broadcasting member is a group of its own.
        await groups_store.create_group(conn, name, config.broadcast_expires_s if "%" in name else None)
        row = await groups_store.group_row(conn, name)
        assert row is not None
    retries = Retries(count_max=config.retry_count_max, size_bytes_max=config.reply_size_bytes_max)
    members = Members(name, Pause(config.pause_failures, config.pause_retries))
    return Group(row.id, name, retries, settings_of(row, config), members)


def settings_of(row: GroupRow, config: DeliveryConfig) -> GroupDeliverySettings:
    """Return the settings in the group's row; the broker's own where it has none."""
    backoff = Backoff(
        delays_s=config.backoff.delays_s if row.retry_delays_s is None else tuple(row.retry_delays_s),
        retries_max=config.backoff.retries_max if row.retries_max is None else row.retries_max,
    )
    return GroupDeliverySettings(
        backoff=backoff,
        parks_keys=row.poisoned_key == "park",
        deliver_rate_max=row.deliver_rate_max,
        stopped=row.stopped,
        version=row.version,
    )


async def _load_feeds(  # noqa: PLR0917
    conn: Connection,
    incarnation: UUID | None,
    group: Group,
    leased: Mapping[QueueId, LeasedQueue],
    config: DeliveryConfig,
    memory: WindowMemory,
    *,
    leases: Leases,
) -> list[GroupQueueReader]:
    """Return feeds for these queues (by id), from the cursors, claimed for the epochs of their leases.

    An offset that has a retry or a dead letter is settled even if the cursor does not say so: the row was inserted
    before the cursor was written. The window writes it there, since nothing else says so when the row is gone. A queue
    whose cursor was claimed under a younger epoch is left out.
    """
    cursors = await store.claim_cursors(
        *(conn, incarnation, group.id, [(queue_id, leased[queue_id].epoch) for queue_id in sorted(leased)]),
        forward_s=leases.clock.forward_s,
    )
    settled: defaultdict[QueueId, list[int]] = defaultdict(list)
    since = [cursor.next_offset for cursor in cursors]
    queue_ids = [cursor.queue_id for cursor in cursors]
    for queue_id, offset in await store.failed_offsets(conn, group.id, queue_ids, since):
        settled[queue_id].append(offset)
    blocked: defaultdict[QueueId, list[str]] = defaultdict(list)
    for queue_id, key in await retries_store.held_keys(conn, group.id, queue_ids):
        blocked[queue_id].append(key)
    # Read after the cursors are claimed: from then on no other broker moves them, so no end is below its cursor.
    ends = await store.queue_ends(conn, await store.open_segment(conn), queue_ids)
    now = leases.monotonic()
    return [
        GroupQueueReader(
            group,
            *(leased[cursor.queue_id].topic, leased[cursor.queue_id].number),
            *(cursor.queue_id, leased[cursor.queue_id].epoch),
            InFlightWindow(
                cursor.next_offset,
                cursor.acked,
                count_max=config.window_count_max,
                size_bytes_max=config.window_size_bytes_max,
                settled=settled[cursor.queue_id],
                blocked_keys=blocked[cursor.queue_id],
                memory=memory,
            ),
            ends[cursor.queue_id],
            generations=cursor.generations,
            opens_at=now + cursor.held_s if cursor.held_s else None,
            awaits=dict.fromkeys(cursor.held_by, -math.inf),
        )
        for cursor in cursors
    ]
