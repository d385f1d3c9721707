"""`txmsg metaq delayed` and `txmsg metaq recall`: messages of a log that wait until they are due."""

from __future__ import annotations

import click

from txmsg.message import moment
from txmsg.metaq.location import open_log
from txmsg.ops.cli.connections import log_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import json_text, print_rows, say, seconds

_SHOWN_MAX = 1000


@click.command(
    short_help="List delayed messages that wait.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq delayed --log metaq:7720\n"
    "  txmsg metaq delayed --log /var/lib/metaq --limit 5 --json",
)
@log_option
@click.option(
    "--limit",
    type=click.IntRange(0, _SHOWN_MAX),
    default=100,
    show_default=True,
    help="Maximum number of messages listed; 0 only counts.",
)
@json_option
def delayed(*, log: str, limit: int, as_json: bool) -> None:
    """List the delayed messages of a log: their number in each topic, and those that are due first.

    Reads all waiting messages. Messages of a topic that were sent together for one queue and time share a number, which
    `txmsg metaq recall` takes. A log in Kafka has no delayed messages.
    """
    with open_log(log) as access:
        found = access.delayed(limit)
    rows = [each._asdict() | {"due_at": seconds(moment(each.due_at_us))} for each in found.first]
    if as_json:
        click.echo(json_text({"messages": dict(found.messages), "first": rows}))
        return
    if not found.messages:
        say("nothing waits")
        return
    print_rows([{"topic": topic, "waiting": found.messages[topic]} for topic in sorted(found.messages)])
    if rows:
        say("")
        print_rows([{name: row[name] for name in ("due_at", "topic", "queue", "number", "messages")} for row in rows])


@click.command(
    short_help="Take delayed messages back.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq recall reminder 42 --log metaq:7720\n\n"
    "A log has one writer: while a server writes the directory, give the server's address.",
)
@log_option
@click.argument("topic")
@click.argument("number", type=click.IntRange(0))
@json_option
def recall(*, log: str, topic: str, number: int, as_json: bool) -> None:
    """Recall delayed messages of TOPIC: those that `txmsg metaq delayed` lists under NUMBER are not delivered.

    Idempotent. Exit status 1 if they were already delivered.
    """
    with open_log(log):  # which makes none
        pass
    with open_log(log, append=True) as access:
        access.recall(topic, number)
    if as_json:
        click.echo(json_text({"topic": topic, "number": number, "recalled": True}))
    else:
        say(f"number {number} of topic {topic} is not delivered")
