"""`txmsg topic`: topics of a Notify database, and their settings. Asks the service Topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from txmsg.administration.topics import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    TopicChange,
    TopicName,
    TopicQuery,
    TopicsService,
)
from txmsg.errors import printable
from txmsg.message import QUEUES_MAX
from txmsg.ops.cli.connections import ask_broker, broker_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import (
    change_options,
    contains_option,
    dry_run_option,
    json_option,
    page_option,
    table_options,
    yes_option,
)
from txmsg.ops.cli.output import json_text, print_dry_run, print_facts, print_rows, say


@click.group()
def topic() -> None:
    """Create, show, alter and delete topics.

    A broker started with --no-topic-auto-create refuses unknown topics.
    """


@topic.command(epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic create user.registered --queues 8")
@click.argument("name")
@click.option(
    "--queues",
    type=click.IntRange(1, QUEUES_MAX),
    help="Number of queues; can be raised later.  [default: the broker's --topic-queues]",
)
@change_options(TopicChange, "message_type", "erasable_s")
@broker_option
@json_option
def create(*, name: str, broker: str, as_json: bool, **settings: Any) -> None:
    """Create a topic. Idempotent, unless the settings differ."""
    found = ask_broker(broker, TopicsService.create, CreateTopic(topic=name, **settings))
    if as_json:
        click.echo(json_text(asdict(found)))
    else:
        say(f"topic {name} {'created' if found.created else 'existed already'}, with {found.queues} queues")


@topic.command("list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic list --json")
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Maximum number per page."
)
@contains_option
@page_option
@broker_option
@json_option
@table_options
def list_(*, limit: int, contains: str, page: str, broker: str, as_json: bool) -> None:
    """List topics by name, with the number of messages in their queues."""
    found = ask_broker(broker, TopicsService.list, TopicQuery(limit=limit, after=page, contains=contains))
    if as_json:
        topics = [{**asdict(topic.settings), "kept": topic.kept, "entered": topic.entered} for topic in found.topics]
        click.echo(json_text({"topics": topics, "next": found.next}))
        return
    if not found.topics:
        click.echo("no topics" + (" match" if contains else ""))
        return
    names = ("topic", "queues", "write_queues", "read_queues", "permission", "durability", "created_at")
    rows = ({**asdict(topic.settings), "kept": topic.kept} for topic in found.topics)
    print_rows({name: row[name] for name in (*names, "kept")} for row in rows)
    if found.next:
        say(f"only the first {limit}: go on with --page {found.next}", err=True)


@topic.command(
    short_help="Show a topic and the lag of its groups.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic show user.registered",
)
@click.argument("name")
@broker_option
@json_option
def show(*, name: str, broker: str, as_json: bool) -> None:
    """Show a topic: settings, queues with the offsets kept, segments, and the lag of each group."""
    found = ask_broker(broker, TopicsService.show, TopicName(topic=name))
    queues, segments, groups = (
        [asdict(each) for each in things] for things in (found.queues, found.segments, found.groups)
    )
    values = {
        **asdict(found.settings),
        "retention_s": found.retention_s,
        "halves": found.halves,
        "scheduled": found.scheduled,
    }
    if as_json:
        click.echo(json_text({**values, "queues_kept": queues, "segments": segments, "groups": groups}))
        return
    print_facts(values)
    print_rows(queues)
    print_rows({"segment": each.pop("id"), **each} for each in segments)
    if groups:
        print_rows(groups)


@topic.command(
    short_help="Change settings of a topic.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic alter user.registered --queues 16\n"
    "  txmsg topic alter user.registered --permission r --send-rate 5000",
)
@click.argument("name")
@change_options(TopicChange)
@broker_option
@json_option
def alter(*, name: str, broker: str, as_json: bool, **given: Any) -> None:
    """Change settings of a topic while it is in use. Brokers apply them within 5 seconds.

    To use fewer queues: lower --write-queues, wait until the others are drained, lower --read-queues.
    """
    change = TopicChange(**given)
    if change == TopicChange():
        raise click.UsageError("name what to change, such as --queues")
    settings = asdict(ask_broker(broker, TopicsService.alter, AlterTopic(topic=name, change=change)))
    if as_json:
        click.echo(json_text(settings))
    else:
        print_facts(settings)


@topic.command(
    short_help="Delete a topic with its messages.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg topic delete user.registered",
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Also roll back undecided half messages, and drop unread messages.")
@dry_run_option
@broker_option
@yes_option
@json_option
def delete(*, name: str, force: bool, dry_run: bool, broker: str, yes: bool, as_json: bool) -> None:
    """Delete a topic with its messages, for good.

    Close it first: `txmsg topic alter NAME --permission none`. Refused while half messages are undecided or groups have
    unread messages, unless --force is given: then undecided half messages are rolled back, and committed messages are
    not delivered. A topic of the same name can be created again.
    """
    deletion = DeleteTopic(topic=name, force=force, dry_run=dry_run)
    if dry_run:
        found = ask_broker(broker, TopicsService.show, TopicName(topic=name))
        unread = {group.group: group.waiting for group in found.groups}
        counts = {"messages": found.kept, "halves": found.halves, "scheduled": found.scheduled, "unread": unread}
        print_dry_run({"topic": name, **counts}, as_json=as_json)
        ask_broker(broker, TopicsService.delete, deletion)
        return
    if not yes:
        found = ask_broker(broker, TopicsService.show, TopicName(topic=name))
        question = f"delete topic {name} with {found.kept} messages in {found.settings.queues} queues, for good?"
        click.confirm(printable(question), abort=True, err=as_json)
    ask_broker(broker, TopicsService.delete, deletion)
    click.echo(json_text({"topic": name, "deleted": True}) if as_json else f"topic {name} deleted")
