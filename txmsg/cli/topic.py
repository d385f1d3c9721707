"""`txmsg topic`: topics of a Notify database, and their settings."""

from __future__ import annotations

from dataclasses import asdict

import click

from txmsg.administration.topics import DURABILITIES, PERMISSIONS, UNREAD, TopicAdministration, TopicChange
from txmsg.cli.connections import asker, broker_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.options import (
    SECONDS,
    Decorator,
    contains_option,
    dry_run_option,
    json_option,
    page_option,
    table_options,
    yes_option,
)
from txmsg.cli.output import json_text, print_dry_run, print_facts, print_rows, say
from txmsg.errors import printable
from txmsg.message import MESSAGE_TYPES, QUEUES_MAX

_QUEUES = click.IntRange(1, QUEUES_MAX)
_erasable_option: Decorator = click.option(
    "--erasable",
    "erasable_s",
    type=SECONDS,
    metavar="DURATION",
    help="Encrypt each body with its own key, for `txmsg message erase`, and keep keys for this time, such as 400d. "
    "An erasable topic stays erasable.",
)


_type_option: Decorator = click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES),
    help="Accept only messages with an ordering key (fifo), delayed ones (delay), those of transactions "
    "(transaction), or others (normal).",
)


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
@_type_option
@_erasable_option
@broker_option
@json_option
def create(
    *, name: str, queues: int | None, message_type: str | None, erasable_s: float | None, broker: str, as_json: bool
) -> None:
    """Create a topic. Idempotent, unless the settings differ."""
    found, created_at, created = TopicAdministration(asker(broker)).create(
        name, queues, erasable_s=erasable_s, message_type=message_type
    )
    if as_json:
        click.echo(json_text({"topic": name, "queues": found, "created_at": created_at, "created": created}))
    else:
        say(f"topic {name} {'created' if created else 'existed already'}, with {found} queues")


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
    found = TopicAdministration(asker(broker)).list(limit, after=page, contains=contains)
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
    found = TopicAdministration(asker(broker)).show(name)
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
@click.option("--queues", type=_QUEUES, help="Total number of queues; can only grow.")
@click.option("--write-queues", type=_QUEUES, help="Number of queues that accept messages.")
@click.option("--read-queues", type=_QUEUES, help="Number of queues that are delivered; the others must be drained.")
@click.option(
    "--ordered-queues", type=_QUEUES, help="Number of queues that ordering keys are spread over; all must be drained."
)
@click.option(
    "--permission", type=click.Choice(list(PERMISSIONS)), help="Whether messages may be sent (w) and delivered (r)."
)
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    help="How safely messages are stored before a send returns.",
)
@click.option(
    "--unread",
    type=click.Choice(UNREAD),
    help="Keep or drop messages that a group has not read after --retention-max.",
)
@click.option(
    "--send-rate", type=click.FloatRange(0), help="Messages per second that each broker accepts; 0: unlimited."
)
@click.option(
    "--journal",
    type=click.Choice(["on", "off"]),
    help="Record each delivery, acknowledgement and check for `txmsg message trace`.",
)
@_type_option
@_erasable_option
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
    message_type: str | None,
    send_rate: float | None,
    journal: str | None,
    erasable_s: float | None,
    broker: str,
    as_json: bool,
) -> None:
    """Change settings of a topic while it is in use. Brokers apply them within 5 seconds.

    To use fewer queues: lower --write-queues, wait until the others are drained, lower --read-queues.
    """
    change = TopicChange(
        queues=queues,
        write_queues=write_queues,
        read_queues=read_queues,
        ordered_queues=ordered_queues,
        permission=permission,
        durability=durability,
        unread=unread,
        message_type=message_type,
        send_rate_max=send_rate,
        journal=None if journal is None else journal == "on",
        erasable_s=erasable_s,
    )
    if change == TopicChange():
        raise click.UsageError("name what to change, such as --queues")
    settings = asdict(TopicAdministration(asker(broker)).alter(name, change))
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
    topics = TopicAdministration(asker(broker))
    if dry_run:
        found = topics.show(name)
        unread = {group.group: group.waiting for group in found.groups}
        counts = {"messages": found.kept, "halves": found.halves, "scheduled": found.scheduled, "unread": unread}
        print_dry_run({"topic": name, **counts}, as_json=as_json)
        topics.delete(name, force=force, dry_run=True)
        return
    if not yes:
        found = topics.show(name)
        question = f"delete topic {name} with {found.kept} messages in {found.settings.queues} queues, for good?"
        click.confirm(printable(question), abort=True, err=as_json)
    topics.delete(name, force=force)
    click.echo(json_text({"topic": name, "deleted": True}) if as_json else f"topic {name} deleted")
