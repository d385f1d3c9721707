"""Writes that must not be lost: cursors, outcomes of failed messages, and notes of ordered messages in flight."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

from psycopg.errors import ForeignKeyViolation

from txmsg.broker.cluster import Leases, Membership
from txmsg.broker.delivery.delivery_config import GroupDeliverySettings
from txmsg.broker.delivery.group import Group, GroupQueueReader
from txmsg.broker.delivery.handover import MARGIN_S, has_unsettled
from txmsg.broker.delivery.retries import RetryOutcome
from txmsg.broker.delivery.state import DeliveryState
from txmsg.broker.delivery.window import BEHIND, DeliveryFailure
from txmsg.broker.journal import JournalBuffer, JournalEvent
from txmsg.broker.store import delivery as store
from txmsg.broker.store import leases as leases_store
from txmsg.broker.store import retries as retries_store
from txmsg.broker.store.connect import Connection
from txmsg.broker.store.retries import FirstFailure, FreedKeys, LastFailure, Loss, RetryFailure
from txmsg.broker.store.rows import RetryKey
from txmsg.errors import BrokerUnavailable
from txmsg.message import QueueId
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)
_CURSORS_PER_STATEMENT = 1000
_ROWS_PER_STATEMENT = 1000  # values are looked up in arrays, which is quadratic
_NONE_FREED = FreedKeys([], [])
_ERROR_LENGTH_MAX = 2000
_LEASE_OVER = "leases of these queues have expired: retry, another broker may deliver them"


class ProgressWriter:
    """Writes under the leases of the queues concerned.

    Feeds that have lost their lease are not written, but dropped.
    """

    def __init__(self, state: DeliveryState, membership: Membership) -> None:
        self._state = state
        self._membership = membership
        self.flushing = asyncio.Lock()
        """Held while cursors are written."""

    async def finish(self, feeds: Sequence[GroupQueueReader]) -> None:
        """Stop delivering these feeds, wait up to hand_over_s for their messages in flight, and write their cursors.

        Raises BrokerUnavailable.
        """
        for feed in feeds:
            feed.leaving = True
        feeds = [feed for feed in feeds if feed.group in self._state.busy]  # the others are finished
        await self._state.settlements.wait(lambda: not has_unsettled(feeds), self._state.config.hand_over_s)
        by_group: defaultdict[Group, list[GroupQueueReader]] = defaultdict(list)
        for feed in feeds:
            by_group[feed.group].append(feed)
        for group, its_feeds in by_group.items():
            await self.try_to_write_outcomes(group, its_feeds)
        # Cleared before the hand-over, so that the next broker delivers at once. Feeds with messages still in flight
        # keep their note, and the next broker waits.
        await self.note_in_flight([feed for feed in feeds if feed.noted_until and not has_unsettled([feed])], None)
        await self.flush_once()

    async def flush_once(self) -> None:
        """Write the cursors that have moved. Drops queues that this broker has lost."""
        async with self.flushing:
            await self._flush()

    async def _flush(self) -> None:
        dirty = [feed for feed in self._state.busy_feeds() if feed.window.is_dirty]
        # In the order of group and queue, in which all brokers and operators lock cursors, so that they cannot
        # deadlock.
        dirty.sort(key=lambda feed: (feed.group.id, feed.queue_id))
        for start in range(0, len(dirty), _CURSORS_PER_STATEMENT):
            async with self._state.session() as conn:
                # Checked again for each statement: leases may have been lost during the one before.
                chunk = [
                    feed for feed in dirty[start : start + _CURSORS_PER_STATEMENT] if self._state.is_delivered(feed)
                ]
                stale = await _write_progress(conn, self._state.leases, chunk)
            self._drop_stale(stale)

    def _drop_stale(self, feeds: Iterable[GroupQueueReader]) -> None:
        """Drop feeds whose writes the database has refused. They are loaded again if the broker has their leases.

        If their messages were only put back, they would be delivered, and refused, in the same way again.
        """
        for feed in filter(self._state.is_delivered, feeds):
            _log.warning(
                "delivery.cursor_refused",
                "group %(group)s: topic %(topic)s queue %(queue)d is no longer this broker's",
                group=feed.group.name,
                topic=feed.topic,
                queue=feed.number,
            )
            self._state.remove(feed.group, [feed.queue_id])
            self._membership.reread_leases()

    async def write_outcomes(self, group: Group, feeds: Iterable[GroupQueueReader]) -> None:
        """Write failures and outcomes of retries, then count them as done. One transaction, which locks the leases.

        Raises BrokerUnavailable if a lease is over, as when the topic was deleted, or if the group was deleted.
        """
        async with group.writing:
            # One writer per group at a time (`group.writing`), because `free_keys` must see all rows of a key.
            failing = [
                (feed, failures)
                for feed in feeds
                if (failures := feed.window.failing()) and self._state.is_delivered(feed)
            ]
            outcomes = group.retries.outcomes()
            if not failing and not outcomes:
                return
            self._state.leases.require()
            incarnation = self._state.leases.incarnation
            leases = {feed.queue_id: feed.epoch for feed, _ in failing}
            leases |= {queue_id: group.feeds[queue_id].epoch for queue_id, _ in outcomes}
            failing.sort(key=lambda item: item[0].queue_id)
            keys = {(feed.queue_id, key) for feed, failures in failing for key in feed.window.keys_of(failures)}
            keys |= {(queue_id, each.ordering_key) for (queue_id, _), each in outcomes.items() if each.ordering_key}
            try:
                async with self._state.session() as conn, conn.transaction():
                    # First the leases, FOR SHARE and in the order of queues: a takeover of a queue passes its row over
                    # until the commit, so no other broker can load it between the check and the rows written below.
                    held = await leases_store.hold_leases(conn, incarnation, self._state.leases.broker_id, leases)
                    lost = leases.keys() - held
                    dead = 0
                    if not lost:
                        for feed, failures in failing:
                            dead += await _write_first_failures(conn, feed, failures, group.settings)
                        dead += await _write_retry_outcomes(conn, group, outcomes)
                        free = await retries_store.free_keys(conn, group.id, sorted(keys)) if keys else _NONE_FREED
                        # Counted only while most messages fail: a healthy group may have any number of retries, and
                        # pays nothing for this.
                        if group.members.pause.is_failing():
                            at_most = self._state.config.pause_retries
                            group.members.retries = await retries_store.count_retries(conn, group.id, at_most)
            except ForeignKeyViolation as exc:
                raise BrokerUnavailable(f"group {group.name} was deleted: retry") from exc
            if lost:  # raised here: within the session it would drop all other queues, too
                self._drop_stale(
                    [
                        feed
                        for queue_id, feed in group.feeds.items()
                        if leases.get(queue_id) == feed.epoch and queue_id in lost
                    ]
                )
                raise BrokerUnavailable(_LEASE_OVER)
            failed = sum(failure is not BEHIND for _, failures in failing for failure in failures.values())
            failed += sum(outcome.failure is not None for outcome in outcomes.values())
            self._state.counts.retries += failed - dead
            self._state.counts.dead_letters += dead
            if dead:
                _log.warning(
                    "group.dead_letters",
                    "group %(group)s: no further retry of %(messages)d messages, which are dead letters now: "
                    "`txmsg dead-letter list --group %(group)s` shows them",
                    group=group.name,
                    messages=dead,
                )
            if self._state.journal.queues:
                _journal_outcomes(self._state.journal, group, failing, outcomes)
            for feed, failures in failing:
                # Only now, after the commit: until here a cancellation or a lost connection leaves the failures in
                # memory, and the write, which is idempotent, is repeated.
                feed.window.stored(failures)
                self._state.read_soon(feed)
            group.written(outcomes)
            self._state.freed(group, free)

    async def try_to_write_outcomes(self, group: Group, feeds: Iterable[GroupQueueReader]) -> None:
        """Write outcomes as `write_outcomes`.

        A failure is logged: the write is repeated later, and does not delay other groups.
        """
        try:
            await self.write_outcomes(group, feeds)
        except BrokerUnavailable as exc:
            _log.debug(
                "delivery.retries_unwritten",
                "group %(group)s: what failed is not written yet: %(error)s",
                group=group.name,
                error=exc,
            )

    async def note_in_flight(
        self, feeds: Sequence[GroupQueueReader], visibility_timeout_s: float | None, client_id: str | None = None
    ) -> None:
        """Note in cursors how long ordered messages may be in flight from now on; None: none are.

        client_id: the consumer that is about to get some, besides those that have some. A feed may be named several
        times. Raises BrokerUnavailable if leases are over, and drops their feeds.
        """
        async with AsyncExitStack() as locks:
            # In one order, so that two callers with the same feeds cannot wait for each other.
            for feed in sorted(set(feeds), key=lambda each: (each.group.id, each.queue_id)):
                await locks.enter_async_context(feed.noting)
            await self._note_in_flight(feeds, visibility_timeout_s, client_id)

    async def _note_in_flight(
        self, feeds: Sequence[GroupQueueReader], visibility_timeout_s: float | None, client_id: str | None
    ) -> None:
        feeds = list(dict.fromkeys(filter(self._state.is_delivered, feeds)))
        if not feeds:
            return
        if visibility_timeout_s is None:
            feeds = [feed for feed in feeds if not has_unsettled([feed])]  # since they were chosen
            for feed in feeds:  # before the write: messages that are delivered meanwhile are noted after it
                feed.noted_until = 0.0
        now = self._state.monotonic()
        noted_s = None if visibility_timeout_s is None else visibility_timeout_s + MARGIN_S
        cursors = [(feed.group.id, feed.queue_id, feed.epoch) for feed in feeds]
        leases, incarnation = self._state.leases, self._state.leases.incarnation
        held_by = [{} if noted_s is None else _holders(feed, client_id, now, noted_s) for feed in feeds]
        async with self._state.session() as conn:
            noted = await store.note_held(conn, incarnation, leases.broker_id, cursors, noted_s, held_by)
        refused = [feed for feed in feeds if (feed.group.id, feed.queue_id) not in noted]
        self._drop_stale(refused)
        for feed, holders in zip(feeds, held_by, strict=True):
            feed.noted_by = holders
            if noted_s is not None:
                feed.noted_until = now + noted_s
            feed.noted_s = 0.0 if visibility_timeout_s is None else max(feed.noted_s, visibility_timeout_s)
            feed.idle_since = None
            if self._state.is_delivered(feed):
                feed.group.mark_busy(feed)
        if refused:
            raise BrokerUnavailable(_LEASE_OVER)


def _holders(feed: GroupQueueReader, client_id: str | None, now: float, noted_s: float) -> dict[str, float]:
    """Return the consumers that may hold messages of a feed, and until when; client_id: one more."""
    holders = {id_: until for id_, until in feed.noted_by.items() if until > now}
    return holders if client_id is None else holders | {client_id: now + noted_s}


async def _write_progress(
    conn: Connection, leases: Leases, feeds: Sequence[GroupQueueReader]
) -> list[GroupQueueReader]:
    """Write the cursors of these feeds, in one statement. Returns the feeds whose leases are over."""
    # Taken before the statement: acknowledgements that come while it runs raise the version, and are written next time.
    progresses = [feed.window.progress() for feed in feeds]
    written = await store.write_cursors(
        conn,
        leases.incarnation,
        leases.broker_id,
        [
            store.CursorWrite(feed.group.id, feed.queue_id, feed.epoch, progress.next_offset, progress.acked)
            for feed, progress in zip(feeds, progresses, strict=True)
        ],
    )
    stale: list[GroupQueueReader] = []
    for feed, progress in zip(feeds, progresses, strict=True):
        if (feed.group.id, feed.queue_id) in written:
            feed.window.written(progress)
        else:
            stale.append(feed)
    return stale


def _journal_outcomes(
    journal: JournalBuffer,
    group: Group,
    failing: Sequence[tuple[GroupQueueReader, Mapping[int, DeliveryFailure]]],
    outcomes: Mapping[RetryKey, RetryOutcome],
) -> None:
    """Note which failures are retried, and when, and which are dead letters."""
    for feed, failures in failing:
        if feed.queue_id in journal.queues:
            for offset, failure in failures.items():
                _journal_outcome(journal, group, RetryKey(feed.queue_id, offset), 1, failure)
    for key, (attempt, failure_of_retry, *_) in outcomes.items():
        if failure_of_retry is not None and key.queue_id in journal.queues:
            _journal_outcome(journal, group, key, attempt, failure_of_retry)


def _journal_outcome(
    journal: JournalBuffer, group: Group, key: RetryKey, attempt: int, failure: DeliveryFailure
) -> None:
    if failure is BEHIND:
        journal.note(JournalEvent.RETRY, key.queue_id, [key.offset], group.name, detail=failure.error)
    elif (delay_s := failure.next_s(group.settings.backoff, attempt)) is None:
        journal.note(JournalEvent.DEAD, key.queue_id, [key.offset], group.name, attempt=attempt)
    else:
        journal.note(JournalEvent.RETRY, key.queue_id, [key.offset], group.name, delay_s=delay_s)


def _clean_error(error: str) -> str:
    """Return an error text as PostgreSQL can store it: without NUL and lone surrogates, and cut."""
    return error.replace("\0", "\\0").encode("utf-8", "replace").decode()[:_ERROR_LENGTH_MAX]


async def _write_first_failures(
    conn: Connection, feed: GroupQueueReader, failing: Mapping[int, DeliveryFailure], settings: GroupDeliverySettings
) -> int:
    """Write messages whose first delivery failed, and those that follow their ordering keys, as retries.

    As dead letters, if no retry is allowed or wanted. Returns the number of dead letters. Idempotent. A message whose
    segment was dropped is logged as lost.
    """
    spans = await store.segments_of_queue(conn, feed.queue_id)
    bases = [span.base for span in spans]
    by_segment: dict[int, list[FirstFailure]] = defaultdict(list)
    last: set[int] = set()
    for offset, failure in sorted(failing.items()):
        segment = spans[max(bisect_right(bases, offset) - 1, 0)].segment
        if failure is BEHIND:
            by_segment[segment].append(FirstFailure(offset, None, None))
        else:
            delay_s = failure.next_s(settings.backoff, 1)
            if delay_s is None:
                last.add(offset)
            losses = int(failure.is_loss)
            by_segment[segment].append(FirstFailure(offset, delay_s or 0.0, _clean_error(failure.error), losses))
    count = dead_count = 0
    for segment, failures in sorted(by_segment.items()):
        for start in range(0, len(failures), _ROWS_PER_STATEMENT):
            chunk = failures[start : start + _ROWS_PER_STATEMENT]
            count += await retries_store.insert_retries(conn, feed.group.id, segment, feed.queue_id, chunk)
            # Through the table of retries, also for a message without a retry: the insert copies it from its segment,
            # and one statement makes all dead letters.
            dead = [LastFailure(each.offset, 1, each.error or "") for each in chunk if each.offset in last]
            if dead:
                await retries_store.bury(conn, feed.group.id, feed.queue_id, dead, parks_keys=settings.parks_keys)
                dead_count += len(dead)
    if count < len(failing):
        await _log_lost(conn, feed, failing)
    return dead_count


async def _log_lost(conn: Connection, feed: GroupQueueReader, failing: Mapping[int, DeliveryFailure]) -> None:
    since = [min(failing)]
    kept = {offset for _, offset in await store.failed_offsets(conn, feed.group.id, [feed.queue_id], since)}
    if lost := sorted(failing.keys() - kept):
        _log.error(
            "delivery.retry_lost",
            "group %(group)s failed to process offsets %(offsets)s of topic %(topic)s queue %(queue)d, which are not "
            "kept any more: no retry",
            group=feed.group.name,
            offsets=lost,
            topic=feed.topic,
            queue=feed.number,
        )


async def _write_retry_outcomes(conn: Connection, group: Group, outcomes: Mapping[RetryKey, RetryOutcome]) -> int:
    """Write the outcomes of retries. Returns the number of dead letters. Idempotent."""
    settings = group.settings
    done: dict[QueueId, list[int]] = defaultdict(list)
    again: dict[QueueId, list[RetryFailure]] = defaultdict(list)
    dead: dict[QueueId, list[LastFailure]] = defaultdict(list)
    lost: dict[QueueId, list[Loss]] = defaultdict(list)
    # In the order of queues and offsets, so that rows are locked in one order.
    for (queue_id, offset), (attempt, failure, _, losses) in sorted(outcomes.items(), key=lambda item: item[0]):
        if failure is None:
            done[queue_id].append(offset)
        elif failure.is_loss:
            lost[queue_id].append(Loss(offset, losses, failure.error))
        elif (delay_s := failure.next_s(settings.backoff, attempt)) is None:
            dead[queue_id].append(LastFailure(offset, attempt, _clean_error(failure.error)))
        else:
            again[queue_id].append(RetryFailure(offset, attempt, delay_s, _clean_error(failure.error), losses))
    for queue_id, offsets in done.items():
        await retries_store.delete_retries(conn, group.id, queue_id, offsets)
    for queue_id, losing in lost.items():
        await retries_store.note_losses(conn, group.id, queue_id, losing)
    for queue_id, put_off in again.items():
        await retries_store.update_retries(conn, group.id, queue_id, put_off)
    for queue_id, buried in dead.items():
        await retries_store.bury(conn, group.id, queue_id, buried, parks_keys=settings.parks_keys)
    return sum(map(len, dead.values()))
