"""Sends entries to the brokers until each has its answer: plain messages, half messages, outcomes.

The hot path of producers: one request for all callers that wait, retried under the same ids until the deadline of its
oldest entry. Knows no sessions and no listeners. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from txmsg.client.batch import EndEntry, Entry, SendEntry, columns_of, end_request, settle
from txmsg.client.channel import RETRYABLE, Brokers, retrying
from txmsg.client.coalescer import Coalescer
from txmsg.client.counts import ProducerCounts, RequestCounts
from txmsg.client.hooks import ProducerHooks
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, TxmsgError
from txmsg.wire.failures import was_told
from txmsg.wire.v1.txmsg_pb2 import ItemError, RecallReply, RecallRequest, SendRequest
from txmsg.wire.v1.txmsg_rpc import Notify

E = TypeVar("E", bound=Entry)
FIRST_PAUSE_S_MAX = 0.02

Reply = tuple[bytes, Sequence[ItemError]]
Elsewhere = Callable[[list[SendEntry], bool], list[SendEntry]]


class Sender:
    """Three coalescers over the brokers of one Notify database.

    fence_id: stamped on halves; set it before the first half. plain_elsewhere, halves_elsewhere: where there are other
    databases, asked after each failed attempt which entries stay here, given whether they may be stored here already.
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
        self.plain_elsewhere: Elsewhere | None = None
        self.halves_elsewhere: Elsewhere | None = None
        self._group = group
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self.new_waiter: Callable[[], asyncio.Future[bytes]] = self._loop.create_future
        self.plain: Coalescer[SendEntry] = Coalescer(
            self._send_plain, timeout_s=timeout_s, loop=self._loop, crowd=self.pending_items
        )
        self.halves: Coalescer[SendEntry] = Coalescer(
            self._send_halves, timeout_s=timeout_s, loop=self._loop, crowd=self.pending_items
        )
        self._ends: dict[bytes, Coalescer[EndEntry]] = {}

    def end(self, shard: bytes, entry: EndEntry) -> None:
        """Queues the outcome of a transaction whose halves are in the Notify database `shard`."""
        ends = self._ends.get(shard)
        if ends is None:

            async def send_ends(entries: list[EndEntry]) -> None:
                await self._send_ends(shard, entries)

            ends = self._ends[shard] = Coalescer(
                send_ends, timeout_s=self._timeout_s, loop=self._loop, crowd=self.pending_items
            )
        ends.offer(entry)

    async def recall(self, transaction_id: bytes, n: int) -> int:
        """Asks for a delayed message back, until there is an answer or the time is up. A `RecallReply.Result`."""
        deadline = self._loop.time() + self._timeout_s

        async def once() -> RecallReply:
            request = RecallRequest(transaction_ids=transaction_id, n=[n])
            left_s = max(deadline - self._loop.time(), 0.001)
            return await self.brokers.call(Notify.recall, request, timeout_s=left_s)

        reply: RecallReply = await retrying(self._timeout_s)(once)
        return reply.results[0]

    async def drain(self) -> None:
        """Takes nothing more and returns when everything taken is settled."""
        await asyncio.gather(self.plain.drain(), self.halves.drain())
        await asyncio.gather(*(ends.drain() for ends in self._ends.values()))

    def pending_items(self) -> int:
        """Messages and outcomes that wait or are under way."""
        return self.plain.items() + self.halves.items() + sum([ends.items() for ends in self._ends.values()])

    async def _send_plain(self, entries: list[SendEntry]) -> None:
        async def attempt(left: list[SendEntry], timeout_s: float) -> Reply:
            request = SendRequest(group=self._group, batches=columns_of(left))
            reply = await self.brokers.call(Notify.send, request, timeout_s=timeout_s)
            self._hooks.after_reply("send")
            return reply.shard, reply.errors

        await self._settle_all(entries, attempt, _worst, self._counts.send, self.plain_elsewhere)

    async def _send_halves(self, entries: list[SendEntry]) -> None:
        async def attempt(left: list[SendEntry], timeout_s: float) -> Reply:
            batches = columns_of(left)
            request = SendRequest(group=self._group, fence_id=self.fence_id, half=True, batches=batches)
            reply = await self.brokers.call(Notify.send, request, timeout_s=timeout_s)
            self._hooks.after_reply("half")
            self.brokers.note_shard(reply.shard)
            return reply.shard, reply.errors

        await self._settle_all(entries, attempt, _as_unavailable, self._counts.half, self.halves_elsewhere)

    async def _send_ends(self, shard: bytes, entries: list[EndEntry]) -> None:
        async def attempt(left: list[EndEntry], timeout_s: float) -> Reply:
            reply = await self.brokers.call(Notify.end_transactions, end_request(shard, left), timeout_s=timeout_s)
            self._hooks.after_reply("outcome")
            return shard, reply.errors

        await self._settle_all(entries, attempt, _worst, self._counts.outcome)

    async def _settle_all(
        self,
        entries: list[E],
        attempt: Callable[[list[E], float], Awaitable[Reply]],
        final: Callable[[TxmsgError, bool], TxmsgError],
        counts: RequestCounts,
        elsewhere: Callable[[list[E], bool], list[E]] | None = None,
    ) -> None:
        """Attempts until every entry has its answer or has gone elsewhere, or the deadline of the oldest has passed."""
        left = entries
        ambiguous = False
        told: TxmsgError | None = None
        deadline = entries[0].deadline
        begun_at = self._loop.time()

        async def once() -> None:
            nonlocal left, ambiguous, told
            try:
                shard, errors = await attempt(left, max(deadline - self._loop.time(), 0.001))
                if errors:
                    counts.errors.update(error.code for error in errors)
                left, error = settle(left, shard, errors)
                if error is not None:
                    raise error
            except RETRYABLE as exc:
                ambiguous = ambiguous or isinstance(exc, OutcomeUnknown)
                told = exc if was_told(exc) else told
                if elsewhere is not None:
                    left = elsewhere(left, ambiguous)
                    if not left:
                        return
                raise

        try:
            try:
                await once()  # the usual case, without the cost of the machinery below
            except RETRYABLE:
                pause_s = random.uniform(0.0, FIRST_PAUSE_S_MAX)
                if self._loop.time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
                await retrying(deadline - self._loop.time())(once)
        except TxmsgError as exc:
            counts.errors[exc.code] += 1
            error = final(exc, ambiguous)
            if told is not None and not was_told(exc):
                error = _with_reason(error, told)
            for entry in left:
                own = type(error)(str(error))
                own.__cause__ = exc
                entry.fail(own)
        counts.calls += len(entries)
        counts.seconds.observe(self._loop.time() - begun_at)


def _worst(error: TxmsgError, ambiguous: bool) -> TxmsgError:
    """One attempt whose effect is not known makes the whole not known, whatever the later ones say."""
    if ambiguous and isinstance(error, BrokerUnavailable):
        return OutcomeUnknown(f"{error}; an earlier attempt may have been carried out")
    return error


def half_unavailable(error: OutcomeUnknown) -> BrokerUnavailable:
    """The caller's error for a half that was not answered."""
    return BrokerUnavailable(f"{error}; if a half message was stored, its check-back removes it")


def _as_unavailable(error: TxmsgError, _ambiguous: bool) -> TxmsgError:
    """A half that may be stored but is never committed is never delivered: for the caller nothing has happened."""
    if isinstance(error, OutcomeUnknown):
        return half_unavailable(error)
    return error


def _with_reason(error: TxmsgError, told: TxmsgError) -> TxmsgError:
    """The last attempt met silence; an answer before it says more."""
    if isinstance(error, BrokerUnavailable):
        return BrokerUnavailable(f"{error}; an earlier attempt failed with: {told}")
    return OutcomeUnknown(f"{error}; an earlier attempt failed with: {told}")
