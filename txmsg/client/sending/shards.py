"""The spread of a producer's messages over several Notify databases, its shards. Unused with a single database.

A transaction has one shard. A message without an ordering key goes where the fewest are waiting. A shard that fails or
stands still passes on entries that are certainly not stored in it, and half messages also when that is uncertain, under
another transaction id: copies that may be there are never committed, and their check-back removes them. An ordering key
always has the same shard, and waits for it. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

from txmsg.client.channel import RETRYABLE, Brokers
from txmsg.client.sending.batch import EndEntry, FreshEntry, SendEntry
from txmsg.client.sending.sender import RequestLane, Sender
from txmsg.client.sending.thread_lane import ThreadWaiter, wait_for
from txmsg.client.sending.waiting import PENDING_ITEMS_MAX
from txmsg.errors import BrokerUnavailable, InvalidMessage, Overloaded, TxmsgError
from txmsg.message import new_transaction_id_bytes
from txmsg.runtime.background import in_background
from txmsg.runtime.logs import EventLog
from txmsg.wire.v1.txmsg_pb2 import RecallReply

_log = EventLog(__name__)

FIND_S_MAX = 2.0
"""Seconds that a start waits for each database to report its identity."""
STILL_S = 1.0
"""A shard with a request in progress for more seconds gets no new entries that may go to another one."""
LOOK_INTERVAL_S = 0.25


async def find_shards(shards: Sequence[Brokers], *, timeout_s: float) -> None:
    """Ask each database for its identity, so that ordering keys have their shards from the beginning.

    A database that is away is identified later; messages with ordering keys are refused until then.
    """
    found = await asyncio.gather(
        *(brokers.find_shard(min(timeout_s, FIND_S_MAX)) for brokers in shards), return_exceptions=True
    )
    for error in found:
        if isinstance(error, RETRYABLE):
            _log.warning(
                "client.database_away",
                "a Notify database is away; the producer starts without it: %(error)s",
                error=error,
            )
        elif error is not None:
            raise error


class Shards:
    """The senders of one producer, one per shard, and the choice among them. Has the interface of a `Sender`."""

    def __init__(self, senders: Sequence[Sender], *, timeout_s: float) -> None:
        self._senders = senders
        self.new_waiter = senders[0].new_waiter
        self.plain = _ShardedLane(
            [_ShardLane(sender.brokers, sender.plain) for sender in senders], _plain_may_leave, timeout_s
        )
        self.halves = _ShardedLane(
            [_ShardLane(sender.brokers, sender.halves) for sender in senders], self._half_may_leave, timeout_s
        )
        for sender, plain, half in zip(senders, self.plain.ways, self.halves.ways, strict=True):
            sender.plain.elsewhere = partial(self.plain.elsewhere, plain)
            sender.halves.elsewhere = partial(self.halves.elsewhere, half)
        self._looking = in_background(self._place_repeatedly(), name="txmsg-shards")

    def end_transaction(self, shard: bytes, entry: EndEntry) -> None:
        """Queue the outcome of a transaction for a broker of its shard."""
        try:
            sender = self._of_shard(shard)
        except TxmsgError as exc:
            entry.fail(exc)
        else:
            sender.end_transaction(shard, entry)

    def end_by_thread(self, shard: bytes, entry: EndEntry, waiter: ThreadWaiter[EndEntry], wait_s: float) -> None:
        """Send an outcome from a thread, as `ThreadLane.send_and_wait`."""
        self._of_shard(shard).end_by_thread(shard, entry, waiter, wait_s)

    def _of_shard(self, shard: bytes) -> Sender:
        for sender in self._senders:
            if sender.brokers.shard == shard:
                return sender
        raise _unknown_shard(shard, [sender.brokers for sender in self._senders])

    async def recall(self, transaction_id: bytes, n: int) -> int:
        """Recall a delayed message at every shard, since its id does not tell its shard. Returns a
        `RecallReply.Result`.

        Raises a shard's error, unless another one knows the message.
        """
        # All at once: asked in turn, a database that is away would use up the time of those after it.
        asking = [asyncio.create_task(sender.recall(transaction_id, n)) for sender in self._senders]
        error: TxmsgError | None = None
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    result = await answer
                except TxmsgError as exc:
                    error = exc
                else:
                    if result != RecallReply.UNKNOWN:
                        return result  # without waiting for one that is away
        finally:
            for task in asking:
                task.cancel()
        if error is not None:
            raise error
        return RecallReply.UNKNOWN

    async def drain(self) -> None:
        """Accept nothing more, and return when all entries are settled where they are now."""
        self._looking.cancel()
        for lane in (self.plain, self.halves):
            lane.close()
        await asyncio.gather(*(sender.drain() for sender in self._senders))

    def _half_may_leave(self, entry: SendEntry, *, may_be_stored: bool) -> bool:
        """Return True if the copy left behind cannot be committed: without a fence, a listener could answer COMMIT for
        both."""
        return not may_be_stored or (isinstance(entry, FreshEntry) and bool(self._senders[0].fence_id))

    async def _place_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for lane in (self.plain, self.halves):
                lane.clear()
                lane.place_waiting()


@dataclass(frozen=True, slots=True, eq=False)
class _ShardLane:
    """One lane of one shard."""

    brokers: Brokers
    lane: RequestLane[SendEntry]

    def is_well(self) -> bool:
        return not self.brokers.is_failing and self.lane.slowest_s() < STILL_S


class _ShardedLane:
    """Lane of plain messages, or halves, over all shards: takes the place of a single `RequestLane`.

    may_leave: returns True if an entry without an ordering key may move to another shard. Entries with one wait here
    while their shard is not known or reports that it is cut off, at most as many as in a lane; then Overloaded.
    """

    def __init__(self, ways: Sequence[_ShardLane], may_leave: _MayMoveToOtherShard, timeout_s: float) -> None:
        self.ways = ways
        self._may_leave = may_leave
        self._timeout_s = timeout_s
        self._is_closing = False
        self._waiting: deque[SendEntry] = deque()
        self._loop = asyncio.get_running_loop()
        self._chosen: _ShardLane | None = None

    def offer(self, entry: SendEntry) -> None:
        """Add an entry; its waiter is completed by the deadline. To be called on the loop."""
        try:
            way = self._way_of_keys(entry) if _ordering_keys(entry) else self._choice()
        except BrokerUnavailable as exc:
            if self._is_closing or len(self._waiting) >= PENDING_ITEMS_MAX:
                entry.fail(Overloaded(f"{len(self._waiting)} sends wait already: {exc}"))
                return
            entry.deadline = self._loop.time() + self._timeout_s
            self._waiting.append(entry)
        except InvalidMessage as exc:
            entry.fail(exc)
        else:
            way.lane.offer(entry)

    def send_and_wait(self, entry: SendEntry, waiter: ThreadWaiter[SendEntry], wait_s: float) -> bytes:
        """Send from a thread, as `ThreadLane.send_and_wait`. An entry that cannot leave at once waits on the loop."""
        try:
            way = self._way_of_keys(entry) if _ordering_keys(entry) else self._best() or _least(self.ways)
        except TxmsgError:
            self._loop.call_soon_threadsafe(self.offer, entry)
            return wait_for(waiter, wait_s)
        return way.lane.send_and_wait(entry, waiter, wait_s)

    def place_waiting(self) -> None:
        """Send the waiting entries whose shard is there now. An entry that has waited too long fails; it was never
        sent."""
        waiting, self._waiting = self._waiting, deque()
        for entry in waiting:
            try:
                way = self._way_of_keys(entry)
            except BrokerUnavailable as exc:
                if self._is_closing or entry.deadline <= self._loop.time():
                    entry.fail(exc)
                else:
                    self._waiting.append(entry)
            except InvalidMessage as exc:  # it was not known before
                entry.fail(exc)
            else:
                way.lane.coalescer.take_over([entry])

    def close(self) -> None:
        """Keep entries at their shards from now on, and let none wait for its shard."""
        self._is_closing = True
        self.place_waiting()

    def elsewhere(self, way: _ShardLane, entries: list[SendEntry], may_be_stored: bool) -> list[SendEntry]:
        """Move entries that may leave, after a failed attempt, if this shard is failing and another is well.

        Returns the entries to be tried here again.
        """
        other = None if self._is_closing or not way.brokers.is_failing else self._best(but=way)
        if other is None:
            return entries
        stay: list[SendEntry] = []
        leave: list[SendEntry] = []
        for entry in entries:
            if _ordering_keys(entry) or not self._may_leave(entry, may_be_stored=may_be_stored):
                stay.append(entry)
                continue
            # A new id: the copy that may be in the failing database keeps the old one, which is never committed.
            if may_be_stored:
                entry.transaction_id = new_transaction_id_bytes()
            leave.append(entry)
        other.lane.coalescer.take_over(leave)
        return stay

    def clear(self) -> None:
        """Move entries that wait at failing or stalled shards, and were never sent."""
        for way in self.ways:
            if not way.is_well() and (other := self._best(but=way)) is not None:
                # First the entries of threads: they wait in the thread lane, where `release` would not find them.
                way.lane.threads.gather()
                other.lane.coalescer.take_over(way.lane.coalescer.release(lambda entry: not _ordering_keys(entry)))

    def _choice(self) -> _ShardLane:
        """Return the same shard for all entries of one turn of the loop, so that requests stay large."""
        if self._chosen is None:
            self._chosen = self._best() or _least(self.ways)
            self._loop.call_soon(self._forget_choice)
        return self._chosen

    def _forget_choice(self) -> None:
        self._chosen = None

    def _best(self, *, but: _ShardLane | None = None) -> _ShardLane | None:
        well = [way for way in self.ways if way is not but and way.is_well()]
        return _least(well) if well else None

    def _way_of_keys(self, entry: SendEntry) -> _ShardLane:
        """Return the shard of an entry's ordering keys, by rendezvous hashing: a further database takes its share of
        keys, and moves no other."""
        # All shards must be known before one is chosen: with one missing, the maximum could be another shard, and
        # messages of a key would be in two databases without an order.
        unseen = sum(not way.brokers.shard for way in self.ways)
        if unseen:
            raise BrokerUnavailable(
                f"{unseen} of {len(self.ways)} Notify databases have not answered this producer yet, so the shard of "
                "an ordering key is not known: start their brokers, or correct their addresses"
            )
        keys = _ordering_keys(entry)
        shards = {max(self.ways, key=lambda way: _weight(way.brokers.shard, key)) for key in keys}
        if len(shards) > 1:
            raise InvalidMessage(
                f"the ordering keys {', '.join(map(repr, sorted(keys)[:5]))} of one transaction have different Notify "
                "databases: give its messages one ordering key, or send them in transactions of their own"
            )
        shard = shards.pop()
        if shard.brokers.are_cut_off:
            raise BrokerUnavailable(
                f"Notify database {UUID(bytes=shard.brokers.shard)}, the shard of ordering key {min(keys)!r}, is "
                "away: messages of its keys can be sent when it is back"
            )
        return shard


class _MayMoveToOtherShard(Protocol):
    """Type of `_ShardedLane`'s may_leave."""

    def __call__(self, entry: SendEntry, *, may_be_stored: bool) -> bool: ...


def _plain_may_leave(entry: SendEntry, *, may_be_stored: bool) -> bool:
    """Return True if the message is certainly not stored: its id is known to the caller, so it cannot get another
    one."""
    return not may_be_stored


def _least(ways: Sequence[_ShardLane]) -> _ShardLane:
    counts = [way.lane.items() for way in ways]
    return random.choice([way for way, count in zip(ways, counts, strict=True) if count == min(counts)])


def _ordering_keys(entry: SendEntry) -> set[str]:
    return {message.ordering_key for message in entry.messages if message.ordering_key is not None}


def _weight(shard: bytes, ordering_key: str) -> bytes:
    return hashlib.blake2b(shard + ordering_key.encode(), digest_size=8).digest()


def _unknown_shard(shard: bytes, known: Sequence[Brokers]) -> TxmsgError:
    if all(brokers.shard for brokers in known):
        return InvalidMessage(
            f"this transaction belongs to Notify database {shard.hex()}, which this producer does not know: give it "
            "the brokers of that database, too"
        )
    return BrokerUnavailable(f"no broker of Notify database {shard.hex()} has answered yet")
