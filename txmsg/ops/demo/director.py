"""Decides what happens when in a demo, and runs its phases.

    Script     which steps are due at which share of the work; pure
    Patience   when waiting is given up; pure, time is an argument
    Director   runs phases over a stage with both; each demo derives its run from it

Knows neither what the processes are (stage) nor which result is right (the verifier of the example).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from txmsg.ops.demo.stage import DemoProcesses

Stage = TypeVar("Stage", bound=DemoProcesses)


class Audience(Protocol):
    """Is told how the demo proceeds. Called from the main thread only."""

    def phase(self, title: str, steps: int) -> None:
        """Begin a phase of so many steps."""

    def progress(self, steps: int, note: str) -> None:
        """Show that so many steps of the phase are done."""

    def say(self, text: str) -> None:
        """Show a text that stays."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action that is due at a share of the work, and not before `is_ready`."""

    share: float
    act: Callable[[], object]
    is_ready: Callable[[], bool] = lambda: True


class Script:
    """Steps in order of their shares. Each is run once; one that is not ready delays those after it."""

    def __init__(self, work: int, steps: Iterable[Step] = ()) -> None:
        self._work = work
        self._steps = sorted(steps, key=lambda step: step.share)

    @property
    def is_over(self) -> bool:
        """Return True if all steps were run."""
        return not self._steps

    def run_due(self, done: int) -> None:
        """Run the steps that are due when so much of the work is done."""
        while self._steps and done >= self._steps[0].share * self._work and self._steps[0].is_ready():
            self._steps.pop(0).act()

    def run_rest(self) -> None:
        """Run the remaining steps, due or not."""
        while self._steps:
            self._steps.pop(0).act()


class Patience:
    """Lasts until nothing has changed for `limit_s`."""

    def __init__(self, limit_s: float, state: object, now: float) -> None:
        self._limit_s, self._state, self._changed_at = limit_s, state, now

    def is_exhausted(self, state: object, now: float) -> bool:
        """Return True if the state has been this one for the limit. Times are in seconds, from any clock."""
        if state != self._state:
            self._state, self._changed_at = state, now
        return now >= self._changed_at + self._limit_s


class Director(Generic[Stage]):
    """Runs phases over a stage. The context starts the stage, and ends all that was started, also when interrupted.

    Entering and waiting raise ChildFailed when a process fails that was not killed on purpose.
    """

    patience_s: ClassVar[float] = 60.0
    """A wait is given up when nothing has changed for this long: it will not get better."""
    look_s: ClassVar[float] = 0.2
    """Seconds between two looks at the processes."""

    def __init__(self, stage: Stage, audience: Audience) -> None:
        self.stage, self.audience = stage, audience
        self.script = Script(0)
        self.exits = contextlib.ExitStack()
        """Contexts that end before the stage does."""
        self._began_at = time.monotonic()

    def __enter__(self) -> Self:
        self.audience.phase("starting all processes", 1)
        self.stage.on_wait = lambda name: self.audience.progress(0, f"waiting for {name}")
        self.exits.enter_context(self.stage)
        return self

    def __exit__(self, *_: object) -> None:
        self.exits.close()

    @property
    def seconds(self) -> float:
        """Return how long the demo has run."""
        return round(time.monotonic() - self._began_at, 1)

    def read_children(self) -> None:
        """Read how far the processes are. Raises ChildFailed."""

    def progress_note(self) -> str:
        """Return what the audience reads beside the progress."""
        return ""

    def phase(self, title: str, work: int, *steps: Step) -> None:
        """Begin a phase, in which these steps happen at shares of the work."""
        self.audience.phase(title, work)
        self.script = Script(work, steps)

    def wait(
        self,
        is_over: Callable[[], bool],
        done: Callable[[], int],
        *,
        state: Callable[[], object] | None = None,
        patience_s: float | None = None,
    ) -> None:
        """Return when it is over, or when the state has not changed for `patience_s`; run the script meanwhile.

        done: how much of the phase's work is done; also the state, unless another one is given. Raises ChildFailed.
        """
        state = state or done
        patience = Patience(self.patience_s if patience_s is None else patience_s, state(), time.monotonic())
        while not is_over() and not patience.is_exhausted(state(), time.monotonic()):
            self.pause()
            self.script.run_due(now_done := done())
            self.audience.progress(now_done, self.progress_note())

    def pause(self) -> None:
        """Wait a moment, then look at the processes. Raises ChildFailed when one has failed."""
        time.sleep(self.look_s)
        self.stage.require_running()
        self.read_children()
