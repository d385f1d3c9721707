"""`txmsg demo registration`: draws progress and the result; txmsg/demo/registration/ does the work."""

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
from txmsg.demo.registration import GROUPS

if TYPE_CHECKING:
    from txmsg.demo.registration.supervisor import Result

__all__ = ["DATABASES", "registration"]

DATABASES = ("users", *GROUPS, "notify", "attempts")


@click.command(
    short_help="Register users while processes are killed.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo registration --users 500 --crash 20 --keep /tmp/demo",
)
@click.option("--users", default=300, show_default=True, help="Number of users who try to register.")
@click.option(
    "--crash",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="How many times the service is killed (SIGKILL).",
)
@click.option(
    "--slow-ms",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Milliseconds that the slowest subscriber takes per user.",
)
@click.option(
    "--down",
    type=click.Choice([*GROUPS, "none"]),
    default="social_import",
    show_default=True,
    help="Subscriber that is down for a while.",
)
@keep_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def registration(*, users: int, crash: int, slow_ms: int, down: str, keep: Path | None, as_json: bool) -> None:
    """Register users by calls and by messages while processes are killed, then compare the databases.

    Exit status 1 if an effect is missing, duplicated or phantom, or a transaction is undecided.
    """
    from txmsg.demo.registration.supervisor import Plan, run

    try:
        plan = Plan(users=users, crashes=crash, slow_ms=slow_ms, down=None if down == "none" else down)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    console = Console(stderr=as_json)  # stdout is for the JSON then
    with (
        failures_told(),
        demo_directory(keep) as directory,
        Interrupts() as interrupts,
        Bars(console, interrupts, title_width=33) as bars,
    ):
        result = run(plan, directory, bars)
        interrupts.check()
    _print_table(console, result, users_waited=plan.compared)
    if keep is not None:
        print_connect(console, keep, DATABASES)
    if as_json:
        print(json.dumps(_json_of(result)), flush=True)
    sys.exit(0 if result.clean else 1)


def _print_table(console: Console, result: Result, *, users_waited: int) -> None:
    waits = Table(title=f"What {users_waited} users waited for each way (ms)", title_justify="left")
    for column in ("", "p50", "p99"):
        waits.add_column(column, justify="left" if not column else "right")
    titles = {"serial": "serial calls: the sum of all steps", "parallel": "parallel calls: the slowest step"}
    for way, latency in result.latency_ms.items():
        waits.add_row(titles.get(way, "messages: the core step"), f"{latency.p50:.1f}", f"{latency.p99:.1f}")
    console.print(waits)

    facts = Table(title="What the databases say", title_justify="left", show_header=False)
    facts.add_column()
    facts.add_column(justify="right")
    for name, value in (
        ("users who tried", result.users),
        ("committed", result.committed),
        ("rolled back, or never begun", result.rolled_back),
        ("services killed", result.crashes),
        ("settled by a check-back: commit", result.resolved_by_check["commit"]),
        ("settled by a check-back: rollback", result.resolved_by_check["rollback"]),
        *((f"effects in {group}", count) for group, count in result.effects.items()),
        ("effects missing", result.missing),
        ("effects duplicated", result.duplicated),
        ("effects without a user (phantom)", result.phantom),
        ("transactions still undecided", result.in_doubt),
    ):
        facts.add_row(name, str(value))
    console.print(facts)
    for finding in result.findings:
        console.print(finding, style="red", highlight=False)
    verdict = "every user reached every subscriber once" if result.clean else "NOT as it must be"
    console.print(f"{verdict}; {result.seconds:.1f} s", style="green" if result.clean else "bold red")


def _json_of(result: Result) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(result).items() if name != "findings"}
