"""Runs the demo: a burst of users enters a lottery while processes are killed and added; then tickets are counted.

Decides when processes are killed and added. Knows neither how they are started (stage) nor which result is right
(verify, a separate process).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from txmsg.ops.demo.browser import taking_picture
from txmsg.ops.demo.director import Audience, Director, Step
from txmsg.ops.demo.examples.lottery import figures
from txmsg.ops.demo.latency import Latency
from txmsg.ops.demo.lottery.lottery_stage import PRINTERS, LotteryStage
from txmsg.runtime.child import ChildFailed
from txmsg.runtime.postgres import FORM, connect

PRINTERS_AT_FIRST: Final = 2
PRINTED_SHARE: Final = 0.2
"""Tickets per second of one printer, as a share of the users who come in one on average: four do not keep up."""
TICKETS_AT_ONCE: Final = 4
KILLED_AT: Final = {"activity_1": 0.15, "printer_1": 0.3, "broker": 0.45}
"""Times at which processes are killed, as shares of the users who have entered."""
MORE_PRINTERS_AT, FEWER_PRINTERS_AT = 0.6, 0.75
"""Printers are added at a share of the users who have entered; one is stopped at a share of the tickets."""
WRITE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LotteryPlan:
    """The size of the burst."""

    users: int
    seconds: float
    kill: bool = False
    """Kill a page process, a printer and the broker, once each."""
    with_console: bool = False
    """Run `txmsg console`, too."""
    picture: Path | None = None
    """The file for a picture of the page at the end, taken by a browser."""

    def __post_init__(self) -> None:
        if not 20 <= self.users <= 1_000_000:
            raise ValueError(f"{self.users} users: give 20 to 1,000,000")
        if not 0.1 <= self.seconds <= 3600:
            raise ValueError(f"{self.seconds:g} seconds: give 0.1 to 3600, an hour")

    @property
    def print_ms(self) -> int:
        """Return how long a printer takes for a ticket; it prints four at a time."""
        per_s = PRINTED_SHARE * self.users / self.seconds
        return max(1, min(1000, round(TICKETS_AT_ONCE * 1000 / per_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LotteryResult:
    """The result. The names are those of `txmsg demo lottery --json`."""

    users: int
    """Users who have entered: all of them, since each tries until it is let in."""
    tickets: int
    missing: int
    duplicated: int
    phantom: int
    in_doubt: int
    request_ms: Latency
    """Milliseconds that users waited for the answer from their arrival on, with all their tries."""
    backlog_max: int
    """Users who waited for a ticket at the worst moment."""
    refused: int
    """Users who did not accept the rules at first: their entries were rolled back."""
    repeated: int
    """Tries without an answer, or with "try again"."""
    kills: dict[str, int]
    printers: int
    """Printers that ran at a time, at most."""
    seconds: float
    findings: list[str]
    """Errors, in sentences."""

    @property
    def clean(self) -> bool:
        return not (self.missing or self.duplicated or self.phantom or self.in_doubt)


def run(plan: LotteryPlan, directory: Path, audience: Audience) -> LotteryResult:
    """Run the demo in `directory`. Raises ChildFailed when a process fails that was not killed on purpose."""
    stage = LotteryStage(directory, print_ms=plan.print_ms, printers=PRINTERS_AT_FIRST)
    with LotteryRun(plan, stage, audience) as demo:
        audience.say(f"the page is at {stage.page_url}")
        if plan.with_console:
            audience.say(f"the console is at {stage.start_console()}")
        demo.connect()
        demo.enter()
        demo.print_all()
        if plan.picture is not None:
            demo.draw(plan.picture)
        verdict = stage.verdict("lottery", stage.url("postgres"), str(plan.users))
    return LotteryResult(
        **verdict,
        request_ms=Latency(**demo.counts["request_ms"]) if demo.all_entered else Latency(p50=0.0, p99=0.0),
        backlog_max=demo.backlog_max,
        refused=demo.counts["refused"],
        repeated=demo.counts["repeated"],
        kills=dict(stage.kills),
        printers=demo.printers_max,
        seconds=demo.seconds,
    )


class LotteryRun(Director[LotteryStage]):
    """Has users enter and tickets printed, and writes the figures of the page."""

    def __init__(self, plan: LotteryPlan, stage: LotteryStage, audience: Audience) -> None:
        super().__init__(stage, audience)
        self._plan = plan
        self._written_at = 0.0
        self._entered = self._printed = 0
        self.counts: dict[str, Any] = {"accepted": 0, "refused": 0, "repeated": 0, "recent": None}
        """The figures that the burst printed last."""
        self.backlog_max = 0
        self.printers_max = 0

    def connect(self) -> None:
        """Connect to the databases."""
        self._activity, self._tickets, self._figures = (
            self.exits.enter_context(connect(self.stage.url(database), FORM))
            for database in ("activity", "tickets", "figures")
        )

    @property
    def all_entered(self) -> bool:
        """Return True if the burst is over."""
        return "request_ms" in self.counts

    def enter(self) -> None:
        """Return when all users have entered, or when nothing changes any more."""
        kills = KILLED_AT if self._plan.kill else {}
        steps = [Step(share, partial(self.stage.kill_and_restart, name)) for name, share in kills.items()]
        self.phase("users enter", self._plan.users, Step(MORE_PRINTERS_AT, self._add_printers), *steps)
        self.stage.start_burst(self._plan.users, self._plan.seconds)
        self.wait(lambda: self.all_entered, lambda: self.counts["accepted"])
        self.script.run_rest()
        if not self.all_entered:
            self.stage.kill("burst")

    def print_all(self) -> None:
        """Return when all tickets are printed and check-backs are over, or when nothing changes any more."""
        fewer = Step(FEWER_PRINTERS_AT, lambda: self.stage.stop("printer_2"))
        self.phase("tickets are printed", self._plan.users, fewer)
        self.wait(lambda: self._printed >= self._entered and self.stage.is_drained(), lambda: self._printed)
        self._write()

    def draw(self, path: Path) -> None:
        """Have the page drawn, which is updated meanwhile. Raises ChildFailed."""
        with taking_picture(self.stage.page_url, path) as taking:
            while taking.poll() is None:
                self.pause()
            if taking.returncode:
                said = taking.stderr.read().decode(errors="replace") if taking.stderr else ""
                raise ChildFailed(f"the browser could not draw the page at {self.stage.page_url}:\n{said[-3000:]}")

    def read_children(self) -> None:
        self.counts = self.stage.last_json("burst") or self.counts
        # Tickets first: an entry made meanwhile can only increase the backlog.
        self._printed = _count(self._tickets, "tickets")
        self._entered = _count(self._activity, "entries")
        self.backlog_max = max(self.backlog_max, self._entered - self._printed)
        printers = [self.stage.children[name] for name in PRINTERS if name in self.stage.children]
        self.printers_max = max(self.printers_max, sum(each.returncode is None for each in printers))
        if time.monotonic() >= self._written_at + WRITE_S:
            self._write()

    def progress_note(self) -> str:
        return f"{self._entered - self._printed:,} wait for a ticket"

    def _add_printers(self) -> None:
        for name in PRINTERS[PRINTERS_AT_FIRST:]:
            self.stage.start_printer(name)

    def _write(self) -> None:
        """Write the figures and the state of the processes for the page."""
        self._written_at = time.monotonic()
        recent = None if self.all_entered else self.counts["recent"]
        figures.write(
            self._figures,
            entered=self._entered,
            printed=self._printed,
            p50_ms=recent and round(recent["p50"]),
            p99_ms=recent and round(recent["p99"]),
        )
        self.stage.write_health({})


def _count(connection: psycopg.Connection[Any], table: str) -> int:
    [count] = connection.execute(f"select count(*) from {table}").fetchone() or (0,)
    return int(count)
