"""Delivery: hands messages to members of groups, takes their answers, and writes what must not be forgotten.

Decisions are made by the pure modules beside this one; here they are acted on. All state is in memory, each queue's
under the epoch of its lease. When the database or the leases are lost, everything is dropped and read again from the
cursors as stored: at most the acknowledgements not yet flushed come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from txmsg.broker.cluster import Membership
from txmsg.broker.delivery.config import DeliveryConfig
from txmsg.broker.delivery.failures import write_first_failures, write_retry_outcomes
from txmsg.broker.delivery.group import Feed, Group
from txmsg.broker.delivery.handing import Settling, is_settled, still_out
from txmsg.broker.delivery.holding import MARGIN_S, expiring, idle, to_note
from txmsg.broker.delivery.loading import Place, load_feeds, load_group, settings_of, write_progress
from txmsg.broker.delivery.memory import Memory
from txmsg.broker.delivery.reader import read_feed
from txmsg.broker.delivery.repeating import repeat
from txmsg.broker.delivery.turns import Turns
from txmsg.broker.delivery.values import GroupLag, Handout, Receipt, Refusal, Start, Subscription, Topics
from txmsg.broker.store import consumer_groups as groups_store
from txmsg.broker.store import delivery as store
from txmsg.broker.store import leases as leases_store
from txmsg.broker.store import retries as failures_store
from txmsg.broker.store.connect import Pool, session
from txmsg.errors import BrokerUnavailable, UnknownTopic
from txmsg.wire.tags import TagExpression, wants_of

__all__ = ["Delivery"]

_log = logging.getLogger(__name__)
_CURSORS_PER_STATEMENT = 1000
_KEYS_PER_STATEMENT = 1000
_GROUPS_DELETED_AT_ONCE = 100
_SMALL_READ = (10, 64 * 1024)
"""Messages and bytes that are read at a time when memory is full, or for a probe."""
_NAP_S_MAX = 0.5
"""How long a member that may have nothing waits before it looks whether the broker is closing."""


class Delivery:
    """Delivers to all groups the queues that `membership` has leases of; it is the holder of these leases.

    Run it with `run()` in a task; `receive` and `settle` raise BrokerUnavailable before, after, and while the database
    is away. Steps named `..._once` do one round of what `run` repeats.
    """

    def __init__(self, pool: Pool, membership: Membership, config: DeliveryConfig, *, topics: Topics) -> None:
        self._pool = pool
        self._topics = topics
        self._config = config
        self._membership = membership
        membership.holder = self
        self._leases = membership.leases
        self._monotonic = self._leases.monotonic
        self._groups: dict[str, Group] = {}
        self._feeds_of: defaultdict[int, list[Feed]] = defaultdict(list)
        self._ends: dict[int, int] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._memory = Memory(config.memory_size_bytes_max)
        self._to_read: Turns[Feed] = Turns()  # bounded by the feeds: each is in it once at most
        self._readable = asyncio.Semaphore(0)  # as many as there are in _to_read
        self._known: set[int] = set()
        self._leaving: set[int] = set()
        self._gained = asyncio.Event()
        self._changed = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._settling = Settling()
        self._token = 0
        self._draining = False
        self._closed = asyncio.Event()

    # ---- for the service

    async def receive(  # noqa: PLR0917 - as the protocol lists them
        self,
        group: str,
        client_id: str,
        subscriptions: Sequence[Subscription | tuple[str, str]],
        max_messages: int,
        wait_s: float,
        invisible_s: float,
        start: Start | None = None,
    ) -> list[Handout]:
        """Up to max_messages for a member of a group, or nothing after wait_s.

        Each is in this member's hands for invisible_s; if it is neither settled nor renewed by then, it is retried.
        start: where the group begins if it is new to a topic. Raises BrokerUnavailable, InvalidName for a bad tag
        expression, and UnknownTopic.
        """
        wants = wants_of(tuple(subscriptions))
        state = await self._group(group, wants, start)
        state.members.join(client_id, wants, self._monotonic(), self._config.member_ttl_s)
        messages = self._take(state, client_id, wants, max_messages, invisible_s)
        if not messages and wait_s > 0:
            messages = await self._wait(state, client_id, wants, max_messages, invisible_s, wait_s)
        feeds = [state.feeds[each.receipt.queue_id] for each in messages]
        if held := to_note(feeds, self._monotonic(), invisible_s):
            try:
                await self._note_held(held, invisible_s)
                self._leases.require()  # not if it was paused meanwhile, and others deliver these queues by now
            except BaseException:  # also when whoever asked has gone
                state.untake(messages)
                raise
        return messages

    async def _wait(  # noqa: PLR0917 - as `receive`
        self,
        state: Group,
        client_id: str,
        wants: Mapping[str, TagExpression],
        max_messages: int,
        invisible_s: float,
        wait_s: float,
    ) -> list[Handout]:
        messages: list[Handout] = []
        try:
            async with asyncio.timeout(wait_s):
                while not messages and not self._draining:
                    # Who may have nothing is not counted among those whom a new message wakes.
                    if (blocked_s := state.members.blocked_s(client_id, self._monotonic())) > 0:
                        await asyncio.sleep(min(blocked_s, _NAP_S_MAX))
                    else:
                        await state.wait(wants)
                    messages = self._take(state, client_id, wants, max_messages, invisible_s)
        except TimeoutError:
            return []
        return messages

    def renew(self, group: str, held: Sequence[Receipt], invisible_s: float) -> list[Receipt]:
        """A member still holds these messages: their invisible time begins anew. Returns what it does not hold."""
        self._leases.require()
        state = self._groups.get(group)
        return [*held] if state is None else state.renew(held, self._monotonic() + invisible_s)

    async def settle(
        self, group: str, client_id: str, acks: Sequence[Receipt], refusals: Sequence[Refusal]
    ) -> list[Receipt]:
        """Takes acknowledgements and refusals; returns the receipts that came too late, in no order.

        On return an acknowledgement is in memory (the cursor follows within flush_s), that of a retry and every
        refusal on disk. If interrupted, what was taken is written by the next round of `expire_once`.
        """
        self._leases.require()
        state = self._groups.get(group)
        if state is None:
            return [*acks, *(refusal.receipt for refusal in refusals)]
        expired, touched = state.settle(client_id, acks, refusals, self._monotonic())
        await self._write_outcomes(state, touched)
        self._settling.settled()
        for feed in touched:
            self._read_soon(feed)
        return expired

    def wake(self, ends: Mapping[int, int]) -> None:
        """Queues (by id) now end before these offsets: members that wait for them get the new messages at once."""
        for queue_id, end in ends.items():
            self._ends[queue_id] = max(end, self._ends.get(queue_id, 0))
            for feed in self._feeds_of.get(queue_id, ()):
                feed.end = max(feed.end, end)
                self._read_soon(feed)

    def members_of(self, group: str) -> list[tuple[str, float]]:
        """Who of a group asked this broker for messages of late, and how many seconds ago."""
        state = self._groups.get(group)
        return [] if state is None else state.members.present(self._monotonic())

    def pause_of(self, group: str) -> tuple[float, str] | None:
        """For how many seconds a group has got single messages here, because everything fails, and the last error."""
        state = self._groups.get(group)
        if state is None or state.members.pause.since is None:
            return None
        return self._monotonic() - state.members.pause.since, state.members.pause.last_error

    def look_soon(self) -> None:
        """Somebody has changed a group or its place: looks at once."""
        self._changed.set()

    async def groups_lag(self) -> list[GroupLag]:
        """How far each group is behind in each topic, with the acknowledgements taken so far."""
        await self.flush_once()
        async with self._session() as conn:
            return await failures_store.group_lag(conn, await store.open_segment(conn))

    # ---- running

    async def run(self) -> None:
        """Delivers until `close` or cancellation."""
        config = self._config
        async with asyncio.TaskGroup() as tasks:
            for step, interval_s in (
                (self.flush_once, config.flush_s),
                (self.expire_once, config.expire_s),
                (self.retries_once, config.retry_poll_s),
                (self.poll_once, config.poll_s),
                (self.holding_once, config.poll_s),
                (self.keys_once, config.settings_s),
                (self.upkeep_once, config.upkeep_s),
            ):
                tasks.create_task(repeat(step, interval_s, self._closed), name=f"delivery {step.__name__}")
            tasks.create_task(
                repeat(self.settings_once, config.settings_s, self._closed, self._changed), name="settings"
            )
            tasks.create_task(repeat(self.queues_once, config.poll_s, self._closed, self._gained), name="queues")
            readers = [tasks.create_task(self._read(), name="delivery reader") for _ in range(config.readers)]
            await self._closed.wait()
            for reader in readers:
                reader.cancel()

    def drain(self) -> None:
        """Answers all waiting receives with what there is, and from now on none waits. For a graceful stop."""
        self._draining = True
        for group in self._groups.values():
            group.wake_all()

    async def close(self) -> None:
        """Stops, writes the cursors and lets another broker deliver at once. Twice, or before `run`, is fine.

        Raises BrokerUnavailable if the database is away: then the lease runs out by itself.
        """
        self.drain()
        self._closed.set()
        self._gained.set()
        self._changed.set()
        if self._leases.is_member:
            await self.finish(list(self._leases.epochs()))
        await self._membership.leave()
        self.drop("this broker is closing")

    async def flush_once(self) -> None:
        """Writes the cursors that moved. What is no longer this broker's is dropped."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        dirty = [feed for group in self._groups.values() for feed in group.feeds.values() if feed.window.is_dirty]
        dirty.sort(key=lambda feed: (feed.group.id, feed.queue_id))
        for start in range(0, len(dirty), _CURSORS_PER_STATEMENT):
            async with self._session() as conn:
                chunk = [feed for feed in dirty[start : start + _CURSORS_PER_STATEMENT] if self._is_delivered(feed)]
                stale = await write_progress(conn, self._leases.broker_id, chunk)
            for feed in filter(self._is_delivered, stale):
                _log.warning("group %s: %s is no longer this broker's", feed.group.name, feed)
                self._remove(feed.group, [feed.queue_id])
                self._membership.doubt()

    async def expire_once(self) -> None:
        """Makes retries of what was not settled in time, and finishes writes that were interrupted."""
        now = self._monotonic()
        for group in list(self._groups.values()):
            group.expire(now)
            await self._write_outcomes(group, list(group.feeds.values()))
        self._settling.settled()

    async def retries_once(self) -> None:
        """Reads the retries that are due into memory, as far as there is room."""
        groups = {
            group.id: group
            for group in self._groups.values()
            if group.retrying.room_count() and not (group.members.pause.is_on and group.retrying.ready_count)
        }
        if not groups or not self._leases.is_held():
            return
        async with self._session() as conn:
            for group_id in await failures_store.groups_with_due_retries(conn, list(groups)):
                group = groups[group_id]
                box, feeds = group.retrying, dict(group.feeds)
                count = 1 if group.members.pause.is_on else box.room_count()
                rows = await failures_store.due_retries(
                    conn, group_id, list(feeds), box.known(), count=count, size_bytes=box.room_bytes()
                )
                rows = [row for row in rows if group.feeds.get(row[0]) is feeds[row[0]]]  # others have gone meanwhile
                # What was redelivered on request waits for the message of its key that is out.
                rows = [row for row in rows if row[3][9] is None or feeds[row[0]].window.hold(row[3][9])]
                box.put(rows)
                group.wake({feeds[queue_id].topic for queue_id, *_ in rows}, len(rows))

    async def poll_once(self) -> None:
        """Looks for messages that other brokers wrote to queues for which somebody waits."""
        queue_ids = sorted(
            {
                feed.queue_id
                for group in self._groups.values()
                if group.has_waiting
                for feed in group.feeds.values()
                if feed.window.position >= feed.end
            }
        )
        if queue_ids and self._leases.is_held():
            async with self._session() as conn:
                ends = await store.queue_ends(conn, await store.open_segment(conn), queue_ids)
            self.wake(ends)
        for feeds in self._feeds_of.values():
            for feed in feeds:
                self._read_soon(feed)  # one whose last read failed

    async def holding_once(self) -> None:
        """Opens queues whose former messages nobody holds any more; keeps true what cursors say of those given here."""
        now = self._monotonic()
        feeds = [feed for group in self._groups.values() for feed in group.feeds.values()]
        for feed in feeds:
            if feed.opens_at is not None and feed.opens_at <= now:
                feed.opens_at = None
                feed.group.wake_all()
        if held := expiring(feeds, now):
            await self._note_held(held, max(feed.held_s for feed in held))
        await self._note_held(idle(feeds, now), None)

    async def queues_once(self) -> None:
        """Begins to deliver the queues that this broker or their topics have got since they were subscribed to."""
        for group in list(self._groups.values()):
            for topic in list(group.topics):
                try:
                    queues = await self._topics.ensure(topic)
                except UnknownTopic:  # it was deleted; its queues go with their leases
                    continue
                group.allow(topic, {queue_id for queue_id, _ in queues})
                if await self._missing(group, topic):
                    async with self._loading(group.name):
                        if self._groups.get(group.name) is group:  # else it was deleted, or is loaded anew
                            await self._load(group.name, [topic])

    async def settings_once(self) -> None:
        """Takes the settings of groups that a person has changed. A group that was deleted is dropped."""
        groups = list(self._groups.values())
        if not groups or not self._leases.is_held():
            return
        async with self._session() as conn:
            rows = await groups_store.group_rows(conn, [group.id for group in groups])
        for group in groups:
            row = rows.get(group.id)
            if row is None:
                self._drop_group(group, "the group was deleted")
            elif row.version != group.settings.version:
                group.settings = settings_of(row, self._config)
                group.members.limit(group.settings.deliver_rate_max, self._monotonic())
                _log.info("group %s: the settings are those of version %d now", group.name, row.version)
                await self._seek(group)

    async def _seek(self, group: Group) -> None:
        """Goes on elsewhere in the queues in which a person has said so: they are loaded anew, from there."""
        # Neither a window that is being loaded nor a cursor that is being written may bring the old place back.
        async with self._loading(group.name), self._flushing:
            async with self._session() as conn:
                sought = await store.sought_queues(conn, group.id)
            self._remove(group, sought)
        if sought:
            self._gained.set()
            _log.info("group %s goes on elsewhere in %d queues", group.name, len(sought))

    async def upkeep_once(self) -> None:
        """Notes which groups are used, forgets those that are not, and deletes what is kept only while it is used."""
        now, ttl_s = self._monotonic(), 2 * self._config.upkeep_s
        used = [group.id for group in self._groups.values() if group.members.is_used(now, ttl_s)]
        if not self._leases.is_held():
            return
        async with self._session() as conn:
            await groups_store.touch_groups(conn, used)
            for name in await groups_store.delete_unused_groups(conn, _GROUPS_DELETED_AT_ONCE):
                _log.info("group %s was not used for as long as it is kept, and is deleted", name)
        for group in list(self._groups.values()):  # what they hold ready would keep others from reading
            if not group.members.is_used(now, self._config.member_ttl_s) and is_settled(list(group.feeds.values())):
                self._drop_group(group, "nobody asked for its messages")

    async def keys_once(self) -> None:
        """Lets the ordering keys go on that wait for nothing any more, as when a dead letter was purged."""
        for group in list(self._groups.values()):
            held = [(feed.queue_id, key) for feed in group.feeds.values() for key in feed.window.held_keys()]
            for start in range(0, len(held), _KEYS_PER_STATEMENT):
                async with group.writing, self._session() as conn:
                    self._release(
                        group, await failures_store.free_keys(conn, group.id, held[start : start + _KEYS_PER_STATEMENT])
                    )

    async def read_once(self, feed: Feed) -> None:
        """Reads one feed once and wakes members for what was read."""
        try:
            if not self._is_delivered(feed):
                return
            count_max, size_bytes_max = self._config.read_count_max, self._config.window_size_bytes_max
            if self._memory.is_full or feed.group.members.pause.is_on:
                count_max, size_bytes_max = min(count_max, _SMALL_READ[0]), _SMALL_READ[1]
            async with self._session() as conn:
                count = await read_feed(conn, feed, count_max, size_bytes_max)
        finally:
            feed.queued = False
        if count:
            feed.group.wake((feed.topic,), count)
            self._read_soon(feed)

    # ---- leases come and go (Holder)

    def gained(self) -> None:
        """There are new leases: their queues are loaded for the groups that want them."""
        self._gained.set()

    def lost(self, queue_ids: Collection[int], why: str) -> None:
        """Forgets the windows and retries of these queues, for all groups."""
        _log.info("delivers %d queues no more: %s", len(queue_ids), why)
        self._leaving.difference_update(queue_ids)
        for group in self._groups.values():
            self._remove(group, queue_ids)

    async def finish(self, queue_ids: Collection[int]) -> None:
        """Gives nothing more of these queues, waits a little for what consumers have of them, writes their cursors.

        Raises BrokerUnavailable.
        """
        self._leaving.update(queue_ids)
        feeds = [feed for queue_id in queue_ids for feed in self._feeds_of.get(queue_id, ())]
        for feed in feeds:
            feed.leaving = True
        await self._settling.wait(lambda: not still_out(feeds), self._config.hand_over_s)
        for group in {feed.group for feed in feeds}:
            await self._write_outcomes(group, [feed for feed in feeds if feed.group is group])
        await self._note_held([feed for feed in feeds if feed.held_until and not still_out([feed])], None)
        await self.flush_once()

    def drop(self, why: str) -> None:
        """Forgets the leases and everything in memory. Waiting members get BrokerUnavailable."""
        if not self._closed.is_set() and (self._leases.is_member or self._groups):
            _log.warning("delivery stops until this broker has joined again: %s", why)
        self._leases.lose(why)
        groups, self._groups = self._groups, {}
        self._feeds_of.clear()
        self._ends.clear()  # a database that comes back may be a standby that did not get everything
        self._known.clear()
        self._leaving.clear()
        for group in groups.values():
            group.remove(list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))

    # ---- inside

    async def _read(self) -> None:
        while True:
            await self._readable.acquire()
            feed = self._to_read.pop()
            try:
                await self.read_once(feed)
            except BrokerUnavailable as exc:
                _log.debug("%s", exc)
            except Exception:  # noqa: BLE001 - the root of a task
                _log.exception("reading %s failed; it is tried again", feed)

    def _read_soon(self, feed: Feed) -> None:
        """Lets a reader fill the window if there is something to read, little left, and room for a useful read."""
        window, config = feed.window, self._config
        if feed.queued or feed.leaving:
            return
        is_short = feed.group.members.pause.is_on or self._memory.is_full
        if window.has_unread and not (is_short and window.ready_count):
            feed.rewind()
        if window.position >= feed.end or window.ready_count * 2 >= (1 if is_short else config.read_count_max):
            return
        room = window.room_count()
        if room * 4 >= config.read_count_max or (room and feed.group.has_waiting):
            feed.queued = True
            self._to_read.put(feed.group.id, feed)
            self._readable.release()

    def _take(
        self, group: Group, client_id: str, wants: Mapping[str, TagExpression], count: int, invisible_s: float
    ) -> list[Handout]:
        self._leases.require()
        if self._groups.get(group.name) is not group:
            raise BrokerUnavailable("delivery has started again from its stored cursors: retry")
        now = self._monotonic()
        count = int(min(count, group.members.room(client_id, now)))
        if not count:
            return []
        self._token += 1
        messages = group.take(
            wants,
            count,
            self._config.reply_size_bytes_max,
            token=self._token,
            deadline=now + invisible_s,
            deadline_max=now + max(invisible_s, self._config.held_s_max),
        )
        if messages:
            given = sum(len(each.rows) for each in messages)
            group.members.given(client_id, given, token=self._token, now=now, invisible_s=invisible_s)
        for topic in wants:
            for feed in group.topics[topic]:
                self._read_soon(feed)
        return messages

    async def _group(self, name: str, wants: Mapping[str, TagExpression], start: Start | None) -> Group:
        """The group in memory, with the queues of these topics."""
        if self._draining:
            raise BrokerUnavailable("this broker is closing: ask another one")
        group = self._groups.get(name)
        if group is not None and all(topic in group.topics for topic in wants):
            return group
        async with self._loading(name):  # looked at anew inside: another member may have loaded it meanwhile
            group = self._groups.get(name)
            missing = [topic for topic in wants if group is None or topic not in group.topics]
            if group is None or missing:
                group = await self._load(name, missing, start)
            return group

    def _loading(self, name: str) -> asyncio.Lock:
        """Held while a group of this name is loaded. Kept while somebody has it: names come and go."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _load(self, name: str, topics: Sequence[str], start: Start | None = None) -> Group:
        """Begins to deliver topics to a group, or what they have got more of queues, from its cursors."""
        known = self._groups.get(name)
        places: dict[int, Place] = {}
        for topic in topics:
            places |= await self._missing(known, topic)
        self._leases.require()
        async with self._session() as conn, conn.transaction():
            group = known or await load_group(conn, name, self._config)
            if start is not None:
                for topic in topics:
                    queue_ids = [queue_id for queue_id, _ in await self._topics.ensure(topic)]
                    await groups_store.subscribe_at(conn, group.id, queue_ids, at_us=start.at_us)
            feeds = await load_feeds(conn, group, places, self._config, self._memory, now=self._monotonic())
        self._leases.require()
        if self._groups.get(name) is not known:
            raise BrokerUnavailable("delivery has started again from its stored cursors: retry")
        feeds = [feed for feed in feeds if self._leases.epochs().get(feed.queue_id) == feed.epoch]  # others went
        if len(feeds) < len(places):
            self._membership.doubt()
        self._groups[name] = group
        if known is None:
            group.members.limit(group.settings.deliver_rate_max, self._monotonic())
        group.add(topics, feeds)
        for feed in feeds:
            feed.leaving = feed.queue_id in self._leaving  # its hand-over may have begun meanwhile
            feed.end = max(feed.end, self._ends.get(feed.queue_id, 0))
            self._feeds_of[feed.queue_id].append(feed)
            self._read_soon(feed)
            if feed.opens_at is not None:
                _log.info(
                    "group %s: %s waits %.0f s, for consumers may hold ordered messages that were given before",
                    *(group.name, feed, feed.opens_at - self._monotonic()),
                )
        return group

    async def _missing(self, group: Group | None, topic: str) -> dict[int, Place]:
        """The queues of a topic that this broker delivers, and that the group has not in memory, by id."""
        queues = await self._topics.ensure(topic)
        if not self._known.issuperset(queue_id for queue_id, _ in queues):
            await self._membership.step_once()  # they may be so new that nobody delivers them
            self._known.update(queue_id for queue_id, _ in queues)
        epochs, loaded = self._leases.epochs(), {} if group is None else group.feeds
        return {
            queue_id: Place(topic, number, epochs[queue_id])
            for queue_id, number in queues
            if queue_id in epochs and queue_id not in loaded and queue_id not in self._leaving
        }

    async def _note_held(self, feeds: Sequence[Feed], invisible_s: float | None) -> None:
        """Has cursors say for how long consumers may hold ordered messages from now on; None: they hold none."""
        feeds = [feed for feed in feeds if self._is_delivered(feed)]
        if not feeds:
            return
        now = self._monotonic()
        held_s = None if invisible_s is None else invisible_s + MARGIN_S
        cursors = [(feed.group.id, feed.queue_id, feed.epoch) for feed in feeds]
        async with self._session() as conn:
            noted = await store.note_held(conn, self._leases.broker_id, cursors, held_s)
        if noted < len(feeds):
            self._membership.doubt()
            raise BrokerUnavailable("leases of these queues are over: another broker delivers them")
        for feed in feeds:
            feed.held_until = 0.0 if held_s is None else now + held_s
            feed.held_s = max(feed.held_s, invisible_s or 0.0)
            feed.idle_since = None

    def _remove(self, group: Group, queue_ids: Collection[int]) -> None:
        for feed in group.remove(queue_ids):
            self._feeds_of[feed.queue_id].remove(feed)

    async def _write_outcomes(self, group: Group, feeds: Iterable[Feed]) -> None:
        """Makes failures durable, then counts them as acked. One transaction, which holds the leases concerned."""
        async with group.writing:
            failing = [(feed, each) for feed in feeds if (each := feed.window.failing()) and self._is_delivered(feed)]
            outcomes = group.retrying.outcomes()
            if not failing and not outcomes:
                return
            self._leases.require()
            leases = {feed.queue_id: feed.epoch for feed, _ in failing}
            leases |= {queue_id: group.feeds[queue_id].epoch for queue_id, _ in outcomes}
            failing.sort(key=lambda item: item[0].queue_id)
            keys = {(feed.queue_id, key) for feed, each in failing for key in feed.window.keys_of(each)}
            keys |= {(queue_id, each.ordering_key) for (queue_id, _), each in outcomes.items() if each.ordering_key}
            async with self._session() as conn, conn.transaction():
                if not await leases_store.hold(conn, self._leases.broker_id, leases):
                    raise BrokerUnavailable("leases of these queues are over: another broker delivers them")
                for feed, failures in failing:
                    await write_first_failures(conn, feed, failures, group.settings)
                await write_retry_outcomes(conn, group, outcomes)
                free = await failures_store.free_keys(conn, group.id, sorted(keys)) if keys else []
            for feed, failures in failing:
                feed.window.stored(failures)
                self._read_soon(feed)
            group.retrying.written(outcomes)
            self._release(group, free)

    def _release(self, group: Group, keys: Iterable[tuple[int, str]]) -> None:
        """Ordering keys of which the table `retry` has nothing any more are delivered from their queues again."""
        for queue_id, key in keys:
            if (feed := group.feeds.get(queue_id)) is not None:
                feed.window.release([key])

    def _is_delivered(self, feed: Feed) -> bool:
        """Whether this very feed is still in use: its queue may have gone meanwhile, or have come again."""
        group = self._groups.get(feed.group.name)
        return group is feed.group and group.feeds.get(feed.queue_id) is feed

    def _drop_group(self, group: Group, why: str) -> None:
        """Forgets one group. Waiting members get BrokerUnavailable, and load it anew when they ask again."""
        if self._groups.get(group.name) is group:
            del self._groups[group.name]
            self._remove(group, list(group.feeds))
            group.drop(BrokerUnavailable(f"delivery was interrupted ({why}): retry"))

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[store.Connection]:
        """A connection for one step. If the database is away, everything in memory is dropped: BrokerUnavailable."""
        try:
            async with session(self._pool, timeout_s=self._config.statement_timeout_s) as conn:
                yield conn
        except BrokerUnavailable as exc:
            self.drop(str(exc))
            raise
