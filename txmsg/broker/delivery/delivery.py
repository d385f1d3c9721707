"""Delivery as the service and the cluster call it.

The pure modules decide; this one acts. All that is delivered is in memory, each queue under the epoch of its lease.
When the database or the leases are lost, everything is dropped and read again from the stored cursors: only messages
whose acknowledgements were not yet written are redelivered.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import NamedTuple, assert_never

from txmsg.broker.cluster import Membership
from txmsg.broker.delivery.delivery_config import DeliveryConfig
from txmsg.broker.delivery.group import Fetch, Group
from txmsg.broker.delivery.handover import note_holder, notes_to_lengthen, notes_to_write
from txmsg.broker.delivery.loader import Loader
from txmsg.broker.delivery.maintenance import Maintenance
from txmsg.broker.delivery.offsets import Visibility
from txmsg.broker.delivery.patterns import Patterns, patterns_of
from txmsg.broker.delivery.reader import WindowReader
from txmsg.broker.delivery.state import DeliveryState
from txmsg.broker.delivery.values import (
    MemberConnection,
    MessageBatch,
    NoMessages,
    PollSequenceStep,
    Receipt,
    Receive,
    Refusal,
    TopicQueues,
)
from txmsg.broker.delivery.writer import ProgressWriter
from txmsg.broker.journal import JournalBuffer, JournalEvent
from txmsg.broker.store.connect import Pool
from txmsg.errors import BrokerUnavailable
from txmsg.message import QueueId
from txmsg.runtime.logs import EventLog
from txmsg.runtime.reason import without_words
from txmsg.wire.tags import TagExpression, wants_of

_log = EventLog(__name__)
_TOKEN_BITS = 48
"""Tokens start at random and rise, so that a receipt of an earlier process of this broker, or of an incarnation of the
database with the same epochs, settles nothing that this process delivers."""
_ASK_AGAIN_S = 5.0
"""Seconds after which a member is asked again if it holds messages of a queue: a reply that asked it may be lost."""
_NAP_S_MAX = 0.5
"""Seconds that a member that may get nothing sleeps before it checks if the broker is closing."""


class _ReceiveCall(NamedTuple):
    """A receive call in progress."""

    request: Receive
    outlet: MemberConnection | None
    group: Group
    wants: Mapping[str, TagExpression]
    """The wanted tags by topic."""
    patterns: frozenset[str]
    """The patterns by which some of these topics were named."""


class _Parked(NamedTuple):
    """A receive call that waits for messages."""

    patience: asyncio.Timeout
    patterns: frozenset[str]


class Delivery:
    """Delivers the queues that this broker leases to all groups; it is the holder of these leases.

    `run()` runs in a task. `receive` and `settle` raise BrokerUnavailable before it, after it, and while the database
    is away.
    """

    def __init__(
        self,
        pool: Pool,
        membership: Membership,
        config: DeliveryConfig,
        *,
        topics: TopicQueues,
        journal: JournalBuffer | None = None,
    ) -> None:
        membership.holder = self
        pool.incarnation.on_end(self._forget_deliveries)
        self._membership = membership
        self._state = DeliveryState(pool, membership.leases, config, journal)
        self._state.end_polls = self._end_polls
        self.writer = ProgressWriter(self._state, membership)
        self._loader = Loader(self._state, membership, self.writer, topics)
        self._patterns = Patterns(self._state, self._waiting_patterns, self._end_polls_by)
        self.maintenance = Maintenance(self._state, self.writer, self._loader, topics, self._patterns)
        """The steps that `run` repeats."""
        self.reader = WindowReader(self._state)
        self._topics = topics
        self._parked: dict[tuple[str, str, int], _Parked] = {}  # who waits, by group, client and line
        self._token = secrets.randbits(_TOKEN_BITS)

    @property
    def state(self) -> DeliveryState:
        """The contents of memory, for inspection."""
        return self._state

    def apply_settings(self, config: DeliveryConfig) -> None:
        """Apply these settings from now on, as far as they are live."""
        self._state.config = config
        self._state.memory.size_bytes_max = config.memory_size_bytes_max
        for group in self._state.groups.values():
            group.members.pause_after(config.pause_failures, config.pause_retries)

    # ---- for the service

    async def receive(self, request: Receive, outlet: MemberConnection | None = None) -> list[MessageBatch]:
        """Return messages for a member of a group; none if none came within the time that it waits.

        outlet: while it is full, nothing is taken. Raises BrokerUnavailable, InvalidName for a bad tag expression, and
        UnknownTopic.
        """
        wants = asked = wants_of(tuple(request.subscriptions))
        patterns = patterns_of(asked)
        if patterns:
            wants = await self._patterns.wanted(asked)
        # Read after `wanted` and before the group is loaded: topics with higher ids count as created later, and a group
        # gets all messages of those.
        newest = self._patterns.newest
        group = await self._loader.group(request.group, wants, request.start, asked, newest=newest)
        call = _ReceiveCall(request, outlet, group, wants, patterns)
        group.members.join(request.client_id, wants, self._state.monotonic(), self._state.config.member_ttl_s)
        if request.line is not None and not self._follow(group, request.client_id, request.line):
            return []
        found = self._take_messages(call)
        if isinstance(found, NoMessages) and patterns and not self._patterns.is_current(asked, wants):
            # Parked calls are ended when topics are created; this one was not parked yet, so the member calls again.
            return []
        wait_s = min(request.wait_s, self._ask_in_s(group, request.client_id))
        if isinstance(found, NoMessages) and wait_s > 0:
            with group.members.waits(request.client_id, self._state.monotonic, request.line):
                found = await self._wait(call, found, wait_s)
        if isinstance(found, NoMessages):
            return []
        await self._note(call, [batch.receipt for batch in found])
        return found

    async def _wait(self, call: _ReceiveCall, why: NoMessages, wait_s: float) -> list[MessageBatch] | NoMessages:
        """Wait for messages for a call that found none, and take them."""
        request, group = call.request, call.group
        parked = None if request.line is None else (group.name, request.client_id, request.line.id)
        found: list[MessageBatch] | NoMessages = why
        try:
            async with asyncio.timeout(wait_s) as patience:
                if parked is not None:
                    self._parked[parked] = _Parked(patience, call.patterns)
                # Only `_take_messages` decides if the member may get anything. A second check of the clock here could
                # disagree with it, and the member would wait to be woken for a message that is ready already.
                while isinstance(found, NoMessages) and not self._state.draining:
                    match found:
                        case NoMessages.NONE_READY:
                            with self._state.waiting_for(call.wants):
                                await group.wait(call.wants)
                            found = self._take_messages(call)
                            if found is NoMessages.NONE_ALLOWED or found is NoMessages.SUPERSEDED:
                                group.wake(call.wants, 1)  # for a message that others may get
                        case NoMessages.NONE_ALLOWED:
                            await self._nap(call)
                            found = self._take_messages(call)
                        case NoMessages.SUPERSEDED:
                            break
                        case _:
                            assert_never(found)
        except TimeoutError:
            return NoMessages.NONE_READY
        except asyncio.CancelledError:  # as when the client's connection ends
            # The connection is gone, so if the member has the probe of a pause, the next probe need not wait for its
            # result.
            group.members.left(request.client_id)
            raise
        finally:
            # A later call on the same line may have replaced the entry while this one was ending.
            if parked is not None and (last := self._parked.get(parked)) is not None and last.patience is patience:
                del self._parked[parked]
        return found

    async def _nap(self, call: _ReceiveCall) -> None:
        """Sleep until a member that may get nothing could get something. It is not woken in place of others."""
        if call.outlet is not None and call.outlet.is_full:
            with suppress(TimeoutError):
                async with asyncio.timeout(_NAP_S_MAX):
                    await call.outlet.emptied()
        else:
            blocked_s = call.group.members.blocked_s(call.request.client_id, self._state.monotonic())
            await asyncio.sleep(min(blocked_s, _NAP_S_MAX))

    async def _note(self, call: _ReceiveCall, receipts: Sequence[Receipt]) -> None:
        """Record the messages of a call before they are sent: with its line, and in the cursors of ordered messages."""
        request, group = call.request, call.group
        if request.line is not None and (replaced := group.members.sent(request.client_id, request.line, receipts)):
            self.put_back(group.name, request.client_id, replaced)
        # Written before the reply is sent: if this broker dies afterwards, the next one finds in the cursor until when
        # the ordered messages may be in flight (decision 3).
        feeds = [group.feeds[QueueId(receipt.queue_id)] for receipt in receipts]
        now = self._state.monotonic()
        note_holder(feeds, request.client_id, now, request.visibility_timeout_s)
        if unnoted := notes_to_write(feeds, request.client_id, now, request.visibility_timeout_s):
            try:
                await self.writer.note_in_flight(unnoted, request.visibility_timeout_s, request.client_id)
                # The process may have been paused during the write, and others deliver these queues now.
                self._state.leases.require()
            except BaseException:  # also when the call was cancelled
                self.put_back(group.name, request.client_id, receipts)
                raise

    def follow(self, group: str, client_id: str, line: PollSequenceStep) -> None:
        """Begin a call on a line of a member. Earlier calls on it are over, and a waiting one returns nothing.

        Messages that were sent over it and not received are redelivered at once, which does not count as an attempt.
        Nothing happens if a later call has come before this one, as when an abandoned connection delivers it late.
        """
        loaded = self._state.groups.get(group)
        if loaded is not None:
            self._follow(loaded, client_id, line)

    def _follow(self, group: Group, client_id: str, line: PollSequenceStep) -> bool:
        """Return True if this is the latest call on the line."""
        if not group.members.is_latest(client_id, line):
            return False
        parked = self._parked.pop((group.name, client_id, line.id), None)
        if parked is not None:
            _end_wait(parked)
        if lost := group.members.follow(client_id, line):
            self.put_back(group.name, client_id, lost)
        return True

    def put_back(self, group: str, client_id: str, receipts: Sequence[Receipt]) -> None:
        """Redeliver messages that a member does not get, at once. This does not count as an attempt."""
        loaded = self._state.groups.get(group)
        if loaded is not None:
            for feed in loaded.put_back(receipts):
                self._state.read_soon(feed)
            loaded.members.left(client_id)

    def free(self, group: str, client_id: str, queues: Sequence[tuple[QueueId, int]]) -> None:
        """Note that a member holds no messages of these queues (id, epoch).

        Queues that waited only for this member are delivered from now on.
        """
        loaded = self._state.groups.get(group)
        for feed in () if loaded is None else loaded.free(client_id, queues):
            _log.info(
                "delivery.queue_free",
                "group %(group)s: topic %(topic)s queue %(queue)d waits no longer: no consumer holds messages of it",
                group=group,
                topic=feed.topic,
                queue=feed.number,
            )
            self._state.read_soon(feed)

    def awaited(self, group: str, client_id: str) -> list[tuple[QueueId, int]]:
        """Return queues (id, epoch) that wait until this member holds no messages of them.

        The caller asks the member with its reply; the time is noted.
        """
        loaded = self._state.groups.get(group)
        awaited = [] if loaded is None else loaded.awaited(client_id)
        for feed in awaited:
            feed.awaits[client_id] = self._state.monotonic()
        return [(feed.queue_id, feed.epoch) for feed in awaited]

    def _ask_in_s(self, group: Group, client_id: str) -> float:
        """Return the seconds until a poll of this member ends to ask for the messages that it holds.

        Infinity: it does not end for that.
        """
        asked_at = min((feed.awaits[client_id] for feed in group.awaited(client_id)), default=math.inf)
        return asked_at + _ASK_AGAIN_S - self._state.monotonic()

    def _end_polls(self, group: str, client_ids: Collection[str]) -> None:
        """End the waiting polls of these members, so that the replies ask for the messages that they hold."""
        for (name, client_id, _), parked in self._parked.items():
            if name == group and client_id in client_ids:
                _end_wait(parked)

    def _waiting_patterns(self) -> set[str]:
        return {pattern for parked in self._parked.values() for pattern in parked.patterns}

    def _end_polls_by(self, patterns: Collection[str]) -> None:
        """End the polls that wait for topics of these patterns: the patterns match other topics now."""
        for parked in self._parked.values():
            if not parked.patterns.isdisjoint(patterns):
                _end_wait(parked)

    async def renew(
        self,
        group: str,
        client_id: str,
        held: Sequence[Receipt],
        visibility_timeout_s: float,
        *,
        is_exact: bool = False,
    ) -> list[Receipt]:
        """Restart the visibility timeout of messages that a member still holds. Returns receipts that it does not hold.

        is_exact: the timeout may end earlier than before, and then the messages are redelivered at once. Raises
        BrokerUnavailable.
        """
        self._state.leases.require()
        loaded = self._state.groups.get(group)
        if loaded is None:
            return [*held]
        expired = loaded.renew(held, self._state.monotonic() + visibility_timeout_s, is_exact=is_exact)
        feeds = [loaded.feeds[queue_id] for queue_id in {QueueId(each.queue_id) for each in held} & loaded.feeds.keys()]
        note_holder(feeds, client_id, self._state.monotonic(), visibility_timeout_s)
        if unnoted := notes_to_lengthen(feeds, visibility_timeout_s):
            await self.writer.note_in_flight(unnoted, visibility_timeout_s, client_id)
        return expired

    def note_alone(self, group: str, receipts: Sequence[Receipt], *, is_alone: bool) -> list[Receipt]:
        """Note that a member runs these suspects alone from now on, or no longer: then their loss does not count.

        Returns the receipts that it does not hold. Raises BrokerUnavailable.
        """
        self._state.leases.require()
        loaded = self._state.groups.get(group)
        return [*receipts] if loaded is None else loaded.note_alone(receipts, is_alone=is_alone)

    async def settle(
        self, group: str, client_id: str, acks: Sequence[Receipt], refusals: Sequence[Refusal]
    ) -> list[Receipt]:
        """Take acknowledgements and refusals. Returns the receipts that came too late, in any order.

        On return acknowledgements are in memory (the cursor is written within flush_s); those of retries, and all
        refusals, are on disk. Exceptions: refusals in a run of which earlier messages are in flight wait for these, and
        `expire_once` writes acknowledgements of retries behind which others wait in memory, and everything after a
        cancellation. For an erasable topic the words of an error are not kept: they may quote the body.
        """
        self._state.leases.require()
        if refusals:
            refusals = await self._kept(group, refusals)
            # Checked again: reading the topic may have taken longer than the leases last.
            self._state.leases.require()
        loaded = self._state.groups.get(group)
        if loaded is None:
            return [*acks, *(refusal.receipt for refusal in refusals)]
        expired, touched = loaded.settle(client_id, acks, refusals, self._state.monotonic())
        if loaded.must_write(touched):
            await self.writer.write_outcomes(loaded, touched)
        self._state.settlements.settled()
        for feed in touched:
            self._state.read_soon(feed)
        if expired:
            self._state.counts.late += sum(len(receipt.offsets) for receipt in expired)
        return expired

    async def _kept(self, group: str, refusals: Sequence[Refusal]) -> list[Refusal]:
        """Return the refusals with the parts of their errors that may be kept."""
        loaded = self._state.groups.get(group)
        kept: list[Refusal] = []
        for refusal in refusals:
            feed = None if loaded is None else loaded.feeds.get(QueueId(refusal.receipt.queue_id))
            is_secret = feed is not None and await self._is_erasable(feed.topic)
            kept.append(refusal._replace(error=without_words(refusal.error)) if is_secret else refusal)
        return kept

    async def _is_erasable(self, topic: str) -> bool:
        try:
            return await self._topics.is_erasable(topic)
        except BrokerUnavailable:  # it is better to lose the words of an error than to settle nothing
            return True

    def wake(self, ends: Mapping[int, int]) -> None:
        """Note that queues (by id) now end before these offsets: waiting members get the new messages at once."""
        self._state.wake(ends)

    def attached(self, group: str, client_id: str, *, is_there: bool) -> None:
        """Note that a consumer begins its presence at this broker, or ends it: then it is not a member any more."""
        if (loaded := self._state.groups.get(group)) is not None:
            loaded.members.attached(client_id, is_there=is_there)

    def members_of(self, group: str) -> list[tuple[str, float]]:
        """Return the members of a group that are present here, and the seconds since each asked for messages."""
        loaded = self._state.groups.get(group)
        return [] if loaded is None else loaded.members.present(self._state.monotonic())

    def pause_of(self, group: str) -> tuple[float, str] | None:
        """Return the seconds for which delivery to a group has been paused here, and the last error.

        None if it is not paused.
        """
        loaded = self._state.groups.get(group)
        if loaded is None or loaded.members.pause.since is None:
            return None
        return self._state.monotonic() - loaded.members.pause.since, loaded.members.pause.last_error

    def why_paused(self, group: str) -> str:
        """Return the reason why the group gets nothing here, or single messages only; "" if delivery runs."""
        loaded = self._state.groups.get(group)
        if loaded is None:
            return ""
        if loaded.members.stopped:
            return f"an operator has stopped it: `txmsg group start {group}`"
        if loaded.members.pause.is_on:
            return "everything fails, so it gets single messages until one is processed"
        return ""

    def look_for_retries(self) -> None:
        """Read retries at once: some may have become due."""
        self._state.retries_due.set()

    def look_soon(self) -> None:
        """Read the settings and positions of groups at once: an operator has changed one."""
        self.maintenance.changed.set()

    async def flush(self) -> None:
        """Write the acknowledgements taken so far."""
        for group in list(self._state.busy):
            await self.writer.write_outcomes(group, list(group.busy))
        await self.writer.flush_once()

    # ---- running

    async def run(self) -> None:
        """Deliver until `close` or cancellation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.maintenance.run(), name="delivery maintenance")
            readers = [
                tasks.create_task(self.reader.run(), name="delivery reader") for _ in range(self._state.config.readers)
            ]
            await self._state.closed.wait()
            for reader in readers:
                reader.cancel()

    def drain(self) -> None:
        """End all waiting receives; from now on none waits. For a graceful stop."""
        self._state.draining = True
        for group in self._state.groups.values():
            group.wake_all()

    async def close(self) -> None:
        """Stop, write the cursors, and let another broker deliver at once. Idempotent; also before `run`.

        Raises BrokerUnavailable if the database is away: then the leases expire.
        """
        self.drain()
        self._state.closed.set()
        self.maintenance.gained.set()
        self.maintenance.changed.set()
        self._state.retries_due.set()
        if self._state.leases.is_member:
            await self.finish(list(self._state.leases.epochs()))
        await self._membership.leave()
        self.drop("this broker is closing")

    # ---- leases come and go (Holder)

    def gained(self) -> None:
        """Load the queues of new leases for the groups that read them."""
        self.maintenance.gained.set()

    def lost(self, queue_ids: Collection[QueueId], why: str) -> None:
        """Drop the windows and retries of these queues, for all groups."""
        _log.info(
            "delivery.queues_lost",
            "no longer delivers %(queues)d queues: %(reason)s",
            queues=len(queue_ids),
            reason=why,
        )
        self._state.leaving.difference_update(queue_ids)
        for group in {feed.group for queue_id in queue_ids for feed in self._state.feeds_of.get(queue_id, ())}:
            self._state.remove(group, queue_ids)

    async def finish(self, queue_ids: Collection[QueueId]) -> None:
        """Stop delivering these queues, wait up to hand_over_s for their messages in flight, and write their cursors.

        Raises BrokerUnavailable.
        """
        self._state.leaving.update(queue_ids)
        await self.writer.finish([feed for queue_id in queue_ids for feed in self._state.feeds_of.get(queue_id, ())])

    def drop(self, why: str) -> None:
        """Drop the leases and everything in memory. Waiting members get BrokerUnavailable."""
        self._state.drop(why)

    # ---- inside

    def _forget_deliveries(self, why: str) -> None:
        """Drop everything: the database returned to an earlier state, and messages in flight may not exist any more."""
        self.drop(why)
        self._state.ordered_in_flight.clear()

    def _take_messages(self, call: _ReceiveCall) -> list[MessageBatch] | NoMessages:
        """Return the messages that this call gets now, or the reason why it gets none."""
        request, group, config = call.request, call.group, self._state.config
        client_id, visibility_timeout_s = request.client_id, request.visibility_timeout_s
        if call.outlet is not None and call.outlet.is_full:
            return NoMessages.NONE_ALLOWED
        if request.line is not None and not group.members.is_latest(client_id, request.line):
            return NoMessages.SUPERSEDED
        self._state.leases.require()
        if self._state.groups.get(group.name) is not group:
            raise BrokerUnavailable("delivery has started again from its stored cursors: retry")
        now = self._state.monotonic()
        count_max = int(min(request.count_max, group.members.room(client_id, now)))
        if not count_max:
            return NoMessages.NONE_ALLOWED
        size_bytes_max = config.reply_size_bytes_max
        if request.size_bytes_max is not None:
            size_bytes_max = min(request.size_bytes_max, size_bytes_max)
        # A token per reply, not per message: a receipt names a token and offsets, so an older receipt of the same
        # offset is refused (decision 10).
        self._token += 1
        batches = group.take_batches(
            Fetch(call.wants, count_max, size_bytes_max, in_runs=request.in_runs),
            Visibility(
                token=self._token,
                deadline=now + visibility_timeout_s,
                deadline_max=now + max(visibility_timeout_s, config.held_s_max),
                expiry=request.expiry,
            ),
        )
        if batches:
            given = sum(len(batch.rows) for batch in batches)
            self._state.counts.delivered += given
            if self._state.journal.queues:
                _journal_delivered(self._state.journal, group, client_id, batches)
            group.members.given(client_id, given, token=self._token, now=now, visibility_timeout_s=visibility_timeout_s)
        # What was taken leaves room in the windows, so a reader may fill them while the member works.
        for topic in call.wants:
            for feed in group.topics[topic]:
                self._state.read_soon(feed)
        return batches or NoMessages.NONE_READY


def _end_wait(parked: _Parked) -> None:
    if not parked.patience.expired():
        parked.patience.reschedule(asyncio.get_running_loop().time())


def _journal_delivered(journal: JournalBuffer, group: Group, client_id: str, batches: Sequence[MessageBatch]) -> None:
    for batch in batches:
        if batch.receipt.queue_id not in journal.queues:
            continue  # a journal costs other topics nothing
        offsets: defaultdict[int, list[int]] = defaultdict(list)
        for offset, attempt in zip(batch.receipt.offsets, batch.attempts or repeat(1), strict=False):
            offsets[attempt].append(offset)
        for attempt, taken in offsets.items():
            journal.note(
                JournalEvent.DELIVERED, batch.receipt.queue_id, taken, group.name, by=client_id, attempt=attempt
            )
