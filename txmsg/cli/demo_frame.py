"""What the commands that run a demo share: progress, the directory, and Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from txmsg.cli.options import Decorator

__all__ = ["Bars", "Interrupts", "demo_directory", "failures_told", "keep_option", "print_connect"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

keep_option: Decorator = click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the databases in this directory."
)


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


def print_connect(console: Console, keep: Path, databases: Sequence[str]) -> None:
    """Tells how to look into the databases that were kept."""
    console.print(f"The databases are in {keep}; the server ends with the demo. To look into them:", highlight=False)
    for database in databases:
        console.print(f"  txmsg demo connect {keep} {database}", highlight=False, soft_wrap=True)


@contextlib.contextmanager
def demo_directory(keep: Path | None) -> Iterator[Path]:
    """The empty directory that is to be kept, or one that is removed afterwards. Raises UsageError."""
    if keep is not None:
        try:
            keep.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise click.UsageError(f"{keep} cannot be made ({exc}): name another directory") from exc
        if any(keep.iterdir()):
            raise click.UsageError(f"{keep} is not empty: name another directory, or empty it")
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="txmsg-demo-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@contextlib.contextmanager
def failures_told() -> Iterator[None]:
    """A process of the demo that fails is an error of the command: the end of its log is said, and no traceback."""
    from txmsg.runtime.child import ChildFailed

    try:
        yield
    except ChildFailed as exc:
        raise click.ClickException(str(exc)) from exc


class Interrupts:
    """Ctrl-C, SIGTERM and a terminal that is closed end the demo in order, with all its processes.

    Raised where the main thread is just then, KeyboardInterrupt may be lost (in a finalizer, in a callback of a
    library). So it is remembered, and `check` raises it again.
    """

    def __init__(self) -> None:
        self._interrupted = False

    def __enter__(self) -> Self:
        is_without_terminal = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as under nohup
        heard = [each for each in _SIGNALS if each != signal.SIGHUP or not is_without_terminal]
        self._before = {each: signal.signal(each, self._interrupt) for each in heard}
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
