"""`txmsg metaq find`: messages of a log by id or by key."""

from __future__ import annotations

import click

from txmsg.metaq.location import open_log
from txmsg.ops.cli.connections import log_option
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.metaq_contents import message_line, message_values
from txmsg.ops.cli.options import json_option
from txmsg.ops.cli.output import json_text, say

_FOUND_MAX = 1000


@click.command(
    short_help="Find messages by id or key.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq find trade --log metaq:7720 "
    "\\\n      --id 01976b2e-6a14-7c3e-9d57-0f5a3c2b1d4e.0\n"
    "  txmsg metaq find trade --log /var/lib/metaq --key 42 --json\n\n"
    "Exit status 1 if there is none.",
)
@log_option
@click.argument("topic")
@click.option("--id", "message_id", metavar="ID", help="Id of the message: UUID.NUMBER.")
@click.option("--key", metavar="KEY", help="Key of the messages.")
@click.option(
    "--limit",
    type=click.IntRange(1, _FOUND_MAX),
    default=100,
    show_default=True,
    help="With --key: maximum number of messages.",
)
@json_option
def find(*, log: str, topic: str, message_id: str | None, key: str | None, limit: int, as_json: bool) -> None:
    """Find messages of a topic that a log keeps.

    By key an index is used; in Kafka, which has none, the whole topic is read. By id the topic is
    read from a minute before the id was created on, until the message is found.
    """
    if (message_id is None) == (key is None):
        raise click.UsageError("give --id or --key")
    with open_log(log) as access:
        if message_id is not None:
            found = [message for message in (access.find_id(topic, message_id),) if message is not None]
        else:
            found = access.find(topic, key or "", count_max=limit)
    if as_json:
        click.echo(json_text({"messages": [message_values(message) for message in found]}))
    else:
        for message in found:
            say(message_line(message))
    if not found:
        if not as_json:
            click.echo(f"topic {topic!r} of {log} keeps no such message", err=True)
        raise SystemExit(1)
