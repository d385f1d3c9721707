"""`txmsg topic`: topics and their settings. Talks to the services Topics and Admin."""

from __future__ import annotations

import json
from typing import Final

import click
from rich.table import Table

from txmsg.cli.connections import ask_broker, broker_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import json_option, yes_option
from txmsg.cli.output import moment, print_facts, print_table
from txmsg.message import QUEUES_MAX
from txmsg.wire.v1 import topics_pb2 as pb
from txmsg.wire.v1 import txmsg_pb2
from txmsg.wire.v1.topics_rpc import Topics
from txmsg.wire.v1.txmsg_rpc import Admin

_PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
_PERMISSION_NAMES: Final = {number: name for name, number in _PERMISSIONS.items()}
_QUEUES = click.IntRange(1, QUEUES_MAX)


@click.group()
def topic() -> None:
    """Create, show, alter and delete topics.

    A broker started with --no-topic-auto-create refuses unknown topics.
    """


@topic.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic create user.registered --queues 8")
@click.argument("name")
@click.option(
    "--queues",
    type=_QUEUES,
    help="Number of queues; can be raised later.  [default: the broker's --topic-queues]",
)
@broker_option
@json_option
def create(*, name: str, queues: int | None, broker: str, as_json: bool) -> None:
    """Create a topic. Idempotent, unless the number of queues differs."""
    request = txmsg_pb2.CreateTopicRequest(name=name, queues=queues or 0)
    reply = ask_broker(broker, Admin.create_topic, request)
    if as_json:
        created_at = moment(reply.topic.created_at_us)
        values = {"topic": reply.topic.name, "queues": reply.topic.queues, "created_at": created_at}
        click.echo(json.dumps({**values, "created": reply.created}))
    else:
        what = "created" if reply.created else "existed already"
        click.echo(f"topic {reply.topic.name} {what}, with {reply.topic.queues} queues")


@topic.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic list --json")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Maximum number of topics."
)
@broker_option
@json_option
def list_(*, limit: int, broker: str, as_json: bool) -> None:
    """List topics by name."""
    reply = ask_broker(broker, Topics.list, pb.ListTopicSettingsRequest(limit=limit))
    if as_json:
        click.echo(json.dumps({"topics": [_values(topic) for topic in reply.topics], "more": reply.more}))
        return
    if not reply.topics:
        click.echo("no topics")
        return
    table = Table("Topic", "Queues", "Write", "Read", "Permission", "Durability", "Created", box=None)
    for topic in reply.topics:
        values = _values(topic)
        names = ("queues", "write_queues", "read_queues", "permission", "durability", "created_at")
        table.add_row(topic.name, *(str(values[name]) for name in names))
    print_table(table)
    if reply.more:
        click.echo(f"only the first {limit}: raise --limit to see more", err=True)


@topic.command(
    short_help="Show a topic and the lag of its groups.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic show user.registered",
)
@click.argument("name")
@broker_option
@json_option
def show(*, name: str, broker: str, as_json: bool) -> None:
    """Show a topic: settings, queues with the offsets kept, and the lag of each group."""
    reply = ask_broker(broker, Topics.show, pb.ShowTopicRequest(name=name))
    queues = [{"number": queue.number, "begin": queue.begin, "end": queue.end} for queue in reply.queues]
    groups = [
        {"group": group.group, "waiting": group.waiting, "retrying": group.retrying, "dead": group.dead}
        for group in reply.groups
    ]
    values = {**_values(reply.topic), "halves": reply.halves, "scheduled": reply.scheduled}
    if as_json:
        click.echo(json.dumps({**values, "queues_kept": queues, "groups": groups}))
        return
    print_facts(values)
    table = Table("Queue", "Begin", "End", box=None)
    for queue in queues:
        table.add_row(*map(str, queue.values()))
    print_table(table)
    if groups:
        table = Table("Group", "Waiting", "Retrying", "Dead", box=None)
        for group in groups:
            table.add_row(*map(str, group.values()))
        print_table(table)


