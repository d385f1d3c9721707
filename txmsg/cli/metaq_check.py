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

if TYPE_CHECKING:
    from txmsg.metaq.fsck.report import Report

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
    help="Take out what is damaged, and keep it in a file of DIR/damaged. Nothing else may write the log meanwhile.",
)
@click.option(
    "--storage",
    metavar="URL",
    help="With --repair: the Notify database whose mirror this is. What it still has of what is lost is mirrored anew.",
)
@click.option(
    "--name",
    metavar="NAME",
    default="metaq",
    show_default=True,
    help="Names the mirror in that database.",
)
@json_option
def check(*, directory: Path, repair: bool, storage: str | None, name: str, as_json: bool) -> None:
    """Read all of a log: every frame, every cell, every file. It may be read and written meanwhile.

    Says of each damage where it is, which messages are lost, and the way out.
    """
    require_metaq()
    from txmsg.metaq.fsck.check import check as check_log
    from txmsg.metaq.fsck.check import size_bytes_of

    started = time.monotonic()
    done: list[str] = []
    with _bar(size_bytes_of(directory)) as told:
        if repair:
            from txmsg.metaq.fsck.repair import repair as repair_log

            done = repair_log(directory, told)
            done += _take_again(directory, storage, name) if storage else ()
        report = check_log(directory, told).report
    took_s = time.monotonic() - started
    if as_json:
        click.echo(json.dumps({**report.values(), "repaired": done, "took_s": round(took_s, 3)}))
    else:
        for each in done:
            click.echo(each)
        _print(report, took_s)
    sys.exit(1 if report.problems else 0)


def _take_again(directory: Path, storage: str, name: str) -> list[str]:
    """What is missing is left to the tailer, where the table has it; which queues, in sentences."""
    from txmsg.binlog.config import check_mirror_name
    from txmsg.binlog.database import connect, translated
    from txmsg.broker import migrate
    from txmsg.mirror import take_again

    check_mirror_name(name)
    migrate.require(storage)
    with closing(connect(migrate.libpq_url(storage))) as session, translated():
        return [
            f"topic {each.topic} queue {each.queue}: `txmsg tailer run` takes offsets {each.offset} to "
            f"{each.log_end - 1} from the table again"
            for each in take_again(directory, session, name)
        ]


def _print(report: Report, took_s: float) -> None:
    for problem in report.problems[:_SHOWN_MAX]:
        click.echo(str(problem), err=True)
    if len(report.problems) > _SHOWN_MAX:
        click.echo(f"and {len(report.problems) - _SHOWN_MAX} more: --json prints all", err=True)
    for hole in report.holes[:_SHOWN_MAX]:
        click.echo(f"missing, as the log says: {hole}")
    for note in report.notes:
        click.echo(note)
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
