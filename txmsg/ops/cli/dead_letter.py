"""`txmsg dead-letter`: messages that a group of Notify or of a log could not process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from txmsg.administration.dead_letters import DeadLetter, DeadLetterFilter, DeadLetterQuery
from txmsg.administration.interface import Administration
from txmsg.errors import MisuseError, TxmsgError
from txmsg.ops.cli.connections import administered
from txmsg.ops.cli.main import EXAMPLE_FORMAT
from txmsg.ops.cli.options import TIME, Decorator, dry_run_option, json_option, page_option, table_options, yes_option
from txmsg.ops.cli.output import content, first_line, json_text, print_dry_run, print_facts, print_rows, say, seconds

_INTERRUPTED: Final = 130  # as a shell says it of SIGINT
_SHOWN_MAX: Final = 1000

_WHICH: tuple[Decorator, ...] = (
    click.option("--group", default="", metavar="NAME", help="Only of this consumer group."),
    click.option("--topic", default="", metavar="NAME", help="Only of this topic."),
    click.option("--since", type=TIME, help="Dead since this time: 2026-05-01T10:00:00Z, or 2h for two hours ago."),
    click.option("--until", type=TIME, help="Dead before this time."),
    click.option("--error", default="", metavar="TEXT", help="Only if the last error contains this text."),
    click.option("--id", default="", metavar="ID", help="Only this message, or those of this transaction."),
    click.option("--key", default="", metavar="KEY", help="Only with this key."),
)


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead letters; the command gets them as `which`."""

    @functools.wraps(command)
    def with_filter(**options: Any) -> Any:
        which = DeadLetterFilter(**{field.name: options.pop(field.name) for field in fields(DeadLetterFilter)})
        return command(which=which, **options)

    decorated: Callable[..., Any] = with_filter
    for option in reversed(_WHICH):
        decorated = option(decorated)
    return decorated


@click.group()
def dead_letter() -> None:
    """Show, redrive or purge messages that a group failed to process.

    A message whose handler failed at every attempt is a dead letter of that group; other groups are not affected. The
    group is one of a Notify database (--broker) or of a MetaQ log (--log).
    """


@dead_letter.command(
    "list", epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter list --group mailer --since 2h --error timeout"
)
@_which
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number per page."
)
@page_option
@administered
@json_option
@table_options
def list_(*, which: DeadLetterFilter, limit: int, page: str, administration: Administration, as_json: bool) -> None:
    """List dead letters, oldest first."""
    found = administration.list_dead_letters(DeadLetterQuery(which=which, limit=limit, after=page))
    if as_json:
        click.echo(json_text({"dead_letters": [_values(letter) for letter in found.letters], "next": found.next}))
        return
    if not found.letters:
        click.echo("no dead letters" + (" match" if which != DeadLetterFilter() else ""))
        return
    names = ("id", "group", "topic", "key", "died_at", "attempts", "last_error")
    rows = [{**asdict(letter), "last_error": first_line(letter.last_error)} for letter in found.letters]
    print_rows({name: row[name] for name in names} for row in rows)
    if found.next:
        click.echo(f"only the first {len(found.letters)}: go on with --page {found.next}", err=True)


@dead_letter.command(
    short_help="Show a dead letter.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter show 0197f3a2-8d5e-7c11-b0a4-5f1f6f3f9c01.0 --group mailer",
)
@click.argument("id_", metavar="ID")
@click.option("--group", default="", metavar="NAME", help="Only of this consumer group.")
@administered
@json_option
def show(*, id_: str, group: str, administration: Administration, as_json: bool) -> None:
    """Show a dead letter: headers, body, and the error of each attempt.

    ID is a message id, as printed by `txmsg dead-letter list`, or a transaction id.
    """
    which = DeadLetterFilter(id=id_, group=group)
    found = administration.list_dead_letters(DeadLetterQuery(which=which, limit=_SHOWN_MAX, whole=True))
    if not found.letters:
        raise MisuseError(f"there is no dead letter {id_}: `txmsg dead-letter list` shows existing ones")
    if as_json:
        letters = [_values(letter, whole=True) for letter in found.letters]
        click.echo(json_text({"dead_letters": letters, "next": found.next}))
        return
    for letter in found.letters:
        values = _values(letter, whole=True)
        del values["failures"]
        print_facts(values)
        for failure in letter.failures:
            at = f" at {seconds(failure.at)}" if failure.at else ""
            say(f" attempt {failure.attempt}{at}: {failure.error}")
    if found.next:
        click.echo(f"only the first {len(found.letters)}: name one message, or a --group", err=True)


