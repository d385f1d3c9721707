"""Plays a demo in a terminal: its options, its progress, interruptions, its result, and the exit status."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, NoReturn, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from txmsg.ops.cli.options import Decorator
from txmsg.runtime.child import ChildFailed
from txmsg.runtime.owners import require_own

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def play(
    run: Callable[[Path, Bars], Any],
    show: Callable[[Console, Any], None],
    *,
    databases: Sequence[str],
    title_width: int,
    verdict: str,
    keep: Path | None,
    as_json: bool,
) -> NoReturn:
    """Run a demo, show its result, and exit. verdict: the text printed for a good result."""
    console = Console(stderr=as_json)  # stdout is for the JSON then
    try:
        with (
            _directory(keep) as directory,
            Interrupts() as interrupts,
            Bars(console, interrupts, title_width=title_width) as bars,
        ):
            result = run(directory, bars)
            interrupts.check()
    except ChildFailed as exc:  # it names the process and the end of its log
        raise click.ClickException(str(exc)) from exc
    show(console, result)
    for finding in result.findings:
        console.print(finding, style="red", highlight=False)
    told = verdict if result.clean else "NOT as it must be"
    console.print(f"{told}; {result.seconds:.1f} s", style="green" if result.clean else "bold red")
    if keep is not None:
        console.print(
            f"The databases are in {keep}; the server ends with the demo. To look into them:", highlight=False
        )
        for database in databases:
            console.print(f"  txmsg demo connect {keep} {database}", highlight=False, soft_wrap=True)
    if as_json:
        values = dataclasses.asdict(result)
        print(json.dumps({name: value for name, value in values.items() if name != "findings"}), flush=True)
    sys.exit(0 if result.clean else 1)


@contextlib.contextmanager
def refuse_impossible_plan() -> Iterator[None]:
    """Translate the ValueError of an impossible plan to UsageError."""
    try:
        yield
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def seconds_option(default: float, help_text: str) -> Decorator:
    """Return the option for the length of a demo."""
    kind = click.FloatRange(0, min_open=True)
    return click.option("--seconds", type=kind, default=default, show_default=True, help=help_text)


def print_facts(console: Console, title: str, facts: Iterable[tuple[str, object]]) -> None:
    """Print a table of names and values."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in facts:
        table.add_row(name, str(value))
    console.print(table)


class Bars:
    """The audience of the demo: one progress bar per phase, behind titles of at most so many characters."""

    def __init__(self, console: Console, interrupts: Interrupts, *, title_width: int) -> None:
        self._interrupts = interrupts
        self._progress = Progress(
            TextColumn(f"{{task.description:<{title_width}}}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            expand=True,  # a narrow terminal cuts the note, not the numbers
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

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def _finish(self) -> None:
        if self._task is not None:
            task = self._progress.tasks[self._task]
            self._progress.update(self._task, completed=task.total)
            self._progress.stop_task(self._task)


@contextlib.contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    """Yield the empty directory to keep, or one that is removed afterwards. Raises UsageError."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise click.UsageError(f"{keep} cannot be made ({exc}): name another directory") from exc
        if any(keep.iterdir()):
            raise click.UsageError(f"{keep} is not empty: name another directory, or empty it")
        require_own(keep, "the directory")
        yield keep.resolve()
        return
    try:
        made = tempfile.TemporaryDirectory(prefix="txmsg-demo-", ignore_cleanup_errors=True)
    except OSError as exc:
        raise click.UsageError(
            f"there is no directory for temporary files ({exc.strerror or exc}): set TMPDIR to one that can be "
            "written, or name a directory with --keep"
        ) from exc
    with made as directory:
        yield Path(directory)


class Interrupts:
    """A context in which Ctrl-C, SIGTERM and a closed terminal end the demo in order, with all its processes.

    A KeyboardInterrupt that is raised in the main thread at any point may be lost (in a finalizer, in a callback of a
    library). So it is remembered, and `check` raises it again.
    """

    def __init__(self) -> None:
        self._interrupted = False

    def __enter__(self) -> Self:
        is_without_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as under nohup
        # A demo under nohup continues when its terminal is closed, as its user has asked.
        heard = [signum for signum in _SIGNALS if signum != signal.SIGHUP or not is_without_terminal]
        self._before = {signum: signal.signal(signum, self._interrupt) for signum in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        # Noted before it is raised: the exception may be swallowed where it strikes, and `check` raises it again.
        self._interrupted = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was one."""
        if self._interrupted:
            raise KeyboardInterrupt
