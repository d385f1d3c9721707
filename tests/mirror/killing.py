"""A tailer that is killed at random moments and started again at once, as long as asked."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.mirror.tailer_process import TailerProcess

__all__ = ["KilledTailer"]

_LIVES_S_MAX = 3.0
_TWICE_SHARE = 0.3
"""How often it is killed again before it can have done much."""
_TWICE_S_MAX = 0.6


class KilledTailer:
    """A context manager; when it is left, the tailer has been started once more and tails."""

    def __init__(self, storage: str, log: Path, seed: int, *, said: Path) -> None:
        self.tailer = TailerProcess(storage, log, said=said)
        self.kills = 0
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
        if kind is None and self._failed is None:
            self.tailer.start()
        if self._failed is not None:
            raise self._failed

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                again = self._rng.random() < _TWICE_SHARE
                self._live(self._rng.uniform(0, _TWICE_S_MAX if again else _LIVES_S_MAX))
        except BaseException as exc:  # noqa: BLE001 - a thread's root: the one who waits raises it
            self._failed = exc

    def _live(self, seconds: float) -> None:
        self.tailer.launch()
        self._ended.wait(seconds)
        assert self.tailer.is_running, f"the tailer ended by itself:\n{self.tailer.said}"
        self.tailer.kill()
        self.kills += 1
