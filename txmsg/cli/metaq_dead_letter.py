"""`txmsg metaq dead-letter`: messages of a log that a group could not process."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from txmsg.cli.admin import Decorator, json_option, yes_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.metaq_check import require_metaq
from txmsg.cli.metaq_tail import message_values
from txmsg.cli.quantities import MOMENT
from txmsg.cli.showing import first_line, moment, print_facts, print_table, say
from txmsg.errors import MisuseError

if TYPE_CHECKING:
    from txmsg.metaq.consumer.dead_letters import DeadLetter, Which

__all__ = ["dead_letter"]

_WHICH: tuple[Decorator, ...] = (
    click.option("--topic", metavar="NAME", help="Of this topic."),
    click.option("--since", type=MOMENT, help="Dead since then: 2026-05-01T10:00:00Z, or 2h for two hours ago."),
    click.option("--until", type=MOMENT, help="Dead before then."),
    click.option("--error", default="", metavar="TEXT", help="With this in the last error."),
    click.option("--id", "id_", metavar="ID", help="This message, or those of this transaction."),
    click.option("--key", metavar="KEY", help="With this key."),
)


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds LOG, GROUP and the options that say which dead letters; the command gets these as `which`."""

    @functools.wraps(command)
    def with_which(
        *,
        topic: str | None,
        since: datetime | None,
        until: datetime | None,
        error: str,
        id_: str | None,
        key: str | None,
        **others: Any,
    ) -> Any:
        require_metaq()
        from txmsg.message import parse_id, us_of_datetime
        from txmsg.metaq.consumer.dead_letters import Which

        which = Which(
            topic=topic,
            key=key,
            error=error,
            id=parse_id(id_) if id_ else None,
            since_us=us_of_datetime(since) if since else 0,
            until_us=us_of_datetime(until) if until else None,
        )
        return command(which=which, **others)

    decorated: Callable[..., Any] = with_which
    for option in reversed(_WHICH):
        decorated = option(decorated)
    return click.argument("log")(click.argument("group")(decorated))


@click.group("dead-letter", short_help="Look at dead letters of a log, hand them back, purge them.")
def dead_letter() -> None:
    """Look at messages of a log that a group could not process, hand them to it again, or purge them.

    LOG is a log's directory, or the address of its server. What a group could not process stands in %DLQ%GROUP.
    """


@dead_letter.command(
    "list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq dead-letter list metaq:7720 dashboard --since 2h --error timeout"
)
@_which
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most.")
@json_option
def list_(*, log: str, group: str, which: Which, limit: int, as_json: bool) -> None:
    """List dead letters, the longest dead first."""
    from txmsg.metaq.consumer.dead_letters import dead_letters
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        found = list(islice(dead_letters(access, group, which), limit + 1))
    rows = [_values(each) for each in found[:limit]]
    if as_json:
        click.echo(json.dumps({"dead_letters": rows, "more": len(found) > limit}))
        return
    if not rows:
        click.echo("there is no dead letter like that")
        return
    from rich.table import Table

    table = Table(box=None)
    table.add_column("Message", no_wrap=True, min_width=38)  # an id cut short cannot be copied
    names = ("topic", "queue", "offset", "key", "died_at", "attempts", "last_error")
    for name in names:
        table.add_column(name.replace("_", " ").capitalize())
    for row in rows:
        row["last_error"] = first_line(row["last_error"])
        table.add_row(row["id"], *("" if row[name] is None else str(row[name]) for name in names))
    print_table(table)
    if len(found) > limit:
        click.echo(f"only the first {limit}: name fewer, or give --limit", err=True)


@dead_letter.command(
    short_help="Show a dead letter whole.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq dead-letter show /var/lib/metaq dashboard "
    "0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0",
)
@click.argument("log")
@click.argument("group")
@click.argument("id_", metavar="ID")
@json_option
def show(*, log: str, group: str, id_: str, as_json: bool) -> None:
    """Show a dead letter whole: headers, body, and the reason of each attempt.

    ID is that of the message, as `txmsg metaq dead-letter list` prints it, or of its transaction.
    """
    require_metaq()
    from txmsg.message import parse_id
    from txmsg.metaq.consumer.dead_letters import Which, dead_letters
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        found = list(dead_letters(access, group, Which(id=parse_id(id_))))
    if not found:
        raise MisuseError(f"group {group} has no dead letter {id_}: `txmsg metaq dead-letter list` shows those it has")
    rows = [message_values(each.message) | _values(each) | {"errors": each.tried.errors} for each in found]
    if as_json:
        click.echo(json.dumps({"dead_letters": rows}))
        return
    for row in rows:
        errors = row.pop("errors")
        print_facts(row)
        for number, error in enumerate(errors, 1):
            say(f" attempt {number}: {error}")


@dead_letter.command(
    short_help="Hand dead letters to their group again.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq dead-letter redrive metaq:7720 dashboard --error timeout",
)
@_which
@json_option
def redrive(*, log: str, group: str, which: Which, as_json: bool) -> None:
    """Hand dead letters to their group again, as if they were new to it: by its retries, so after what is there.

    Handlers under @idempotent run again, too. Can be interrupted, and called again: what is not redriven yet stays a
    dead letter. A crash in between may leave some twice.
    """
    from txmsg.metaq.consumer.dead_letters import redrive as redrive_them
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        redriven = redrive_them(access, group, which)
    click.echo(json.dumps({"redriven": redriven}) if as_json else f"dead letters redriven: {redriven}")


@dead_letter.command(
    short_help="Give dead letters up, for good.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq dead-letter purge /var/lib/metaq dashboard --until 30d",
)
@_which
@yes_option
@json_option
def purge(*, log: str, group: str, which: Which, yes: bool, as_json: bool) -> None:
    """Give dead letters up, for good: nobody processes them any more.

    Whole files of theirs are deleted with the group's next dead letter.
    """
    from txmsg.metaq.consumer.dead_letters import dead_letters
    from txmsg.metaq.consumer.dead_letters import purge as purge_them
    from txmsg.metaq.location import open_log

    with open_log(log) as access:
        count = sum(1 for _ in dead_letters(access, group, which))
        if count and not yes:
            click.confirm(f"purge {count} dead letter(s), for good?", abort=True, err=True)
        purged = purge_them(access, group, which)
    click.echo(json.dumps({"purged": purged}) if as_json else f"dead letters purged: {purged}")


def _values(letter: DeadLetter) -> dict[str, Any]:
    message = letter.message
    return {
        "id": message.id,
        "topic": message.topic,
        "queue": message.queue,
        "offset": message.offset,
        "key": message.key,
        "tag": message.tag,
        "ordering_key": message.ordering_key,
        "died_at": moment(letter.died_at_us),
        "attempts": message.attempt,
        "generation": message.generation,
        "last_error": letter.tried.errors[-1] if letter.tried.errors else None,
        "body_size_bytes": len(message.body),
    }
