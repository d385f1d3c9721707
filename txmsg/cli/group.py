"""`txmsg group`: consumer groups, where they stand, and where they go on. Talks to the service Groups."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from txmsg.cli.admin import ask_broker, broker_option, json_option, yes_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.quantities import MOMENT, duration, shown_duration
from txmsg.cli.showing import moment, print_facts, print_table, say
from txmsg.errors import UnknownGroup

if TYPE_CHECKING:
    from txmsg.wire.v1 import groups_pb2 as pb

__all__ = ["group"]

_DELAYS_MAX = 1000


@click.group()
def group() -> None:
    """Look at consumer groups, change their settings, send them to other offsets, delete them.

    A group is made when a consumer of it asks for messages first. A producer group, whose half messages are checked,
    may have the same name.
    """


@group.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg group list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Groups at most.")
@broker_option
@json_option
def list_(*, limit: int, broker: str, as_json: bool) -> None:
    """List consumer groups by name, with how far they are behind."""
    from txmsg.wire.v1 import groups_pb2 as pb

    reply = ask_broker(broker, "Groups.List", pb.ListGroupsRequest(limit=limit))
    if as_json:
        producers = [_checks(each) for each in reply.producer_groups]
        summaries = [_summary(each) for each in reply.groups]
        click.echo(json.dumps({"groups": summaries, "producer_groups": producers, "more": reply.more}))
        return
    if reply.producer_groups:
        click.echo(f"producer groups: {', '.join(each.group for each in reply.producer_groups)}")
    if not reply.groups:
        click.echo("there is no consumer group yet")
        return
    from rich.table import Table

    table = Table("Group", "Topics", "Waiting", "Retrying", "Dead", "Created", box=None)
    for each in reply.groups:
        values = _summary(each)
        topics = ", ".join(one.topic for one in each.topics)
        numbers = (str(values[name]) for name in ("waiting", "retrying", "dead", "created_at"))
        table.add_row(each.group, topics, *numbers)
    print_table(table)
    if reply.more:
        click.echo(f"only the first {limit}: raise --limit to see more", err=True)


@group.command(short_help="Show a group and where it stands.", epilog=f"{EXAMPLE_FORMAT}\n  txmsg group show mailer")
@click.argument("name")
@broker_option
@json_option
def show(*, name: str, broker: str, as_json: bool) -> None:
    """Show a group: settings, members, where it stands in each queue, retries, dead letters, paused or not.

    Members, and whether it is paused, are those that the broker asked knows of.
    """
    from txmsg.wire.v1 import groups_pb2 as pb

    try:
        checks = _checks(ask_broker(broker, "Groups.ShowChecks", pb.ShowChecksRequest(group=name)).settings)
    except UnknownGroup:  # it only consumes
        checks = None
    try:
        reply = ask_broker(broker, "Groups.Show", pb.ShowGroupRequest(group=name))
    except UnknownGroup:
        if checks is None:
            raise
        if as_json:
            click.echo(json.dumps({"group": name, "checks": checks}))
        else:
            print_facts(checks)
        return
    values = {**_settings(reply.settings), "created_at": moment(reply.created_at_us), "paused": reply.paused}
    if reply.paused:
        values |= {"paused_s": round(reply.paused_s, 1), "last_error": reply.last_error}
    members = [{"client_id": each.client_id, "silent_s": round(each.silent_s, 1)} for each in reply.members]
    if as_json:
        queues = [_queue(each) for each in reply.queues]
        click.echo(json.dumps({**values, "checks": checks, "members": members, "queues": queues}))
        return
    print_facts({**values, **({} if checks is None else {"checks": checks})})
    for member in members:
        say(f" member {member['client_id']}, asked {member['silent_s']} s ago")
    _print_queues(reply.queues)


@group.command(
    short_help="Show how far a group is behind.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group lag mailer --watch 2s",
)
@click.argument("name")
@click.option("--watch", type=duration, metavar="DURATION", help="Print it again and again, each time after so long.")
@broker_option
@json_option
def lag(*, name: str, watch: float | None, broker: str, as_json: bool) -> None:
    """Show how far a group is behind, per topic and queue."""
    from txmsg.wire.v1 import groups_pb2 as pb

    while True:
        reply = ask_broker(broker, "Groups.Show", pb.ShowGroupRequest(group=name))
        if as_json:
            queues = [_queue(each) for each in reply.queues]
            waiting = sum(each.waiting for each in reply.queues)
            click.echo(json.dumps({"group": name, "waiting": waiting, "queues": queues}))
        else:
            _print_queues(reply.queues)
        if watch is None:
            return
        time.sleep(watch)


@group.command(
    short_help="Go on at another offset.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group seek mailer --topic user.registered --to 2026-05-01T10:00:00Z\n"
    "  txmsg group seek mailer --topic user.registered --to earliest --again",
)
@click.argument("name")
@click.option("--topic", required=True, metavar="NAME", help="The topic to go on in.")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest, a time (2026-05-01T10:00:00Z, or 2h for two hours ago), or an offset.",
)
@click.option("--queue", type=click.IntRange(0), help="Only in this queue; an offset needs it.")
@click.option("--again", is_flag=True, help="Handlers under @idempotent run again for what comes again.")
@broker_option
@json_option
def seek(*, name: str, topic: str, to: str, queue: int | None, again: bool, broker: str, as_json: bool) -> None:
    """Go on at another offset, while consumers run: what lies from there on comes (again), the rest is passed over.

    What consumers hold at that moment is not theirs any more. What is in retry or dead stays there. Handlers under
    @idempotent skip what they have handled before, but for --again. Other groups notice nothing.
    """
    from txmsg.wire.v1 import groups_pb2 as pb

    request = pb.SeekRequest(group=name, topic=topic, queue=queue, again=again, **_destination(to))
    reply = ask_broker(broker, "Groups.Seek", request)
    if as_json:
        click.echo(json.dumps({"group": name, "queues": [_queue(each) for each in reply.queues]}))
    else:
        _print_queues(reply.queues)


def _destination(to: str) -> dict[str, Any]:
    from txmsg.message import us_of_datetime

    if to in ("earliest", "latest"):
        return {to: True}
    if re.fullmatch(r"\d{1,18}", to):
        return {"offset": int(to)}
    try:
        at: datetime = MOMENT.convert(to, None, None)
    except click.BadParameter:
        raise click.UsageError(
            f"--to {to!r} is no place: give earliest, latest, a time such as 2026-05-01T10:00:00Z or 2h, or an offset"
        ) from None
    return {"at_us": us_of_datetime(at)}


@group.command(
    short_help="Change settings of a group.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group alter mailer --retry-delays '1s 5s 1m' --retries 3\n"
    "  txmsg group alter mailer --retry-exponential 1s..1h",
)
@click.argument("name")
@click.option("--retry-delays", metavar="DURATIONS", help="Before each retry; the last one repeats.")
@click.option("--retry-exponential", metavar="FROM..TO", help="Delays that double, from the first to the last.")
@click.option("--retries", type=click.IntRange(0), help="How many, before a message is a dead letter.")
@click.option("--default-retries", is_flag=True, help="Delays and number of retries are the broker's again.")
@click.option(
    "--poisoned-key",
    type=click.Choice(["continue", "park"]),
    help="What becomes of an ordering key whose message is dead: it goes on, or waits for a person.",
)
@click.option("--rate", type=click.FloatRange(0), help="Messages per second that each broker delivers; 0: no limit.")
@click.option("--first-check-s", type=click.FloatRange(0), help="Seconds before a half message is first checked.")
@click.option("--check-interval-s", type=click.FloatRange(0), help="Seconds between two checks of a half message.")
@click.option("--checks-max", type=click.IntRange(1), help="Checks after which a half message is parked in doubt.")
@click.option(
    "--no-client-park-s",
    type=click.FloatRange(0),
    help="Seconds that a half message stays due while no client of the group can be asked, before it is parked.",
)
@click.option("--default-checks", is_flag=True, help="Checks that are not named here are the broker's again.")
@broker_option
@json_option
def alter(
    *,
    name: str,
    retry_delays: str | None,
    retry_exponential: str | None,
    retries: int | None,
    default_retries: bool,
    poisoned_key: str | None,
    rate: float | None,
    default_checks: bool,
    broker: str,
    as_json: bool,
    **checks: float | None,
) -> None:
    """Change settings of a group while messages are under way. Brokers know within a second or two.

    Checks are those of the producer group of this name, all else is of the consumer group. The first check of halves
    that are stored already stays when it was.
    """
    from txmsg.wire.v1 import groups_pb2 as pb

    named: dict[str, Any] = {option: value for option, value in checks.items() if value is not None}
    if named or default_checks:
        if (
            retry_delays
            or retry_exponential
            or default_retries
            or any(each is not None for each in (retries, poisoned_key, rate))
        ):
            raise click.UsageError("checks are of a producer group, the rest of a consumer group: change one at a time")
        request = pb.AlterChecksRequest(group=name, default_checks=default_checks, **named)
        settings = _checks(ask_broker(broker, "Groups.AlterChecks", request).settings)
        if as_json:
            click.echo(json.dumps(settings))
        else:
            print_facts(settings)
        return
    if retry_delays is not None and retry_exponential is not None:
        raise click.UsageError("--retry-delays and --retry-exponential say the same: give one of them")
    delays_s = None
    if retry_delays is not None:
        delays_s = [duration(each) for each in retry_delays.replace(",", " ").split()]
    elif retry_exponential is not None:
        delays_s = doubled(retry_exponential)
    if delays_s == [] or not (default_retries or any(x is not None for x in (delays_s, retries, poisoned_key, rate))):
        raise click.UsageError("name what to change, such as --retries")
    reply = ask_broker(
        broker,
        "Groups.Alter",
        pb.AlterGroupRequest(
            group=name,
            retry_delays_s=delays_s or (),
            default_retries=default_retries,
            retries_max=retries,
            poisoned_key=poisoned_key,
            deliver_rate_max=rate,
        ),
    )
    if as_json:
        click.echo(json.dumps(_settings(reply.settings)))
    else:
        print_facts(_settings(reply.settings))


def doubled(text: str) -> list[float]:
    """The delays that FROM..TO stands for: FROM, twice that, and so on, and TO as the last."""
    first, separator, last = text.partition("..")
    if not separator:
        raise click.UsageError(f"--retry-exponential {text!r} is not of the form FROM..TO, such as 1s..1h")
    delay_s, last_s = duration(first), duration(last)
    delays_s: list[float] = []
    while delay_s < last_s and len(delays_s) < _DELAYS_MAX:
        delays_s.append(delay_s)
        delay_s *= 2
    return [*delays_s, last_s]


@group.command(
    short_help="Delete a group with its cursors.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg group delete mailer",
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Though it has members, and with its retries and dead letters.")
@broker_option
@yes_option
@json_option
def delete(*, name: str, force: bool, broker: str, yes: bool, as_json: bool) -> None:
    """Delete a group with its cursors, for good: it keeps no old message any more.

    Refused while it has members, retries or dead letters, but for --force. A consumer of it makes it anew.
    """
    from txmsg.wire.v1 import groups_pb2 as pb

    if not yes:
        shown = ask_broker(broker, "Groups.Show", pb.ShowGroupRequest(group=name))
        waiting, dead = sum(each.waiting for each in shown.queues), sum(each.dead for each in shown.queues)
        question = f"delete group {name}, which has {waiting} messages to read and {dead} dead letters, for good?"
        click.confirm(question, abort=True, err=as_json)
    ask_broker(broker, "Groups.Delete", pb.DeleteGroupRequest(group=name, force=force))
    click.echo(json.dumps({"group": name, "deleted": True}) if as_json else f"group {name} deleted")


def _summary(each: pb.GroupSummary) -> dict[str, object]:
    return {
        "group": each.group,
        "waiting": sum(one.waiting for one in each.topics),
        "retrying": sum(one.retrying for one in each.topics),
        "dead": sum(one.dead for one in each.topics),
        "topics": [
            {"topic": one.topic, "waiting": one.waiting, "retrying": one.retrying, "dead": one.dead}
            for one in each.topics
        ],
        "created_at": moment(each.created_at_us),
    }


def _checks(settings: pb.CheckSettings) -> dict[str, object]:
    return {
        "group": settings.group,
        "first_check_s": settings.first_check_s,
        "check_interval_s": settings.check_interval_s,
        "checks_max": settings.checks_max,
        "no_client_park_s": settings.no_client_park_s,
        "own": list(settings.own),
    }


def _settings(settings: pb.GroupSettings) -> dict[str, object]:
    return {
        "group": settings.group,
        "retry_delays": [shown_duration(each) for each in settings.retry_delays_s] or None,
        "retries": settings.retries_max if settings.HasField("retries_max") else None,
        "poisoned_key": settings.poisoned_key,
        "rate": settings.deliver_rate_max or None,
    }


_QUEUE_NAMES = ("topic", "queue", "next_offset", "begin", "end", "waiting", "retrying", "dead", "seeking")


def _queue(each: pb.GroupQueue) -> dict[str, object]:
    return {name: getattr(each, name) for name in _QUEUE_NAMES}


def _print_queues(queues: Any) -> None:
    from rich.table import Table

    table = Table("Topic", "Queue", "Next", "Begin", "End", "Waiting", "Retrying", "Dead", "", box=None)
    for each in queues:
        *values, seeking = _queue(each).values()
        table.add_row(*map(str, values), "goes there now" if seeking else "")
    print_table(table)
