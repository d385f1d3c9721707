"""A process that is killed at random moments, or paused, and restarted at once, until the block ends."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

_TWICE_SHARE = 0.3
"""Share of kills repeated before the process can have done much."""
_PAUSED_SHARE = 0.1
"""Share of pauses in place of kills, if it can be paused."""


class KillableProcess(Protocol):
    """Interface of TailerProcess and BrokerProcess."""

    log: Path
    """Its output."""

    def end(self, how: signal.Signals) -> int: ...


class RandomKills:
    """Kills a process within the block. Afterwards the process has ended and can be started once more.

    outlive: pauses the running process until another one has done its work for a while, and wakes it. kills_min: so
    often it is killed, however soon the context is left.
    """

    def __init__(
        self,
        victim: KillableProcess,
        start: Callable[[], None],
        seed: int,
        *,
        lives_s_max: float = 3.0,
        outlive: Callable[[random.Random], None] | None = None,
        kills_min: int = 0,
    ) -> None:
        self.kills = 0
        self.pauses = 0
        self._victim = victim
        self._start = start
        self._lives_s_max = lives_s_max
        self._outlive = outlive
        self._kills_min = kills_min
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
            while not self._ended.is_set() or self.kills < self._kills_min:
                again = self._rng.random() < _TWICE_SHARE
                self._live(self._rng.uniform(0, self._lives_s_max / 5 if again else self._lives_s_max))
        except BaseException as exc:  # noqa: BLE001 - a thread's root: the one who waits raises it
            self._failed = exc

    def _live(self, seconds: float) -> None:
        self._start()
        # After the last send, the remaining kills are also a little apart.
        (threading.Event() if self._ended.is_set() else self._ended).wait(seconds)
        if self._outlive is not None and self._rng.random() < _PAUSED_SHARE:
            self._outlive(self._rng)
            self.pauses += 1
        status = self._victim.end(signal.SIGKILL)
        assert status == -signal.SIGKILL, (
            f"it ended by itself, with exit status {status}:\n{self._victim.log.read_text()}"
        )
        self.kills += 1
