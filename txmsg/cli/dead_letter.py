"""`txmsg dead-letter`: messages that a group could not process. Talks to the service DeadLetters."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from txmsg.cli.admin import Decorator, ask_broker, broker_option, json_option, yes_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.quantities import MOMENT
from txmsg.cli.showing import content, first_line, moment, print_facts, print_table, say
from txmsg.errors import MisuseError, TxmsgError

if TYPE_CHECKING:
    from txmsg.wire.v1 import dead_letters_pb2 as pb

__all__ = ["dead_letter"]

_BATCH_MAX = 1000
_BATCHES_PER_S = 2.0
_INTERRUPTED = 130  # as a shell says it of SIGINT

_WHICH: tuple[Decorator, ...] = (
    click.option("--group", default="", metavar="NAME", help="Of this consumer group."),
    click.option("--topic", default="", metavar="NAME", help="Of this topic."),
    click.option("--since", type=MOMENT, help="Dead since then: 2026-05-01T10:00:00Z, or 2h for two hours ago."),
    click.option("--until", type=MOMENT, help="Dead before then."),
    click.option("--error", default="", metavar="TEXT", help="With this in the last error."),
    click.option("--id", "id_", default="", metavar="ID", help="This message, or those of this transaction."),
    click.option("--key", default="", metavar="KEY", help="With this key."),
)


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say which dead letters; the command gets them as `which`, a DeadLetterFilter."""

    @functools.wraps(command)
    def with_filter(
        *,
        group: str,
        topic: str,
        since: datetime | None,
        until: datetime | None,
        error: str,
        id_: str,
        key: str,
        **others: Any,
    ) -> Any:
        from txmsg.message import us_of_datetime
        from txmsg.wire.v1 import dead_letters_pb2 as pb

        which = pb.DeadLetterFilter(
            group=group,
            topic=topic,
            since_us=us_of_datetime(since) if since else 0,
            until_us=us_of_datetime(until) if until else 0,
            error=error,
            id=id_,
            key=key,
        )
        return command(which=which, **others)

    decorated: Callable[..., Any] = with_filter
    for option in reversed(_WHICH):
        decorated = option(decorated)
    return decorated


@click.group()
def dead_letter() -> None:
    """Look at messages that a group could not process, deliver them again, or purge them.

    A message whose handler failed at every attempt is a dead letter of that group; other groups know nothing of it.
    """


@dead_letter.command(
    "list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter list --group mailer --since 2h --error timeout"
)
@_which
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="On one page, at most.")
@click.option("--page", default="", metavar="NEXT", help="The next page, as the page before named it.")
@broker_option
@json_option
def list_(*, which: pb.DeadLetterFilter, limit: int, page: str, broker: str, as_json: bool) -> None:
    """List dead letters, the longest dead first."""
    from txmsg.wire.v1 import dead_letters_pb2 as pb

    request = pb.ListDeadLettersRequest(filter=which, limit=limit, after=page)
    reply = ask_broker(broker, "DeadLetters.List", request)
    if as_json:
        letters = [_values(each) for each in reply.letters]
        click.echo(json.dumps({"dead_letters": letters, "next": reply.next or None}))
        return
    if not reply.letters:
        click.echo("there is no dead letter" + (" like that" if which.ByteSize() else ""))
        return
    from rich.table import Table

    table = Table(box=None)
    table.add_column("Message", no_wrap=True, min_width=38)  # an id cut short cannot be copied
    for name in ("Group", "Topic", "Key", "Died", "Attempts", "Last error"):
        table.add_column(name)
    for each in reply.letters:
        values = _values(each)
        table.add_row(
            str(values["id"]),
            each.group,
            each.topic,
            each.key,
            str(values["died_at"]),
            str(each.attempts),
            first_line(each.last_error),
        )
    print_table(table)
    if reply.next:
        click.echo(f"only the first {len(reply.letters)}: go on with --page {reply.next}", err=True)


@dead_letter.command(
    short_help="Show a dead letter whole.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter show 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0 --group mailer",
)
@click.argument("id_", metavar="ID")
@click.option("--group", default="", metavar="NAME", help="Only as the dead letter of this consumer group.")
@broker_option
@json_option
def show(*, id_: str, group: str, broker: str, as_json: bool) -> None:
    """Show a dead letter whole: headers, body, and the reason of each attempt.

    ID is that of the message, as `txmsg dead-letter list` prints it, or of its transaction.
    """
    from txmsg.wire.v1 import dead_letters_pb2 as pb

    which = pb.DeadLetterFilter(id=id_, group=group)
    request = pb.ListDeadLettersRequest(filter=which, limit=1000, with_bodies=True)
    reply = ask_broker(broker, "DeadLetters.List", request)
    if not reply.letters:
        raise MisuseError(f"there is no dead letter {id_}: `txmsg dead-letter list` shows those there are")
    if as_json:
        letters = [_values(each, whole=True) for each in reply.letters]
        click.echo(json.dumps({"dead_letters": letters, "next": reply.next or None}))
        return
    for each in reply.letters:
        values = _values(each, whole=True)
        failures = values.pop("failures")
        print_facts(values)
        assert isinstance(failures, list)
        for failure in failures:
            say(f" attempt {failure['attempt']} at {failure['at']}: {failure['error']}")
    if reply.next:
        click.echo(f"only the first {len(reply.letters)}: name one message, or a --group", err=True)


