"""`txmsg topic`: topics made by hand, for brokers that create none by themselves. Talks to the service Admin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from txmsg.cli.admin import ask_broker, broker_option, json_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.showing import print_table
from txmsg.message import QUEUES_MAX

if TYPE_CHECKING:
    from txmsg.wire.v1 import txmsg_pb2 as pb

__all__ = ["topic"]


@click.group()
def topic() -> None:
    """Create topics, give them more queues, and list those there are.

    A broker started with --no-topic-auto-create refuses messages and consumers of any other topic.
    """


@topic.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic create user.registered --queues 8")
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1, QUEUES_MAX),
    help="Parts that are delivered side by side; can be raised later.  [default: the broker's --topic-queues]",
)
@broker_option
@json_option
def create(*, name: str, queues: int | None, broker: str, as_json: bool) -> None:
    """Create a topic. Doing so twice is fine, unless with another number of queues."""
    from txmsg.wire.v1 import txmsg_pb2 as pb

    reply = ask_broker(broker, "Admin.CreateTopic", pb.CreateTopicRequest(name=name, queues=queues or 0))
    if as_json:
        click.echo(json.dumps({**_values(reply.topic), "created": reply.created}))
    else:
        what = "created" if reply.created else "existed already"
        click.echo(f"topic {reply.topic.name} {what}, with {reply.topic.queues} queues")


@topic.command("raise", epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic raise user.registered --queues 16")
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, QUEUES_MAX), required=True, help="As many as it shall have.")
@broker_option
@json_option
def raise_(*, name: str, queues: int, broker: str, as_json: bool) -> None:
    """Give a topic more queues, while messages are under way.

    Other brokers send to the new ones within 5 seconds. A topic with more queues than that stays as it is.
    """
    from txmsg.wire.v1 import txmsg_pb2 as pb

    reply = ask_broker(broker, "Admin.RaiseQueues", pb.RaiseQueuesRequest(name=name, queues=queues))
    if as_json:
        click.echo(json.dumps({"topic": name, "queues": reply.queues}))
    elif reply.queues > queues:
        click.echo(f"topic {name} has {reply.queues} queues already, more than {queues}: left as it is")
    else:
        click.echo(f"topic {name} has {reply.queues} queues")


@topic.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic list --json")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Topics at most.")
@broker_option
@json_option
def list_(*, limit: int, broker: str, as_json: bool) -> None:
    """List topics by name."""
    from txmsg.wire.v1 import txmsg_pb2 as pb

    reply = ask_broker(broker, "Admin.ListTopics", pb.ListTopicsRequest(limit=limit))
    if as_json:
        click.echo(json.dumps({"topics": [_values(each) for each in reply.topics], "more": reply.more}))
        return
    if not reply.topics:
        click.echo("there is no topic yet")
        return
    from rich.table import Table

    table = Table("Topic", "Queues", "Created", box=None)
    for each in reply.topics:
        table.add_row(each.name, str(each.queues), str(_values(each)["created_at"]))
    print_table(table)
    if reply.more:
        click.echo(f"only the first {limit}: raise --limit to see more", err=True)


def _values(each: pb.Topic) -> dict[str, object]:
    from txmsg.message import datetime_of_us

    created_at = datetime_of_us(each.created_at_us).isoformat(timespec="seconds")
    return {"topic": each.name, "queues": each.queues, "created_at": created_at}
