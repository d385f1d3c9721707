"""One consumer group in memory: its feeds, retries, members, and waiting calls. Knows no database."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import NamedTuple

from txmsg.broker.delivery.delivery_config import GroupDeliverySettings
from txmsg.broker.delivery.members import Members
from txmsg.broker.delivery.offsets import Expiry, Visibility
from txmsg.broker.delivery.retries import Retries, RetryFetch, RetryOutcome, SuspectSelection
from txmsg.broker.delivery.values import DeliveryCounts, MessageBatch, Receipt, Refusal
from txmsg.broker.delivery.window import BEHIND, FAILURE_OF, DeliveryFailure, InFlightWindow, QueueFetch
from txmsg.broker.journal import JournalBuffer, JournalEvent
from txmsg.broker.store.rows import NO_GENERATIONS, Generations, RetryKey, RetryRow, StoredRow, size_bytes_of
from txmsg.message import QueueId, QueueNumber
from txmsg.wire.tags import TagExpression

_BEHIND_COUNT_MAX = 500
"""Maximum number of messages that may wait to be written behind retries of their keys; more are written at once."""


def _ignore() -> None:
    pass


class Fetch(NamedTuple):
    """The limits of one receive call."""

    wants: Mapping[str, TagExpression]
    """The wanted tags by topic."""
    count_max: int
    size_bytes_max: int
    """Bytes of bodies and headers. The first message may be larger."""
    in_runs: bool = False
    """True to take several messages of an ordering key at once, unless a dead letter is to hold the next one back."""


@dataclass(slots=True, eq=False)
class GroupQueueReader:
    """A queue as one group reads it, until the lease of the queue is lost. Times are of the monotonic clock."""

    group: Group
    topic: str
    number: QueueNumber
    queue_id: QueueId
    epoch: int
    """The epoch of the lease under which the window was built."""
    window: InFlightWindow
    end: int = 0
    """The offset after the last message, as far as known."""
    segment: int | None = None
    """The segment that holds window.position; None: unknown."""
    segment_end: int | None = None
    """The offset at which the next segment starts; None: the segment is not known to be closed."""
    queued: bool = False
    """True while it waits for a reader, or is being read."""
    leaving: bool = False
    """True if the queue is being handed over, or was lost: nothing more is read or delivered; settling continues."""
    generations: Generations = NO_GENERATIONS
    readable: bool = True
    """True if the topic's settings allow reading."""
    opens_at: float | None = None
    """The time before which nothing is delivered: ordered messages that the former broker delivered may be in flight.
    None: open."""
    awaits: dict[str, float] = field(default_factory=dict)
    """Consumers that may hold these messages, and when each was asked last. The feed opens when none of them holds
    any."""
    noted_until: float = 0.0
    """The time until which, by the cursor, ordered messages that this broker delivers may be in flight; 0: none are."""
    noted_s: float = 0.0
    """The longest visibility timeout that was noted since the notes were last cleared."""
    noted_by: dict[str, float] = field(default_factory=dict)
    """The consumers that the cursor names, by client id, and the time until which each may hold messages."""
    noting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the note is written: of two concurrent writes, the later one would not name the consumer of the
    other."""
    idle_since: float | None = None
    """The time since which no noted message was seen in flight."""

    def __post_init__(self) -> None:
        self.window.on_busy = partial(self.group.mark_busy, self)

    def __str__(self) -> str:
        return f"topic {self.topic} queue {self.number}"

    @property
    def is_busy(self) -> bool:
        """True if a periodic step has, or will have, something to do for it."""
        return self.window.is_busy or self.noted_until > 0 or self.opens_at is not None

    @property
    def is_open(self) -> bool:
        """True if its messages may be delivered now."""
        return self.readable and not self.leaving and self.opens_at is None

    def rewind(self) -> None:
        """Read returned messages again. Not while the feed is being read."""
        assert not self.queued
        self.window.rewind()
        self.segment = self.segment_end = None


@dataclass(slots=True, eq=False)
class Group:
    """A group and those queues of its topics that this broker delivers. Queues are added and removed one by one.

    All methods run on the event loop and never wait, except `wait`.
    """

    id: int
    name: str
    retries: Retries
    settings: GroupDeliverySettings = field(default_factory=GroupDeliverySettings)
    members: Members = field(default_factory=lambda: Members(""))
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while failures are written: of two concurrent sessions, neither would see the other's rows of a key."""
    feeds: dict[QueueId, GroupQueueReader] = field(default_factory=dict)
    topics: dict[str, list[GroupQueueReader]] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    """The patterns for which the database has the newest topic at the time when the group began to read them."""
    busy: set[GroupQueueReader] = field(default_factory=set)
    """All feeds that are busy, and perhaps some that no longer are."""
    on_busy: Callable[[], object] = _ignore
    """Called whenever a feed may have become busy."""
    counts: DeliveryCounts = field(default_factory=DeliveryCounts)
    """The counts of the broker, over all groups."""
    journal: JournalBuffer = field(default_factory=JournalBuffer)
    """The journal of the broker."""
    _waiting: dict[asyncio.Future[None], Mapping[str, TagExpression]] = field(default_factory=dict)
    _turn: int = 0
    _gave_suspect: bool = False
    """True if the last reply was a suspect: the next one is not, if anything else is ready."""

    def add(self, topics: Iterable[str], feeds: Iterable[GroupQueueReader]) -> None:
        """Begin to deliver these topics, and these of their queues."""
        for topic in topics:
            self.topics.setdefault(topic, [])
        for feed in feeds:
            self.feeds[feed.queue_id] = feed
            self.topics[feed.topic].append(feed)
            if feed.is_busy:
                self.mark_busy(feed)

    def remove(self, queue_ids: Collection[QueueId]) -> list[GroupQueueReader]:
        """Stop delivering these queues, and drop their windows and retries. Returns the feeds removed."""
        removed = [self.feeds.pop(queue_id) for queue_id in queue_ids if queue_id in self.feeds]
        for feed in removed:
            self.topics[feed.topic].remove(feed)
            feed.leaving = True
            feed.window.close()
            self.busy.discard(feed)
        self.retries.forget_queues({feed.queue_id for feed in removed})
        return removed

    def awaited(self, client_id: str) -> list[GroupQueueReader]:
        """Return the feeds that wait until this member says that it holds no messages of them."""
        return [feed for feed in self.busy if feed.opens_at is not None and client_id in feed.awaits]

    def free(self, client_id: str, queues: Iterable[tuple[QueueId, int]]) -> list[GroupQueueReader]:
        """Note that a member holds nothing of these (queue id, epoch). Returns the feeds that open by that."""
        opened: list[GroupQueueReader] = []
        for queue_id, epoch in queues:
            feed = self.feeds.get(queue_id)
            if feed is None or feed.epoch != epoch or feed.opens_at is None or client_id not in feed.awaits:
                continue
            del feed.awaits[client_id]
            if not feed.awaits:
                feed.opens_at = None
                opened.append(feed)
        if opened:
            self.wake_all()
        return opened

    def allow(self, topic: str, queue_ids: Collection[int]) -> None:
        """Deliver only these queues of a topic: its settings have changed."""
        for feed in self.topics.get(topic, ()):
            if feed.readable != (feed.queue_id in queue_ids):
                feed.readable = not feed.readable
                self.wake_all()

    # ---- delivering

    def take_batches(self, fetch: Fetch, visibility: Visibility) -> list[MessageBatch]:
        """Return messages for one member, now in flight: due retries first, at most half; then the queues, round robin.

        A member whose messages may be LOST gets a suspect as the only message, in turn with others (decision 95).
        """
        if visibility.expiry is not Expiry.LOST:
            return self._take_any(fetch, visibility, SuspectSelection.AMONG_OTHERS)
        if not self._gave_suspect and (batches := self._take_retries(1, fetch, visibility, SuspectSelection.ONLY)):
            self._gave_suspect = True
        elif batches := self._take_any(fetch, visibility, SuspectSelection.LEFT_OUT):
            self._gave_suspect = False
        else:
            batches = self._take_retries(1, fetch, visibility, SuspectSelection.ONLY)
        return batches

    def _take_any(self, fetch: Fetch, visibility: Visibility, suspects: SuspectSelection) -> list[MessageBatch]:
        # Retries take at most half of a reply while queues have messages: a table full of retries must not stop new
        # messages, nor new messages the retries.
        wants, count, size_bytes, in_runs = fetch
        feeds = [
            feed for topic in wants for feed in self.topics.get(topic, ()) if feed.window.ready_count and feed.is_open
        ]
        retries_max = count
        if feeds:
            self._turn += 1
            first = self._turn % len(feeds)
            feeds = feeds[first:] + feeds[:first]
            retries_max = (count + self._turn % 2) // 2  # alternately, where one is asked for at a time
        batches = self._take_retries(retries_max, fetch, visibility, suspects)
        for batch in batches:
            count -= len(batch.rows)
            size_bytes -= sum(map(size_bytes_of, batch.rows))
        if count <= 0:
            return batches
        for shares in (len(feeds), 1):  # first a fair share of each, then the rest
            for index, feed in enumerate(feeds):
                if not feed.window.ready_count:
                    continue
                share = QueueFetch(
                    count_max=-(-count // max(1, shares - index)),
                    size_bytes_max=size_bytes,
                    wanted=wants[feed.topic],
                    wanted_by_any=self.members.wanted(feed.topic),
                    at_least_one=not batches,
                    in_runs=in_runs and not self.settings.parks_keys,
                )
                if rows := feed.window.take_rows(share, visibility):
                    batches.append(self._batch_of(feed, rows, visibility.token))
                    count -= len(rows)
                    if count <= 0:
                        return batches
                    size_bytes -= sum(map(size_bytes_of, rows))
        if not batches:  # all that is ready is for other members: retries need not leave room for it
            batches = self._take_retries(count, fetch, visibility, suspects)
        return batches

    def _take_retries(
        self, count_max: int, fetch: Fetch, visibility: Visibility, suspects: SuspectSelection
    ) -> list[MessageBatch]:
        """Return messages as `_take_any` does, from retries only."""
        if not self.retries.ready_count:
            return []

        def is_wanted(queue_id: QueueId, tag: str | None) -> bool:
            # A retry whose tag no member wants any more goes to any member of the topic: it is never dropped.
            feed = self.feeds[queue_id]
            mine = fetch.wants.get(feed.topic) if feed.is_open else None
            return mine is not None and (mine.matches(tag) or not self.members.wanted(feed.topic).matches(tag))

        taken: defaultdict[QueueId, list[RetryRow]] = defaultdict(list)
        share = RetryFetch(count_max, fetch.size_bytes_max, is_wanted, suspects)
        for row in self.retries.take_retries(share, visibility):
            taken[row.queue_id].append(row)
        return [
            self._batch_of(
                self.feeds[queue_id],
                [row.message for row in rows],
                visibility.token,
                attempts=[row.attempts + 1 for row in rows],
                written=[row.generation for row in rows],
                losses=[row.losses for row in rows],
            )
            for queue_id, rows in taken.items()
        ]

    def _batch_of(
        self,
        feed: GroupQueueReader,
        rows: Sequence[StoredRow],
        token: int,
        *,
        attempts: Sequence[int] | None = None,
        written: Sequence[int] | None = None,
        losses: Sequence[int] | None = None,
    ) -> MessageBatch:
        offsets = [row.offset for row in rows]
        receipt = Receipt(feed.queue_id, token, feed.epoch, offsets)
        generations = [feed.generations.at(offset) for offset in offsets] if feed.generations.starts else None
        if written is not None:  # retries: the later of their own generation and that of a seek since
            generations = list(map(max, written, generations or repeat(0)))
        return MessageBatch(feed.topic, feed.number, receipt, rows, attempts, generations, losses)

    def put_back(self, receipts: Iterable[Receipt]) -> list[GroupQueueReader]:
        """Make messages of these receipts available again, as if they had not been taken.

        Returns the feeds concerned.
        """
        touched: list[GroupQueueReader] = []
        for receipt in receipts:
            feed = self._feed_of(receipt, [])
            if feed is not None:
                _, token, _, offsets = receipt
                # A receipt does not say if its offsets were first deliveries or retries; offsets that the window does
                # not have in flight under the token are retries.
                first, others = feed.window.take_back(token, offsets)
                feed.window.unread(first)
                retries, _ = self.retries.take_back(feed.queue_id, token, others)
                self.retries.leave(retries)
                self.members.returned(len(first) + len(retries))
                if self.journal.queues:
                    offsets = [*first, *(key.offset for key in retries)]
                    self.journal.note(JournalEvent.RETURNED, feed.queue_id, offsets, self.name)
                touched.append(feed)
        return touched

    def asked_for(self, now: float) -> dict[QueueId, GroupQueueReader]:
        """Return the feeds, by queue, whose retries may be delivered to members that are present."""
        topics = self.members.asked_for(now)
        return {queue_id: feed for queue_id, feed in self.feeds.items() if feed.is_open and feed.topic in topics}

    # ---- settling

    def settle(
        self, client_id: str, acks: Sequence[Receipt], refusals: Sequence[Refusal], now: float
    ) -> tuple[list[Receipt], list[GroupQueueReader]]:
        """Take acknowledgements and refusals. Returns the receipts that came too late, and the feeds concerned.

        Failures, and all outcomes of retries, must be written before they count.
        """
        expired: list[Receipt] = []
        touched: dict[QueueId, GroupQueueReader] = {}
        for receipt in acks:
            feed = self._feed_of(receipt, expired)
            if feed is not None:
                touched[feed.queue_id] = feed
                self._ack(client_id, feed, receipt, now, expired)
        for receipt, error, delay_s, is_final, is_rejected, is_least in refusals:
            feed = self._feed_of(receipt, expired)
            if feed is not None:
                touched[feed.queue_id] = feed
                _, token, _, offsets = receipt
                done, late = feed.window.take_back(token, offsets)
                retried, late = self.retries.take_back(feed.queue_id, token, late) if late else ([], [])
                failure = DeliveryFailure(error, delay_s, is_final, is_rejected, is_least)
                self._fail(client_id, token, {feed: done}, retried, failure, now)
                if late:
                    expired.append(receipt._replace(offsets=late))
        return expired, list(touched.values())

    def must_write(self, feeds: Iterable[GroupQueueReader]) -> bool:
        """Return True if outcomes of these feeds, or of retries, must be written now.

        Otherwise it is enough to write them soon: acknowledged retries whose next ones are in memory, as with cursors,
        and messages that follow them into their table. So a key that recovers from a failure does not wait for the disk
        (decision 91).
        """
        for feed in feeds:
            failing = feed.window.failing()
            if len(failing) > _BEHIND_COUNT_MAX or any(failure is not BEHIND for failure in failing.values()):
                return True
            if any(not self.retries.goes_on(feed.queue_id, key) for key in feed.window.keys_of(failing)):
                return True
        return self.retries.must_write

    def renew(self, held: Sequence[Receipt], deadline: float, *, is_exact: bool = False) -> list[Receipt]:
        """Keep messages that a member still holds in flight until the deadline. Returns receipts that it does not hold.

        is_exact: the deadline may also move earlier.
        """
        expired: list[Receipt] = []
        for receipt in held:
            feed = self._feed_of(receipt, expired)
            if feed is not None:
                _, token, _, offsets = receipt
                late = feed.window.renew(token, offsets, deadline, is_exact=is_exact)
                late = self.retries.renew(feed.queue_id, token, late, deadline, is_exact=is_exact) if late else []
                if late:
                    expired.append(receipt._replace(offsets=late))
        return expired

    def note_alone(self, receipts: Iterable[Receipt], *, is_alone: bool) -> list[Receipt]:
        """Note that a member runs these suspects alone, so that their loss counts; or no longer alone: it does not.

        Returns the receipts that it does not hold.
        """
        expired: list[Receipt] = []
        expiry = Expiry.COUNTED if is_alone else Expiry.LOST
        for receipt in receipts:
            if (feed := self._feed_of(receipt, expired)) is not None:
                _, token, _, offsets = receipt
                if late := self.retries.expire_as(expiry, feed.queue_id, token, offsets):
                    expired.append(receipt._replace(offsets=late))
        return expired

    def mark_busy(self, feed: GroupQueueReader) -> None:
        """Note that this feed may have become busy."""
        self.busy.add(feed)
        self.on_busy()

    def sweep(self) -> bool:
        """Remove idle feeds from `busy`. Returns True if the group is idle: no feed is busy, no retry in memory."""
        self.busy = {feed for feed in self.busy if feed.is_busy}
        return not self.busy and self.retries.is_empty

    def expire(self, now: float) -> None:
        """Count messages that were not acknowledged in time as failed, or as lost."""
        for feed in list(self.busy):
            for token, offsets, expiry in feed.window.expire(now):
                # Remembered, because a consumer whose loop was blocked may still finish, and its late acknowledgement
                # counts (decision 95). Not for EXACT: that consumer gave the message back by its own choice of time.
                if expiry is not Expiry.EXACT and self.settings.backoff.retries_max:
                    self.retries.late.expired([RetryKey(feed.queue_id, offset) for offset in offsets], token)
                self._fail(None, token, {feed: offsets}, [], FAILURE_OF[expiry], now)
        for token, keys, expiry in self.retries.expire(now):
            if expiry is not Expiry.EXACT:
                self.retries.late.expired(keys, token)
            self._fail(None, token, {}, keys, FAILURE_OF[expiry], now)

    def written(self, outcomes: Mapping[RetryKey, RetryOutcome]) -> None:
        """Note that these outcomes of retries are on disk."""
        backoff = self.settings.backoff
        self.retries.late.settled(
            key
            for key, (attempt, failure, *_) in outcomes.items()
            if failure is None or failure.next_s(backoff, attempt) is None
        )
        self.retries.written(outcomes)

    def unblock(self, keys: Iterable[tuple[QueueId, str]]) -> None:
        """Continue delivery of ordering keys, (queue id, key), without messages in the table `retry`.

        Except for those with a retry in memory by now, as when a dead letter was redriven: that comes first.
        """
        for queue_id, key in keys:
            feed = self.feeds.get(queue_id)
            if feed is not None and not self.retries.is_busy(queue_id, key):
                feed.window.unblock([key])

    def _feed_of(self, receipt: Receipt, expired: list[Receipt]) -> GroupQueueReader | None:
        feed = self.feeds.get(QueueId(receipt.queue_id))
        if feed is None or receipt.epoch != feed.epoch:
            expired.append(receipt)
            return None
        return feed

    def _ack(
        self, client_id: str, feed: GroupQueueReader, receipt: Receipt, now: float, expired: list[Receipt]
    ) -> None:
        # An acknowledgement may make the next message of an ordering key ready; members are woken for as many as became
        # ready.
        ready_count = feed.window.ready_count + self.retries.ready_count
        late = feed.window.ack(receipt.token, receipt.offsets)
        if feed.queue_id in self.journal.queues:
            done_first = set(receipt.offsets).difference(late)
            self.journal.note(JournalEvent.ACKNOWLEDGED, feed.queue_id, done_first, self.name, by=client_id, attempt=1)
        if late:
            retried, late = self.retries.take_back(feed.queue_id, receipt.token, late)
            self._journal_retried(JournalEvent.ACKNOWLEDGED, retried, by=client_id)
            self.retries.settled(retried, None)
        if late:
            late = self.retries.late.acknowledge(feed.queue_id, late, receipt.token)
        next_count = feed.window.ready_count + self.retries.ready_count - ready_count
        if next_count > 0:  # the next messages of their keys
            self.wake((feed.topic,), next_count)
        if late:
            expired.append(receipt._replace(offsets=late))
        done = len(receipt.offsets) - len(late)
        self.counts.acknowledged += done
        if done and self.members.succeeded(client_id, now, done):
            self.wake_all()

    def _fail(  # noqa: PLR0917
        self,
        client_id: str | None,
        token: int,
        offsets: Mapping[GroupQueueReader, Sequence[int]],
        retried: Sequence[RetryKey],
        failure: DeliveryFailure,
        now: float,
    ) -> None:
        """Count messages delivered under this token as failed.

        During a pause only the failure of the probe counts; the other messages are read again.
        """
        count = len(retried) + sum(map(len, offsets.values()))
        if not count:
            return
        if client_id is None:
            self.counts.expired += count
        else:
            self.counts.refused += count
        if self.journal.queues:
            event = JournalEvent.EXPIRED if client_id is None else JournalEvent.REFUSED
            for feed, failed in offsets.items():
                self.journal.note(
                    event, feed.queue_id, failed, self.name, by=client_id, attempt=1, detail=failure.error
                )
            self._journal_retried(event, retried, by=client_id, detail=failure.error)
        if self._pauses(client_id, token, count, failure, now):
            for feed, failed in offsets.items():
                feed.window.unread(failed)
                self.journal.note(JournalEvent.RETURNED, feed.queue_id, failed, self.name)
            self._journal_retried(JournalEvent.RETURNED, retried)
            self.retries.leave(retried)
        else:
            for feed, failed in offsets.items():
                if returned := feed.window.fail(failed, failure):
                    self.journal.note(JournalEvent.RETURNED, feed.queue_id, returned, self.name)
            self.retries.settled(retried, failure)

    def _pauses(self, client_id: str | None, token: int, count: int, failure: DeliveryFailure, now: float) -> bool:
        """Return True if the group is paused after these failures. A rejection concerns the message, not the group."""
        if client_id is not None and failure.is_rejected:
            if self.members.succeeded(client_id, now, count):
                self.wake_all()
            return False
        return self.members.failed(client_id, count, failure.error, token=token, now=now)

    def _journal_retried(
        self, event: JournalEvent, retried: Sequence[RetryKey], *, by: str | None = None, detail: str | None = None
    ) -> None:
        """Note an event of these retries, which are still in memory."""
        if self.journal.queues:
            for key in retried:
                attempt = self.retries.attempt(key)
                self.journal.note(event, key.queue_id, [key.offset], self.name, by=by, attempt=attempt, detail=detail)

    # ---- waiting

    @property
    def has_waiting(self) -> bool:
        """True if a member waits for messages."""
        return bool(self._waiting)

    async def wait(self, wants: Mapping[str, TagExpression]) -> None:
        """Return when messages may be ready for this member, first come, first served. Raises the error of `drop`."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = wants
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self.wake(wants, 1)  # woken and cancelled at the same moment: another member must get the message
            raise
        finally:
            self._waiting.pop(waiting, None)

    def wake(self, topics: Iterable[str], count: int) -> None:
        """Wake as many members as there are new messages in these topics; all of them if their tags differ."""
        for topic in topics:
            wanted = self.members.wanted(topic)
            left = count
            for waiting, wants in list(self._waiting.items()):
                if left <= 0:
                    break
                if topic in wants and not waiting.done():
                    waiting.set_result(None)
                    del self._waiting[waiting]
                    # A member that wants only some tags may find nothing for it, so it is woken in addition and not
                    # counted.
                    left -= wants[topic] == wanted

    def wake_all(self) -> None:
        """Wake every member."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def drop(self, why: Exception) -> None:
        """Raise this error in waiting members: the group is dropped."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(why)
        self._waiting.clear()
