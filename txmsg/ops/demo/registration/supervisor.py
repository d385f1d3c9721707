"""The demo: users register in three ways, then with messages while processes are killed; in the end all is verified.

Decides who dies when. Knows neither how processes are started (stage) nor what is right (verify, a process apart).
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from txmsg.ops.demo.latency import Latency, latency_of
from txmsg.ops.demo.registration import GROUPS
from txmsg.ops.demo.registration.cluster import ServiceCluster
from txmsg.ops.demo.registration.secure_stage import SecureStage
from txmsg.ops.demo.registration.stage import RegistrationStage
from txmsg.ops.demo.registration.users import (
    Answer,
    AttemptLog,
    RegistrationAttempt,
    RegistrationOutcome,
    Way,
    invent,
)
from txmsg.ops.demo.registration.web import RegistrationCaller
from txmsg.ops.demo.stage import Audience

if TYPE_CHECKING:  # it needs txmsg[metaq]
    from txmsg.ops.demo.registration.secure_proof import Security

SERVICES = 2
CALLERS_COMPARING = 32
CALLERS_CRASHING = 8
COMPARING_PER_S = 10.0
COMPARING_AT_ONCE_MAX = 16
CRASHING_PER_S = 25.0
CRASHING_S_MAX = 30.0
REFUSED_SHARE = 0.05
RETRY_PAUSE_S = 0.1
RETRY_S_MAX = 60.0
KILL_DELAY_S_MAX = 0.03
SETTLE_PATIENCE_S = 30.0
"""Nothing changes in the databases for this long: it will not get better."""

TITLES: dict[Way, str] = {
    "serial": "serial calls",
    "parallel": "parallel calls",
    "message": "messages",
}

POINTS = ("before-commit", "after-commit", "while-telling", "random")
"""Scripted points of crash_points.py, and the outside supervisor's own random moment, in turn."""

