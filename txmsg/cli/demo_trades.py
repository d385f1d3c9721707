"""`txmsg demo trades`: draws progress and the result; txmsg/demo/trades/ does the work."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from txmsg.cli.demo_frame import Bars, Interrupts, demo_directory, failures_told, keep_option, print_connect
from txmsg.cli.main import EXAMPLE_FORMAT

if TYPE_CHECKING:
    from txmsg.demo.trades.supervisor import Result

__all__ = ["DATABASES", "trades"]

DATABASES = ("trades", "stock", "dashboard", "notify")


@click.command(
    short_help="Run a day of trades with a live page, while processes are killed.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo trades --rate 1000 --seconds 60 --kill",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=200.0,
    show_default=True,
    help="Trades per second, on average.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Length of the day in seconds.",
)
@click.option("--seed", type=int, default=11, show_default=True, help="The same seed gives the same trades.")
@click.option("--kill", is_flag=True, help="Kill trade service, broker, tailer and Spark driver once each (SIGKILL).")
@click.option(
    "--no-browser",
    is_flag=True,
    help="Read the page's totals over HTTP, even if a browser is installed.",
)
@keep_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def trades(
    *, rate: float, seconds: float, seed: int, kill: bool, no_browser: bool, keep: Path | None, as_json: bool
) -> None:
    """Create, pay, ship and refund orders, show their sums live on a page, then compare all totals.

    Exit status 1 unless page, trade database and log agree to the cent, and nothing was oversold.
    """
    try:
        import pyspark  # noqa: F401 - the largest of what this demo needs and the other one does not

        from txmsg.demo.trades.load import Load
        from txmsg.demo.trades.supervisor import Plan, run
    except ModuleNotFoundError as exc:
        raise click.ClickException(f"this demo needs more ({exc}): run `pip install 'txmsg[all]'`") from exc

    try:
        plan = Plan(load=Load(rate=rate, seconds=seconds, seed=seed), kill=kill, with_browser=not no_browser)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    console = Console(stderr=as_json)  # stdout is for the JSON then
    with (
        failures_told(),
        demo_directory(keep) as directory,
        Interrupts() as interrupts,
        Bars(console, interrupts, title_width=22) as bars,
    ):
        result = run(plan, directory, bars)
        interrupts.check()
    _print_table(console, result)
    if keep is not None:
        print_connect(console, keep, DATABASES)
    if as_json:
        values = dataclasses.asdict(result)
        print(json.dumps({name: value for name, value in values.items() if name != "findings"}), flush=True)
    sys.exit(0 if result.clean else 1)


def _print_table(console: Console, result: Result) -> None:
    facts = Table(title="What the day came to", title_justify="left", show_header=False)
    facts.add_column()
    facts.add_column(justify="right")
    facts.add_row("trades", f"{result.trades:,}")
    for name, cents in result.turnover_cents.items():
        if cents is not None:
            facts.add_row(f"turnover: {name}", f"¥{cents / 100:,.2f}")
    facts.add_row("paid orders that are short of stock", f"{result.stock_short:,}")
    facts.add_row("sold, and not in stock", f"{result.stock_oversold:,}")
    if result.late_events is not None:
        facts.add_row("events that came late, and counted", f"{result.late_events:,}")
    for name, latency in (result.latency_ms or {}).items():
        if latency.p50 is None:
            continue
        facts.add_row(f"trade until {name}, p50 and p99", f"{latency.p50} and {latency.p99} ms")
    if result.spark_batch_ms is not None:
        facts.add_row("Spark batch, p50 and p99", f"{result.spark_batch_ms.p50} and {result.spark_batch_ms.p99} ms")
    if result.kills:
        facts.add_row("killed", ", ".join(result.kills))
    console.print(facts)
    for finding in result.findings:
        console.print(finding, style="red", highlight=False)
    verdict = "page, trade database and log agree to the cent" if result.clean else "NOT as it must be"
    console.print(f"{verdict}; {result.seconds:.1f} s", style="green" if result.clean else "bold red")
