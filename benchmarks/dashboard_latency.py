"""Latency from a trade until its figure is stored for the page, and is shown.

Claim (docs/performance.md): at 1,000 trades/s the p99 from a trade until the page has its figure is <= 1 s. All of it
is on this machine: trade service, broker, PostgreSQL, tailer, stock, Spark and the page, which is followed as browsers
do. The days are those of `txmsg demo trades`. Latencies count from midnight on, when Spark has warmed up; the rush is
among them. A service that cannot make so many trades makes them later; how many it made per second is told beside. The
exit status is 1 unless page, trade database and log agree to the cent each time.

    python -m benchmarks.dashboard_latency [--quick] [--json] [--rates N,N] [--seconds S]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.surroundings import parser_of, progress_of
from txmsg.ops.demo.trades.load import Load
from txmsg.ops.demo.trades.trading_run import TradesPlan, TradesResult, run

RATES_PER_S = (100, 1_000, 5_000)


class Nobody:
    """An audience that ignores everything."""

    def phase(self, title: str, steps: int) -> None: ...

    def progress(self, steps: int, note: str) -> None: ...

    def say(self, text: str) -> None: ...


def measure(rate_per_s: float, seconds: float) -> TradesResult:
    """Run and measure one day."""
    with tempfile.TemporaryDirectory(prefix="txmsg-bench-") as name:
        plan = TradesPlan(load=Load(rate=rate_per_s, seconds=seconds), with_browser=False)
        return run(plan, Path(name), Nobody())


def figures_of(result: TradesResult) -> dict[str, float | None]:
    """Return the figures for JSON."""
    assert result.latency_ms is not None
    assert result.spark_batch_ms is not None
    return {
        "trades_per_s": result.trades_per_s,
        "stored_p50_ms": result.latency_ms["stored"].p50,
        "stored_p99_ms": result.latency_ms["stored"].p99,
        "page_p50_ms": result.latency_ms["page"].p50,
        "page_p99_ms": result.latency_ms["page"].p99,
        "batch_p50_ms": result.spark_batch_ms.p50,
        "batch_p99_ms": result.spark_batch_ms.p99,
    }


def main() -> int:
    """Measure, print, and report differences."""
    parser = parser_of(__doc__, "10 s per rate")
    parser.add_argument("--rates", metavar="N,N", help="trades per second, one day for each")
    parser.add_argument("--seconds", type=float, metavar="S", help="how long each day is")
    options = parser.parse_args()
    rates = tuple(map(int, options.rates.split(","))) if options.rates else RATES_PER_S
    seconds = options.seconds or (10.0 if options.quick else 60.0)
    results: dict[int, TradesResult] = {}
    with progress_of("dashboard_latency", len(rates)) as step:
        for rate_per_s in rates:
            results[rate_per_s] = measure(rate_per_s, seconds)
            step()
    found = {f"rate_{rate_per_s}": figures_of(result) for rate_per_s, result in results.items()}
    for rate_per_s, each in zip(rates, found.values(), strict=True):
        print(
            f"{rate_per_s:6,} trades/s, made {each['trades_per_s']:,.0f}/s: stored p50 {each['stored_p50_ms']} p99 "
            f"{each['stored_p99_ms']} ms, on the page p50 {each['page_p50_ms']} p99 {each['page_p99_ms']} ms, "
            f"Spark batch p50 {each['batch_p50_ms']} p99 {each['batch_p99_ms']} ms"
        )
    wrong = [finding for result in results.values() if not result.clean for finding in result.findings or ["NOT equal"]]
    if options.json:
        print(json.dumps(found | {"wrong": len(wrong)}))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
