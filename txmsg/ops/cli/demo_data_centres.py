"""`txmsg demo data-centres`: logs that copy each other, with a line between them that fails."""

from __future__ import annotations

import functools

import click
from rich.console import Console

from txmsg.ops.cli.demo_play import play, print_facts, refuse_impossible_plan, seconds_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.demo.data_centres.copy_run import DataCentresPlan, DataCentresResult, run


@click.command(
    short_help="Write in two data centres while the line between them is cut.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo data-centres --orders 20000 --seconds 30 --cuts 3",
)
@click.option("--orders", type=int, default=5000, show_default=True, help="Number of orders of each data centre.")
@seconds_option(10.0, "Seconds for which each data centre writes.")
@click.option(
    "--cuts", type=int, default=2, show_default=True, help="Number of times that the link is cut and restored."
)
@json_option
def data_centres(*, orders: int, seconds: float, cuts: int, as_json: bool) -> None:
    """Write orders to the logs of two data centres that copy each other's, while the link between them is cut.

    Exit status 1 unless both add up all orders to the cent at the end, and each copy has the bytes of its log.
    """
    with refuse_impossible_plan():
        plan = DataCentresPlan(orders=orders, seconds=seconds, cuts=cuts)
    play(
        functools.partial(run, plan),
        _print_data_centres,
        databases=(),
        title_width=22,
        verdict="both data centres have all orders, and the bytes of each other's log",
        keep=None,
        as_json=as_json,
    )


def _print_data_centres(console: Console, result: DataCentresResult) -> None:
    sums = [
        (f"in {here}: of {of}", f"{orders:,} orders, ¥{cents / 100:,.2f}")
        for here, totals in result.totals.items()
        for of, (orders, cents) in sorted(totals.items())
    ]
    facts = (
        ("orders missing", f"{result.missing:,}"),
        ("line cut", f"{result.cuts} times"),
        ("written while it was cut", f"{result.written_while_cut:,}"),
        ("behind at most", f"{result.behind_max:,}"),
        ("after the last order, until both had all", f"{result.caught_up_s} s"),
    )
    print_facts(console, "What both data centres know", (*sums, *facts))
