"""Prints measured costs and plans: on a terminal, as the tables of docs/scaling.md, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.capacity_model import Cost, Part, Plan

_WITH_MACHINES: Final = (Part.BROKER, Part.DATABASE, Part.LOG)


def show_costs(table: Mapping[str, Any], console: Console) -> None:
    """Print one line for each part of each kind of work."""
    shown = Table("Work", "Measured at", "Part", box=None, title="What one costs", title_justify="left")
    for title in ("core us", "in B", "out B", "WAL B", "kept B"):
        shown.add_column(title, justify="right")
    for work, parts in table["costs"].items():
        rate = table["rates_per_s"].get(work)
        for place, (part, figures) in enumerate(parts.items()):
            cost = Cost(**figures)
            numbers = (cost.core_us, cost.in_bytes, cost.out_bytes, cost.wal_bytes, cost.kept_bytes)
            first = () if place else (work, f"{rate:,.0f}/s" if rate else "")
            shown.add_row(*(first or ("", "")), part, *(f"{each:,.1f}" for each in numbers))
    console.print(shown)


def show_plan(found: Plan, console: Console) -> None:
    """Print the bottleneck, the next limits, and a line for each part."""
    first, *rest = found.needs
    others = ", ".join(f"{each.part}: {each.of} {each.shards:.1f}" for each in rest[:3])
    console.print(f"\n[bold]{found.load.name}[/]")
    console.print(
        f"{found.machines:,} machines; shards: {found.shards:,}, for the {first.part}: {first.of} ({first.shards:.1f})"
        f"; then {others}"
    )
    if found.of_brokers:
        spent = ", ".join(f"{cores:,.1f} on {name}" for name, cores in found.of_brokers.items())
        console.print(f"brokers spend their cores: {spent}")
    if found.catch_up is not None:
        console.print(f"a tailer that was away catches up at {found.catch_up:.1f} times the rate of the messages")
    shown = Table("Part", box=None)
    for title in ("processes", "machines", "cores", "in Gbit/s", "out Gbit/s", "disk MB/s", "keeps TB"):
        shown.add_column(title, justify="right")
    for row in found.rows:
        takes = row.takes
        shown.add_row(
            row.part,
            f"{row.processes:,}" if row.processes else "",
            f"{row.machines:,}" if row.machines else "",
            f"{takes.cores:,.1f}",
            f"{takes.in_bytes * 8e-9:,.2f}",
            f"{takes.out_bytes * 8e-9:,.2f}",
            f"{takes.disk_bytes / 1e6:,.0f}",
            f"{row.keeps_bytes / 1e12:,.2f}",
        )
    console.print(shown)


def plan_figures(found: Plan) -> dict[str, Any]:
    """Return a plan for JSON."""
    rows = {row.part: {"processes": row.processes, "machines": row.machines} for row in found.rows}
    cores = {row.part: round(row.takes.cores, 2) for row in found.rows}
    needs = [{"part": each.part, "of": each.of, "shards": round(each.shards, 3)} for each in found.needs]
    return {
        "load": found.load.name,
        "machines": found.machines,
        "shards": found.shards,
        "needs": needs,
        "rows": rows,
        "cores": cores,
        "of_brokers": found.of_brokers,
    }


def markdown(table: Mapping[str, Any], plans: Sequence[Plan]) -> tuple[str, str]:
    """Return costs and plans as in docs/scaling.md."""
    return "\n".join(_markdown_costs(table)), "\n".join(_markdown_plans(plans))


def _markdown_costs(table: Mapping[str, Any]) -> Iterator[str]:
    yield "| One | Part | core us | bytes in | bytes out | WAL bytes | bytes kept |"
    yield "|---|---|---|---|---|---|---|"
    for work, parts in table["costs"].items():
        for part, figures in parts.items():
            cost = Cost(**figures)
            numbers = (cost.core_us, cost.in_bytes, cost.out_bytes, cost.wal_bytes, cost.kept_bytes)
            shown = " | ".join(f"{each:,.0f}" if each >= 20 else f"{each:.2g}" if each else "" for each in numbers)
            yield f"| {work} | {part} | {shown} |"


def _markdown_plans(plans: Sequence[Plan]) -> Iterator[str]:
    yield (
        "| Load | Shards | because of | Brokers | Their cores for messages, calls, idle clients "
        "| Machines for them, databases, logs | All | Kept |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for each in plans:
        need = each.needs[0]
        rows = {row.part: row for row in each.rows}
        machines = ", ".join(str(rows[part].machines) if part in rows else "-" for part in _WITH_MACHINES)
        spent = ", ".join(f"{cores:,.0f}" for cores in each.of_brokers.values())
        brokers = f"{rows[Part.BROKER].processes:,} | {spent}" if spent else "- | -"
        kept_bytes = sum(row.keeps_bytes for row in each.rows)
        yield (
            f"| {each.load.name} | {each.shards} | {need.part}: {need.of} ({need.shards:.1f}) | {brokers} "
            f"| {machines} | {each.machines} | {kept_bytes / 1e12:.2g} TB |"
        )
