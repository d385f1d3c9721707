"""Reads where a group stands in the database and builds its windows."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from txmsg.broker.cluster import Membership
from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.database import Database
from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.holding import Given
from txmsg.broker.delivery.members import Members
from txmsg.broker.delivery.memory import Memory
from txmsg.broker.delivery.pause import Pause
from txmsg.broker.delivery.retrying import Retrying
from txmsg.broker.delivery.settings import GroupSettings
from txmsg.broker.delivery.state import State
from txmsg.broker.delivery.values import Start, Topics
from txmsg.broker.delivery.window import Window
from txmsg.broker.delivery.writing import Writing
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.broker.store import delivery as store
from txmsg.broker.store import retries as failures_store
from txmsg.broker.store.consumer_groups import GroupRow
from txmsg.errors import BrokerUnavailable
from txmsg.runtime.backoff import Backoff
from txmsg.wire.tags import TagExpression

__all__ = ["Loader", "settings_of"]

_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """A queue that is to be delivered: what it is a queue of, its number there, and the epoch of its lease."""

    topic: str
    number: int
    epoch: int


class Loader:
    """Brings groups, and the queues that this broker has leases of, into memory. One thing of a group at a time."""

    def __init__(
        self, state: State, database: Database, membership: Membership, writing: Writing, topics: Topics
    ) -> None:
        self._state = state
        self._database = database
        self._membership = membership
        self._writing = writing
        self._topics = topics
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def group(self, name: str, wants: Mapping[str, TagExpression], start: Start | None) -> Group:
        """The group in memory, with the queues of these topics."""
        if self._state.draining:
            raise BrokerUnavailable("this broker is closing: ask another one")
        group = self._state.groups.get(name)
        if group is not None and all(topic in group.topics for topic in wants):
            return group
        async with self._loading(name):  # looked at anew inside: another member may have loaded it meanwhile
            group = self._state.groups.get(name)
            missing = [topic for topic in wants if group is None or topic not in group.topics]
            if group is None or missing:
                group = await self._load(name, missing, start)
            return group

    async def more_queues(self, topic: str, queues: Sequence[tuple[int, int]]) -> None:
        """Begins to deliver what this broker has got of these queues since the groups of the topic were loaded."""
        places = await self._places(topic, queues)
        groups = self._state.groups_of[topic]
        if all(len(self._state.feeds_of[queue_id]) == len(groups) for queue_id in places):
            return
        for group in [group for group in groups if not group.feeds.keys() >= places.keys()]:
            async with self._loading(group.name):
                if self._state.groups.get(group.name) is group:  # else it was deleted, or is loaded anew
                    await self._load(group.name, [topic])

    async def seek(self, group: Group) -> bool:
        """Forgets the queues in which a person has sent the group elsewhere; whether there are any.

        They are loaded anew, from there.
        """
        async with self._database.session() as conn:
            sought = await store.sought_queues(conn, group.id)
        # Of ordered messages that are still out, the next ones could only be given when nobody can hold them any more.
        ordered = [feed for each in sought if (feed := group.feeds.get(each)) is not None and feed.held_until]
        try:
            await self._writing.finish(ordered)
        finally:
            # Neither a window that is being loaded nor a cursor that is being written may bring the old place back; nor
            # may failures be on their way to their tables, for what is loaded anew would not see them.
            async with self._loading(group.name), self._writing.flushing, group.writing:
                self._state.remove(group, sought)
        if sought:
            _log.info("group %s goes on elsewhere in %d queues", group.name, len(sought))
        return bool(sought)

    def _loading(self, name: str) -> asyncio.Lock:
        """Held while a group of this name is loaded. Kept while somebody has it: names come and go."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _load(self, name: str, topics: Sequence[str], start: Start | None = None) -> Group:
        """Begins to deliver topics to a group, or what they have got more of queues, from its cursors."""
        incarnation = await self._database.incarnation()  # first: what is looked up from here on is of this one
        known = self._state.groups.get(name)
        places: dict[int, Place] = {}
        for error in (await self._topics.make_missing(topics)).values():
            raise error
        for topic in topics:
            found = await self._places(topic, await self._topics.ensure(topic))
            loaded = () if known is None else known.feeds
            places |= {queue_id: place for queue_id, place in found.items() if queue_id not in loaded}
        self._state.leases.require()
        async with self._database.session() as conn, conn.transaction():
            group = known or await _load_group(conn, name, self._state.config)
            if start is not None:
                for topic in topics:
                    queue_ids = [queue_id for queue_id, _ in await self._topics.ensure(topic)]
                    await groups_store.subscribe_at(conn, group.id, queue_ids, at_us=start.at_us)
            mine = await self._claimed_by_none_but_me(conn, group.id, places)
            feeds = await _load_feeds(
                conn, incarnation, group, places, self._state.config, self._state.memory, now=self._state.monotonic()
            )
        self._state.leases.require()
        if self._state.groups.get(name) is not known:
            raise BrokerUnavailable("delivery has started again from its stored cursors: retry")
        feeds = [feed for feed in feeds if self._state.leases.epochs().get(feed.queue_id) == feed.epoch]  # others went
        if len(feeds) < len(places):
            self._membership.doubt()
        if known is None:
            group.members.limit(group.settings.deliver_rate_max, self._state.monotonic())
        for feed in feeds:
            if feed.opens_at is not None and feed.queue_id in mine:
                until = min(feed.opens_at, mine[feed.queue_id].until)
                feed.opens_at = until if until > self._state.monotonic() else None
            if feed.opens_at is not None:
                _log.info(
                    "group %s: %s waits %.0f s, for consumers may hold ordered messages that were given before",
                    *(group.name, feed, feed.opens_at - self._state.monotonic()),
                )
        self._state.add(group, topics, feeds)
        return group

    async def _claimed_by_none_but_me(
        self, conn: store.Connection, group_id: int, queue_ids: Collection[int]
    ) -> dict[int, Given]:
        """What this broker had given of queues (by id) that it has lost and got again, and no other had meanwhile."""
        given = {each: self._state.given[group_id, each] for each in queue_ids if (group_id, each) in self._state.given}
        epochs = await store.cursor_epochs(conn, group_id, list(given)) if given else {}
        return {each: given[each] for each, epoch in epochs.items() if given[each].epoch == epoch}

    async def _places(self, topic: str, queues: Sequence[tuple[int, int]]) -> dict[int, Place]:
        """Those of a topic's queues that this broker delivers, by id."""
        if not self._state.known.issuperset(queue_id for queue_id, _ in queues):
            await self._membership.step_once()  # they may be so new that nobody delivers them
            self._state.known.update(queue_id for queue_id, _ in queues)
        epochs = self._state.leases.epochs()
        return {
            queue_id: Place(topic, number, epochs[queue_id])
            for queue_id, number in queues
            if queue_id in epochs and queue_id not in self._state.leaving
        }


