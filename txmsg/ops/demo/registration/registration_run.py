"""Runs the demo: users register in three ways, then with messages while processes are killed; then all is verified.

Decides when processes are killed. Knows neither how they are started (stage) nor which result is right (verify, a
separate process).
"""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from txmsg.ops.demo.director import Audience, Director, Step
from txmsg.ops.demo.latency import Latency, latency_of
from txmsg.ops.demo.registration import GROUPS
from txmsg.ops.demo.registration.cluster import ServiceCluster
from txmsg.ops.demo.registration.registration_stage import RegistrationStage
from txmsg.ops.demo.registration.secure_stage import SecureStage
from txmsg.ops.demo.registration.users import (
    Answer,
    AttemptLog,
    RegistrationAttempt,
    RegistrationOutcome,
    Way,
    invent,
)
from txmsg.ops.demo.registration.web import RegistrationCaller

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

TITLES: dict[Way, str] = {
    "serial": "serial calls",
    "parallel": "parallel calls",
    "message": "messages",
}

POINTS = ("before-commit", "after-commit", "while-telling", "random")
"""Scripted points of crash_points.py, and a random time chosen here, in turn."""

DOWN_FROM, BROKER_KILLED_AT, ROTATED_AT, DOWN_UNTIL = 0.1, 0.4, 0.55, 0.7
"""Times of what happens to the broker, to certificates and tokens, and to the subscriber that is down, as shares of the
users under crashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationPlan:
    """The size of the demo."""

    users: int
    """Attempts in all. A tenth (at least 5, at most 50) in each of the three ways, the rest under crashes."""
    crashes: int
    """SIGKILLs of service processes."""
    slow_ms: int
    """Milliseconds that the slowest subscriber takes for a user."""
    down: str | None
    """The subscriber that is away for a while; None: all stay."""
    with_console: bool = False
    """Run `txmsg console`, too."""
    secure: bool = False
    """All parts authenticate each other, and there are a log and a console, too: see secure_stage."""

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
        """Return the number of users in each of the three ways that are compared."""
        return min(50, max(5, self.users // 10))

    @property
    def compared_per_s(self) -> float:
        """Return how many of them come per second: the same in each way, so few that the slowest way keeps up."""
        return min(COMPARING_PER_S, COMPARING_AT_ONCE_MAX / (1.5 * max(1, self.slow_ms) / 1000))

    @property
    def crashing_per_s(self) -> float:
        """Return how many come per second under crashes."""
        return max(CRASHING_PER_S, self.under_crashes / CRASHING_S_MAX)

    @property
    def under_crashes(self) -> int:
        return self.users - 3 * self.compared

    @property
    def crashes_max(self) -> int:
        return self.under_crashes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResult:
    """The result. The names are those of `txmsg demo registration --json`."""

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
    """Errors that the verifier found, in sentences."""
    security: Security | None = None

    @property
    def clean(self) -> bool:
        is_safe = self.security is None or not self.security.let_in
        return is_safe and not (self.missing or self.duplicated or self.phantom or self.in_doubt)


def run(plan: RegistrationPlan, directory: Path, audience: Audience) -> RegistrationResult:
    """Run the demo in `directory`. Raises ChildFailed when a process fails that was not killed on purpose."""
    stage = (SecureStage if plan.secure else RegistrationStage)(directory, slow_ms=plan.slow_ms)
    with RegistrationRun(plan, stage, audience) as demo:
        with (
            contextlib.closing(AttemptLog(stage.url("attempts"))) as log,
            ServiceCluster(stage.start_service, size=SERVICES) as cluster,
        ):
            stage.on_wait("the service")
            cluster.wait_all_up()
            if plan.with_console:
                audience.say(f"the console is at {_console_of(stage)}")
            users = RegisteringUsers(cluster, log, audience)
            latency: dict[str, Latency] = {way: demo.measure(way, users) for way in TITLES}
            demo.register_during_crashes(cluster, users)
            demo.settle()
            demo.count_checks(*stage.brokers)
            verdict, security = demo.verdict, None
            if isinstance(stage, SecureStage):
                from txmsg.ops.demo.registration.secure_proof import examine

                audience.phase("the log, the console, intruders", 1)
                verdict, security = examine(stage, verdict)
    return RegistrationResult(
        **verdict,
        security=security,
        crashes=cluster.crashes,
        checked_back=demo.checks.total(),
        resolved_by_check=dict(demo.checks),
        latency_ms=latency,
        seconds=demo.seconds,
    )


def _console_of(stage: RegistrationStage) -> str:
    if not isinstance(stage, SecureStage):
        return stage.start_console()
    return f"{stage.console_url}, for browsers with a certificate of {stage.certificates}: log in with " + str(
        stage.token_file("operator")
    )


class RegistrationRun(Director[RegistrationStage]):
    """Has users register, and waits until the databases show the result."""

    patience_s = 30.0
    look_s = 0.5

    def __init__(self, plan: RegistrationPlan, stage: RegistrationStage, audience: Audience) -> None:
        super().__init__(stage, audience)
        self._plan = plan
        self.checks: Counter[str] = Counter(commit=0, rollback=0)
        """Transactions ended by a check-back, of brokers of whom `count_checks` was called."""
        self.verdict: dict[str, Any] = {}
        """The verifier's last findings."""

    def measure(self, way: Way, users: RegisteringUsers) -> Latency:
        """Have users register in this way. Return how long they waited."""
        plan = self._plan
        self.phase(TITLES[way], plan.compared)
        attempts = invent(plan.compared, way, refused_share=0)
        outcomes = users.register(attempts, callers=CALLERS_COMPARING, per_s=plan.compared_per_s)
        return latency_of(each.waited_ms for each in outcomes if each.answer == "registered")

    def register_during_crashes(self, cluster: ServiceCluster, users: RegisteringUsers) -> None:
        """Have the other users register while processes are killed."""
        plan = self._plan
        self.phase(f"messages, {plan.crashes} services killed", plan.under_crashes, *self._steps())

        def on_progress(done: int) -> str:
            self.script.run_due(done)
            return f"{cluster.crashes} dead"

        attempts = invent(plan.under_crashes, "message", refused_share=REFUSED_SHARE)
        users.register(
            attempts,
            callers=CALLERS_CRASHING,
            per_s=plan.crashing_per_s,
            crashes=crash_plan(plan.crashes, attempts),
            on_progress=on_progress,
        )
        self.script.run_rest()
        cluster.kill_doomed()
        cluster.wait_all_up()

    def settle(self) -> None:
        """Return when check-backs and deliveries are through, or when nothing changes any more."""
        self.read_children()
        self.phase("check-backs, subscribers catch up", len(GROUPS) * self.verdict["committed"])
        self.wait(self._is_settled, lambda: sum(self.verdict["effects"].values()), state=lambda: self.verdict)
        self.read_children()

    def read_children(self) -> None:
        self.verdict = self.stage.verdict("user_registration", self.stage.url("postgres"))

    def progress_note(self) -> str:
        return f"{self.verdict['in_doubt']} still undecided"

    def count_checks(self, *brokers: str) -> None:
        """Add the check-backs that these brokers counted since they were started."""
        for stats in map(self.stage.broker_stats, brokers):
            self.checks.update(commit=stats.committed_by_check, rollback=stats.rolled_back_by_check)

    def _steps(self) -> list[Step]:
        """Return what happens during the crashes of the service."""
        stage, away = self.stage, self._plan.down
        steps = [Step(BROKER_KILLED_AT, self._kill_broker)]
        if isinstance(stage, SecureStage):
            steps.append(Step(ROTATED_AT, stage.rotate))
        if away is not None:
            steps += [Step(DOWN_FROM, lambda: stage.kill(away)), Step(DOWN_UNTIL, lambda: stage.restart(away))]
        return steps

    def _kill_broker(self) -> None:
        self.count_checks("broker")  # its figures end with it
        self.stage.kill_and_restart("broker")

    def _is_settled(self) -> bool:
        return not self.verdict["missing"] and not self.verdict["in_doubt"] and self.stage.is_drained()


def crash_plan(count: int, attempts: Sequence[RegistrationAttempt]) -> dict[UUID, str]:
    """Return the attempts during which a service process is killed, and the points: `count`, evenly spread.

    Attempts that the business will refuse are left out: they never come to a commit.
    """
    candidates = [attempt.user_id for attempt in attempts if not attempt.refused]
    return {candidates[int((k + 0.5) * len(candidates) / count)]: POINTS[k % len(POINTS)] for k in range(count)}


class RegisteringUsers:
    """Sends the requests of users to any process of the service, several at a time."""

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
        """Return the outcomes of these attempts: `per_s` users come per second, `callers` of them are served at once.

        `on_progress` is called repeatedly with the number of outcomes, and returns the note for the audience.
        """
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
        """Register a user who comes at this time of time.perf_counter(), and waits from then on, also for a caller."""
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
