"""`txmsg alert`: alerts that brokers raise, silences, and receivers. Asks the service Alerts."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from txmsg.administration.alerts import (
    ActiveAlert,
    AlertHistoryQuery,
    AlertsService,
    EndOfSilence,
    NewSilence,
)
from txmsg.administration.ask import Nothing, changer
from txmsg.errors import MisuseError
from txmsg.ops.cli.connections import ask_broker, broker_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import duration, json_option, table_options
from txmsg.ops.cli.output import json_text, print_rows, say


@click.group()
def alert() -> None:
    """Show and silence alerts that brokers raise, and test their receivers.

    Receivers and custom rules are in a file (`txmsg broker --alerts`), thresholds are settings (`txmsg config
    explain broker.alerts`).
    """


@alert.command("list", short_help="List firing and pending alerts.", epilog=f"{EXAMPLE_FORMAT}\n  txmsg alert list")
@broker_option
@json_option
def list_(*, broker: str, as_json: bool) -> None:
    """List firing and pending alerts, silences, and notifications that receivers have not accepted."""
    found = ask_broker(broker, AlertsService.list, Nothing())
    if as_json:
        click.echo(json_text(asdict(found)))
        return
    if found.alerts:
        print_rows(_row(each) for each in found.alerts)
    else:
        say("no alert fires or is pending")
    if found.silences:
        say("\nsilences:")
        print_rows(
            {
                "silence": each.id,
                "of": " ".join(each.matchers),
                "until": each.until,
                "by": each.created_by,
                "reason": each.reason,
            }
            for each in found.silences
        )
    if found.receivers:
        say("\nreceivers:")
        print_rows(
            {
                "receiver": each.name,
                "kind": each.kind or "not of this broker",
                "waiting": each.waiting,
                "last_error": each.last_error or "",
            }
            for each in found.receivers
        )


@alert.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg alert history --limit 20")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")
@broker_option
@json_option
@table_options
def history(*, broker: str, limit: int, as_json: bool) -> None:
    """List resolved alerts, the latest first. They are kept for 30 days."""
    found = ask_broker(broker, AlertsService.history, AlertHistoryQuery(limit=limit)).alerts
    if as_json:
        click.echo(json_text({"alerts": [asdict(each) for each in found]}))
    elif found:
        print_rows(
            {
                "fired": each.fired_at,
                "resolved": each.resolved_at,
                "rule": each.rule,
                "severity": each.severity,
                "summary": each.summary,
            }
            for each in found
        )
    else:
        say("no alert has been resolved")


@alert.command(
    short_help="Have receivers not told of some alerts, for a time.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg alert silence rule=TxmsgGroupBehind group=shop* "
    "\\\n      --for 2h --reason 'big import'",
)
@click.argument("matchers", metavar="LABEL=PATTERN...", nargs=-1, required=True)
@click.option("--for", "for_s", type=duration, required=True, metavar="TIME", help="Duration, such as 2h.")
@click.option("--reason", required=True, metavar="TEXT", help="The reason, for other operators.")
@broker_option
@json_option
def silence(*, broker: str, matchers: tuple[str, ...], for_s: float, reason: str, as_json: bool) -> None:
    """Suppress notifications of alerts that match all LABEL=PATTERN, for a time.

    A label is rule, group, topic, instance, or one that `txmsg alert list --json` shows; a pattern may have * and ?.
    Alerts still fire and are listed. Receivers are notified of those that still fire when the silence ends.
    """
    new = NewSilence(matchers=matchers, for_s=for_s, reason=reason, created_by=changer())
    made = ask_broker(broker, AlertsService.silence, new)
    if as_json:
        click.echo(json_text(asdict(made)))
    else:
        say(f"silence {made.id} holds until {made.until}: `txmsg alert unsilence {made.id}` ends it")


@alert.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg alert unsilence 7")
@click.argument("silence_id", metavar="SILENCE", type=click.IntRange(1))
@broker_option
@json_option
def unsilence(*, broker: str, silence_id: int, as_json: bool) -> None:
    """End a silence."""
    if not ask_broker(broker, AlertsService.unsilence, EndOfSilence(id=silence_id)).held:
        raise MisuseError(f"there is no active silence {silence_id}: `txmsg alert list` shows active ones")
    if as_json:
        click.echo(json.dumps({"silence": silence_id, "ended": True}))
    else:
        say(f"silence {silence_id} is ended")


@alert.command(
    short_help="Tell each receiver of an alert that is none.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg alert test",
)
@broker_option
@json_option
def test(*, broker: str, as_json: bool) -> None:
    """Send a test notification to each receiver. Exit status 1 if one of them fails."""
    outcomes = ask_broker(broker, AlertsService.test, Nothing()).receivers
    if as_json:
        click.echo(json.dumps({"receivers": dict(outcomes)}))
    elif outcomes:
        print_rows({"receiver": name, "outcome": error or "told"} for name, error in outcomes.items())
    else:
        say("this broker has no receivers: start it with --alerts FILE")
    if any(outcomes.values()):
        click.get_current_context().exit(1)


def _row(each: ActiveAlert) -> dict[str, object]:
    return {
        "state": f"{each.state}, silenced" if each.silences else each.state,
        "severity": each.severity,
        "rule": each.rule,
        "since": each.since,
        "summary": each.summary,
        "what_to_do": each.action,
    }
