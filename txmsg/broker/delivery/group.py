"""One consumer group in memory: its windows, its retries, its members and who of them waits. Knows no database."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from txmsg.broker.delivery.members import Members
from txmsg.broker.delivery.retrying import Retrying
from txmsg.broker.delivery.settings import GroupSettings
from txmsg.broker.delivery.values import Handout, Receipt, Refusal
from txmsg.broker.delivery.window import EXPIRED, Failure, Window
from txmsg.broker.store.rows import NO_GENERATIONS, Generations, RetryRow, Row, size_bytes_of
from txmsg.wire.tags import TagExpression

__all__ = ["Feed", "Group"]


def _ignore() -> None:
    pass


@dataclass(slots=True, eq=False)
class Feed:
    """A queue as one group reads it: its window, how far the queue is known to reach, and where it is read.

    epoch: of the queue's lease, under which the window was built; with the lease the whole object is dropped.
    segment: the one that holds window.position, with the offset at which the next one starts (None: not known to
    be closed). queued: whether it waits for a reader, or is being read. leaving: another broker is to deliver the
    queue; nothing more is read or given, and settling goes on. opens_at: nothing is given before, for consumers may
    hold ordered messages that the queue's former broker gave; None: it is open. held_until: what the cursor says of
    those that this one gives (0: nothing), for visibility timeouts of held_s. Moments are of the monotonic clock.
    """

    group: Group
    topic: str
    number: int
    queue_id: int
    epoch: int
    window: Window
    end: int = 0
    segment: int | None = None
    segment_end: int | None = None
    queued: bool = False
    leaving: bool = False
    generations: Generations = NO_GENERATIONS
    readable: bool = True
    opens_at: float | None = None
    held_until: float = 0.0
    held_s: float = 0.0
    idle_since: float | None = None

    def __post_init__(self) -> None:
        self.window.on_busy = partial(self.group.mark_busy, self)

    def __str__(self) -> str:
        return f"topic {self.topic} queue {self.number}"

    @property
    def is_busy(self) -> bool:
        """Whether a round of delivery has, or will have, something to do for it."""
        return self.window.is_busy or self.held_until > 0 or self.opens_at is not None

    @property
    def is_open(self) -> bool:
        """Whether anything of it may be given now."""
        return self.readable and not self.leaving and self.opens_at is None

    def rewind(self) -> None:
        """Reads again what came back unread. Not while it is being read."""
        assert not self.queued
        self.window.rewind()
        self.segment = self.segment_end = None


@dataclass(slots=True, eq=False)
class Group:
    """A group and those queues of its topics that this broker delivers: they come and go one by one.

    All methods run on the event loop and never wait, except `wait`.
    """

    id: int
    name: str
    retrying: Retrying
    settings: GroupSettings = field(default_factory=GroupSettings)
    members: Members = field(default_factory=lambda: Members(""))
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while failures are written: of two sessions at once, neither would see the other's rows of a key."""
    feeds: dict[int, Feed] = field(default_factory=dict)
    topics: dict[str, list[Feed]] = field(default_factory=dict)
    busy: set[Feed] = field(default_factory=set)
    """All feeds that are busy, and perhaps some that no longer are."""
    on_busy: Callable[[], object] = _ignore
    """Called whenever a feed may have become busy."""
    _waiting: dict[asyncio.Future[None], Mapping[str, TagExpression]] = field(default_factory=dict)
    _turn: int = 0

    def add(self, topics: Iterable[str], feeds: Iterable[Feed]) -> None:
        """Begins to deliver these topics, and of their queues these."""
        for topic in topics:
            self.topics.setdefault(topic, [])
        for feed in feeds:
            self.feeds[feed.queue_id] = feed
            self.topics[feed.topic].append(feed)
            if feed.is_busy:
                self.mark_busy(feed)

    def remove(self, queue_ids: Collection[int]) -> list[Feed]:
        """Delivers these queues no more: their windows and retries are void. Returns the feeds that there were."""
        gone = [self.feeds.pop(queue_id) for queue_id in queue_ids if queue_id in self.feeds]
        for feed in gone:
            self.topics[feed.topic].remove(feed)
            feed.window.close()
            self.busy.discard(feed)
        self.retrying.forget({feed.queue_id for feed in gone})
        return gone

    def allow(self, topic: str, queue_ids: Collection[int]) -> None:
        """Gives messages of these queues of a topic only: somebody has changed what may be read of it."""
        for feed in self.topics.get(topic, ()):
            if feed.readable != (feed.queue_id in queue_ids):
                feed.readable = not feed.readable
                self.wake_all()

    # ---- giving

    def take(
        self,
        wants: Mapping[str, TagExpression],
        count: int,
        size_bytes: int,
        *,
        token: int,
        deadline: float,
        deadline_max: float = math.inf,
    ) -> list[Handout]:
        """Messages for one member, now in flight: due retries first, but at most half; then the queues by turns."""
        feeds = [
            feed for topic in wants for feed in self.topics.get(topic, ()) if feed.window.ready_count and feed.is_open
        ]
        retries_max = count
        if feeds:
            self._turn += 1
            first = self._turn % len(feeds)
            feeds = feeds[first:] + feeds[:first]
            retries_max = (count + self._turn % 2) // 2  # by turns, where one is asked for at a time
        handouts = self._take_retries(wants, retries_max, size_bytes, token, deadline, deadline_max)
        for each in handouts:
            count -= len(each.rows)
            size_bytes -= sum(map(size_bytes_of, each.rows))
        for shares in (len(feeds), 1):  # first a fair share of each, then whatever is left
            for place, feed in enumerate(feeds):
                if count <= 0:
                    return handouts
                rows = feed.window.take(
                    -(-count // max(1, shares - place)),
                    size_bytes,
                    token=token,
                    deadline=deadline,
                    deadline_max=deadline_max,
                    mine=wants[feed.topic],
                    group=self.members.wanted(feed.topic),
                    at_least_one=not handouts,
                )
                if rows:
                    count -= len(rows)
                    size_bytes -= sum(map(size_bytes_of, rows))
                    handouts.append(self._handout(feed, rows, token))
        if not handouts:  # what is ready is for others: nothing had to be left for it
            handouts = self._take_retries(wants, count, size_bytes, token, deadline, deadline_max)
        return handouts

    def _take_retries(  # noqa: PLR0917
        self,
        wants: Mapping[str, TagExpression],
        count: int,
        size_bytes: int,
        token: int,
        deadline: float,
        deadline_max: float,
    ) -> list[Handout]:
        if not self.retrying.ready_count:
            return []

        def is_wanted(queue_id: int, tag: str | None) -> bool:
            # A retry whose tag nobody wants any more goes to any member of the topic: it is never dropped.
            feed = self.feeds[queue_id]
            mine = wants.get(feed.topic) if feed.is_open else None
            return mine is not None and (mine.matches(tag) or not self.members.wanted(feed.topic).matches(tag))

        taken: defaultdict[int, list[RetryRow]] = defaultdict(list)
        for row in self.retrying.take(
            count, size_bytes, token=token, deadline=deadline, deadline_max=deadline_max, wants=is_wanted
        ):
            taken[row[0]].append(row)
        return [
            self._handout(
                self.feeds[queue_id],
                [row for *_, row in rows],
                token,
                attempts=[each + 1 for _, each, _, _ in rows],
                written=[each for _, _, each, _ in rows],
            )
            for queue_id, rows in taken.items()
        ]

    def _handout(
        self,
        feed: Feed,
        rows: Sequence[Row],
        token: int,
        *,
        attempts: Sequence[int] | None = None,
        written: Sequence[int] | None = None,
    ) -> Handout:
        offsets = [row[0] for row in rows]
        receipt = Receipt(feed.queue_id, token, feed.epoch, offsets)
        generations = [feed.generations.at(each) for each in offsets] if feed.generations.starts else None
        if written is not None:  # retries: a redrive, or a seek since they were written, counts, whichever is later
            generations = list(map(max, written, generations or repeat(0)))
        return Handout(feed.topic, feed.number, receipt, rows, attempts, generations)

    def untake(self, handouts: Iterable[Handout]) -> None:
        """The member will not get these: they come again as if they had not been taken."""
        for each in handouts:
            feed = self._feed_of(each.receipt, [])
            if feed is not None:
                queue_id, token, _, offsets = each.receipt
                first, others = feed.window.take_back(token, offsets)
                feed.window.unread(first)
                self.retrying.leave(self.retrying.take_back(queue_id, token, others)[0])

    def asked_for(self, now: float) -> dict[int, Feed]:
        """The feeds, by queue, of which retries may be given to members that are there."""
        topics = self.members.asked_for(now)
        return {queue_id: feed for queue_id, feed in self.feeds.items() if feed.is_open and feed.topic in topics}

    # ---- settling

    def settle(
        self, client_id: str, acks: Sequence[Receipt], refusals: Sequence[Refusal], now: float
    ) -> tuple[list[Receipt], list[Feed]]:
        """Takes the answers of a member: the receipts that came too late, and the feeds concerned.

        Acknowledged is done; what failed, and any outcome of a retry, must be written before it counts.
        """
        expired: list[Receipt] = []
        touched: dict[int, Feed] = {}
        for receipt in acks:
            feed = self._feed_of(receipt, expired)
            if feed is not None:
                touched[feed.queue_id] = feed
                self._ack(client_id, feed, receipt, now, expired)
        for receipt, error, delay_s in refusals:
            feed = self._feed_of(receipt, expired)
            if feed is not None:
                touched[feed.queue_id] = feed
                queue_id, token, _, offsets = receipt
                done, late = feed.window.take_back(token, offsets)
                retried, late = self.retrying.take_back(queue_id, token, late) if late else ([], [])
                self._fail(client_id, token, {feed: done}, retried, Failure(error, delay_s), now)
                if late:
                    expired.append(receipt._replace(offsets=late))
        return expired, list(touched.values())

    def renew(self, held: Sequence[Receipt], deadline: float) -> list[Receipt]:
        """A member still holds these: they stay in its hands until the deadline. Returns what it does not hold."""
        expired: list[Receipt] = []
        for receipt in held:
            feed = self._feed_of(receipt, expired)
            if feed is not None:
                late = feed.window.renew(receipt.token, receipt.offsets, deadline)
                late = self.retrying.renew(receipt.queue_id, receipt.token, late, deadline) if late else []
                if late:
                    expired.append(receipt._replace(offsets=late))
        return expired

    def mark_busy(self, feed: Feed) -> None:
        """This feed may have become busy."""
        self.busy.add(feed)
        self.on_busy()

    def sweep(self) -> bool:
        """Leaves only busy feeds in `busy`. Returns whether the group is idle: no feed is busy, no retry in memory."""
        self.busy = {feed for feed in self.busy if feed.is_busy}
        return not self.busy and self.retrying.is_empty

    def expire(self, now: float) -> None:
        """What was not acknowledged in time has failed."""
        failure = Failure(EXPIRED)
        for feed in list(self.busy):
            for token, offsets in feed.window.expire(now):
                self._fail(None, token, {feed: offsets}, [], failure, now)
        for token, keys in self.retrying.expire(now):
            self._fail(None, token, {}, keys, failure, now)

    def release(self, keys: Iterable[tuple[int, str]]) -> None:
        """Of these ordering keys, (queue id, key), the table `retry` had nothing: their queues go on.

        Not of one of which a retry has come into memory since, as when a dead letter was redriven: that is out first.
        """
        for queue_id, key in keys:
            feed = self.feeds.get(queue_id)
            if feed is not None and not self.retrying.is_busy(queue_id, key):
                feed.window.release([key])

    def _feed_of(self, receipt: Receipt, expired: list[Receipt]) -> Feed | None:
        feed = self.feeds.get(receipt.queue_id)
        if feed is None or receipt.epoch != feed.epoch:
            expired.append(receipt)
            return None
        return feed

    def _ack(self, client_id: str, feed: Feed, receipt: Receipt, now: float, expired: list[Receipt]) -> None:
        ready_count = feed.window.ready_count
        late = feed.window.ack(receipt.token, receipt.offsets)
        if feed.window.ready_count > ready_count:  # the next messages of their keys
            self.wake((feed.topic,), feed.window.ready_count - ready_count)
        if late:
            retried, late = self.retrying.take_back(receipt.queue_id, receipt.token, late)
            self.retrying.settled(retried, None)
        if late:
            expired.append(receipt._replace(offsets=late))
        done = len(receipt.offsets) - len(late)
        if done and self.members.succeeded(client_id, now, done):
            self.wake_all()

    def _fail(  # noqa: PLR0917
        self,
        client_id: str | None,
        token: int,
        offsets: Mapping[Feed, Sequence[int]],
        retried: Sequence[tuple[int, int]],
        failure: Failure,
        now: float,
    ) -> None:
        """Messages given under this token failed. During a pause only the probe counts: the rest comes again."""
        count = len(retried) + sum(map(len, offsets.values()))
        if not count:
            return
        if self.members.failed(client_id, count, failure.error, token=token, now=now):
            for feed, each in offsets.items():
                feed.window.unread(each)
            self.retrying.leave(retried)
        else:
            for feed, each in offsets.items():
                feed.window.fail(each, failure)
            self.retrying.settled(retried, failure)

    # ---- waiting

    @property
    def has_waiting(self) -> bool:
        """Whether a member waits for messages."""
        return bool(self._waiting)

    async def wait(self, wants: Mapping[str, TagExpression]) -> None:
        """Returns when there may be something for this member, in the order in which members came.

        Raises what `drop` was given.
        """
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = wants
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self.wake(wants, 1)  # woken and given up at the same moment: somebody else must have the message
            raise
        finally:
            self._waiting.pop(waiting, None)

    def wake(self, topics: Iterable[str], count: int) -> None:
        """Wakes as many members as there are new messages in these topics; all of them where tags differ."""
        for topic in topics:
            wanted = self.members.wanted(topic)
            left = count
            for waiting, wants in list(self._waiting.items()):
                if left <= 0:
                    break
                if topic in wants and not waiting.done():
                    waiting.set_result(None)
                    del self._waiting[waiting]
                    left -= wants[topic] == wanted

    def wake_all(self) -> None:
        """Wakes every member."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def drop(self, why: Exception) -> None:
        """The windows are void: whoever waits is told so."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(why)
        self._waiting.clear()
