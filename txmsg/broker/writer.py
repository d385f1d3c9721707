"""Group commit: collects requests to be written; while one batch commits, the next one fills.

Knows requests as `WriterRequest`, and the database as `store.batch.apply`. Requests are answered only after their
commit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

import psycopg

from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.store.batch import (
    STALE_SEGMENT,
    AppliedBatch,
    Problem,
    Unreplicated,
    Unwritable,
    WriteBatch,
    apply,
    try_to_write,
)
from txmsg.broker.store.connect import (
    OTHER_INCARNATION,
    TRANSIENT,
    UNKNOWN_ID,
    answering_within,
    connect_writer,
    unavailable,
)
from txmsg.broker.store.incarnation import current_incarnation
from txmsg.broker.store.prepared import PreparedConnection
from txmsg.broker.store.standbys import Unconfirmed
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, Overloaded, StorageError, TxmsgError
from txmsg.metrics.counts import ITEMS, SECONDS, Histogram
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

FAILED = "failed"
"""The problem of an item that the database refuses in any batch."""
_ITEM_ERROR_CLASSES = ("22", "23", "54")
"""SQLSTATE classes that an item can cause: data exception, integrity violation, limit exceeded. All other errors (a
restart, a full disk, a standby that is read-only) are the database's, and the batch is repeated until its time is
up."""
_UNSURE_CLASSES = ("", "08", "57", "XX")
"""SQLSTATE classes of a session that was ended or a statement that was cancelled, perhaps after its commit. With any
other class nothing was written."""
_CONTENTION = (psycopg.errors.LockNotAvailable, psycopg.errors.TransactionRollback)
_RECONNECT_PAUSE_S = 0.2
_TRY_INTERVAL_S = 1.0
"""Seconds without requests after which a writer with trouble tries to write."""
_SPLIT_ITEMS = 128
"""From twice as many waiting items on, a batch takes half of them. Senders that are answered together send together
again: all in one batch, they move in step, and sender, broker and database work one after the other (ran: 256 callers
52,000/s instead of 25,000/s)."""
_ANSWER_GRACE_S = 2.0
"""Seconds after the database should have ended a batch by itself: then the connection is cut, and a new one made."""


@dataclass(slots=True, eq=False)
class WriterRequest:
    """The items of one request, and its future: one per request, not per item."""

    batch: WriteBatch
    items: int
    size_bytes: int
    done: asyncio.Future[Mapping[bytes, Problem]]
    taken: bool = False
    """True if it is part of a batch: from then on it may be stored, also if its sender gets no reply."""


class WriterCounts:
    """Counts of a writer since the start. Counted once per batch."""

    __slots__ = ("halves", "items", "plain", "repeats", "seconds")

    def __init__(self) -> None:
        self.halves = 0
        """Half messages stored, repeats included."""
        self.plain = 0
        """Plain messages stored, repeats included."""
        self.repeats = 0
        """Attempts that failed."""
        self.items = Histogram(ITEMS)
        self.seconds = Histogram(SECONDS)


class Writer:
    """Writes batches, one at a time, over its own session.

    Waiting requests are bounded by waiting_items_max and waiting_size_bytes_max. Beyond that `write` waits, which slows
    its sender, and raises Overloaded after request_timeout_s. While the database is away, it raises BrokerUnavailable
    after the same time; a batch under way is repeated when the database is back, which is safe: ids make it idempotent.

    on_ends: called with the ends of queues, by id, after a batch. on_due: called with the time (us since 1970) at which
    the first delayed message of a batch is due. standby_wait_s: the limit of a batch in total, for a writer of messages
    that wait for a standby.
    """

    def __init__(
        self,
        config: BrokerConfig,
        segments: Segments,
        *,
        on_ends: Callable[[Mapping[int, int]], None],
        on_due: Callable[[int], None] = lambda _: None,
        standby_wait_s: float | None = None,
    ) -> None:
        self._config = config
        self._segments = segments
        self._on_ends = on_ends
        self._on_due = on_due
        self.counts = WriterCounts()
        self.waiting_items = 0
        self.waiting_size_bytes = 0
        self._waiting: deque[WriterRequest] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._connection: PreparedConnection | None = None
        self.trouble = ""
        """The reason why nothing can be written: a batch was given up for it, and nothing has been written since."""
        self._database_away = ""
        self._closing = False
        self._transaction_s_max = config.lock_timeout_s + config.request_timeout_s
        self._waits_for_standby = standby_wait_s is not None
        self._statement_s_max = standby_wait_s or self._transaction_s_max
        self._answer_s_max = self._transaction_s_max + _ANSWER_GRACE_S

    def apply_settings(self, config: BrokerConfig) -> None:
        """Apply these settings from the next batch on. The timeouts of the session stay: they are not live."""
        self._config = config

    async def write(self, batch: WriteBatch, size_bytes: int) -> Mapping[bytes, Problem]:
        """Return when the batch is on disk, with the problems by transaction id.

        Raises Overloaded or BrokerUnavailable when nothing was written, OutcomeUnknown when it may have been. If it is
        cancelled, a request that no batch has taken yet is not written.
        """
        if not len(batch):
            return {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.request_timeout_s
        if self._full():
            await self._wait_for_room(deadline)
        if self._closing:
            raise BrokerUnavailable("the broker is stopping: nothing was stored")
        work = self._add(batch, size_bytes)
        # A timer instead of asyncio.timeout: it sets the error on the future, by whether a batch has taken the request,
        # and never cancels the caller.
        timer = loop.call_at(deadline, self._expire, work)
        try:
            return await work.done
        finally:
            timer.cancel()

    def _add(self, batch: WriteBatch, size_bytes: int) -> WriterRequest:
        work = WriterRequest(batch, len(batch), size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(work)
        self.waiting_items += work.items
        self.waiting_size_bytes += size_bytes
        self._arrived.set()
        return work

    def _expire(self, work: WriterRequest) -> None:
        if work.done.done():
            return
        cause = self._database_away or f"no answer from the database in {self._config.request_timeout_s} s"
        if work.taken:
            work.done.set_exception(OutcomeUnknown(f"not known to be stored, repeat it under the same ids: {cause}"))
        else:
            work.done.set_exception(BrokerUnavailable(f"not stored: {cause}"))

    def _full(self) -> bool:
        config = self._config
        return (
            self.waiting_items >= config.waiting_items_max or self.waiting_size_bytes >= config.waiting_size_bytes_max
        )

    async def _wait_for_room(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                while self._full() and not self._closing:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise Overloaded(
                f"{self.waiting_items} items of {self.waiting_size_bytes} bytes wait to be written, the maximum of "
                "this broker: nothing was stored, send more slowly"
            ) from None

    async def run(self) -> None:
        """Write until cancelled, or until `close` was called and nothing waits."""
        try:
            while await self._has_work():
                batch, works = self._take_batch()
                if works:
                    await self._settle(batch, works)
                self._room.set()
        finally:
            if self._connection is not None:
                await self._connection.close()

    def close(self) -> None:
        """Refuse new work; `run` ends when all accepted work is written."""
        self._closing = True
        self._arrived.set()
        self._room.set()

    async def _has_work(self) -> bool:
        while not self._waiting:
            if self._closing:
                return False
            self._arrived.clear()
            if not self.trouble:
                await self._arrived.wait()
                continue
            # A probe that finds this broker unready keeps clients away, so no batch would find out that the database
            # writes again.
            try:
                async with asyncio.timeout(_TRY_INTERVAL_S):
                    await self._arrived.wait()
            except TimeoutError:
                await self._try()
        return True

    async def _try(self) -> None:
        try:
            if self._connection is None or self._connection.closed:
                await self._connect()
            assert self._connection is not None
            with answering_within(self._connection, self._answer_s_max):
                await try_to_write(self._connection)
        except (psycopg.Error, BrokerUnavailable, StorageError, OSError) as exc:
            self._database_away = self.trouble = str(unavailable(exc))
            if self._connection is not None:
                await self._connection.close()
                self._connection = None
        else:
            self._written()

    def _written(self) -> None:
        if self.trouble:
            _log.info("write.possible", "the Notify database writes again")
        self._database_away = self.trouble = ""

    def _take_batch(self) -> tuple[WriteBatch, list[WriterRequest]]:
        """Return the next batch: the oldest waiting requests, with at most one outcome per transaction."""
        config = self._config
        works = list[WriterRequest]()
        items = size_bytes = 0
        # Half of the waiting items: see _SPLIT_ITEMS.
        items_max = min(config.batch_items_max, max(_SPLIT_ITEMS, (self.waiting_items + 1) // 2))
        ended: set[bytes] = set()
        sent: set[bytes] = set()
        while self._waiting:
            work = self._waiting[0]
            ends, plain = work.batch.ends(), work.batch.plain.transaction_id
            full = items + work.items > items_max or size_bytes + work.size_bytes > config.batch_size_bytes_max
            # A batch ends at the bounds, and before a second outcome of a transaction or a second copy of a plain
            # message: in one statement neither would see the other.
            if works and (full or not ended.isdisjoint(ends) or not sent.isdisjoint(plain)):
                break
            self._waiting.popleft()
            self.waiting_items -= work.items
            self.waiting_size_bytes -= work.size_bytes
            if work.done.done():  # its sender is gone or has given up
                continue
            if work.batch.incarnation not in {None, self._segments.pool.incarnation.id}:
                work.done.set_exception(_of_the_past(tried=False))
                continue
            ended.update(ends)
            sent.update(plain)
            works.append(work)
            work.taken = True
            items += work.items
            size_bytes += work.size_bytes
        if len(works) == 1:
            return works[0].batch, works
        batch = WriteBatch()
        for work in works:
            batch.extend(work.batch)
        return batch, works

    async def _settle(self, batch: WriteBatch, works: list[WriterRequest]) -> None:
        begun_at = time.monotonic()
        try:
            applied = await self._apply(batch, begun_at + self._config.request_timeout_s)
        except (BrokerUnavailable, OutcomeUnknown) as exc:
            for work in works:
                if not work.done.done():
                    work.done.set_exception(exc)
            return
        finally:
            self.counts.items.observe(len(batch))
            self.counts.seconds.observe(time.monotonic() - begun_at)
        problems = applied.problems
        halves, plain = batch.half.transaction_id, batch.plain.transaction_id
        self.counts.halves += sum(id not in problems for id in halves) if problems else len(halves)
        self.counts.plain += sum(id not in problems for id in plain) if problems else len(plain)
        for work in works:
            if not work.done.done():
                work.done.set_result(applied.problems)
        if applied.ends:
            self._on_ends(applied.ends)
        if applied.deliver_at_us is not None:
            self._on_due(applied.deliver_at_us)
        if applied.more and not self._closing:
            self.look_again(applied.more)

    def look_again(self, ids: list[bytes]) -> None:
        """Move messages that wait for the ordering keys of these transactions, if the keys are free. Returns at once.

        If the database is away, the sweep of `Scheduler` finds them later.
        """
        self._add(WriteBatch(check=ids), 0).done.add_done_callback(_note_failure)

    async def _apply(self, batch: WriteBatch, give_up_at: float, *, tried: bool = False) -> AppliedBatch:
        """Apply a batch: repeat it while the database is away, split it if an item is refused.

        When its time is up, it raises OutcomeUnknown if a part of it may be written (or was before: tried), else
        BrokerUnavailable.
        """
        stale = False
        incarnation: UUID | None = None
        while True:
            sent = False
            try:
                incarnation = batch.incarnation or await current_incarnation(self._segments.pool)
                if self._connection is None or self._connection.closed:
                    await self._connect()
                elif stale:
                    await self._segments.refresh()
                stale = False
                assert self._connection is not None
                sent = True
                with answering_within(self._connection, self._answer_s_max):
                    applied = await apply(
                        self._connection,
                        batch,
                        segment=self._segments.open,
                        previous=self._segments.previous,
                        first_check_s=self._config.first_check_s,
                        standby_wait_s=self._statement_s_max,
                        incarnation=incarnation,
                    )
            except psycopg.errors.DatabaseError as exc:
                # Raised before anything was written, so `tried` stays as it is, and the batch is repeated at once.
                if exc.sqlstate in {STALE_SEGMENT, OTHER_INCARNATION, UNKNOWN_ID}:
                    stale = True
                    if exc.sqlstate != STALE_SEGMENT:
                        self._end_incarnation(incarnation, batch, exc, tried=tried)
                elif (exc.sqlstate or "")[:2] in _ITEM_ERROR_CLASSES:
                    return await self._split(batch, exc, give_up_at)
                else:
                    # From here on a refusal may not say "nothing was stored": an earlier attempt may have been
                    # committed although its answer was lost.
                    tried = tried or (sent and (exc.sqlstate or "")[:2] in _UNSURE_CLASSES)
                    await self._pause(exc, give_up_at, tried)
            except (Unwritable, Unreplicated, Unconfirmed) as exc:
                return await self._refused(batch, exc, give_up_at, tried)
            except (*TRANSIENT, BrokerUnavailable, StorageError) as exc:
                tried = tried or sent
                await self._pause(exc, give_up_at, tried)
            else:
                self._written()
                return applied

    def _end_incarnation(self, incarnation: UUID | None, batch: WriteBatch, exc: psycopg.Error, *, tried: bool) -> None:
        """End the incarnation of outdated memory. Raises for a batch that depends on it: its senders repeat it."""
        self._segments.pool.incarnation.end_incarnation(incarnation, exc.diag.message_primary or str(exc))
        if batch.incarnation is not None or exc.sqlstate == UNKNOWN_ID:
            raise _of_the_past(tried) from exc

    async def _refused(self, batch: WriteBatch, exc: Exception, give_up_at: float, tried: bool) -> AppliedBatch:
        if isinstance(exc, Unconfirmed) or (isinstance(exc, Unreplicated) and self._waits_for_standby):
            raise self._without_standby(exc, tried) from exc  # it concerns the whole batch
        return await self._split(batch, exc, give_up_at)

    def _without_standby(self, exc: Unreplicated | Unconfirmed, tried: bool) -> TxmsgError:
        if isinstance(exc, Unconfirmed):
            return OutcomeUnknown(
                "stored by the Notify database, but not confirmed by its standby within "
                f"{self._statement_s_max:g} s: {exc}"
            )
        refusal = BrokerUnavailable(f"the Notify database cannot provide durability replicated: {exc}")
        return OutcomeUnknown(f"{refusal}; an earlier attempt may have been carried out") if tried else refusal

    async def _connect(self) -> None:
        config = self._config
        self._connection = await connect_writer(
            config.storage,
            lock_timeout_s=config.lock_timeout_s,
            transaction_timeout_s=self._transaction_s_max,
            statement_timeout_s=self._statement_s_max,
        )
        await self._segments.refresh()

    async def _pause(self, exc: Exception, give_up_at: float, tried: bool) -> None:
        if not self._database_away:
            _log.warning("write.repeated", "a batch is repeated: %(error)s", error=unavailable(exc))
        self._database_away = str(unavailable(exc))
        self.counts.repeats += 1
        if self._connection is not None and not isinstance(exc, _CONTENTION):
            # Also when it still answers: behind the same address may be a new primary by now.
            await self._connection.close()
            self._connection = None
        if time.monotonic() >= give_up_at:
            if not isinstance(exc, _CONTENTION):
                self.trouble = self._database_away
            raise (OutcomeUnknown if tried else BrokerUnavailable)(self._database_away) from exc
        await asyncio.sleep(_RECONNECT_PAUSE_S)

    async def _split(self, batch: WriteBatch, exc: Exception, give_up_at: float) -> AppliedBatch:
        """Apply both halves of a refused batch separately, until the refused item is alone."""
        ids = sorted(batch.ids())
        if len(ids) == 1 and isinstance(exc, psycopg.errors.UniqueViolation) and time.monotonic() < give_up_at:
            # Its copy was committed meanwhile, in another queue: a repeat finds it.
            return await self._apply(batch, time.monotonic(), tried=True)
        if len(ids) == 1 and isinstance(exc, Unreplicated):
            return AppliedBatch(problems={ids[0]: self._without_standby(exc, tried=True)})
        if len(ids) == 1:
            _log.error(
                "write.refused",
                "the database refuses transaction %(transaction_id)s: %(error)s",
                transaction_id=UUID(bytes=ids[0]),
                error=exc,
            )
            return AppliedBatch(problems={ids[0]: FAILED})
        # By halves: one bad item among n costs about 2 log2(n) batches instead of n.
        middle = len(ids) // 2
        result = AppliedBatch()
        for part in (set(ids[:middle]), set(ids[middle:])):
            applied = await self._apply(batch.only(part), give_up_at, tried=True)
            result.extend(applied)
        return result


def _of_the_past(tried: bool) -> TxmsgError:
    """Return the error of a batch with ids read before the database went back. The next attempt reads them again."""
    why = "the Notify database has gone back to an earlier state, or was restarted"
    if tried:
        return OutcomeUnknown(f"not known to be stored, repeat it under the same ids: {why}")
    return BrokerUnavailable(f"not stored, retry: {why}")


def _note_failure(done: asyncio.Future[Mapping[bytes, Problem]]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.warning(
            "write.waiters_failed", "messages that waited for their ordering key wait on: %(error)s", error=error
        )
