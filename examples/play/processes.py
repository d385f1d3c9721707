"""A child process that says when it is ready, and dies when told or when its parent does. Knows nothing of txmsg."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["LISTENING", "Child", "ChildFailed", "exit_with_parent", "say"]

LISTENING = "listening on "
"""How the line begins by which most children say that they are ready; the address follows."""


class ChildFailed(RuntimeError):
    """A child did not come up, or ended unasked. The text holds the end of its log."""


class Child:
    """One process, started by the constructor, and those that it starts.

    Its output goes to `log`. It is ready when it prints a line that begins with `ready`; `wait_ready` waits for that.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path, ready: str = LISTENING
    ) -> None:
        self.name = name
        self.address = ""
        """What it said after `ready`."""
        self.last_line = ""
        """What it printed last."""
        self._log = log
        self._ready_line = ready
        self._ready = threading.Event()
        self._is_stopped = False
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                env={**os.environ, **env, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,  # its end tells the child that the parent is gone
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the parent, which ends its children in order
            )
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has said so."""
        return bool(self.address)

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait_ready(self, timeout_s: float = 240.0) -> str:
        """What it says when it is ready. Raises ChildFailed if it ends first or takes too long."""
        if not self._ready.wait(timeout_s) or not self.is_ready:
            raise ChildFailed(f"{self.name} did not come up within {timeout_s:.0f} s:\n{self.log_tail()}")
        return self.address

    def require_running(self) -> None:
        """Raises ChildFailed when it has ended."""
        if self.returncode is not None:
            raise ChildFailed(f"{self.name} ended unasked with {self.returncode}:\n{self.log_tail()}")

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status; negative: the signal that killed it. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would, for it and what it has started: nothing is flushed, nothing is said."""
        if self._process.poll() is None:
            self._kill_group()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends it: politely, then not. Returns when it is gone; may be called twice."""
        if self._is_stopped:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._kill_group()  # what it has left behind, or all of it
        self._process.wait(timeout_s)
        self._is_stopped = True
        self._reader.join(timeout_s)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def log_tail(self, size_bytes: int = 3000) -> str:
        return self._log.read_bytes()[-size_bytes:].decode(errors="replace")

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("ab") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                text = line.decode(errors="replace").strip()
                self.last_line = text
                if not self.address and text.startswith(self._ready_line):
                    self.address = text.removeprefix(self._ready_line)
                    self._ready.set()
        self._ready.set()  # it ended: nobody needs to wait any longer


def say(line: str) -> None:
    """In the child: tells the parent at once."""
    print(line, flush=True)


def exit_with_parent() -> None:
    """In the child: ends this process at once when the parent is gone, however it went."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(3)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _end_in_order_with_parent() -> None:
    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    # Runs a module that knows nothing of its parent: python -m examples.play.processes MODULE ARGUMENTS...
    _end_in_order_with_parent()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
