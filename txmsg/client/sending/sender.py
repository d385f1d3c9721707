"""Sends entries to the brokers until each has its answer: plain messages, half messages, outcomes.

The hot path of producers: one request for all waiting callers, retried under the same ids until the deadline of its
oldest entry. Threads make the first attempt by themselves (thread_lane.py); after a failed attempt this module decides
for them as for coroutines. Knows no sessions and no listeners. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from txmsg.client import hooks
from txmsg.client.channel import RETRYABLE, Brokers, retrying
from txmsg.client.hooks import ProducerHooks
from txmsg.client.sending.batch import EndEntry, RequestEntry, SendEntry, columns_of, end_request, settle
from txmsg.client.sending.coalescer import Coalescer
from txmsg.client.sending.counts import ProducerCounts, RequestCounts
from txmsg.client.sending.thread_lane import FailedRequest, ThreadLane, ThreadWaiter
from txmsg.errors import (
    BrokerUnavailable,
    DuplicateId,
    OutcomeConflict,
    OutcomeExpired,
    OutcomeUnknown,
    Overloaded,
    TxmsgError,
)
from txmsg.wire.failures import was_told
from txmsg.wire.method import Method
from txmsg.wire.v1.txmsg_pb2 import RecallReply, RecallRequest, SendRequest
from txmsg.wire.v1.txmsg_rpc import Notify

E = TypeVar("E", bound=RequestEntry)
FIRST_PAUSE_S_MAX = 0.02
_OF_THE_STORE = (DuplicateId, OutcomeConflict, OutcomeExpired)
"""Errors that a broker finds by reading the store, so they are final for earlier attempts as well."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _RequestKind(Generic[E]):
    """A kind of entries: the request that they become, and the meaning of its failure.

    shard: the Notify database that is meant; None for the one that the reply names. final: returns the callers' error
    for the last failure, given whether an attempt may have been carried out.
    """

    name: hooks.Request
    method: Method[Any, Any]
    request_of: Callable[[list[E]], Any]
    final: Callable[[TxmsgError, bool], TxmsgError]
    counts: RequestCounts
    shard: bytes | None = None


@dataclass(slots=True, eq=False)
class _RequestProgress(Generic[E]):
    """The state of one request after its attempts so far."""

    left: list[E]
    """The entries without an answer."""
    deadline: float
    is_ambiguous: bool = False
    """True if a failed attempt may have been carried out."""
    told: str = ""
    """Text of the last failure that a broker answered with."""


