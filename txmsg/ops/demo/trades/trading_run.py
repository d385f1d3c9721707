"""Runs the demo: a day of trades in which processes are killed; then page, trade database and log are compared.

Decides when processes are killed. Knows neither how they are started (stage) nor which result is right (verify, a
separate process).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from txmsg.ops.demo.director import Audience, Director, Step
from txmsg.ops.demo.trades.figure_latency import Percentiles, Times, times_since
from txmsg.ops.demo.trades.health_writer import HealthWriter
from txmsg.ops.demo.trades.load import MIDNIGHT, Load
from txmsg.ops.demo.trades.trade_stage import TradeStage
from txmsg.ops.demo.trades.watching import PageReading, PageWatch, read_page

KILLED_AT: Final = {"trade_service": 0.30, "broker": 0.42, "tailer": 0.54, "spark": 0.66}
"""Times at which processes are killed, as shares of the trades."""

SUMS: Final = ("orders", "paid", "shipped", "refunded", "turnover_cents")
"""The sums on which the page, the trade database and the log have to agree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradesPlan:
    """The size of the day, and the processes that take part."""

    load: Load
    kill: bool = False
    """Kill service, broker, tailer and Spark driver, once each."""
    with_browser: bool = True
    """Read the page's totals with a browser if one is installed."""
    with_dashboard: bool = True
    """Run Spark and the page: without them, only trade database and log are compared."""
    with_console: bool = False
    """Run `txmsg console`, too."""
    log: str | None = None
    """The address of a log in Kafka instead of one in a directory. Its topics must not be there yet."""
    kafka_jars: Path | None = None
    """A directory with Spark's source for Kafka; None: Spark gets it from Maven's repositories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradesResult:
    """The result. The names are those of `txmsg demo trades --json`."""

    trades: int
    trades_per_s: float
    """Trades made per second, which is less than planned where the service could not keep up."""
    turnover_cents: dict[str, int | None]
    """The turnover by `database`, `log` and `dashboard`."""
    stock_oversold: int
    stock_short: int
    late_events: int | None
    latency_ms: dict[str, Percentiles] | None
    """From the moment of a trade until its figure was `stored`, and had come to the `page`; from midnight on."""
    spark_batch_ms: Percentiles | None
    waits_ms: dict[str, Percentiles] | None
    """The waits of a trade, one after the other: until it was `committed`, its batch `planned` and `started`, until
    it was `read`, its figure `stored`, and `pushed` to the page."""
    kills: dict[str, int]
    seconds: float
    equal: bool
    """True if all sums agree, and the log, the stock and transactions have no errors."""
    page_read_by: str | None
    """The way in which the page was read: `browser`, or `connection`."""
    findings: list[str]
    """Errors, in sentences."""

    @property
    def clean(self) -> bool:
        return self.equal and not self.stock_oversold


def run(plan: TradesPlan, directory: Path, audience: Audience) -> TradesResult:
    """Run the demo in `directory`. Raises ChildFailed when a process fails that was not killed on purpose."""
    stage = TradeStage(
        directory, plan.load, with_dashboard=plan.with_dashboard, log=plan.log, kafka_jars=plan.kafka_jars
    )
    page: PageReading | None = None
    times: Times | None = None
    with TradingRun(plan, stage, audience) as demo:
        demo.exits.enter_context(demo.health)
        if plan.with_dashboard:
            demo.watch = demo.exits.enter_context(PageWatch(stage.children["page"].address))
            audience.say(f"the page is at {stage.page_url}")
        if plan.with_console:
            audience.say(f"the console is at {stage.start_console('--log', stage.log)}")
        demo.trade()
        demo.settle()
        verdict = stage.verdict("trade_dashboard", stage.url("postgres"), stage.log)
        if demo.watch is not None:
            page = read_page(demo.watch, (*SUMS, "late_events"), with_browser=plan.with_browser)
            times = times_since(stage.url("dashboard"), demo.midnight, demo.watch.seen)
    return replace(
        _result(verdict, dict(stage.kills), page, times),
        trades_per_s=round(plan.load.trades / demo.traded_s, 1),
        seconds=demo.seconds,
    )


class TradingRun(Director[TradeStage]):
    """Carries out the load, and waits until all parts have the trades."""

    patience_s = 120.0

    def __init__(self, plan: TradesPlan, stage: TradeStage, audience: Audience) -> None:
        super().__init__(stage, audience)
        self._plan = plan
        self._made, self._late_s = 0, 0.0
        self.health = HealthWriter(stage)
        self.watch: PageWatch | None = None
        self.midnight = datetime.now(UTC)
        self.traded_s = 0.0
        """Seconds until all trades were made."""

    def trade(self) -> None:
        """Return when all trades are made, and all processes that had to be killed were killed."""
        load, made = self._plan.load, lambda: self._made
        self.phase("trading", load.trades, *self._kills())
        began_at = float(self.stage.start_service().wait_ready())
        self.midnight = datetime.fromtimestamp(began_at + MIDNIGHT * load.seconds, UTC)
        self.wait(lambda: self._made >= load.trades, made, patience_s=math.inf)
        self.traded_s = time.time() - began_at
        # On a busy machine Spark may show its first figures only now.
        self.wait(lambda: self.script.is_over, made, state=self._through)
        self.script.run_rest()

    def _kills(self) -> list[Step]:
        """Return who is killed when; Spark not before it has figures to lose."""
        names = ("trade_service", *self.stage.children) if self._plan.kill else ()
        return [
            Step(KILLED_AT[name], partial(self.stage.kill_and_restart, name), *([self._is_shown] * (name == "spark")))
            for name in names
            if name in KILLED_AT
        ]

    def settle(self) -> None:
        """Return when check-backs, deliveries, mirror and figures are through, or when nothing changes any more.

        The patience begins when all have started. Raises ChildFailed.
        """
        self.phase("until all is through", self._plan.load.trades)
        self.stage.await_ready()  # a killed one has as long for it as at first: on a busy machine Spark needs it
        self.wait(self._is_through, lambda: self._through()[0], state=self._through)

    def read_children(self) -> None:
        said = self.stage.children["trade_service"].last_line.split()
        if said and said[0] == "made":
            self._made, self._late_s = int(said[1]), float(said[3])

    def progress_note(self) -> str:
        measures = self.health.measures
        parts = [f"¥{self._totals()['turnover_cents'] / 100:,.2f}"] if self._totals() else []
        if self._late_s >= 1:
            parts.append(f"{self._late_s:.0f} s late")
        parts += [
            f"{what} {measures[name]:.0f}"
            for name, what in (("undecided", "undecided"), ("waiting", "stock"), ("tailer_messages", "log"))
            if name in measures
        ]
        return ", ".join(parts)

    def _totals(self) -> dict[str, int]:
        """Return the totals that the page showed last; empty before the first."""
        bulletin = None if self.watch is None else self.watch.bulletin
        totals: dict[str, int] = bulletin["figures"]["total"] if bulletin and bulletin["figures"] else {}
        return totals

    def _shown(self) -> int:
        """Return the number of trades that the page counts."""
        return sum(self._totals().get(name, 0) for name in SUMS if name != "turnover_cents")

    def _is_shown(self) -> bool:
        return self._shown() > 0

    def _through(self) -> tuple[int, ...]:
        """Return the progress of all parts: trades at the end of the pipeline first."""
        logged, measures = self.stage.logged(), self.health.measures
        waiting = (int(measures.get(name, -1)) for name in ("undecided", "waiting", "tailer_messages"))
        return logged if self.watch is None else self._shown(), logged, *waiting

    def _is_through(self) -> bool:
        shown, logged, *_ = self._through()
        # The broker is asked last: what was measured a moment ago may be from before the last trade.
        return shown == logged == self._plan.load.trades and self.stage.is_drained()


def _result(
    verdict: dict[str, Any], kills: dict[str, int], page: PageReading | None, times: Times | None
) -> TradesResult:
    database, log = verdict["database"], verdict["log"]
    findings = [
        f"the {where} says {name} {sums[name]}, the trade database {database[name]}"
        for where, sums in (("log", log), ("page", database if page is None else page.totals))
        for name in SUMS
        if sums[name] != database[name]
    ]
    return TradesResult(
        trades=database["trades"],
        turnover_cents={
            "database": database["turnover_cents"],
            "log": log["turnover_cents"],
            "dashboard": None if page is None else page.totals["turnover_cents"],
        },
        stock_oversold=verdict["stock_oversold"],
        stock_short=verdict["stock_short"],
        late_events=None if page is None else page.totals["late_events"],
        latency_ms=None if times is None else {"stored": times.stored, "page": times.page},
        spark_batch_ms=None if times is None else times.batch,
        waits_ms=None if times is None else times.waits,
        kills=kills,
        trades_per_s=0.0,
        seconds=0.0,
        equal=verdict["clean"] and not findings,
        page_read_by=None if page is None else page.read_by,
        findings=findings + verdict["findings"],
    )
