"""A process that is killed at random moments and started again at once, as long as asked."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

_TWICE_SHARE = 0.3
"""How often it is killed again before it can have done much."""


class Victim(Protocol):
    """TailerProcess and BrokerProcess are such."""

    log: Path
    """What it said."""

    def end(self, how: signal.Signals) -> int: ...


class Killed:
    """A context manager. When it is left, the process has ended: whoever needs it starts it once more."""

    def __init__(self, victim: Victim, start: Callable[[], None], seed: int, *, lives_s_max: float = 3.0) -> None:
        self.kills = 0
        self._victim = victim
        self._start = start
        self._lives_s_max = lives_s_max
        self._rng = random.Random(seed)
        self._ended = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="killer")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                again = self._rng.random() < _TWICE_SHARE
                self._live(self._rng.uniform(0, self._lives_s_max / 5 if again else self._lives_s_max))
        except BaseException as exc:  # noqa: BLE001 - a thread's root: the one who waits raises it
            self._failed = exc

    def _live(self, seconds: float) -> None:
        self._start()
        self._ended.wait(seconds)
        status = self._victim.end(signal.SIGKILL)
        assert status == -signal.SIGKILL, (
            f"it ended by itself, with exit status {status}:\n{self._victim.log.read_text()}"
        )
        self.kills += 1
