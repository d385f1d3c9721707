"""`python -m tests.model`: play random histories for a time and judge them. Exit status 1: a violation was found."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import psycopg
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.going_back import Server
from tests.model.explore import Result, explore
from tests.model.plant import Plant, chosen
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres

FIND_S_MAX = 60.0
_TEMPLATE = "model_template"
_ROWS = {
    "histories": "histories",
    "steps": "steps",
    "transactions": "transactions",
    "messages": "messages delivered",
    "requests": "requests to brokers",
    "copies": "  late copies among them",
    "repeats": "  repeats after a lost answer",
    "outcome_conflict": "conflicts: other or late outcome refused",
    "outcome_expired": "outcomes no longer remembered",
    "checks": "checks",
    "rotations": "rotations of segments",
    "topics grown": "topics given more queues",
    "times gone back": "times the database went back",
    "cuts": "connections cut",
    "crashes": "brokers crashed and restarted",
    "clients dead": "clients dead while they waited",
    "deadlocks": "deadlocks in PostgreSQL",
    "deadlocks where topics grew": "  allowed, where queues of copies crossed",
}


@click.command(help=__doc__)
@click.option("--duration", default=60.0, show_default=True, help="Seconds to go on.")
@click.option("--seed", type=int, help="The first history; the next one is the next number. Default: random.")
@click.option("--plant", help="all, a kind (lost, phantom, ...) or a name: the defect that has to be found.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def main(duration: float, seed: int | None, plant: str | None, as_json: bool) -> None:
    seed = secrets.randbelow(10**9) if seed is None else seed
    try:
        plants = chosen(plant) if plant else ()
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--plant") from exc
    console = Console(stderr=as_json, highlight=False)
    console.print(f"seed {seed}")
    with _server() as server:
        if plants:
            alone = len(plants) == 1
            found = [_find(server, each, min(duration, FIND_S_MAX), seed, console, shrink=alone) for each in plants]
            if as_json:
                click.echo(json.dumps(dict(zip((each.name for each in plants), found, strict=True))))
            sys.exit(not all(found))
        result = _run(server, None, duration, seed, console)
    _print(result, console, as_json=as_json)
    sys.exit(not result.clean)


@contextmanager
def _server() -> Iterator[Server]:
    """A private PostgreSQL without fsync: brokers and connections die here, the machine does not."""
    with tempfile.TemporaryDirectory(prefix="txmsg-model-") as directory, EmbeddedPostgres(Path(directory)) as postgres:
        url = postgres.create_database(_TEMPLATE)
        migrate.upgrade(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("alter system set fsync = off")
            connection.execute("select pg_reload_conf()")
        yield postgres


def _find(server: Server, plant: Plant, duration_s: float, seed: int, console: Console, *, shrink: bool) -> bool:
    """Return True if a planted defect is found as its own kind in this time. `shrink`: shows a small history of it."""
    result = _run(server, plant, duration_s, seed, console, shrink=shrink)
    found = result.found is not None
    verdict = f"found after {result.seconds:.1f} s and {result.counts['steps']} steps" if found else "NOT FOUND"
    console.print(f"{plant.defect.value:10}  {plant.name}: {verdict}", soft_wrap=True)
    if shrink and result.found is not None:
        console.print(result.found.described(), markup=False, soft_wrap=True)
    return found


def _run(
    server: Server, plant: Plant | None, duration_s: float, seed: int, console: Console, *, shrink: bool = True
) -> Result:
    with _progress(duration_s, console) as show:
        return asyncio.run(
            explore(server, _TEMPLATE, duration_s=duration_s, seed=seed, plant=plant, shrink=shrink, on_progress=show)
        )


@contextmanager
def _progress(duration_s: float, console: Console) -> Iterator[Callable[[Result], None]]:
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=duration_s)

        def show(result: Result) -> None:
            counts = result.counts
            text = f"{counts['steps']} steps, {counts['crashes']} crashes, {counts['outcome_conflict']} conflicts"
            progress.update(task, completed=result.seconds, description=text)

        yield show


def _print(result: Result, console: Console, *, as_json: bool) -> None:
    if as_json:
        found = None if result.found is None else result.found.described()
        click.echo(json.dumps({"clean": result.clean, "seconds": result.seconds, **result.counts, "found": found}))
        return
    table = Table(show_header=False, box=None)
    for name, text in _ROWS.items():
        table.add_row(text, f"{result.counts[name]:,}")
    console.print(table)
    rate = result.counts["steps"] / max(result.seconds, 0.001)
    if result.found is not None:
        console.print(result.found.described(), markup=False, soft_wrap=True)
    console.print(f"{'clean' if result.clean else 'WRONG'}: {result.seconds:.0f} s, {rate:.0f} steps/s", style="bold")


if __name__ == "__main__":
    main()
