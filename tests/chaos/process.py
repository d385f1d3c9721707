"""A process of the cluster under the test's control: started, killed, paused, restarted under the same name."""

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
    """The consecutive lives of a process. `argument` returns the argument of the life with this number."""

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
        """Send SIGTERM; the process must exit with 0."""
        self.child.send_signal(signal.SIGTERM)
        return self.wait()

    def check(self) -> None:
        """Raise ChildFailed if the process has exited by itself."""
        if self.is_started:
            self.child.require_running()

    def pause_until_still(self) -> float:
        """Send SIGSTOP; return the wall clock's time after which it certainly did nothing more."""
        self.pause()
        process, deadline = psutil.Process(self.pid), time.monotonic() + _STOPPED_S_MAX
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, f"{self.name} does not stop"
        return time.time()

    def tell(self, line: str) -> None:
        self.child.write_line(line)

    def wait(self) -> int:
        """Wait until the process exits by itself with 0, as it was told to."""
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