DOWN_FROM, BROKER_DIES, ROTATED, DOWN_UNTIL = 0.1, 0.4, 0.55, 0.7
"""When things happen to the broker, to certificates and tokens, and to the subscriber that is down, as shares of the
users under crashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationPlan:
    """How big the demo is."""

    users: int
    """Attempts in all. A tenth (at least 5, at most 50) in each of the three ways, the rest under crashes."""
    crashes: int
    """SIGKILLs of service processes."""
    slow_ms: int
    """How long the slowest subscriber takes for a user."""
    down: str | None
    """The subscriber that is away for a while; None: all stay."""
    with_console: bool = False
    """Whether `txmsg console` shows the broker meanwhile."""
    secure: bool = False
    """Whether all parts authenticate each other, and there are a log and a console, too: see secure_stage."""

    def __post_init__(self) -> None:
        if self.users < 20:
            raise ValueError(f"{self.users} users are too few for four phases: at least 20")
        if not 0 <= self.crashes <= self.crashes_max:
            raise ValueError(
                f"{self.crashes} crashes among {self.under_crashes} users: at most {self.crashes_max}, "
                "half of the users who register in that phase"
            )

    @property
    def compared(self) -> int:
        """Users in each of the three ways that are compared."""
        return min(50, max(5, self.users // 10))

    @property
    def compared_per_s(self) -> float:
        """How many of them come per second: as many in each way, and so few that the slowest way keeps up."""
        return min(COMPARING_PER_S, COMPARING_AT_ONCE_MAX / (1.5 * max(1, self.slow_ms) / 1000))

    @property
    def crashing_per_s(self) -> float:
        """How many come per second under crashes."""
        return max(CRASHING_PER_S, self.under_crashes / CRASHING_S_MAX)

    @property
    def under_crashes(self) -> int:
        return self.users - 3 * self.compared

    @property
    def crashes_max(self) -> int:
        return self.under_crashes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResult:
    """What came out. The names are those of `txmsg demo registration --json`."""

    users: int
    committed: int
    rolled_back: int
    crashes: int
    checked_back: int
    """Transactions that a check-back ended."""
    resolved_by_check: dict[str, int]
    in_doubt: int
    effects: dict[str, int]
    missing: int
    duplicated: int
    phantom: int
    latency_ms: dict[str, Latency]
    seconds: float
    findings: list[str]
    """What the verifier says is wrong, in sentences."""
    security: Security | None = None

    @property
    def clean(self) -> bool:
        is_safe = self.security is None or not self.security.let_in
        return is_safe and not (self.missing or self.duplicated or self.phantom or self.in_doubt)


def run(plan: RegistrationPlan, directory: Path, audience: Audience) -> RegistrationResult:
    """Runs it all under `directory`. Ends every process it started, also when interrupted. Raises ChildFailed when a
    process fails that was not killed on purpose."""
    started = time.monotonic()
    audience.phase("starting all processes", 1)
    prepared = _stage_of(plan, directory)
    prepared.on_wait = lambda name: audience.progress(0, f"waiting for {name}")
    with prepared as stage:
        with (
            contextlib.closing(AttemptLog(stage.url("attempts"))) as log,
            ServiceCluster(stage.start_service, size=SERVICES) as cluster,
        ):
            audience.progress(0, "waiting for the service")
            cluster.wait_all_up()
            if plan.with_console:
                audience.say(f"the console is at {_console_of(stage)}")
            crowd = Crowd(cluster, log, audience)
            latency: dict[str, Latency] = {}
            for way, title in TITLES.items():
                audience.phase(title, plan.compared)
                attempts = invent(plan.compared, way, refused_share=0)
                outcomes = crowd.register(attempts, callers=CALLERS_COMPARING, per_s=plan.compared_per_s)
                latency[way] = latency_of(each.waited_ms for each in outcomes if each.answer == "registered")
            checks = _run_crashes(plan, stage, cluster, crowd, audience)
            verdict = _settle(stage, audience)
            checks += CheckCount.of(stage, *stage.brokers)
            security = None
            if isinstance(stage, SecureStage):
                from txmsg.ops.demo.registration.secure_proof import examine

                audience.phase("the log, the console, intruders", 1)
                verdict, security = examine(stage, verdict)
    return RegistrationResult(
        **verdict,
        security=security,
        crashes=cluster.crashes,
        checked_back=checks.commit + checks.rollback,
        resolved_by_check={"commit": checks.commit, "rollback": checks.rollback},
        latency_ms=latency,
        seconds=round(time.monotonic() - started, 1),
    )


def _stage_of(plan: RegistrationPlan, directory: Path) -> RegistrationStage:
    return (SecureStage if plan.secure else RegistrationStage)(directory, slow_ms=plan.slow_ms)


def _console_of(stage: RegistrationStage) -> str:
    if not isinstance(stage, SecureStage):
        return stage.start_console()
    return f"{stage.console_url}, for browsers with a certificate of {stage.certificates}: log in with " + str(
        stage.token_file("operator")
    )


@dataclass(frozen=True, slots=True)
class CheckCount:
    """Transactions ended by a check-back."""

    commit: int
    rollback: int

    @classmethod
    def of(cls, stage: RegistrationStage, *brokers: str) -> CheckCount:
        """By these brokers, since they were started last."""
        stats = [stage.broker_stats(name) for name in brokers]
        return cls(sum(each.committed_by_check for each in stats), sum(each.rolled_back_by_check for each in stats))

    def __add__(self, other: CheckCount) -> CheckCount:
        return CheckCount(self.commit + other.commit, self.rollback + other.rollback)


def crash_plan(count: int, attempts: Sequence[RegistrationAttempt]) -> dict[UUID, str]:
    """Which attempts take a service process with them, and at which point: `count`, evenly spread.

    Not those whom the business will refuse: they never come to a commit.
    """
    candidates = [attempt.user_id for attempt in attempts if not attempt.refused]
    return {candidates[int((k + 0.5) * len(candidates) / count)]: POINTS[k % len(POINTS)] for k in range(count)}


class Crowd:
    """Users, so many at a time, who register with any process of the service, and wait."""

    def __init__(self, cluster: ServiceCluster, log: AttemptLog, audience: Audience) -> None:
        self._cluster = cluster
        self._log = log
        self._audience = audience
        self._caller = RegistrationCaller()

    def register(
        self,
        attempts: Sequence[RegistrationAttempt],
        *,
        callers: int,
        per_s: float,
        crashes: Mapping[UUID, str] = MappingProxyType({}),
        on_progress: Callable[[int], str] = lambda done: "",
    ) -> list[RegistrationOutcome]:
        """Has everybody register: `per_s` come per second, `callers` of them are served at once. `on_progress` is
        called over and over with the number of those who are through."""
        self._log.write(attempts)
        began = time.perf_counter()
        with ThreadPoolExecutor(callers, thread_name_prefix="user") as pool:
            calls = [
                pool.submit(self._register, attempt, began + i / per_s, crashes.get(attempt.user_id))
                for i, attempt in enumerate(attempts)
            ]
            try:
                self._watch(calls, on_progress)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        outcomes = [call.result() for call in calls]
        self._log.write_answers(outcomes)
        return outcomes

    def _watch(self, calls: Sequence[Future[RegistrationOutcome]], on_progress: Callable[[int], str]) -> None:
        pending: Sequence[Future[RegistrationOutcome]] = calls
        while pending:
            finished, rest = wait(pending, timeout=0.05, return_when=FIRST_EXCEPTION)
            for call in finished:
                call.result()
            pending = list(rest)
            done = len(calls) - len(pending)
            self._audience.progress(done, on_progress(done))

    def _register(self, attempt: RegistrationAttempt, comes_at: float, crash: str | None) -> RegistrationOutcome:
        """One user, who comes at that moment of time.perf_counter() and waits from then on, also for a free caller."""
        time.sleep(max(0.0, comes_at - time.perf_counter()))
        request: dict[str, Any] = {"user_id": str(attempt.user_id), "email": attempt.email, "way": attempt.way}
        while True:
            _, child = self._cluster.pick(doom=crash is not None)
            if crash == "random":
                threading.Timer(random.uniform(0, KILL_DELAY_S_MAX), child.kill).start()
            try:
                status, answer = self._caller.post(child.address, {**request, "crash": crash and _scripted(crash)})
            except ConnectionRefusedError:
                crash = None  # it died just now, of a crash ordered before: nothing was asked, ask another one
                continue
            except (OSError, http.client.HTTPException):
                return _outcome(attempt, "nothing", comes_at)
            if status == 503 and time.perf_counter() < comes_at + RETRY_S_MAX:
                crash = None
                time.sleep(RETRY_PAUSE_S)
                continue
            if status not in (201, 422):
                raise RuntimeError(f"the service answered {status} to {attempt}: {answer}")
            return _outcome(attempt, "registered" if status == 201 else "refused", comes_at)


def _scripted(crash: str) -> str | None:
    return None if crash == "random" else crash


def _outcome(attempt: RegistrationAttempt, answer: Answer, comes_at: float) -> RegistrationOutcome:
    return RegistrationOutcome(attempt=attempt, answer=answer, waited_ms=(time.perf_counter() - comes_at) * 1000)


def _run_crashes(
    plan: RegistrationPlan, stage: RegistrationStage, cluster: ServiceCluster, crowd: Crowd, audience: Audience
) -> CheckCount:
    """Everybody else registers while processes die. Returns the checks that the broker counted before it was killed."""
    count = plan.under_crashes
    audience.phase(f"messages, {plan.crashes} services killed", count)
    events = _script(plan, stage)
    before_kill = CheckCount(0, 0)

    def on_progress(done: int) -> str:
        nonlocal before_kill
        while events and done >= events[0][0] * count:
            checks = events.pop(0)[1]()
            before_kill += checks or CheckCount(0, 0)
        return f"{cluster.crashes} dead"

    attempts = invent(count, "message", refused_share=REFUSED_SHARE)
    crowd.register(
        attempts,
        callers=CALLERS_CRASHING,
        per_s=plan.crashing_per_s,
        crashes=crash_plan(plan.crashes, attempts),
        on_progress=on_progress,
    )
    on_progress(count)
    cluster.kill_doomed()
    cluster.wait_all_up()
    return before_kill


def _script(plan: RegistrationPlan, stage: RegistrationStage) -> list[tuple[float, Callable[[], CheckCount | None]]]:
    """What happens when (a share of the users), besides the crashes of the service."""

    def down() -> None:
        assert plan.down is not None
        stage.kill(plan.down)

    def up_again() -> None:
        assert plan.down is not None
        stage.start_subscriber(plan.down)

    def kill_broker() -> CheckCount:
        checks = CheckCount.of(stage, "broker")
        stage.kill("broker")
        stage.start_broker()
        return checks

    script: list[tuple[float, Callable[[], CheckCount | None]]] = [(BROKER_DIES, kill_broker)]
    if isinstance(stage, SecureStage):
        script += [(ROTATED, stage.rotate)]
    if plan.down is not None:
        script += [(DOWN_FROM, down), (DOWN_UNTIL, up_again)]
    return sorted(script, key=lambda item: item[0])


def _settle(stage: RegistrationStage, audience: Audience) -> dict[str, Any]:
    """Waits until check-backs and deliveries are through, or until nothing moves any more; the verifier's last word."""
    look = functools.partial(stage.verdict, "user_registration", stage.url("postgres"))
    verdict = look()
    audience.phase("check-backs, subscribers catch up", len(GROUPS) * verdict["committed"])
    changed_at = time.monotonic()
    while time.monotonic() < changed_at + SETTLE_PATIENCE_S:
        audience.progress(sum(verdict["effects"].values()), f"{verdict['in_doubt']} still undecided")
        if not verdict["missing"] and not verdict["in_doubt"] and _drained(stage):
            break  # nothing is on its way any more that could still do harm, so the next verdict is the last one
        time.sleep(0.5)
        before, verdict = verdict, look()
        if verdict != before:
            changed_at = time.monotonic()
    return look()


def _drained(stage: RegistrationStage) -> bool:
    return not any(lag.waiting or lag.retrying for lag in stage.broker_stats().groups)
