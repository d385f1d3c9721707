"""The task that relays an outbox: its rows become half messages, whose local transaction is their deletion.

It goes through the rows from the oldest to the newest, a page at a time, and begins again. Any number of relays may
run at once; they take turns only to save work. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from txmsg.checker.fence import AsyncFence
from txmsg.client.outbox import rows
from txmsg.client.outbox.packed import unpacked
from txmsg.client.outbox.state import OutboxState
from txmsg.client.sending.half import Half
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown, TxmsgError, Unauthenticated
from txmsg.message import Message, TransactionState, now_us
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

LOOK_INTERVAL_S: Final = 5.0
"""Seconds between looks for rows of other processes; while there are some, PACE_S."""
PACE_S: Final = 1.0
FIRST_S: Final = 8.0
"""Seconds that the first half message of a page is waited for."""
PAGE_S: Final = 2.0
"""Seconds that the others are waited for after it; then the stored ones are finished. Halves must not get so old that
brokers check back: with no fence row yet, the answer is ROLLBACK, and all would be done again."""
_PAGE_S_MIN: Final = 0.02
COUNT_SHARE: Final = 0.05
"""Share of the time that counting rows takes, at most, by the relay that has the turn."""
TELL_INTERVAL_S: Final = 60.0
"""Seconds between log lines about rows that wait for the same reason."""
REFUSED_INTERVAL_S: Final = 60.0
"""Seconds between attempts at refused rows."""
LEAVE_S: Final = 2.0
"""Seconds that a relay that ends waits for the business database."""
_PASSING: Final = (BrokerUnavailable, OutcomeUnknown, Unauthenticated, MisuseError)
"""Errors that are not the fault of a row."""

_Chain: TypeAlias = list[tuple[rows.OutboxRow, Half]]
"""Rows of one ordering key, in their order, or one row without; with the halves of their messages."""


@dataclass(slots=True)
class _RelayedRows:
    """The results of some rows."""

    seq_max: int = 0
    stored: list[_Chain] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    trouble: TxmsgError | None = None
    """The reason why others wait."""
    relayed: int = 0
    is_late: bool = False
    """True if a row was gone, or a half decided by a check-back, before it was finished."""


class OutboxRelay:
    """Relays the outbox of one producer group.

    store: stores messages that were born at a time (us since 1970) as halves of a new transaction; when it is
    cancelled, halves that are stored all the same are rolled back. tell: tells a broker an outcome, without waiting.
    """

    def __init__(
        self,
        fence: AsyncFence,
        group: str,
        state: OutboxState,
        *,
        store: Callable[[Sequence[Message], int], Awaitable[Half]],
        tell: Callable[[Half, TransactionState], None],
    ) -> None:
        self._fence = fence
        self._group = group
        self._state = state
        self._store = store
        self._tell = tell
        self._holder = uuid4()
        self._has_turn = False
        self._after = 0
        """The last row of the page before."""
        self._with_refused = False
        self._refused_at = 0.0
        self._count_at = 0.0
        self._page_s = PAGE_S
        self._trouble: type[Exception] | None = None
        self._told_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._wanted = asyncio.Event()

    def _note_written(self) -> None:
        if not self._wanted.is_set():
            self._loop.call_soon_threadsafe(self._wanted.set)

    # ---- as a task

    async def run(self) -> None:
        """Relay until cancelled."""
        self._state.on_written = self._note_written
        try:
            while True:
                self._wanted.clear()
                if not await self._step():
                    await self._pause()
        finally:
            self._state.on_written = None
            await self._leave_turn()

    async def _step(self) -> bool:
        """Make one `run_once`, by the policy of a task: a failure is logged, and tried again."""
        try:
            return await self.run_once() > 0
        except (SQLAlchemyError, TxmsgError, OSError) as exc:
            self._log_trouble(exc)
        except Exception:  # noqa: BLE001 - a task's root
            _log.exception(
                "outbox.broken", "relaying the outbox of group %(group)s failed unexpectedly", group=self._group
            )
        return False

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(PACE_S if self._state.rows else LOOK_INTERVAL_S):
                await self._wanted.wait()
        except TimeoutError:
            return
        if self._state.circuit_breaker.is_away:  # as the call that has written has just seen
            await asyncio.sleep(PACE_S)

    def _log_trouble(self, trouble: Exception) -> None:
        now = self._loop.time()
        if self._trouble is type(trouble) and now - self._told_at < TELL_INTERVAL_S:
            return
        self._trouble, self._told_at = type(trouble), now
        _log.warning(
            "outbox.not_relayed",
            "about %(rows)d transactions wait in the outbox of group %(group)s: %(error)s",
            rows=self._state.rows,
            group=self._group,
            error=trouble,
        )

    async def run_once(self) -> int:
        """Relay the next page, if this relay has the turn. Returns the number of relayed rows."""
        if not await self._may_relay() or not await self._fence._run(rows.take_turn, self._group, self._holder):
            return 0
        self._has_turn = True
        await self._count()
        page = await self._next_page()
        if page is None:
            return 0
        if page.trouble is not None:
            self._log_trouble(page.trouble)
        return page.relayed

    async def _next_page(self) -> _RelayedRows | None:
        """Relay the page after the last one; at the end, the first one again."""
        page = None
        if self._after:
            page = await self._relay_page(self._after, with_refused=self._with_refused)
        if page is None:
            now = self._loop.time()
            self._with_refused = not self._state.refused or now - self._refused_at >= REFUSED_INTERVAL_S
            if self._with_refused:
                self._refused_at = now
            page = await self._relay_page(0, with_refused=self._with_refused)
        self._after = 0 if page is None else page.seq_max
        return page

    async def _may_relay(self) -> bool:
        """Return True if there are rows, and no other relay has the turn."""
        look = await self._fence._run(rows.outbox_status, self._group, self._holder)
        if look is None:
            if self._state.rows:
                _log.info("outbox.empty", "the outbox of group %(group)s is empty again", group=self._group)
            self._state.note_counted(0, 0, 0.0)
            self._after, self._trouble = 0, None
            await self._leave_turn()
            return False
        self._state.oldest_s = look.oldest_s
        if look.is_taken:  # and its holder counts
            self._state.note_counted(look.rows, look.refused, look.oldest_s)
        return not look.is_taken

    async def _count(self) -> None:
        began = self._loop.time()
        if began < self._count_at:
            return
        count, refused = await self._fence._run(rows.count, self._group, self._holder)
        self._state.note_counted(count, refused, self._state.oldest_s)
        now = self._loop.time()
        self._count_at = now + max(PACE_S, (now - began) / COUNT_SHARE)

    async def _leave_turn(self) -> None:
        if not self._has_turn:
            return
        self._has_turn = False
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._fence._run(rows.leave_turn, self._group, self._holder)
        except (SQLAlchemyError, OSError):
            _log.info(
                "outbox.turn_kept",
                "the turn to relay the outbox of group %(group)s ends in %(seconds)d s",
                group=self._group,
                seconds=rows.TURN_S,
            )

    # ---- on request

    async def relay_all(self, patience_s: float) -> int:
        """Relay the rows that wait now, including refused ones, without regard to turns. Returns their number.

        Raises the brokers' error if none of them takes a row for patience_s.
        """
        relayed, progress_at = 0, self._loop.time()
        try:
            while True:
                done = await self._relay_pages()
                relayed += done.relayed
                if done.relayed:
                    progress_at = self._loop.time()
                elif done.trouble is None and not done.is_late:
                    return relayed
                elif self._loop.time() - progress_at < patience_s:
                    await asyncio.sleep(min(PACE_S, patience_s))
                elif done.trouble is None or relayed:
                    return relayed
                else:
                    raise done.trouble
        finally:
            await self._leave_turn()

    async def _relay_pages(self) -> _RelayedRows:
        """Relay all rows, once."""
        whole = _RelayedRows()
        while True:
            self._has_turn = await self._fence._run(rows.seize_turn, self._group, self._holder)
            page = await self._relay_page(whole.seq_max, with_refused=True)
            if page is None:
                return whole
            whole.seq_max = page.seq_max
            whole.relayed += page.relayed
            whole.is_late |= page.is_late
            whole.trouble = page.trouble or whole.trouble
            if page.trouble is not None and not page.stored and not page.refused:
                return whole

    # ---- a page

    async def _relay_page(self, after: int, *, with_refused: bool) -> _RelayedRows | None:
        """Relay the next rows after one. Returns None if there are no more."""
        found = await self._fence._run(rows.page, self._group, after, with_refused)
        if not found:
            return None
        page = _RelayedRows(seq_max=found[-1].seq)
        await self._store_halves(found, page)
        # The commit is the deletion of the rows together with the fence rows of their halves. Killed before it, the
        # halves are rolled back by their check-backs and the rows relayed again; killed after it, the check-backs
        # commit.
        page.relayed = await self._finish(page)
        self._state.note_relayed(page.relayed)
        # So that the next ones are young enough.
        self._page_s = max(_PAGE_S_MIN, self._page_s / 4) if page.is_late else min(PAGE_S, self._page_s * 2)
        if page.refused:
            self._state.refused = max(self._state.refused, len(page.refused))  # until they are counted
            await self._fence._run(rows.note_refused, page.refused)
        return page

    async def _store_halves(self, found: Sequence[rows.OutboxRow], page: _RelayedRows) -> None:
        """Store halves: the rows of one ordering key in sequence, until one fails, and all others at once.

        A key whose broker is away does not hold back the others: what is stored in time is finished.
        """
        chains: dict[str | int, list[rows.OutboxRow]] = {}
        for row in found:
            chains.setdefault(row.seq if row.ordering_key is None else row.ordering_key, []).append(row)
        try:
            async with asyncio.timeout(FIRST_S) as limit, asyncio.TaskGroup() as storing:
                for chain in chains.values():
                    storing.create_task(self._store_in_order(chain, page, limit))
        except TimeoutError:
            if page.trouble is None and len(page.stored) + len(page.refused) < len(chains):
                page.trouble = BrokerUnavailable("no broker has stored the half messages of some of them in time")

    async def _store_in_order(
        self, chain: Sequence[rows.OutboxRow], page: _RelayedRows, limit: asyncio.Timeout
    ) -> None:
        stored: _Chain = []
        for row in chain:
            try:
                half = await self._store(*unpacked(row.messages, now_us()))
            except _PASSING as exc:
                page.trouble = exc
                return
            except TxmsgError as exc:
                _log.warning(
                    "outbox.refused",
                    "row %(seq)d of the outbox of group %(group)s is refused: %(error)s",
                    seq=row.seq,
                    group=self._group,
                    transaction_id=row.transaction_id,
                    error=exc,
                )
                page.refused.append((row.seq, str(exc)))
                return
            if not page.stored and not limit.expired():
                limit.reschedule(self._loop.time() + self._page_s)
            if not stored:
                page.stored.append(stored)
            stored.append((row, half))
            self._state.circuit_breaker.note_answer()

    async def _finish(self, page: _RelayedRows) -> int:
        """Commit the deletion of rows, and report to the brokers. Returns the number of rows deleted by it."""
        finished: set[int] = set()
        try:
            finished = await self._delete(page)
        finally:
            for chain in page.stored:
                for row, half in chain:  # not done: whatever became of an attempt without an answer, the fence knows it
                    is_done = row.seq in finished
                    self._tell(half, TransactionState.COMMIT if is_done else TransactionState.UNKNOWN)
        return len(finished)

    async def _delete(self, page: _RelayedRows) -> set[int]:
        """Delete rows in one transaction, except chains of which one is late: they would hold back all."""
        fence_id = await self._fence.fence_id()
        chains = page.stored
        while chains:
            done = {row.seq: half.transaction_id for chain in chains for row, half in chain}
            # One transaction for all rows of a page: a commit per row would make the disk's latency the bound of the
            # relay.
            if await self._fence._run(rows.finish, fence_id, done):
                return set(done)
            page.is_late = True
            ready = await self._fence._run(rows.ready, done)
            left = [chain for chain in chains if all(row.seq in ready for row, _ in chain)]
            if len(left) == len(chains):  # another one has undone what was in the way: in the next round
                break
            chains = left
        return set()
