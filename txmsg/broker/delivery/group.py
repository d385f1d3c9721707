"""One consumer group in memory: its windows, its retries, and the members that wait. Knows no database."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from txmsg.broker.delivery.retrying import Retrying
from txmsg.broker.delivery.values import Handout, Receipt, Refusal
from txmsg.broker.delivery.window import Failure, Window
from txmsg.broker.store.rows import RetryRow, Row, size_bytes_of
from txmsg.wire.tags import ALL_TAGS, TagExpression

__all__ = ["Feed", "Group"]


@dataclass(slots=True, eq=False)
class Feed:
    """A queue as one group reads it: its window, how far the queue is known to reach, and where it is read.

    epoch: of the queue's lease, under which the window was built; with the lease the whole object is dropped.
    segment: the one that holds window.position, with the offset at which the next one starts (None: not known to
    be closed). queued: whether it waits for a reader, or is being read.
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


@dataclass(slots=True)
class _Member:
    wants: Mapping[str, TagExpression]
    seen_at: float


@dataclass(slots=True, eq=False)
class Group:
    """A group and those queues of its topics that this broker delivers: they come and go one by one.

    All methods run on the event loop and never wait, except `wait`.
    """

    id: int
    name: str
    retrying: Retrying
    feeds: dict[int, Feed] = field(default_factory=dict)
    topics: dict[str, list[Feed]] = field(default_factory=dict)
    _members: dict[str, _Member] = field(default_factory=dict)
    _wanted: dict[str, TagExpression] = field(default_factory=dict)
    _waiting: dict[asyncio.Future[None], Mapping[str, TagExpression]] = field(default_factory=dict)
    _turn: int = 0
    _swept_at: float = 0.0

    def add(self, topics: Iterable[str], feeds: Iterable[Feed]) -> None:
        """Begins to deliver these topics, and of their queues these."""
        for topic in topics:
            self.topics.setdefault(topic, [])
        for feed in feeds:
            self.feeds[feed.queue_id] = feed
            self.topics[feed.topic].append(feed)

    def remove(self, queue_ids: Collection[int]) -> list[Feed]:
        """Delivers these queues no more: their windows and retries are void. Returns the feeds that there were."""
        gone = [self.feeds.pop(queue_id) for queue_id in queue_ids if queue_id in self.feeds]
        for feed in gone:
            self.topics[feed.topic].remove(feed)
        self.retrying.forget({feed.queue_id for feed in gone})
        return gone

    # ---- members

    def join(self, client_id: str, wants: Mapping[str, TagExpression], now: float, ttl_s: float) -> None:
        """Notes what a member wants, and forgets members that were silent for ttl_s."""
        member = self._members.get(client_id)
        if member is not None and member.wants == wants and now < self._swept_at + ttl_s / 10:
            member.seen_at = now
            return
        self._members[client_id] = _Member(wants, now)
        self._members = {each: member for each, member in self._members.items() if member.seen_at > now - ttl_s}
        self._swept_at = now
        self._wanted = {
            topic: TagExpression.union(m.wants[topic] for m in self._members.values() if topic in m.wants)
            for topic in {topic for m in self._members.values() for topic in m.wants}
        }

    def wanted(self, topic: str) -> TagExpression:
        """Which tags of a topic at least one member wants."""
        return self._wanted.get(topic, ALL_TAGS)

    # ---- giving

    def take(
        self, wants: Mapping[str, TagExpression], count: int, size_bytes: int, *, token: int, deadline: float
    ) -> list[Handout]:
        """Messages for one member, now in flight: due retries first, but at most half; then the queues by turns."""
        feeds = [feed for topic in wants for feed in self.topics.get(topic, ()) if feed.window.ready_count]
        retries_max = count
        if feeds:
            self._turn += 1
            first = self._turn % len(feeds)
            feeds = feeds[first:] + feeds[:first]
            retries_max = (count + self._turn % 2) // 2  # by turns, where one is asked for at a time
        handouts = self._take_retries(wants, retries_max, size_bytes, token=token, deadline=deadline)
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
                    mine=wants[feed.topic],
                    group=self.wanted(feed.topic),
                    at_least_one=not handouts,
                )
                if rows:
                    count -= len(rows)
                    size_bytes -= sum(map(size_bytes_of, rows))
                    handouts.append(self._handout(feed, rows, token))
        return handouts

    def _take_retries(
        self, wants: Mapping[str, TagExpression], count: int, size_bytes: int, *, token: int, deadline: float
    ) -> list[Handout]:
        if not self.retrying.ready_count:
            return []

        def is_wanted(queue_id: int, tag: str | None) -> bool:
            # A retry whose tag nobody wants any more goes to any member of the topic: it is never dropped.
            topic = self.feeds[queue_id].topic
            mine = wants.get(topic)
            return mine is not None and (mine.matches(tag) or not self.wanted(topic).matches(tag))

        taken: defaultdict[int, list[RetryRow]] = defaultdict(list)
        for row in self.retrying.take(count, size_bytes, token=token, deadline=deadline, wants=is_wanted):
            taken[row[0]].append(row)
        return [
            self._handout(
                self.feeds[queue_id],
                [row for *_, row in rows],
                token,
                attempts=[each + 1 for _, each, _, _ in rows],
                generations=[each for _, _, each, _ in rows],
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
        generations: Sequence[int] | None = None,
    ) -> Handout:
        receipt = Receipt(feed.queue_id, token, feed.epoch, [row[0] for row in rows])
        return Handout(feed.topic, feed.number, receipt, rows, attempts, generations)

    # ---- settling

    def settle(self, acks: Sequence[Receipt], refusals: Sequence[Refusal]) -> tuple[list[Receipt], list[Feed]]:
        """Takes the answers of a member: the receipts that came too late, and the feeds concerned.

        Acknowledged is done; what failed, and any outcome of a retry, must be written before it counts.
        """
        expired: list[Receipt] = []
        touched: dict[int, Feed] = {}
        answers: list[tuple[Receipt, Failure | None]] = [(receipt, None) for receipt in acks]
        answers += [(receipt, Failure(error, delay_s)) for receipt, error, delay_s in refusals]
        for receipt, failure in answers:
            queue_id, token, epoch, offsets = receipt
            feed = self.feeds.get(queue_id)
            if feed is None or epoch != feed.epoch:
                expired.append(receipt)
                continue
            touched[queue_id] = feed
            late = feed.window.ack(token, offsets) if failure is None else feed.window.refuse(token, offsets, failure)
            if late:
                late = self.retrying.settle(queue_id, token, late, failure)
            if late:
                expired.append(receipt._replace(offsets=late))
        return expired, list(touched.values())

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
            wanted = self.wanted(topic)
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
