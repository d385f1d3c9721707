"""`txmsg metaq group`: groups of a log, where they stand, and where they go on."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from txmsg.cli.admin import json_option, yes_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.metaq_check import require_metaq
from txmsg.cli.metaq_tail import PLACE
from txmsg.cli.showing import print_table

if TYPE_CHECKING:
    from txmsg.metaq.access import GroupState, LogAccess, QueueId

__all__ = ["group"]


@click.group(short_help="Look at the groups of a log, move and delete them.")
def group() -> None:
    """Look at the groups of a log, send them to other offsets, delete them.

    LOG is a log's directory, or the address of its server. A group is made when its first member joins.
    """


@group.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq group list /var/lib/metaq")
@click.argument("log")
@json_option
def list_(*, log: str, as_json: bool) -> None:
    """List the groups of a log, with how far they are behind."""
    require_metaq()
    from txmsg.errors import UnknownGroup
    from txmsg.metaq.location import open_log

    rows: list[dict[str, Any]] = []
    with open_log(log) as access:
        for name in access.groups():
            with suppress(UnknownGroup):  # deleted this moment, as that of a broadcasting member that ends
                rows.append(_summary(access, access.group(name)))
    if as_json:
        click.echo(json.dumps({"groups": rows}))
        return
    if not rows:
        click.echo("the log has no group yet")
        return
    from rich.table import Table

    table = Table("Group", "Members", "Topics", "Behind", "Retrying", "Dead", box=None)
    for row in rows:
        counts = (str(row[name]) for name in ("behind", "retrying", "dead"))
        table.add_row(row["group"], str(len(row["members"])), ", ".join(row["topics"]), *counts)
    print_table(table)


@group.command(
    short_help="Show a group, and who owns which queue.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq group show metaq:7720 dashboard",
)
@click.argument("log")
@click.argument("name")
@json_option
def show(*, log: str, name: str, as_json: bool) -> None:
    """Show a group: its members, and for each queue who owns it, and how far it is."""
    require_metaq()
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        _show(access, access.group(name), as_json=as_json)


@group.command(
    short_help="Go on at another offset.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq group seek /var/lib/metaq dashboard --topic trade --to 2h\n"
    "  txmsg metaq group seek /var/lib/metaq dashboard --topic trade --queue 3 --to 1200",
)
@click.argument("log")
@click.argument("name")
@click.option("--topic", required=True, metavar="NAME", help="The topic to go on in.")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest, a time (2026-05-01T10:00:00Z, or 2h for two hours ago), or an offset.",
)
@click.option("--queue", type=click.IntRange(0, 9999), help="Only in this queue; an offset needs it.")
@json_option
def seek(*, log: str, name: str, topic: str, to: str, queue: int | None, as_json: bool) -> None:
    """Go on at another offset, while members run or not: what lies from there on comes (again), the rest does not.

    Members that run follow within about a second, each after the message that it is at. What is in retry or dead stays
    there. Other groups notice nothing.
    """
    require_metaq()
    place = PLACE.convert(to, None, None)
    if isinstance(place, int) and queue is None:
        raise click.UsageError(f"--to {to} is an offset of one queue: say which by --queue")
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        access.group(name)
        access.seek(name, _offsets(access, topic, queue, place))
        _show(access, access.group(name), as_json=as_json)


def _offsets(access: LogAccess, topic: str, queue: int | None, place: str | int | datetime) -> dict[QueueId, int]:
    from txmsg.errors import UnknownTopic
    from txmsg.message import us_of_datetime
    from txmsg.metaq.access import QueueId

    numbers = access.queues_of(topic)
    if not numbers or (queue is not None and queue not in numbers):
        there = f"its queues are {', '.join(map(str, numbers))}" if numbers else "it is not in this log"
        raise UnknownTopic(f"topic {topic!r} has no queue to go on in: {there}")
    queues = [QueueId(topic, number) for number in ([queue] if queue is not None else numbers)]
    if isinstance(place, datetime):
        return access.offsets_at(queues, us_of_datetime(place))
    if isinstance(place, int):
        return dict.fromkeys(queues, place)
    kept = access.ranges(queues)
    return {each: kept[each].begin if place == "earliest" else kept[each].end for each in queues}


@group.command(
    short_help="Delete a group that has no members.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq group delete /var/lib/metaq dashboard",
)
@click.argument("log")
@click.argument("name")
@yes_option
@json_option
def delete(*, log: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete a group that has no members: its offsets, retries and dead letters."""
    require_metaq()
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        row = _summary(access, access.group(name))
        if not yes:
            question = f"delete group {name}, with {row['retrying']} retries and {row['dead']} dead letters?"
            click.confirm(question, abort=True, err=True)
        access.delete_group(name)
    click.echo(json.dumps({"deleted": row}) if as_json else f"group {name} is deleted")


def _show(access: LogAccess, state: GroupState, *, as_json: bool) -> None:
    row = _summary(access, state)
    if as_json:
        click.echo(json.dumps(row | {"queues": _queues(state)}))
        return
    from rich.table import Table

    for member in state.members:
        click.echo(f"member {member.id} reads {', '.join(member.topics)}, strategy {member.strategy}")
    click.echo(f"{row['behind']} messages behind, {row['retrying']} to be tried again, {row['dead']} dead letters")
    table = Table("Topic", "Queue", "Owner", "Offset", "Begin", "End", "Behind", box=None)
    for each in _queues(state):
        table.add_row(*("-" if value is None else str(value) for value in each.values()))
    print_table(table)


def _queues(state: GroupState) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.queue.topic,
            "queue": each.queue.queue,
            "owner": each.owner,
            "offset": each.offset,
            "begin": each.kept.begin,
            "end": each.kept.end,
            "behind": each.kept.end - max(each.offset or 0, each.kept.begin),
        }
        for each in state.queues
    ]


def _retrying(access: LogAccess, state: GroupState) -> int:
    """Also of queues that nobody has owned yet."""
    from txmsg.metaq.access import RETRIES, QueueId

    offsets = {each.queue: each.offset for each in state.queues}
    retries = RETRIES + state.group
    kept = access.ranges([QueueId(retries, number) for number in access.queues_of(retries)])
    return sum(each.end - max(each.begin, offsets.get(queue) or 0) for queue, each in kept.items())


def _summary(access: LogAccess, state: GroupState) -> dict[str, Any]:
    from txmsg.metaq.access import DEAD_LETTERS, RETRIES, QueueId

    dead = QueueId(DEAD_LETTERS + state.group, 0)
    begin, end = access.ranges([dead])[dead]
    dealt_with = next((each.offset for each in state.queues if each.queue == dead), None)
    queues = _queues(state)
    own = [each for each in queues if not each["topic"].startswith((RETRIES, DEAD_LETTERS))]
    read = {topic for each in state.members for topic in each.topics if not topic.startswith(RETRIES)}
    return {
        "group": state.group,
        "members": [each.id for each in state.members],
        "topics": sorted({each["topic"] for each in own} | read),
        "behind": sum(each["behind"] for each in own),
        "retrying": _retrying(access, state),
        "dead": end - max(begin, dealt_with or 0),
    }
