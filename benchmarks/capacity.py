"""Costs of one message in each part, and the number of machines that the loads of the originals would need.

Measures core time, network, write-ahead log and disk of sends, transactions, deliveries, mirroring and reading of the
log (capacity_costs.py), and multiplies (capacity_model.py). With --table nothing is measured, and the model takes what
was measured before, such as benchmarks/capacity.json. docs/scaling.md says what may be concluded from it, and what not.
Every message must arrive, or the exit status is 1.

    python -m benchmarks.capacity [--quick] [--json] [--save FILE]
    python -m benchmarks.capacity --table benchmarks/capacity.json --cores 32 --filled 0.6
    python -m benchmarks.capacity --table benchmarks/capacity.json --transactions-per-s 5000 --deliveries-per-s 20000
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.capacity_costs import BODY_SIZE_BYTES, Measured, Mismatch, Sizes, measure
from benchmarks.capacity_model import Load, Machine, Plan, TooManyClients, costs_of, plan
from benchmarks.capacity_report import markdown, plan_figures, show_costs, show_plan
from benchmarks.surroundings import parser_of, progress_of, this_machine

DAY_S: Final = 86_400
CLIENTS: Final = 200
"""Sending processes, and as many consuming ones: for the originals only the number of applications is known."""
_A_DAY: Final = Load(
    name="35 billion messages a day of 500 applications, all kept for a day",
    transactions_per_s=35e9 / DAY_S,
    deliveries_per_s=35e9 / DAY_S * 22 / 11.2,
    kept=35e9,
    producers=CLIENTS,
    consumers=CLIENTS,
)
LOADS: Final = (
    Load(
        name="Notify at its peak: 600,000 writes/s, 450 million waiting",
        transactions_per_s=600_000,
        deliveries_per_s=600_000 * 22 / 11.2,
        kept=450e6,
        is_backlogged=True,
        producers=CLIENTS,
        consumers=CLIENTS,
    ),
    Load(
        name="Notify on the day: 13.6 billion written, 24.4 billion delivered, all kept for a day",
        transactions_per_s=13.6e9 / DAY_S,
        deliveries_per_s=24.4e9 / DAY_S,
        kept=13.6e9,
        producers=CLIENTS,
        consumers=CLIENTS,
    ),
    _A_DAY,
    replace(_A_DAY, name="the same, each process at one shard", is_split=True),
    Load(
        name="The live room: 131,000 writes/s mirrored, 278,000/s read from the log, which keeps a day",
        transactions_per_s=131_000,
        is_mirrored=True,
        log_reads_per_s=278_000,
        kept=131_000 * 3_600,
        log_kept=131_000 * DAY_S,
        producers=CLIENTS,
    ),
    Load(
        name="The lottery: 240,000 tickets/s, an hour of them waiting",
        transactions_per_s=240_000,
        deliveries_per_s=240_000,
        kept=240_000 * 3_600,
        is_backlogged=True,
        producers=CLIENTS,
        consumers=CLIENTS,
    ),
    Load(
        name="Qbus: 5 billion messages a day, into the log and read once, kept for a day",
        log_appends_per_s=5e9 / DAY_S,
        log_reads_per_s=5e9 / DAY_S,
        log_kept=5e9,
        producers=CLIENTS,
    ),
)
"""Published loads of the originals. Where only a day is published, the average of its seconds."""


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options: every figure of a machine, and of a load."""
    parser = parser_of(__doc__, "a few seconds of each work")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what is measured as a table")
    parser.add_argument("--table", type=Path, metavar="FILE", help="compute from this table, and measure nothing")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/scaling.md, and nothing else")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each measurement")
    parser.add_argument("--clients", type=int, metavar="N", help="idle clients that are measured")
    for kind, title in ((Machine, "a machine"), (Load, "a load of yours, in place of those of the originals")):
        group = parser.add_argument_group(title)
        for each in fields(kind):
            if each.name == "name":
                continue
            option = "--" + each.name.replace("_", "-")
            if isinstance(each.default, bool):
                group.add_argument(option, action="store_true", default=None)
            else:
                group.add_argument(option, type=type(each.default), metavar="N", help=f"default {each.default:g}")
    return parser.parse_args(arguments)


def sizes_of(options: argparse.Namespace) -> Sizes:
    """Return the amounts of work to measure."""
    sizes = Sizes(seconds=10.0, sends=400_000, clients=100, idle_s=10.0)
    if options.quick:
        sizes = Sizes(seconds=3.0, sends=100_000, clients=100, idle_s=5.0)
    if (seconds := options.seconds) is not None:
        sizes = replace(sizes, seconds=seconds, idle_s=seconds, sends=round(seconds * 20_000))
    return sizes if options.clients is None else replace(sizes, clients=options.clients)


def _given(kind: type[Machine] | type[Load], options: argparse.Namespace) -> dict[str, Any]:
    names = [each.name for each in fields(kind) if each.name != "name"]
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def measured_table(measured: Measured) -> dict[str, Any]:
    """Return the table to save: the costs, and where and when they were measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": this_machine(),
        "body_bytes": BODY_SIZE_BYTES,
        "rates_per_s": measured.rates_per_s,
        "costs": measured.table(),
    }


def main() -> int:
    """Measure, or read a table; print it, and the machines needed for each load."""
    options = options_of()
    machine, yours = Machine(**_given(Machine, options)), _given(Load, options)
    if options.table is not None:
        table = json.loads(options.table.read_text())
    else:
        try:
            with progress_of("capacity", 7) as step:
                table = measured_table(measure(sizes_of(options), step))
        except Mismatch as exc:
            print(exc, file=sys.stderr)
            return 1
    if options.save is not None:
        options.save.write_text(json.dumps(table, indent=2) + "\n")
    plans: list[Plan] = []
    refused: dict[str, str] = {}
    for load in [Load(name="yours", **yours)] if yours else LOADS:
        try:
            plans.append(plan(costs_of(table["costs"]), load, machine))
        except TooManyClients as exc:
            refused[load.name] = str(exc)
    if options.markdown:
        print("\n\n".join(markdown(table, plans)))
        return 0
    console = Console(width=max(120, Console().width), highlight=False)
    console.print(f"measured on {table['date']}, {table['body_bytes']} B a body, {_listed(table['machine'])}")
    show_costs(table, console)
    console.print(f"\na machine: {_listed(asdict(machine))}")
    for each in plans:
        show_plan(each, console)
    for name, why in refused.items():
        console.print(f"\n[bold]{name}[/]\nnot possible: {why}")
    if options.json:
        found = [plan_figures(each) for each in plans]
        print(json.dumps({"measured": table, "plans": found, "refused": refused}))
    return 0


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


if __name__ == "__main__":
    sys.exit(main())