async def _load_group(conn: store.Connection, name: str, config: DeliveryConfig) -> Group:
    """The group, made when it is new, without any feeds yet."""
    row = await groups_store.group_row(conn, name)
    if row is None:
        # A broadcasting member is a group of its own.
        await groups_store.create_group(conn, name, config.broadcast_expires_s if "%" in name else None)
        row = await groups_store.group_row(conn, name)
        assert row is not None
    retrying = Retrying(count_max=config.retry_count_max, size_bytes_max=config.reply_size_bytes_max)
    members = Members(name, Pause(config.pause_failures, config.pause_retries))
    return Group(row.id, name, retrying, settings_of(row, config), members)


def settings_of(row: GroupRow, config: DeliveryConfig) -> GroupSettings:
    """What the group's row says; the broker's own setting where it says nothing."""
    backoff = Backoff(
        delays_s=config.backoff.delays_s if row.retry_delays_s is None else tuple(row.retry_delays_s),
        retries_max=config.backoff.retries_max if row.retries_max is None else row.retries_max,
    )
    return GroupSettings(
        backoff=backoff,
        parks_keys=row.poisoned_key == "park",
        deliver_rate_max=row.deliver_rate_max,
        version=row.version,
    )


async def _load_feeds(  # noqa: PLR0917
    conn: store.Connection,
    incarnation: UUID | None,
    group: Group,
    places: Mapping[int, Place],
    config: DeliveryConfig,
    memory: Memory,
    *,
    now: float,
) -> list[Feed]:
    """Feeds for these queues (by id), from the cursors, claimed for the epochs of their leases.

    An offset that has a retry or a dead letter counts as acked whatever the cursor says: the row was made before
    the cursor was written. A queue whose cursor was claimed under a younger epoch is left out.
    """
    cursors = await store.claim_cursors(
        conn, incarnation, group.id, [(queue_id, places[queue_id].epoch) for queue_id in sorted(places)]
    )
    acked: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    since = [cursor.next_offset for cursor in cursors]
    for queue_id, offset in await store.failed_offsets(conn, group.id, [c.queue_id for c in cursors], since):
        acked[queue_id].append((offset, offset + 1))
    held: defaultdict[int, list[str]] = defaultdict(list)
    for queue_id, key in await failures_store.held_keys(conn, group.id, [c.queue_id for c in cursors]):
        held[queue_id].append(key)
    ends = await store.queue_ends(conn, await store.open_segment(conn), [c.queue_id for c in cursors])
    return [
        Feed(
            group,
            *(places[cursor.queue_id].topic, places[cursor.queue_id].number),
            *(cursor.queue_id, places[cursor.queue_id].epoch),
            Window(
                cursor.next_offset,
                [*cursor.acked, *acked[cursor.queue_id]],
                count_max=config.window_count_max,
                size_bytes_max=config.window_size_bytes_max,
                held_keys=held[cursor.queue_id],
                memory=memory,
            ),
            ends[cursor.queue_id],
            generations=cursor.generations,
            opens_at=now + cursor.held_s if cursor.held_s else None,
        )
        for cursor in cursors
    ]