class RequestLane(Generic[E]):
    """The lane of entries of one kind, which become requests: `offer` is for coroutines, `send_and_wait` for threads.

    elsewhere: set if there are other databases; called after each failed attempt, returns the entries that stay here,
    given whether they may be stored here already.
    """

    def __init__(
        self,
        kind: _RequestKind[E],
        brokers: Brokers,
        *,
        timeout_s: float,
        loop: asyncio.AbstractEventLoop,
        crowd: Callable[[], int],
        hooks: ProducerHooks,
    ) -> None:
        self.elsewhere: Callable[[list[E], bool], list[E]] | None = None
        self._kind = kind
        self._brokers = brokers
        self._loop = loop
        self._hooks = hooks
        self._counting = threading.Lock()
        self.coalescer: Coalescer[E] = Coalescer(self._send_entries, timeout_s=timeout_s, loop=loop, crowd=crowd)
        self.threads: ThreadLane[E] = ThreadLane(
            self.coalescer, self._attempt_by_thread, self._go_on, timeout_s=timeout_s, loop=loop, crowd=crowd
        )
        self.offer = self.coalescer.offer
        self.send_and_wait = self.threads.send_and_wait

    def items(self) -> int:
        """Return the number of items that wait or are in progress."""
        return self.coalescer.items() + self.threads.items()

    def slowest_s(self) -> float:
        """Return the age in seconds of the oldest request in progress; 0 without one."""
        return max(self.coalescer.slowest_s(), self.threads.slowest_s())

    async def drain(self) -> None:
        """Accept nothing more, and return when all entries are settled."""
        await self.threads.drain()
        await self.coalescer.drain()

    def _attempt_by_thread(self, entries: list[E], until: float) -> FailedRequest[E] | None:
        # Only our own errors are caught: a signal may raise any other, which is this thread's, and not the others'.
        now = time.monotonic()
        broker = self._brokers.current
        # Two bounds: an attempt leaves time for another broker, and a thread does not wait for longer than its own
        # caller does.
        wait_s = max(min(self._brokers.share_s(entries[0].deadline - now), until - now), 0.001)
        try:
            reply = broker.call_blocking(self._kind.method, self._kind.request_of(entries), timeout_s=wait_s)
        except TxmsgError as exc:
            # The broker is not to blame if it was only this thread that had no time.
            is_to_blame = isinstance(exc, RETRYABLE) and time.monotonic() < until
            return FailedRequest(entries, exc, broker if is_to_blame else None)
        try:
            left, refusal = self._settle(entries, reply, is_ambiguous=False)
        except TxmsgError as exc:
            return FailedRequest(entries, exc)
        self._count(len(entries) - len(left), time.monotonic() - now)
        return None if refusal is None else FailedRequest(left, refusal)

    def _settle(self, entries: list[E], reply: Any, *, is_ambiguous: bool) -> tuple[list[E], TxmsgError | None]:
        kind = self._kind
        # Before anything is settled: a test that raises here is a process that dies with a reply it has not acted on.
        self._hooks.after_reply(kind.name)
        if kind.name == "half":
            # Learned from the reply, not by a call before: a producer with one database needs no round trip before its
            # first message.
            self._brokers.note_shard(reply.shard)
        if reply.errors:
            with self._counting:
                kind.counts.errors.update(error.code for error in reply.errors)
        # An outcome goes to the database that holds its halves; a new message belongs to the database that has just
        # stored it.
        shard = reply.shard if kind.shard is None else kind.shard
        return settle(entries, shard, reply.errors, lambda error: kind.final(error, is_ambiguous))

    def _count(self, calls: int, seconds: float) -> None:
        with self._counting:
            self._kind.counts.calls += calls
            self._kind.counts.seconds.observe(seconds)

    async def _send_entries(self, entries: list[E]) -> None:
        await self._settle_all(entries, None)

    async def _go_on(self, failed: FailedRequest[E]) -> None:
        if failed.broker is not None:
            self._brokers.avoid(failed.broker)
        await self._settle_all(failed.entries, failed.error)

    async def _settle_all(self, entries: list[E], failed: TxmsgError | None) -> None:
        """Attempt until every entry has its answer or has moved elsewhere, or the deadline of the oldest has passed.

        failed: the error of the first attempt, if a thread made it.
        """
        begun_at = self._loop.time()
        # The oldest entry's deadline is that of the whole request, which is retried as one, under the same ids.
        progress = _RequestProgress(entries, entries[0].deadline)
        try:
            await self._run(progress, failed)
        except TxmsgError as exc:
            self._fail(progress, exc)
        self._count(len(entries), self._loop.time() - begun_at)

    async def _run(self, progress: _RequestProgress[E], failed: TxmsgError | None) -> None:
        try:
            await self._attempt(progress, failed)  # the usual case, without the cost of the machinery below
            return
        except RETRYABLE:
            pause_s = random.uniform(0.0, FIRST_PAUSE_S_MAX)
            # No attempt that would be cut off by the deadline: it would turn a certain failure into an unknown outcome.
            if self._loop.time() + pause_s >= progress.deadline:
                raise
        await asyncio.sleep(pause_s)
        await retrying(progress.deadline - self._loop.time())(self._attempt, progress)

    async def _attempt(self, progress: _RequestProgress[E], failed: TxmsgError | None = None) -> None:
        """Make one attempt; with `failed`, it was made already. Raises the reason why entries are left."""
        kind = self._kind
        refusal: TxmsgError | None = None
        try:
            if failed is not None:
                raise failed
            timeout_s = max(progress.deadline - self._loop.time(), 0.001)
            reply = await self._brokers.call(kind.method, kind.request_of(progress.left), timeout_s=timeout_s)
            progress.left, refusal = self._settle(progress.left, reply, is_ambiguous=progress.is_ambiguous)
            if refusal is not None:
                raise refusal
        except RETRYABLE as exc:
            # Only ever set: once an attempt may have been carried out, no later failure can take that back.
            progress.is_ambiguous = progress.is_ambiguous or isinstance(exc, OutcomeUnknown)
            progress.told = str(exc) if was_told(exc) else progress.told
            if self.elsewhere is not None:
                progress.left = self.elsewhere(progress.left, progress.is_ambiguous)
            if progress.left:
                raise
        finally:
            del failed, refusal  # who is raised knows this frame: both would stay until they are collected

    def _fail(self, progress: _RequestProgress[E], exc: TxmsgError) -> None:
        with self._counting:
            self._kind.counts.errors[exc.code] += 1
        error = self._kind.final(exc, progress.is_ambiguous)
        if progress.told and not was_told(exc):
            error = _with_reason(error, progress.told)
        for entry in progress.left:
            # A new exception for each caller: a shared one would grow with the traceback of each that raises it.
            own = type(error)(str(error))
            own.__cause__ = exc.with_traceback(None)  # whose frames know the entry: it would stay until it is collected
            entry.fail(own)