@dead_letter.command(
    short_help="Deliver dead letters again.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter redrive --group mailer --error timeout --rate 100",
)
@_which
@click.option("--rate", type=click.FloatRange(0.1), help="Messages per second.  [default: as fast as it goes]")
@broker_option
@json_option
def redrive(*, which: pb.DeadLetterFilter, rate: float | None, broker: str, as_json: bool) -> None:
    """Deliver dead letters again, as if they were new to their group.

    Handlers under @idempotent run again, too. Messages of one ordering key come in their order. Can be interrupted,
    and called again: what is not redriven yet stays a dead letter.
    """
    from txmsg.wire.v1 import dead_letters_pb2 as pb

    _check_named(which, "redrive")
    counted = ask_broker(broker, "DeadLetters.Redrive", pb.RedriveRequest(filter=which))

    def redrive_some(limit: int) -> int:
        request = pb.RedriveRequest(filter=which, limit=limit, as_of_us=counted.as_of_us)
        redriven: int = ask_broker(broker, "DeadLetters.Redrive", request).redriven
        return redriven

    redriven = _in_batches(redrive_some, counted.left, "redriven", rate=rate)
    click.echo(json.dumps({"redriven": redriven}) if as_json else f"dead letters redriven: {redriven}")


@dead_letter.command(
    short_help="Delete dead letters for good.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter purge --group mailer --until 30d",
)
@_which
@broker_option
@yes_option
@json_option
def purge(*, which: pb.DeadLetterFilter, broker: str, yes: bool, as_json: bool) -> None:
    """Delete dead letters for good. Nobody processes them any more.

    Where a group parks ordering keys, the messages that waited behind them are delivered.
    """
    from txmsg.wire.v1 import dead_letters_pb2 as pb

    _check_named(which, "purge")
    counted = ask_broker(broker, "DeadLetters.Purge", pb.PurgeRequest(filter=which))
    if counted.left and not yes:
        click.confirm(f"purge {counted.left} dead letter(s), for good?", abort=True, err=as_json)

    def purge_some(limit: int) -> int:
        request = pb.PurgeRequest(filter=which, limit=limit, as_of_us=counted.as_of_us)
        purged: int = ask_broker(broker, "DeadLetters.Purge", request).purged
        return purged

    purged = _in_batches(purge_some, counted.left, "purged", rate=None)
    click.echo(json.dumps({"purged": purged}) if as_json else f"dead letters purged: {purged}")


def _check_named(which: pb.DeadLetterFilter, what: str) -> None:
    if not which.ByteSize():
        raise click.UsageError(f"name which dead letters to {what}: by --group, --topic, --since, --error, --id, ...")


def _in_batches(step: Callable[[int], int], total: int, done_word: str, *, rate: float | None) -> int:
    """Repeats `step(how many at most)` until it finds none, `rate` of them a second; how many they were."""
    limit = _BATCH_MAX if rate is None else max(1, min(_BATCH_MAX, round(rate / _BATCHES_PER_S)))
    done = 0
    started_at = time.monotonic()
    try:
        for count in _bar(iter(functools.partial(step, limit), 0), total, done_word):
            done += count
            if rate is not None and done < total:
                time.sleep(max(0.0, started_at + done / rate - time.monotonic()))
    except (KeyboardInterrupt, TxmsgError) as exc:
        click.echo(f"at least {done} of {total} {done_word}; the rest is as it was: call it again", err=True)
        if isinstance(exc, KeyboardInterrupt):
            sys.exit(_INTERRUPTED)
        raise
    return done


def _bar(counts: Iterator[int], total: int, title: str) -> Iterator[int]:
    """Draws how far it is, where somebody sees it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total)
        for count in counts:
            progress.advance(task, count)
            yield count


def _values(letter: pb.DeadLetter, *, whole: bool = False) -> dict[str, object]:
    """A dead letter for people and for JSON: ids and times as text, what is not set as None."""
    values: dict[str, object] = {
        "id": f"{UUID(bytes=letter.transaction_id)}.{letter.n}",
        "group": letter.group,
        "topic": letter.topic,
        "queue": letter.queue,
        "offset": letter.offset,
        "key": letter.key or None,
        "tag": letter.tag or None,
        "ordering_key": letter.ordering_key or None,
        "blocks_key": letter.blocks_key,
        "born_at": moment(letter.born_at_us),
        "stored_at": moment(letter.stored_at_us),
        "died_at": moment(letter.died_at_us),
        "attempts": letter.attempts,
        "generation": letter.generation,
        "last_error": letter.last_error or None,
        "body_size_bytes": letter.size_bytes,
    }
    if whole:
        values |= content(letter.headers, letter.body)
        values["failures"] = [
            {"attempt": each.attempt, "at": moment(each.at_us), "error": each.error} for each in letter.failures
        ]
    return values
