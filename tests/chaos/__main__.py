"""`python -m tests.chaos`: runs a cluster under faults and gives a verdict. Exit status 1: violations found."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from itertools import groupby

import click
from rich.console import Console
from rich.table import Table

from tests.chaos import guest_java
from tests.chaos.chain_verdict import STEPS
from tests.chaos.guests import JAVA, LANGUAGES, PYTHON
from tests.chaos.plan import Kind
from tests.chaos.plant import Plant, chosen
from tests.chaos.run import Result, play

SHOWN_MAX = 5
"""Violations printed for each invariant."""
_ROWS = {
    "messages": "messages in the log",
    "sends": "plain sends",
    "transactions": "transactions",
    "committed": "  committed",
    "failed": "sends and transactions that raised",
    "deliveries": "deliveries",
    "redeliveries": "  again, after a failure or a loss",
    "dead": "dead letters",
    "conflicts": "conflicting outcomes refused",
    "kill": "brokers killed",
    "clock_step": "  and started with a wrong wall clock",
    "pause": "brokers paused",
    "pause_in_batch": "  in the middle of a batch",
    "pause_in_assignment": "  in the middle of an assignment",
    "cut_database": "brokers cut off from the database",
    "cut_clients": "brokers cut off from clients",
    "postgres": "restarts of PostgreSQL, killed",
    "slow_disk": "slow disks of the database",
    "power_loss": "losses of its power",
    "forgotten": "  writes to its log lost by these",
    "promote": "standbys promoted",
    "restore": "backups restored",
    "lost": "  messages lost by these, with every copy",
    "clock": "steps of the clock of the database",
    "clock_kill": "  while all brokers were dead",
    "seek": "groups sent back",
    "redrive": "dead letters redriven",
    "stop": "brokers stopped in order, and started again",
    "drain": "brokers drained, and resumed",
    "twin": "second brokers with the same id",
    "business": "clients cut off from their database",
    "producer": "producers killed",
    "consumer": "consumers killed",
}
_GUEST_ROWS = {
    "guest_sends": "plain sends by clients of RocketMQ",
    "guest_halves": "  halves",
    "guest_checks": "  answers to checks",
    "guest_checked": "  committed by a check alone",
    "guest_pushed": "deliveries to their push consumers",
    "guest_pulled": "  to simple consumers",
    "from_guests": "deliveries of theirs to txmsg's consumers",
    "to_guests": "  the other way round",
    "gateway": "gateways killed",
    "gateway_stop": "  stopped in order",
    "gateway_pause": "  paused",
    "gateway_cut": "  cut off from clients",
    "guest_producer": "producers of RocketMQ killed",
    "guest_consumer": "  consumers",
    "guest_producer_pause": "producers of RocketMQ paused",
    "guest_consumer_pause": "  consumers",
}
_CHAIN_ROWS = {
    "service": "services of the chain killed",
    "chain_order": "orders",
    "chain_payment": "  paid",
    "chain_shipping": "  shipped",
    "chain_lost": "  lost with a database",
    **{
        f"chain_{step}_{name}": f"  {text} of {step}"
        for step in STEPS
        for name, text in (
            ("attempts", "attempts"),
            ("attempts_again", "of them redelivered,"),
            ("checked", "answers to checks"),
        )
    },
    "chain_per_minute": "  shipped per minute",
    "chain_ms_p50": "  from order to shipment in ms, p50",
    "chain_ms_p99": "  p99",
    "chain_gap_ms": "  longest time without a shipment, in ms",
}
_AWAY_ROWS = {
    "kept": "transactions with an outbox",
    "kept_while_away": "  while no broker answered",
    "kept_ms_p50": "  their time in ms, p50",
    "kept_ms_p99": "  p99",
    "kept_ms_max": "  the longest",
}


def _known(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    languages = tuple(filter(None, value.split(",")))
    if unknown := set(languages) - set(LANGUAGES):
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: none of {', '.join(LANGUAGES)}")
    if JAVA in languages and not guest_java.is_installed():
        raise click.BadParameter(guest_java.HOW_TO_INSTALL)
    return languages


@click.command(help=__doc__)
@click.option("--duration", default=60.0, show_default=True, help="Seconds of load and faults.")
@click.option("--seed", type=int, help="Of the plan of faults and of the load. Default: random.")
@click.option("--rate", default=200.0, show_default=True, help="Sends and transactions per second.")
@click.option(
    "--plant",
    help="lost, threads, unflushed, stale, dup, reorder, phantom, gap, late, relay, overtake, inbox, outside, unended, "
    "hasty, or the name of one: must be found.",
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice([kind.name.lower() for kind in Kind]),
    help="A kind of fault that is left out. Can be repeated.",
)
@click.option(
    "--away",
    "away_s",
    type=click.FloatRange(0, 3600),
    default=0.0,
    help="Seconds for which no broker answers at the end, twice: cut off, and dead. Some calls have an outbox then.",
)
@click.option(
    "--rocketmq",
    "languages",
    is_flag=False,
    flag_value=PYTHON,
    default="",
    metavar="[LANGUAGE,...]",
    callback=_known,
    help="Official clients of RocketMQ, too, through gateways that are disturbed: for python, java, or both. "
    "Default: python.",
)
@click.option("--plain-settings", is_flag=True, help="Leave the settings of the databases as they are.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, on the last line.")
def main(
    *,
    duration: float,
    seed: int | None,
    rate: float,
    plant: str | None,
    without: Sequence[str],
    away_s: float,
    languages: Sequence[str],
    plain_settings: bool,
    as_json: bool,
) -> None:
    seed = secrets.randbelow(10**9) if seed is None else seed
    console = Console(stderr=as_json, highlight=False)
    try:
        planted = chosen(plant) if plant else None
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--plant") from exc
    console.print(f"seed {seed}")
    with console.status("") as status:
        result = play(
            seed=seed,
            duration_s=duration,
            rate_per_s=rate,
            plant=planted,
            without={Kind[name.upper()] for name in without},
            is_hostile=not plain_settings,
            away_s=away_s,
            guests=languages,
            on_progress=status.update,
        )
    if planted is None:
        _print(result, console)
    else:
        _print_plant(planted, result, console)
    if as_json:
        click.echo(json.dumps(_as_json(result)))
    sys.exit(not result.clean)


def _print(result: Result, console: Console) -> None:
    table = Table(show_header=False, box=None)
    rows = _ROWS | _CHAIN_ROWS | (_GUEST_ROWS if "guest_sends" in result.counts else {})
    for name, text in (rows | (_AWAY_ROWS if result.counts["kept"] else {})).items():
        of_java = f"{result.counts[f'java_{name}']:,} in Java" if f"java_{name}" in result.counts else ""
        table.add_row(text, f"{result.counts[name]:,}", of_java)
    console.print(table)
    shown = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    console.print(f"settings of the Notify databases: {shown or 'as they are'}", soft_wrap=True)
    if result.without:
        console.print(f"left out: {', '.join(sorted(kind.value for kind in result.without))}", soft_wrap=True)
    waits = Table("fault", "s without sends", "s without delivery", box=None, title="at worst", title_justify="left")
    for kind, (sends_s, deliveries_s) in result.waits_s.items():
        waits.add_row(kind, f"{sends_s:.1f}", f"{deliveries_s:.1f}")
    console.print(waits)
    for what, for_s, until_s, _ in result.stands:
        console.print(f"stood for {for_s:.1f} s, until second {until_s:.0f}: {what}", markup=False, soft_wrap=True)
    for invariant, group in groupby(result.violations, key=lambda violation: violation.invariant):
        texts = [violation.text for violation in group]
        for text in texts[:SHOWN_MAX]:
            console.print(f"{invariant}  {text}", markup=False, soft_wrap=True)
        if len(texts) > SHOWN_MAX:
            console.print(f"{invariant}  ... and {len(texts) - SHOWN_MAX} more")
    for text in result.missing:
        console.print(f"too little trouble: {text}", markup=False, soft_wrap=True)
    if result.clean:
        console.print(f"clean: {result.duration_s:.0f} s, seed {result.seed}", style="bold")
    else:
        options = f" CHAOS_ARGS=--rocketmq={','.join(result.guests)}" if result.guests else ""
        again = f"make chaos SEED={result.seed} DURATION={result.duration_s:.0f}{options}"
        console.print(f"WRONG; the same plan again: {again}", soft_wrap=True)
        console.print(f"journals and logs: {result.kept}", soft_wrap=True)


def _print_plant(plant: Plant, result: Result, console: Console) -> None:
    named = sorted({each.invariant for each in result.violations})
    console.print(f"{plant.kind}: {plant.name}", markup=False, soft_wrap=True)
    if plant.invariants & set(named):
        console.print(f"found, as it must be: {', '.join(named)}; {len(result.violations)} violations, such as")
        first = next(each for each in result.violations if each.invariant in plant.invariants)
        console.print(f"{first.invariant}  {first.text}", markup=False, soft_wrap=True)
    else:
        console.print(
            f"NOT FOUND in {result.duration_s:.0f} s from seed {result.seed}: the checker is blind", style="bold"
        )


def _as_json(result: Result) -> dict[str, object]:
    return {
        "clean": result.clean,
        "seed": result.seed,
        "duration_s": result.duration_s,
        **result.counts,
        "waits_s": result.waits_s,
        "stands": [stand._asdict() for stand in result.stands],
        "violations": [each._asdict() for each in result.violations[:SHOWN_MAX]],
        "violation_count": len(result.violations),
        "missing": list(result.missing),
    }


if __name__ == "__main__":
    main()
