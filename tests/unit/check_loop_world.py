"""A check loop in memory: a clock moved only by tests; store, clients and resolver are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from txmsg.checker.loop import CheckLoop, CheckLoopConfig
from txmsg.checker.policy import CheckPolicies, ParkReason
from txmsg.checker.ports import Askable, Claim, DueHalf
from txmsg.errors import BrokerUnavailable
from txmsg.message import ReceivedMessage, TransactionId, TransactionState, new_transaction_id

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S = 86400.0


class FakeClock:
    """A clock that stands still until `advance`, which wakes the sleepers whose time has come."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now_s(self) -> float:
        return self._now_s

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._now_s)

    async def sleep(self, delay_s: float) -> None:
        woken = asyncio.Event()
        sleeper = (self._now_s + delay_s, woken)
        self._sleepers.append(sleeper)
        try:
            await woken.wait()
        finally:
            self._sleepers.remove(sleeper)

    def advance(self, seconds: float) -> None:
        self._now_s += seconds
        for due_s, woken in self._sleepers:
            if due_s <= self._now_s:
                woken.set()

    async def until_slept_on(self, delay_s: float) -> None:
        """Return when a task sleeps for `delay_s` from now."""
        await until(lambda: any(due_s == self._now_s + delay_s for due_s, _ in self._sleepers))


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until `condition` holds; fail after many turns."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came true")


@dataclass
class Row:
    transaction_id: TransactionId
    group: str
    fence_id: UUID | None
    stored_at: datetime
    next_check_at: datetime | None
    checks: int = 0
    parked: ParkReason | None = None


@dataclass
class MemoryStore:
    """A HalfStore with the rules of its docstrings."""

    clock: FakeClock
    rows: dict[TransactionId, Row] = field(default_factory=dict)
    since: list[datetime | None] = field(default_factory=list)
    broken: int = 0

    def add(self, *, group: str = "users", fence_id: UUID | None = None, due_in_s: float = 0) -> TransactionId:
        transaction_id = new_transaction_id()
        now = self.clock.now()
        self.rows[transaction_id] = Row(transaction_id, group, fence_id, now, now + timedelta(seconds=due_in_s))
        return transaction_id

    async def claim_due(self, askable: Sequence[Askable], *, limit: int, since: datetime | None) -> Claim:
        assert limit > 0, "a claim of nothing"
        if self.broken:
            self.broken -= 1
            raise BrokerUnavailable("the database is away")
        self.since.append(since)
        now = self.clock.now()
        intervals = {(one.group, one.fence_id): one.interval_s for one in askable}
        due = self._due(now, since, set(intervals))
        halves = []
        through = now
        for row in due[:limit]:
            assert row.next_check_at is not None
            if len(due) >= limit:
                through = row.next_check_at
            overdue_s = (now - row.next_check_at).total_seconds()
            row.checks += 1
            row.next_check_at = now + timedelta(seconds=intervals[row.group, row.fence_id])
            halves.append(due_half(row, now, overdue_s))
        return Claim(halves=halves, through=through)

    def _due(self, now: datetime, since: datetime | None, pairs: set[tuple[str, UUID | None]]) -> list[Row]:
        due = [
            (row.next_check_at, row.transaction_id)
            for row in self.rows.values()
            if row.next_check_at is not None
            and (since is None or since <= row.next_check_at)
            and row.next_check_at <= now
            and (row.group, row.fence_id) in pairs
        ]
        return [self.rows[transaction_id] for _, transaction_id in sorted(due)]

    async def park(self, transaction_ids: Sequence[TransactionId], reason: ParkReason) -> None:
        for transaction_id in transaction_ids:
            if row := self.rows.get(transaction_id):
                row.next_check_at, row.parked = None, reason

    async def park_abandoned(
        self, *, overdue_s: float, groups: Sequence[str] | None, except_groups: Sequence[str], limit: int
    ) -> int:
        before = self.clock.now() - timedelta(seconds=overdue_s)
        abandoned = [
            row
            for row in self.rows.values()
            if row.next_check_at is not None
            and row.next_check_at < before
            and (row.group in groups if groups is not None else row.group not in except_groups)
        ][:limit]
        for row in abandoned:
            row.next_check_at, row.parked = None, ParkReason.NO_CLIENT
        return len(abandoned)

    async def end(self, *, commit: Sequence[TransactionId] = (), rollback: Sequence[TransactionId] = ()) -> None:
        """End transactions, as a Resolver does."""
        for transaction_id in [*commit, *rollback]:
            del self.rows[transaction_id]


def due_half(row: Row, now: datetime, overdue_s: float) -> DueHalf:
    return DueHalf(
        transaction_id=row.transaction_id,
        group=row.group,
        fence_id=row.fence_id,
        checks=row.checks,
        age_s=(now - row.stored_at).total_seconds(),
        overdue_s=overdue_s,
        message=ReceivedMessage("user.registered", b"{}", id_bytes=row.transaction_id.bytes),
    )


@dataclass
class ScriptedClients:
    """Clients that answer as the test defines."""

    answer: Callable[[DueHalf], Awaitable[TransactionState | None]]
    pairs: list[tuple[str, UUID | None]] = field(default_factory=lambda: [("users", None)])
    asked: list[DueHalf] = field(default_factory=list)

    def askable(self) -> Sequence[tuple[str, UUID | None]]:
        return self.pairs

    async def ask_client(self, half: DueHalf) -> TransactionState | None:
        self.asked.append(half)
        return await self.answer(half)


def always(state: TransactionState) -> Callable[[DueHalf], Awaitable[TransactionState]]:
    async def answer(half: DueHalf) -> TransactionState:
        return state

    return answer


async def never(half: DueHalf) -> TransactionState:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


@dataclass
class Recorder:
    """A Resolver that records outcomes and fails as the test defines."""

    store: MemoryStore
    commits: list[TransactionId] = field(default_factory=list)
    rollbacks: list[TransactionId] = field(default_factory=list)
    error: Exception | None = None

    async def end_transactions(
        self, *, commit: Sequence[TransactionId] = (), rollback: Sequence[TransactionId] = ()
    ) -> None:
        if self.error is not None:
            raise self.error
        self.commits += commit
        self.rollbacks += rollback
        await self.store.end(commit=commit, rollback=rollback)


class World:
    """A check loop with all its collaborators."""

    def __init__(
        self,
        answer: Callable[[DueHalf], Awaitable[TransactionState | None]],
        policies: CheckPolicies | None = None,
        config: CheckLoopConfig | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.clients = ScriptedClients(answer)
        self.outcomes = Recorder(self.store)
        self.loop = CheckLoop(
            self.store, self.clients, self.outcomes, policies=policies, config=config, clock=self.clock
        )

    async def once(self) -> int:
        return await self.loop.run_once()
