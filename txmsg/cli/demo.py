"""`txmsg demo`: the examples, played with real processes. Draws progress and the result; examples/ does the work."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.user_registration.demo import GROUPS
from txmsg.cli.main import EXAMPLE_FORMAT

if TYPE_CHECKING:
    from examples.user_registration.demo.supervisor import Result

__all__ = ["demo"]

DATABASES = ("users", *GROUPS, "notify", "attempts")


@click.group()
def demo() -> None:
    """Play an example with real processes on an embedded database."""


@demo.command(
    short_help="Users register while processes are killed.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo registration --users 500 --crash 20 --keep /tmp/demo",
)
@click.option("--users", default=300, show_default=True, help="People who try to register, over all phases.")
@click.option(
    "--crash",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="How often the service is killed by SIGKILL.",
)
@click.option(
    "--slow-ms",
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="How long the slowest subscriber takes per user.",
)
@click.option(
    "--down",
    type=click.Choice([*GROUPS, "none"]),
    default="social_import",
    show_default=True,
    help="The subscriber that is down for a while.",
)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Leave the databases in this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def registration(*, users: int, crash: int, slow_ms: int, down: str, keep: Path | None, as_json: bool) -> None:
    """Users register by calls and by messages, while processes are killed; then the databases are compared.

    Exit status 1 if an effect is missing, duplicated or phantom, or a transaction is still undecided.
    """
    from examples.user_registration.demo.supervisor import Plan, play

    try:
        plan = Plan(users=users, crashes=crash, slow_ms=slow_ms, down=None if down == "none" else down)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    console = Console(stderr=as_json)  # stdout is for the JSON then
    with _directory(keep) as directory, _Interrupts() as interrupts, Bars(console, interrupts) as bars:
        result = play(plan, directory, bars)
        interrupts.check()
    _print_table(console, result, users_waited=plan.compared)
    if keep is not None:
        _print_connect(console, keep)
    if as_json:
        print(json.dumps(_json_of(result)), flush=True)
    sys.exit(0 if result.clean else 1)


@demo.command(
    short_help="Open psql on a database that was kept.",
    epilog=f"{EXAMPLE_FORMAT}\n  txmsg demo connect /tmp/demo users",
)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.argument("database", type=click.Choice(DATABASES), default="users")
def connect(directory: Path, database: str) -> None:
    """Open psql on a DATABASE that `registration --keep DIRECTORY` left. Ends the server when you leave."""
    from txmsg.embedded import EmbeddedPostgres, binaries_dir

    with EmbeddedPostgres(directory / "postgres") as postgres:
        sys.exit(subprocess.run([binaries_dir() / "psql", postgres.url(database)], check=False).returncode)


class Bars:
    """The audience of the play: one progress bar per phase."""

    def __init__(self, console: Console, interrupts: _Interrupts) -> None:
        self._interrupts = interrupts
        self._progress = Progress(
            TextColumn("{task.description:<33}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish()
        self._progress.stop()

    def phase(self, title: str, steps: int) -> None:
        self._finish()
        self._task = self._progress.add_task(title, total=steps, note="")

    def progress(self, steps: int, note: str) -> None:
        assert self._task is not None
        self._interrupts.check()
        self._progress.update(self._task, completed=steps, note=note)

    def _finish(self) -> None:
        if self._task is not None:
            task = self._progress.tasks[self._task]
            self._progress.update(self._task, completed=task.total)
            self._progress.stop_task(self._task)


def _print_table(console: Console, result: Result, *, users_waited: int) -> None:
    waits = Table(title=f"What {users_waited} users waited for each way (ms)", title_justify="left")
    for column in ("", "p50", "p99"):
        waits.add_column(column, justify="left" if not column else "right")
    titles = {"serial": "serial calls: the sum of all steps", "parallel": "parallel calls: the slowest step"}
    for way, latency in result.latency_ms.items():
        waits.add_row(titles.get(way, "messages: the core step"), f"{latency.p50:.1f}", f"{latency.p99:.1f}")
    console.print(waits)

    facts = Table(title="What the databases say", title_justify="left", show_header=False)
    facts.add_column()
    facts.add_column(justify="right")
    for name, value in (
        ("users who tried", result.users),
        ("committed", result.committed),
        ("rolled back, or never begun", result.rolled_back),
        ("services killed", result.crashes),
        ("settled by a check-back: commit", result.resolved_by_check["commit"]),
        ("settled by a check-back: rollback", result.resolved_by_check["rollback"]),
        *((f"effects in {group}", count) for group, count in result.effects.items()),
        ("effects missing", result.missing),
        ("effects duplicated", result.duplicated),
        ("effects of nobody (phantom)", result.phantom),
        ("transactions still undecided", result.in_doubt),
    ):
        facts.add_row(name, str(value))
    console.print(facts)
    for finding in result.findings:
        console.print(finding, style="red", highlight=False)
    verdict = "every user reached every subscriber once" if result.clean else "NOT as it must be"
    console.print(f"{verdict}; {result.seconds:.1f} s", style="green" if result.clean else "bold red")


def _print_connect(console: Console, keep: Path) -> None:
    console.print(f"The databases are in {keep}; the server ends with the demo. To look into them:", highlight=False)
    for database in DATABASES:
        console.print(f"  txmsg demo connect {keep} {database}", highlight=False, soft_wrap=True)


def _json_of(result: Result) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(result).items() if name != "findings"}


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise click.UsageError(f"{keep} is not empty: name another directory, or empty it")
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="txmsg-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


class _Interrupts:
    """Ctrl-C and SIGTERM end the play in order, with all its processes.

    Raised where the main thread is just then, KeyboardInterrupt may be lost (in a finalizer, in a callback of a
    library). So it is remembered, and `check` raises it again.
    """

    def __init__(self) -> None:
        self._interrupted = False

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was one."""
        if self._interrupted:
            raise KeyboardInterrupt