@dead_letter.command(
    short_help="Redrive dead letters: deliver them again.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter redrive --group mailer --error timeout --rate 100",
)
@_which
@click.option("--rate", type=click.FloatRange(0.1), help="Messages per second. Notify only.  [default: unlimited]")
@administered
@json_option
def redrive(*, which: DeadLetterFilter, rate: float | None, administration: Administration, as_json: bool) -> None:
    """Redrive dead letters: deliver them again, as if they were new to their group.

    Handlers under @idempotent run again, too. Messages of one ordering key keep their order. If it is interrupted, the
    rest stay dead letters; run it again to continue.
    """
    _check_named(which, "redrive")
    selection = administration.select(which)
    redriven = _sum(administration.redrive(selection, rate=rate), selection.count, "redriven")
    click.echo(json_text({"redriven": redriven}) if as_json else f"dead letters redriven: {redriven}")


@dead_letter.command(
    short_help="Delete dead letters for good.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg dead-letter purge --group mailer --until 30d",
)
@_which
@dry_run_option
@administered
@yes_option
@json_option
def purge(*, which: DeadLetterFilter, dry_run: bool, administration: Administration, yes: bool, as_json: bool) -> None:
    """Delete dead letters for good.

    If the group parks ordering keys, the messages waiting behind them are delivered.
    """
    _check_named(which, "purge")
    selection = administration.select(which)
    if dry_run:
        print_dry_run({"dead_letters": selection.count}, as_json=as_json)
        return
    if selection.count and not yes:
        click.confirm(f"purge {selection.count} dead letter(s), for good?", abort=True, err=as_json)
    purged = _sum(administration.purge(selection), selection.count, "purged")
    click.echo(json_text({"purged": purged}) if as_json else f"dead letters purged: {purged}")


def _check_named(which: DeadLetterFilter, what: str) -> None:
    # An empty filter is more likely a forgotten option than the wish to purge every group.
    if which == DeadLetterFilter():
        raise click.UsageError(f"name which dead letters to {what}: by --group, --topic, --since, --error, --id, ...")


def _sum(steps: Iterator[int], total: int, done_word: str) -> int:
    """Return the number of messages that all steps have handled."""
    done = 0
    try:
        for count in _bar(steps, total, done_word):
            done += count
    # Steps that are done stay done at the broker, so say how many: the operator can run the command again.
    except (KeyboardInterrupt, TxmsgError) as exc:
        click.echo(f"at least {done} of {total} {done_word}; the rest is as it was: call it again", err=True)
        if isinstance(exc, KeyboardInterrupt):
            sys.exit(_INTERRUPTED)
        raise
    return done


def _bar(counts: Iterator[int], total: int, title: str) -> Iterator[int]:
    """Draw a progress bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(title, total=total)
        for count in counts:
            progress.advance(task, count)
            yield count


def _values(letter: DeadLetter, *, whole: bool = False) -> dict[str, Any]:
    """Return a dead letter for people and for JSON."""
    values = asdict(letter)
    is_withheld = values.pop("is_withheld")
    if whole:
        return values | content(letter.headers, letter.body, topic=letter.topic, is_withheld=is_withheld)
    return {name: value for name, value in values.items() if name not in {"headers", "body", "failures"}}
