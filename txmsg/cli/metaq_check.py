"""`txmsg metaq check`: whether a log is as it was written, and what to do if not."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from txmsg.cli.admin import json_option
from txmsg.cli.main import EXAMPLE_FORMAT
from txmsg.cli.showing import say

if TYPE_CHECKING:
    from txmsg.metaq.fsck.report import Report
    from txmsg.mirror import Missing

__all__ = ["LOG_DIRECTORY", "check", "require_metaq"]

LOG_DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)
_SHOWN_MAX = 100


def require_metaq() -> None:
    """Raises unless what logs are read with is installed."""
    try:
        import google_crc32c  # noqa: F401
        import pyarrow  # noqa: F401
    except ModuleNotFoundError as exc:
        raise click.ClickException(
            f"logs are read with more than is installed ({exc.name}): run `pip install 'txmsg[metaq]'`"
        ) from exc


@click.command(
    short_help="Check a log, and repair it.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg metaq check /var/lib/metaq\n  txmsg metaq check /var/lib/metaq --repair\n"
    "  txmsg metaq check /var/lib/metaq --repair --storage postgresql://notify@db/notify\n\n"
    "Exit status 0: the log is whole. 1: it is damaged, or was and could not be repaired.",
)
@click.argument("directory", type=LOG_DIRECTORY)
@click.option(
    "--repair",
    is_flag=True,
    help="Replace damaged parts, and keep a copy in DIR/damaged. Stop the log's writer first.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="With --repair: the Notify database that this log mirrors. Restores what it still has.",
)
@click.option(
    "--name",
    metavar="NAME",
    default="metaq",
    show_default=True,
    help="Name of the mirror in that database.",
)
@json_option
def check(*, directory: Path, repair: bool, storage: str | None, name: str, as_json: bool) -> None:
    """Check every frame, cell and file of a log. Safe while it is read and written.

    Reports each damage with its position, the lost messages, and how to repair it.
    """
    require_metaq()
    from txmsg.metaq.fsck.groups import check_with_groups, repair_with_groups, size_bytes_with_groups

    if storage and not repair:
        raise click.UsageError("--storage is used by a repair: give --repair, too")
    started = time.monotonic()
    done: list[str] = []
    with _bar(size_bytes_with_groups(directory)) as told:
        if repair:
            done = repair_with_groups(directory, told)
            done += _take_again(directory, storage, name) if storage else ()
        report = check_with_groups(directory, told)
    took_s = time.monotonic() - started
    if as_json:
        click.echo(json.dumps({**report.values(), "repaired": done, "took_s": round(took_s, 3)}))
    else:
        for each in done:
            say(each)
        _print(report, took_s)
    sys.exit(1 if report.problems else 0)


def _take_again(directory: Path, storage: str, name: str) -> list[str]:
    """What is missing comes from the table, where that has it; what was done, in sentences."""
    from txmsg.binlog.config import check_mirror_name
    from txmsg.binlog.database import connect, translated
    from txmsg.broker import migrate
    from txmsg.mirror import take_again

    check_mirror_name(name)
    migrate.require(storage)
    with closing(connect(migrate.libpq_url(storage))) as session, translated():
        return [_told(each) for each in take_again(directory, session, name)]


def _told(missing: Missing) -> str:
    where = f"topic {missing.topic} queue {missing.queue}"
    offsets = f"offsets {missing.begin} to {missing.end - 1}"
    if missing.is_back:
        return f"{where}: {offsets} are in their place again, from the table"
    return f"{where}: there is no room for what is missing; `txmsg tailer run` takes {offsets} from the table again"


def _print(report: Report, took_s: float) -> None:
    for problem in report.problems[:_SHOWN_MAX]:
        say(str(problem), err=True)
    if len(report.problems) > _SHOWN_MAX:
        click.echo(f"and {len(report.problems) - _SHOWN_MAX} more: --json prints all", err=True)
    for hole in report.holes[:_SHOWN_MAX]:
        say(f"missing, as the log says: {hole}")
    for note in report.notes:
        say(note)
    rate = report.read_bytes / max(took_s, 1e-9) / 1024**2
    click.echo(
        f"{report.messages} messages in {report.frames} frames of {report.queues} queues, positions {report.begin} to "
        f"{report.end}: read in {took_s:.1f} s, {rate:.0f} MiB/s"
    )
    if report.problems:
        click.echo(f"{report.root} is damaged: {len(report.problems)} problems, {report.lost} messages lost", err=True)
    else:
        click.echo(f"{report.root} is whole")


@contextmanager
def _bar(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Draws how far it is, where somebody sees it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("reading", total=total_bytes)
        yield lambda count: progress.advance(task, count)
