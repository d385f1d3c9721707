"""A process of the cluster in the hands of the test: started, killed, paused, started again under the same name."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tests.chaos.client import READY
from tests.restartable import Restartable
from txmsg.runtime.child import ChildFailed, Spawn

_END_S_MAX = 60.0
_STOPPED_S_MAX = 60.0


class Process(Restartable):
    """One after the other, the lives of a process. `argument`: what the next one is told, given the number of it."""

    ready = READY

    def __init__(
        self,
        name: str,
        module: str,
        argument: Callable[[int], str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        spawn: Spawn | None = None,
    ) -> None:
        super().__init__(name, log, environment=environment, spawn=spawn)
        self.module = module
        self.lives = 0
        self._argument = argument

    def arguments(self) -> list[str]:
        return [self._argument(self.lives)]

    def launch(self) -> None:
        super().launch()
        self.lives += 1

    def stop(self) -> int:
        """SIGTERM; it must end well."""
        self.child.send_signal(signal.SIGTERM)
        return self.wait()

    def check(self) -> None:
        """Raises ChildFailed if it ended by itself."""
        if self.is_started:
            self.child.require_running()

    def pause_until_still(self) -> float:
        """SIGSTOP; the wall clock's time at which it certainly did nothing more."""
        self.pause()
        process, deadline = psutil.Process(self.pid), time.monotonic() + _STOPPED_S_MAX
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, f"{self.name} does not stop"
        return time.time()

    def tell(self, line: str) -> None:
        self.child.write_line(line)

    def wait(self) -> int:
        """Until it has ended by itself, and well, as it was told to."""
        child, self._child = self.child, None
        try:
            status = child.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"{self.name} does not end; its log ends with:\n{child.log_tail()}") from None
        finally:
            child.stop()
        if status != 0:
            raise ChildFailed(f"{self.name} ended {child.ending}; its log ends with:\n{child.log_tail()}")
        return status
