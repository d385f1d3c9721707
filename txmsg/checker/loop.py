"""Finds half messages whose outcome is overdue, has a client asked, and passes the outcome on.

Owns the pace: the interval of polls and sweeps, the number of checks in flight, the meaning of a missing answer. Its
interfaces to the outside are in ports.py; the broker implements them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol, assert_never
from uuid import UUID

from txmsg.checker.policy import CheckDecision, CheckPolicies, ParkReason, decide_after_answer, decide_before_check
from txmsg.checker.ports import Askable, CheckClients, DueHalf, HalfStore, Resolver
from txmsg.errors import MisuseError, OutcomeConflict, OutcomeExpired
from txmsg.message import TransactionId, TransactionState
from txmsg.runtime.logs import EventLog
from txmsg.settings.catalogue import COUNT_MAX, check_settings, setting

_log = EventLog(__name__)

_WINDOW_OVERLAP: Final = timedelta(seconds=2)
"""Overlap of each window with the one before: a half may become due by a transaction that commits a moment later."""
_PARK_BATCH: Final = 1000


class LoopClock(Protocol):
    """The loop's clock. Tests pass their own."""

    def now_s(self) -> float:
        """Return seconds on a monotonic clock; the origin is arbitrary."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait for `delay_s` seconds of this clock."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Return the seconds of `time.monotonic`."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Wait by `asyncio.sleep`."""
        await asyncio.sleep(delay_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLoopConfig:
    """The pace of the loop. Raises MisuseError for values that contradict each other."""

    poll_interval_s: float = setting(
        1.0,
        "Time between polls for due half messages.",
        least=0,
        is_open=True,
    )
    sweep_interval_s: float = setting(
        60.0,
        "Time between scans of all half messages, not only of those newly due. There is also a scan at start.",
        least=0,
        is_open=True,
    )
    in_flight_max: int = setting(
        256,
        "Checks in progress; more stay due in the database.",
        least=1,
        most=COUNT_MAX,
        live=True,
    )
    abandon_grace_s: float = setting(
        600.0,
        "Time after the start in which no half message is parked because its group has no client: clients must "
        "attach first.",
        least=0,
    )
    retry_delay_max_s: float = setting(
        30.0,
        "Longest pause after a failed poll (database unavailable); it doubles from poll_interval_s each time.",
        least=0,
        is_open=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.poll_interval_s > self.retry_delay_max_s:
            raise MisuseError(
                f"poll_interval_s is {self.poll_interval_s}, retry_delay_max_s {self.retry_delay_max_s}: "
                "a failed look waits longer than others; raise retry_delay_max_s"
            )
        if self.sweep_interval_s < self.poll_interval_s:
            raise MisuseError(
                f"sweep_interval_s is {self.sweep_interval_s}, poll_interval_s {self.poll_interval_s}: "
                "a sweep looks at more than a poll; make it the rarer one"
            )


@dataclass(slots=True)
class CheckCounts:
    """Counts of a loop's work since its creation. May be read at any time."""

    asked: int = 0
    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    parked: int = 0


class CheckLoop:
    """The check-back of one broker and one Notify database.

    `run` is a task of the broker's task group. It ends only when it is cancelled, with its checks; halves that are
    being checked are then due again after their interval. `run_once` is one step of it, including its checks.
    """

    def __init__(
        self,
        store: HalfStore,
        clients: CheckClients,
        resolver: Resolver,
        *,
        policies: CheckPolicies | None = None,
        config: CheckLoopConfig | None = None,
        clock: LoopClock | None = None,
    ) -> None:
        self.counts: Final = CheckCounts()
        self._store = store
        self._clients = clients
        self._resolver = resolver
        self._policies = policies or CheckPolicies()
        self._config = config or CheckLoopConfig()
        self._clock = clock or SystemClock()
        self._abandon_look_s = self._clock.now_s() + self._config.abandon_grace_s
        self._resume_at = self._config.in_flight_max * 3 // 4  # so that the next claim is a batch, not a single half
        self._known: frozenset[tuple[str, UUID | None]] = frozenset()
        self._swept_s: float | None = None
        self._through: datetime | None = None
        self._in_flight = 0
        self._is_looking = False
        self._sweep_wanted = True
        self._wake = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """The number of checks in progress."""
        return self._in_flight

    @property
    def is_checking(self) -> bool:
        """True if a check is in progress, or a claim that may begin one."""
        return self._is_looking or self._in_flight > 0

    def wake(self, *, sweep: bool = False) -> None:
        """Poll at once, as after a client has reported UNKNOWN. sweep: scan all halves, not only newly due ones."""
        self._sweep_wanted = self._sweep_wanted or sweep
        self._wake.set()

    def apply_policies(self, policies: CheckPolicies) -> None:
        """Apply new policies, and sweep at once: shorter intervals may have made halves due."""
        if policies != self._policies:
            self._policies = policies
            self.wake(sweep=True)

    def pace(self, config: CheckLoopConfig) -> None:
        """Apply a new pace from the next poll on."""
        self._config = config
        self._resume_at = config.in_flight_max * 3 // 4
        self.wake()

    def forget_window(self, _: str) -> None:
        """Forget the window after the database went back to an earlier state, and sweep at once.

        Halves behind the window may be due again.
        """
        self._through = None
        self.wake(sweep=True)

    def restart_grace(self) -> None:
        """Restart the grace period after the database's clock was set.

        Halves may look overdue; none is parked before its clients could be asked.
        """
        self._abandon_look_s = self._clock.now_s() + self._config.abandon_grace_s

    async def run(self) -> None:
        """Poll for due halves and check them, until cancelled. Retries at longer intervals if the database fails."""
        delay_s = self._config.poll_interval_s
        async with asyncio.TaskGroup() as checks:
            while True:
                self._wake.clear()
                try:
                    claimed_all = await self._step(checks)
                    delay_s = self._config.poll_interval_s
                except Exception:  # noqa: BLE001 - the root of a task
                    _log.exception(
                        "check.lookup_failed",
                        "half messages could not be looked up; next try in %(retry_s).0f s",
                        retry_s=delay_s,
                    )
                    await self._clock.sleep(delay_s)  # not ended early by wake: that would storm a database in trouble
                    delay_s = min(delay_s * 2, self._config.retry_delay_max_s)
                    self._sweep_wanted = True
                    continue
                if claimed_all or self._in_flight > self._resume_at:
                    await self._wait(delay_s)  # the check that ends at _resume_at wakes

    async def run_once(self) -> int:
        """Poll once for due halves and wait for their checks. Return the number of checks begun.

        Raises an ExceptionGroup of what the store raises. Errors of clients and of the resolver are logged, and the
        half is due again later.
        """
        begun = self.counts.asked
        async with asyncio.TaskGroup() as checks:
            await self._step(checks)
        return self.counts.asked - begun

    async def _wait(self, delay_s: float) -> None:
        """Wait for `wake`, at most `delay_s` seconds of the loop's clock."""
        waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(self._clock.sleep(delay_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # ---- one look

    async def _step(self, checks: asyncio.TaskGroup) -> bool:
        """Claim due halves, up to the limit in flight, and begin their checks. Return True if none is left due."""
        if self._abandon_look_due():
            await self._park_abandoned()
        limit = self._config.in_flight_max - self._in_flight
        askable = self._askable()
        if limit == 0:
            return False
        if not askable:
            return True
        sweep = self._sweep_due() or self._through is None
        self._sweep_wanted = False  # a wake during the claim asks for another one
        since = None if sweep or self._through is None else self._through - _WINDOW_OVERLAP
        self._is_looking = True
        try:
            claim = await self._store.claim_due(askable, limit=limit, since=since)
        finally:
            self._is_looking = False
        if sweep:
            self._swept_s = self._clock.now_s()
            self._sweep_wanted = self._sweep_wanted or len(claim.halves) >= limit  # more may lie anywhere
        # Only after a claim that succeeded: if it raises, the window stays, and the next claim reads it again.
        self._through = claim.through
        used_up: list[TransactionId] = []
        for half in claim.halves:
            match decide_before_check(self._policies.of(half.group), half.checks):
                case CheckDecision.ASK:
                    self._in_flight += 1
                    checks.create_task(self._check(half), name=f"check {half.transaction_id}")
                case CheckDecision.PARK:
                    used_up.append(half.transaction_id)
                case decision:
                    raise AssertionError(f"a due half is asked about or parked, not {decision}")
        if used_up:
            await self._park(used_up)
        return len(claim.halves) < limit

    def _sweep_due(self) -> bool:
        return (
            self._sweep_wanted
            or self._swept_s is None
            or self._clock.now_s() - self._swept_s >= self._config.sweep_interval_s
        )

    def _askable(self) -> list[Askable]:
        """Return the groups and fences that can be asked now.

        A new one causes a sweep: the window is past its halves.
        """
        pairs = frozenset(self._clients.askable())
        if pairs - self._known:
            self._sweep_wanted = True
        self._known = pairs
        return [
            Askable(group=group, fence_id=fence_id, interval_s=self._policies.of(group).interval_s)
            for group, fence_id in pairs
        ]

    def _abandon_look_due(self) -> bool:
        """Return True if halves may be parked now: at each sweep interval, but not before clients could attach."""
        return self._clock.now_s() >= self._abandon_look_s

    async def _park_abandoned(self) -> None:
        """Park halves that no client could be asked about for too long, by the policy of each group."""
        self._abandon_look_s = self._clock.now_s() + self._config.sweep_interval_s
        named = self._policies.by_group
        await self._park_overdue(self._policies.default.no_client_park_s, groups=None, except_groups=list(named))
        # One statement for each group with a policy of its own: they differ in the limit, which the statement takes
        # once.
        for group, policy in named.items():
            await self._park_overdue(policy.no_client_park_s, groups=[group], except_groups=())

    async def _park_overdue(
        self, overdue_s: float, *, groups: Sequence[str] | None, except_groups: Sequence[str]
    ) -> None:
        while True:
            parked = await self._store.park_abandoned(
                overdue_s=overdue_s, groups=groups, except_groups=except_groups, limit=_PARK_BATCH
            )
            self.counts.parked += parked
            if parked:
                _log.warning(
                    "half.parked",
                    "%(halves)d half messages parked: %(reason)s",
                    halves=parked,
                    reason=ParkReason.NO_CLIENT.value,
                )
            # A full batch may have left some behind. Batches keep each transaction, and its row locks, short.
            if parked < _PARK_BATCH:
                return

    async def _park(self, transaction_ids: Sequence[TransactionId]) -> None:
        await self._store.park(transaction_ids, ParkReason.CHECKS_USED_UP)
        self.counts.parked += len(transaction_ids)
        _log.warning(
            "half.parked",
            "%(halves)d half messages parked: %(reason)s: %(transaction_ids)s",
            halves=len(transaction_ids),
            reason=ParkReason.CHECKS_USED_UP.value,
            transaction_ids=", ".join(str(transaction_id) for transaction_id in transaction_ids),
        )

    # ---- one check

    async def _check(self, half: DueHalf) -> None:
        """Run one check, as the root of its task: errors are logged and reach neither the loop nor other checks."""
        try:
            answer = await self._answer(half)
            if answer is not None:
                await self._settle(half, answer)
        except OutcomeConflict:
            _log.exception(
                "check.contradicted",
                "check %(attempt)d of %(transaction_id)s contradicts the outcome it has",
                attempt=half.checks,
                transaction_id=half.transaction_id,
            )
        except OutcomeExpired:
            _log.info(
                "check.too_late",
                "%(transaction_id)s was resolved while it was checked",
                transaction_id=half.transaction_id,
            )
        except Exception:  # noqa: BLE001 - the root of a task
            _log.exception(
                "check.unwritten",
                "outcome of %(transaction_id)s could not be stored; it is checked again",
                transaction_id=half.transaction_id,
            )
        finally:
            self._in_flight -= 1
            if self._in_flight == self._resume_at:
                self._wake.set()

    async def _answer(self, half: DueHalf) -> TransactionState | None:
        """Return the client's answer; UNKNOWN if it raises, is late or invalid; None if the outcome became known."""
        self.counts.asked += 1
        timeout_s = self._policies.of(half.group).answer_timeout_s
        # Two futures rather than asyncio.timeout: that reads the event loop's clock, and tests bring a clock of their
        # own.
        ask = asyncio.ensure_future(self._clients.ask_client(half))
        timeout = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            await asyncio.wait([ask, timeout], return_when=asyncio.FIRST_COMPLETED)
        finally:
            in_time = not ask.cancel()  # a task that is done cannot be cancelled
            timeout.cancel()
        if not in_time or ask.cancelled():
            why = f"no answer within {timeout_s:g} s" if not in_time else "the client went away"
        elif (error := ask.exception()) is not None:
            why = repr(error)
        elif (answer := ask.result()) is None or isinstance(answer, TransactionState):
            return answer
        else:
            why = f"{answer!r} is not a TransactionState"
        _log.warning(
            "check.unknown",
            "check %(attempt)d of %(transaction_id)s counts as UNKNOWN: %(reason)s",
            attempt=half.checks,
            transaction_id=half.transaction_id,
            reason=why,
        )
        return TransactionState.UNKNOWN

    async def _settle(self, half: DueHalf, answer: TransactionState) -> None:
        decision = decide_after_answer(self._policies.of(half.group), half.checks, answer)
        match decision:
            case CheckDecision.COMMIT:
                await self._resolver.end_transactions(commit=[half.transaction_id])
                self.counts.committed += 1
            case CheckDecision.ROLLBACK:
                await self._resolver.end_transactions(rollback=[half.transaction_id])
                self.counts.rolled_back += 1
            case CheckDecision.WAIT:
                self.counts.unknown += 1  # the claim has set the time of the next check
            case CheckDecision.PARK:
                self.counts.unknown += 1
                await self._park([half.transaction_id])
            case CheckDecision.ASK:
                raise AssertionError(f"an answer leads to an outcome, not to {decision}")
            case _:
                assert_never(decision)
