"""The demo: a day of trades, in which processes are killed; in the end page, trade database and log are compared.

Decides who dies when. Knows neither how processes are started (stage) nor what is right (verify, a process apart).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from txmsg.ops.demo.stage import Audience
from txmsg.ops.demo.trades.health import HealthWriter
from txmsg.ops.demo.trades.latency import Percentiles, Times, times_since
from txmsg.ops.demo.trades.load import MIDNIGHT, Load
from txmsg.ops.demo.trades.stage import TradeStage
from txmsg.ops.demo.trades.watching import PageReading, PageWatch, read_page

KILLED_AT: Final = {"trade_service": 0.30, "broker": 0.42, "tailer": 0.54, "spark": 0.66}
"""Who dies when, as shares of the trades."""
PATIENCE_S: Final = 120.0
"""Nothing changes for this long: it will not get better."""
LOOK_S: Final = 0.2

SUMS: Final = ("orders", "paid", "shipped", "refunded", "turnover_cents")
"""What the page, the trade database and the log have to agree on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradesPlan:
    """How big the day is, and what takes part."""

    load: Load
    kill: bool = False
    """Whether service, broker, tailer and Spark driver are killed, once each."""
    with_browser: bool = True
    """Whether the page's totals are read by a browser, where there is one."""
    with_dashboard: bool = True
    """Whether Spark and the page take part: without them, only trade database and log are compared."""
    with_console: bool = False
    """Whether `txmsg console` shows broker, mirror and log meanwhile."""
    log: str | None = None
    """The address of a log in Kafka instead of one in a directory. Its topics must not be there yet."""
    kafka_jars: Path | None = None
    """A directory with Spark's source for Kafka; None: Spark gets it from Maven's repositories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TradesResult:
    """What came out. The names are those of `txmsg demo trades --json`."""

    trades: int
    trades_per_s: float
    """How many were made per second, which is less than planned where the service could not keep up."""
    turnover_cents: dict[str, int | None]
    """What `database`, `log` and `dashboard` say."""
    stock_oversold: int
    stock_short: int
    late_events: int | None
    latency_ms: dict[str, Percentiles] | None
    """From the moment of a trade until its figure was `stored`, and had come to the `page`; from midnight on."""
    spark_batch_ms: Percentiles | None
    waits_ms: dict[str, Percentiles] | None
    """What a trade waited for, one after the other: until it was `committed`, its batch `planned` and `started`, until
    it was `read`, its figure `stored`, and `pushed` to the page."""
    kills: dict[str, int]
    seconds: float
    equal: bool
    """Whether all that has to agree does, and nothing is wrong with the log, stock and undecided transactions."""
    page_read_by: str | None
    """How the page was read: `browser`, or `connection`."""
    findings: list[str]
    """What is wrong, in sentences."""

    @property
    def clean(self) -> bool:
        return self.equal and not self.stock_oversold


def run(plan: TradesPlan, directory: Path, public: Audience) -> TradesResult:
    """Runs it all under `directory`. Ends every process it started, also when interrupted. Raises ChildFailed when a
    process fails that was not killed on purpose."""
    began = time.monotonic()
    public.phase("starting all processes", 1)
    staged = TradeStage(
        directory, plan.load, with_dashboard=plan.with_dashboard, log=plan.log, kafka_jars=plan.kafka_jars
    )
    with staged as stage, ExitStack() as stack:
        health = stack.enter_context(HealthWriter(stage))
        watch: PageWatch | None = None
        if plan.with_dashboard:
            watch = stack.enter_context(PageWatch(stage.children["page"].address))
            public.say(f"the page is at http://{stage.children['page'].address}/")
        if plan.with_console:
            public.say(f"the console is at {stage.start_console('--log', stage.log)}")
        day = _TradingRun(plan, stage, health, watch, public)
        day.trade()
        day.settle()
        verdict = stage.verdict("trade_dashboard", stage.url("postgres"), stage.log)
        page = None if watch is None else read_page(watch, (*SUMS, "late_events"), with_browser=plan.with_browser)
        times = None if watch is None else times_since(stage.url("dashboard"), day.midnight, watch.seen)
    return replace(
        _result(verdict, dict(day.kills), page, times),
        trades_per_s=round(plan.load.trades / day.traded_s, 1),
        seconds=round(time.monotonic() - began, 1),
    )


class _TradingRun:
    """The load while it is carried out, and what is done meanwhile."""

    def __init__(
        self, plan: TradesPlan, stage: TradeStage, health: HealthWriter, watch: PageWatch | None, public: Audience
    ) -> None:
        self._plan, self._stage, self._health, self._watch, self._public = plan, stage, health, watch, public
        self._made, self._late_s = 0, 0.0
        self.midnight = datetime.now(UTC)
        self.traded_s = 0.0
        """How long it took to make all trades."""
        self.kills: Counter[str] = Counter()

    def trade(self) -> None:
        """Returns when all trades are made, and who has to be killed was killed."""
        load = self._plan.load
        self._public.phase("trading", load.trades)
        began_at = float(self._stage.start_service().wait_ready())
        self.midnight = datetime.fromtimestamp(began_at + MIDNIGHT * load.seconds, UTC)
        doomed = [name for name in KILLED_AT if name in self._stage.children] if self._plan.kill else []
        while self._read_children() < load.trades:
            if doomed and self._is_time_for(doomed[0]):
                self._kill(doomed.pop(0))
        self.traded_s = time.time() - began_at
        for name in doomed:  # Spark is slow to begin where others want the machine
            self._await(partial(self._is_time_for, name))
            self._kill(name)

    def _is_time_for(self, name: str) -> bool:
        """Whether a process is to be killed now; Spark, when it has something to lose."""
        return self._made >= KILLED_AT[name] * self._plan.load.trades and (name != "spark" or self._shown() > 0)

    def _kill(self, name: str) -> None:
        self._stage.kill(name)
        self._stage.starting[name]()
        self.kills[name] += 1

    def settle(self) -> None:
        """Returns when check-backs, deliveries, mirror and figures are through, or when nothing moves any more.

        That counts from when all have started. Raises ChildFailed.
        """
        self._public.phase("until all is through", self._plan.load.trades)
        for child in self._stage.children.values():
            child.wait_ready()  # one that was killed has as long for it as at first: on a busy machine Spark needs it
        self._await(self._is_through)

    def _await(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds, or when nothing moves any more."""
        seen, changed_at = self._through(), time.monotonic()
        while not condition() and time.monotonic() < changed_at + PATIENCE_S:
            self._read_children(seen[0])
            if seen != self._through():
                seen, changed_at = self._through(), time.monotonic()

    def _read_children(self, done: int | None = None) -> int:
        """Waits a moment, tells how things are, and how many trades are made. Raises ChildFailed."""
        time.sleep(LOOK_S)
        for child in self._stage.children.values():
            child.require_running()
        said = self._stage.children["trade_service"].last_line.split()
        if said and said[0] == "made":
            self._made, self._late_s = int(said[1]), float(said[3])
        self._public.progress(self._made if done is None else done, self._note())
        return self._made

    def _note(self) -> str:
        measures = self._health.measures
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
        """What the page showed last; nothing before the first."""
        bulletin = None if self._watch is None else self._watch.bulletin
        totals: dict[str, int] = bulletin["figures"]["total"] if bulletin and bulletin["figures"] else {}
        return totals

    def _shown(self) -> int:
        """Trades that the page counts."""
        return sum(self._totals().get(name, 0) for name in SUMS if name != "turnover_cents")

    def _through(self) -> tuple[int, ...]:
        """How far all is: trades at the end of the pipeline first."""
        logged, measures = self._stage.logged(), self._health.measures
        waiting = (int(measures.get(name, -1)) for name in ("undecided", "waiting", "tailer_messages"))
        return logged if self._watch is None else self._shown(), logged, *waiting

    def _is_through(self) -> bool:
        shown, logged, *_ = self._through()
        if not shown == logged == self._plan.load.trades:
            return False
        stats = self._stage.broker_stats()  # what was measured a moment ago may be from before the last trade
        return not stats.halves and not any(lag.waiting or lag.retrying for lag in stats.groups)


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
