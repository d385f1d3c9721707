"""The demo: a burst of users enters a lottery while processes are killed and added; then all tickets are counted.

Decides who dies when, and when there are more printers. Knows neither how processes are started (stage) nor what is
right (verify, a process apart).
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from txmsg.ops.demo.browser import taking_picture
from txmsg.ops.demo.examples.lottery import figures
from txmsg.ops.demo.latency import Latency
from txmsg.ops.demo.lottery.stage import PRINTERS, LotteryStage
from txmsg.ops.demo.stage import Audience, write_health
from txmsg.runtime.child import ChildFailed
from txmsg.runtime.postgres import FORM, connect

PRINTERS_AT_FIRST: Final = 2
PRINTED_SHARE: Final = 0.2
"""What one printer prints in a second, as a share of the users who come in one on average: four do not keep up."""
TICKETS_AT_ONCE: Final = 4
PATIENCE_S: Final = 60.0
"""Nothing changes for this long: it will not get better."""
LOOK_S: Final = 0.2
WRITE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LotteryPlan:
    """How big the burst is."""

    users: int
    seconds: float
    kill: bool = False
    """Whether a page process, a printer and the broker are killed, once each."""
    with_console: bool = False
    """Whether `txmsg console` shows the broker meanwhile."""
    picture: Path | None = None
    """Where the page is drawn at the end, by a browser."""

    def __post_init__(self) -> None:
        if not 20 <= self.users <= 1_000_000:
            raise ValueError(f"{self.users} users: give 20 to 1,000,000")
        if not 0.1 <= self.seconds <= 3600:
            raise ValueError(f"{self.seconds:g} seconds: give 0.1 to 3600, an hour")

    @property
    def print_ms(self) -> int:
        """How long a printer takes for a ticket; it prints four at a time."""
        per_s = PRINTED_SHARE * self.users / self.seconds
        return max(1, min(1000, round(TICKETS_AT_ONCE * 1000 / per_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LotteryResult:
    """What came out. The names are those of `txmsg demo lottery --json`."""

    users: int
    """Who has entered: as many as were to, since each tries until it is let in."""
    tickets: int
    missing: int
    duplicated: int
    phantom: int
    in_doubt: int
    request_ms: Latency
    """What users waited for the answer from when they came, with all their tries."""
    backlog_max: int
    """How many waited for a ticket at the worst moment."""
    refused: int
    """Users who did not accept the rules at first: their entries were rolled back."""
    repeated: int
    """Tries without an answer, or with "try again"."""
    kills: dict[str, int]
    printers: int
    """How many ran at a time at most."""
    seconds: float
    findings: list[str]
    """What is wrong, in sentences."""

    @property
    def clean(self) -> bool:
        return not (self.missing or self.duplicated or self.phantom or self.in_doubt)


def run(plan: LotteryPlan, directory: Path, public: Audience) -> LotteryResult:
    """Runs it all under `directory`. Ends every process it started, also when interrupted. Raises ChildFailed when a
    process fails that was not killed on purpose."""
    began = time.monotonic()
    public.phase("starting all processes", 1)
    with LotteryStage(directory, print_ms=plan.print_ms, printers=PRINTERS_AT_FIRST) as stage, ExitStack() as stack:
        page = f"http://{stage.children['page'].address}/"
        public.say(f"the page is at {page}")
        if plan.with_console:
            public.say(f"the console is at {stage.start_console()}")
        night = _LotteryRun(plan, stage, public, stack)
        night.enter()
        night.print_all()
        if plan.picture is not None:
            night.draw(page, plan.picture)
        verdict = stage.verdict("lottery", stage.url("postgres"), str(plan.users))
    return LotteryResult(
        **verdict,
        request_ms=Latency(**night.counts["request_ms"]) if "request_ms" in night.counts else Latency(p50=0.0, p99=0.0),
        backlog_max=night.backlog_max,
        refused=night.counts["refused"],
        repeated=night.counts["repeated"],
        kills=dict(night.kills),
        printers=night.printers_max,
        seconds=round(time.monotonic() - began, 1),
    )


class _LotteryRun:
    """The burst and the printing, and what is done meanwhile."""

    def __init__(self, plan: LotteryPlan, stage: LotteryStage, public: Audience, stack: ExitStack) -> None:
        self._plan, self._stage, self._public = plan, stage, public
        self._activity, self._tickets, self._figures = (
            stack.enter_context(connect(stage.url(database), FORM)) for database in ("activity", "tickets", "figures")
        )
        self._written_at = 0.0
        self._entered = self._printed = 0
        self.counts: dict[str, Any] = {"accepted": 0, "refused": 0, "repeated": 0, "recent": None}
        """What the burst said last."""
        self.backlog_max = 0
        self.printers_max = 0
        self.kills: Counter[str] = Counter()
        self._has_ended: set[str] = set()
        """Processes that were stopped in good order."""

    def enter(self) -> None:
        """Returns when all users are in, or when nothing moves any more."""
        users = self._plan.users
        self._public.phase("users enter", users)
        script = sorted(self._script(), key=lambda step: step[0])
        burst = self._stage.start_burst(users, self._plan.seconds)
        self._await(lambda: "request_ms" in self.counts, lambda: self.counts["accepted"], script)
        for _, act in script:  # what was to happen near the end
            act()
        if "request_ms" not in self.counts:
            burst.kill()

    def print_all(self) -> None:
        """Returns when all tickets are printed, or when nothing moves any more; then check-backs are over as well."""
        self._public.phase("tickets are printed", self._plan.users)
        script = [(0.75, lambda: self._stop("printer_2"))]
        self._await(lambda: self._printed >= self._entered and self._is_drained(), lambda: self._printed, script)
        self._write()

    def draw(self, page: str, path: Path) -> None:
        """Has the page drawn, which is shown its figures meanwhile. Raises ChildFailed."""
        with taking_picture(page, path) as taking:
            while taking.poll() is None:
                time.sleep(LOOK_S)
                self._read_children()
            if taking.returncode:
                said = taking.stderr.read().decode(errors="replace") if taking.stderr else ""
                raise ChildFailed(f"the browser could not draw the page at {page}:\n{said[-3000:]}")

    def _script(self) -> list[tuple[float, Callable[[], None]]]:
        """What happens when, as shares of the users who are in."""
        script: list[tuple[float, Callable[[], None]]] = [(0.6, self._add_printers)]
        if self._plan.kill:
            script += [
                (0.15, lambda: self._kill("activity_1", self._stage.start_activity)),
                (0.3, lambda: self._kill("printer_1", self._stage.start_printer)),
                (0.45, lambda: self._kill("broker", self._stage.start_broker)),
            ]
        return script

    def _kill(self, name: str, start: Callable[[str], object]) -> None:
        self._stage.kill(name)
        start(name)
        self.kills[name] += 1

    def _add_printers(self) -> None:
        for name in PRINTERS[PRINTERS_AT_FIRST:]:
            self._stage.start_printer(name)

    def _stop(self, name: str) -> None:
        """Has a process end in good order: fewer are needed now."""
        self._stage.children[name].stop()
        self._has_ended.add(name)

    def _await(
        self, is_over: Callable[[], bool], done: Callable[[], int], script: list[tuple[float, Callable[[], None]]]
    ) -> None:
        """Goes on until it is over, or nothing moves any more; meanwhile does what the script has for this moment."""
        seen, changed_at = done(), time.monotonic()
        while not is_over() and time.monotonic() < changed_at + PATIENCE_S:
            time.sleep(LOOK_S)
            self._read_children()
            while script and done() >= script[0][0] * self._plan.users:
                script.pop(0)[1]()
            self._public.progress(done(), f"{self._entered - self._printed:,} wait for a ticket")
            if seen != done():
                seen, changed_at = done(), time.monotonic()

    def _read_children(self) -> None:
        """How things are. Raises ChildFailed."""
        for name, child in self._stage.children.items():
            if name not in self._has_ended and not (name == "burst" and child.returncode == 0):
                child.require_running()
        said = self._stage.children["burst"].last_line
        if said.startswith("{"):
            self.counts = json.loads(said)
        # Tickets first: what is entered meanwhile makes the backlog greater, never less than it is.
        self._printed = _count(self._tickets, "tickets")
        self._entered = _count(self._activity, "entries")
        self.backlog_max = max(self.backlog_max, self._entered - self._printed)
        printers = [self._stage.children[name] for name in PRINTERS if name in self._stage.children]
        self.printers_max = max(self.printers_max, sum(each.returncode is None for each in printers))
        if time.monotonic() >= self._written_at + WRITE_S:
            self._write()

    def _write(self) -> None:
        """For the page."""
        self._written_at = time.monotonic()
        recent = None if "request_ms" in self.counts else self.counts["recent"]
        figures.write(
            self._figures,
            entered=self._entered,
            printed=self._printed,
            p50_ms=recent and round(recent["p50"]),
            p99_ms=recent and round(recent["p99"]),
        )
        parts = {
            name: child.is_ready and child.returncode is None
            for name, child in self._stage.children.items()
            if name not in {"page", "burst", *self._has_ended}
        }
        write_health(self._stage.health, parts, {})

    def _is_drained(self) -> bool:
        """Whether nothing is on its way any more that could still do harm."""
        stats = self._stage.broker_stats()
        return not stats.halves and not any(lag.waiting or lag.retrying for lag in stats.groups)


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    [count] = connection.execute(f"select count(*) from {table}").fetchone() or (0,)
    return int(count)