class Sender:
    """Three lanes, of plain messages, halves and outcomes, over the brokers of one Notify database.

    fence_id: stamped on halves; set it before the first half.
    """

    def __init__(
        self,
        brokers: Brokers,
        *,
        group: str,
        timeout_s: float,
        hooks: ProducerHooks | None = None,
        counts: ProducerCounts | None = None,
    ) -> None:
        self._hooks = hooks or ProducerHooks()
        self._counts = counts or ProducerCounts()
        self.fence_id = b""
        self.brokers = brokers
        self._group = group
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self.new_waiter: Callable[[], asyncio.Future[bytes]] = self._loop.create_future
        self.plain = self._new_lane(
            _RequestKind(
                name="send", method=Notify.send, request_of=self._plain_request, final=_worst, counts=self._counts.send
            )
        )
        self.halves = self._new_lane(
            _RequestKind(
                name="half",
                method=Notify.send,
                request_of=self._half_request,
                final=_as_unavailable,
                counts=self._counts.half,
            )
        )
        self._ends: dict[bytes, RequestLane[EndEntry]] = {}

    def end_transaction(self, shard: bytes, entry: EndEntry) -> None:
        """Queue the outcome of a transaction whose halves are in the Notify database `shard`."""
        self._ends_of(shard).offer(entry)

    def end_by_thread(self, shard: bytes, entry: EndEntry, waiter: ThreadWaiter[EndEntry], wait_s: float) -> None:
        """Send an outcome from a thread, as `ThreadLane.send_and_wait`."""
        self._ends_of(shard).send_and_wait(entry, waiter, wait_s)

    def _ends_of(self, shard: bytes) -> RequestLane[EndEntry]:
        lane = self._ends.get(shard)
        if lane is None:
            kind: _RequestKind[EndEntry] = _RequestKind(
                name="outcome",
                method=Notify.end_transactions,
                request_of=lambda entries: end_request(self._group, shard, entries),
                final=_worst,
                counts=self._counts.outcome,
                shard=shard,
            )
            lane = self._ends.setdefault(shard, self._new_lane(kind))  # of two threads the first one's counts
        return lane

    def _new_lane(self, kind: _RequestKind[E]) -> RequestLane[E]:
        return RequestLane(
            kind,
            self.brokers,
            timeout_s=self._timeout_s,
            loop=self._loop,
            crowd=self.pending_items,
            hooks=self._hooks,
        )

    async def recall(self, transaction_id: bytes, n: int, topic: str = "") -> int:
        """Recall a delayed message, repeating until there is an answer or the time is up. Returns a
        `RecallReply.Result`.

        topic: recall it only if it is in this topic.
        """
        deadline = self._loop.time() + self._timeout_s
        is_ambiguous = False

        async def once() -> RecallReply:
            nonlocal is_ambiguous
            request = RecallRequest(transaction_ids=transaction_id, n=[n], topic=topic)
            left_s = max(deadline - self._loop.time(), 0.001)
            try:
                return await self.brokers.call(Notify.recall, request, timeout_s=left_s)
            except OutcomeUnknown:
                is_ambiguous = True
                raise

        try:
            reply: RecallReply = await retrying(self._timeout_s)(once)
        except TxmsgError as exc:
            if (error := _worst(exc, is_ambiguous)) is exc:
                raise
            raise error from exc
        return reply.results[0]

    async def drain(self) -> None:
        """Accept nothing more, and return when all entries are settled."""
        # Outcomes last: transactions whose half messages are answered during the drain still report theirs.
        await asyncio.gather(self.plain.drain(), self.halves.drain())
        await asyncio.gather(*(ends.drain() for ends in self._ends.values()))

    def pending_items(self) -> int:
        """Return the number of messages and outcomes that wait or are in progress."""
        return self.plain.items() + self.halves.items() + sum([ends.items() for ends in list(self._ends.values())])

    def _plain_request(self, entries: list[SendEntry]) -> SendRequest:
        return SendRequest(group=self._group, batches=columns_of(entries))

    def _half_request(self, entries: list[SendEntry]) -> SendRequest:
        batches = columns_of(entries)
        return SendRequest(group=self._group, fence_id=self.fence_id, half=True, batches=batches)


def _worst(error: TxmsgError, ambiguous: bool) -> TxmsgError:
    """Return OutcomeUnknown if one attempt is ambiguous: later attempts say nothing about it.

    Also if a later one is refused, as after a revocation: that does not answer the earlier one.
    """
    if ambiguous and not isinstance(error, (OutcomeUnknown, *_OF_THE_STORE)):
        return OutcomeUnknown(f"{error}; an earlier attempt may have been carried out")
    return error


def half_unavailable(error: TxmsgError) -> BrokerUnavailable:
    """Return the caller's error for half messages that were not answered."""
    return BrokerUnavailable(f"{error}; if a half message was stored, its check-back removes it")


def _as_unavailable(error: TxmsgError, ambiguous: bool) -> TxmsgError:
    """Return the error for half messages: stored but never committed ones are never delivered, so for the caller
    nothing has happened.

    A refusal therefore stays a refusal, whatever became of an earlier attempt.
    """
    if isinstance(error, OutcomeUnknown) or (ambiguous and isinstance(error, BrokerUnavailable)):
        return half_unavailable(error)
    return error


def _with_reason(error: TxmsgError, told: str) -> TxmsgError:
    """Return the error with the text of an earlier answer: the last attempt got none."""
    if isinstance(error, Overloaded):
        return Overloaded(f"{error}; an earlier attempt failed with: {told}")
    if isinstance(error, BrokerUnavailable):
        return BrokerUnavailable(f"{error}; an earlier attempt failed with: {told}")
    return OutcomeUnknown(f"{error}; an earlier attempt failed with: {told}")