@topic.command(
    short_help="Change settings of a topic.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic alter user.registered --queues 16\n"
    "  txmsg topic alter user.registered --permission r --send-rate 5000",
)
@click.argument("name")
@click.option("--queues", type=_QUEUES, help="Total number of queues; can only grow.")
@click.option("--write-queues", type=_QUEUES, help="Number of queues that accept messages.")
@click.option("--read-queues", type=_QUEUES, help="Number of queues that are delivered; the others must be drained.")
@click.option(
    "--ordered-queues", type=_QUEUES, help="Number of queues that ordering keys are spread over; all must be drained."
)
@click.option(
    "--permission", type=click.Choice(list(_PERMISSIONS)), help="Whether messages may be sent (w) and delivered (r)."
)
@click.option(
    "--durability",
    type=click.Choice(["replicated", "sync", "async", "memory"]),
    help="How safely messages are stored before a send returns.",
)
@click.option(
    "--unread",
    type=click.Choice(["keep", "drop"]),
    help="Keep or drop messages that a group has not read after --retention-max.",
)
@click.option(
    "--send-rate", type=click.FloatRange(0), help="Messages per second that each broker accepts; 0: unlimited."
)
@broker_option
@json_option
def alter(
    *,
    name: str,
    queues: int | None,
    write_queues: int | None,
    read_queues: int | None,
    ordered_queues: int | None,
    permission: str | None,
    durability: str | None,
    unread: str | None,
    send_rate: float | None,
    broker: str,
    as_json: bool,
) -> None:
    """Change settings of a topic while it is in use. Brokers apply them within 5 seconds.

    To use fewer queues: lower --write-queues, wait until the others are drained, lower --read-queues.
    """
    changes = {
        "queues": queues,
        "write_queues": write_queues,
        "read_queues": read_queues,
        "ordered_queues": ordered_queues,
        "permission": None if permission is None else _PERMISSIONS[permission],
        "durability": durability,
        "unread": unread,
        "send_rate_max": send_rate,
    }
    given = {field: value for field, value in changes.items() if value is not None}
    if not given:
        raise click.UsageError("name what to change, such as --queues")
    reply = ask_broker(broker, Topics.alter, pb.AlterTopicRequest(name=name, **given))  # type: ignore[arg-type]
    if as_json:
        click.echo(json.dumps(_values(reply.topic)))
    else:
        print_facts(_values(reply.topic))


@topic.command(
    short_help="Delete a topic with its messages.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic delete user.registered",
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Also roll back undecided half messages, and drop unread messages.")
@broker_option
@yes_option
@json_option
def delete(*, name: str, force: bool, broker: str, yes: bool, as_json: bool) -> None:
    """Delete a topic with its messages, for good.

    Close it first: `txmsg topic alter NAME --permission none`. Refused while half messages are undecided or groups have
    unread messages, unless --force is given: then undecided half messages are rolled back, and committed messages are
    not delivered. A topic of the same name can be created again.
    """
    if not yes:
        shown = ask_broker(broker, Topics.show, pb.ShowTopicRequest(name=name))
        kept = sum(queue.end - queue.begin for queue in shown.queues)
        question = f"delete topic {name} with {kept} messages in {shown.topic.queues} queues, for good?"
        click.confirm(question, abort=True, err=as_json)
    ask_broker(broker, Topics.delete, pb.DeleteTopicRequest(name=name, force=force))
    click.echo(json.dumps({"topic": name, "deleted": True}) if as_json else f"topic {name} deleted")


def _values(settings: pb.TopicSettings) -> dict[str, object]:
    return {
        "topic": settings.name,
        "queues": settings.queues,
        "write_queues": settings.write_queues,
        "read_queues": settings.read_queues,
        "ordered_queues": settings.ordered_queues,
        "permission": _PERMISSION_NAMES[settings.permission],
        "durability": settings.durability,
        "unread": settings.unread,
        "send_rate_max": settings.send_rate_max or None,
        "created_at": moment(settings.created_at_us),
    }
