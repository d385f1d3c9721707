"""A process of the cluster in the hands of the test: started, killed, paused, started again under the same name."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests import prestarted
from tests.chaos.client import READY

_START_S_MAX = 90.0
_STOP_S_MAX = 60.0
_STOPPED_S_MAX = 60.0


class ProcessFailed(RuntimeError):
    """A process did not come up, or ended though nobody killed it. The text holds the end of its log."""


class Process:
    """One after the other, the lives of a process. `argument`: what the next one is told, given the number of it."""

    def __init__(self, name: str, module: str, argument: Callable[[int], str], log: Path) -> None:
        self.name = name
        self.lives = 0
        self._module, self._argument, self._log = module, argument, log
        self._process: prestarted.Prestarted | None = None

    def start(self) -> None:
        """Begins a life. Returns when it says that it is ready."""
        assert self._process is None, f"{self.name} is alive"
        argument = self._argument(self.lives)
        self.lives += 1
        with self._log.open("ab") as log:
            self._process = prestarted.start(
                *(self._module, argument),
                stderr=log,
                has_stdin=True,  # its end tells the process that the parent is gone
                new_session=True,  # Ctrl-C is for the parent
            )
        if not self._first_line().startswith(READY):
            self.kill()
            raise ProcessFailed(f"{self.name} did not come up; its log ends with:\n{self.log_end()}")

    def kill(self) -> None:
        """SIGKILL. Killing what is dead is fine."""
        if self._process is not None:
            self._process.kill()
            self._close()

    def stop(self) -> None:
        """SIGTERM; it must end well."""
        assert self._process is not None, f"{self.name} is dead"
        self._process.terminate()
        self.wait()

    def check(self) -> None:
        """Raises ProcessFailed if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise ProcessFailed(f"{self.name} ended by itself with {self._process.returncode}:\n{self.log_end()}")

    def pause(self) -> float:
        """SIGSTOP; the wall clock's time at which it certainly did nothing more."""
        assert self._process is not None, f"{self.name} is dead"
        os.kill(self._process.pid, signal.SIGSTOP)
        process, deadline = psutil.Process(self._process.pid), time.monotonic() + _STOPPED_S_MAX
        while process.status() != psutil.STATUS_STOPPED:
            assert time.monotonic() < deadline, f"{self.name} does not stop"
        return time.time()

    def resume(self) -> None:
        assert self._process is not None, f"{self.name} is dead"
        os.kill(self._process.pid, signal.SIGCONT)

    def tell(self, line: str) -> None:
        assert self._process is not None, f"{self.name} is dead"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Until it has ended by itself, and well, as it was told to."""
        assert self._process is not None, f"{self.name} is dead"
        try:
            self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            raise ProcessFailed(f"{self.name} does not end; its log ends with:\n{self.log_end()}") from None
        status = self._process.returncode
        self._close()
        if status != 0:
            raise ProcessFailed(f"{self.name} ended with {status}; its log ends with:\n{self.log_end()}")

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def _close(self) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        process.wait(_STOP_S_MAX)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        fd, deadline, read = self._process.stdout.fileno(), time.monotonic() + _START_S_MAX, b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in read and selector.select(max(0.0, deadline - time.monotonic())):
                piece = os.read(fd, 1000)
                if not piece:
                    break
                read += piece
        return read.decode()
