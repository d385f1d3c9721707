"""A child process that says where it listens, and dies when told or when its parent does. Knows nothing of txmsg."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Child", "ChildFailed", "exit_with_parent", "say_listening"]

READY = "listening on "


class ChildFailed(RuntimeError):
    """A child did not come up, or ended unasked. The text holds the end of its log."""


class Child:
    """One process, started by the constructor. Its output goes to `log`; `wait_ready` waits for its first line."""

    def __init__(self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.address = ""
        self._log = log
        self._ready = threading.Event()
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
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait_ready(self, timeout_s: float = 60.0) -> str:
        """The host:port it listens on. Raises ChildFailed if it ends first or takes too long."""
        if not self._ready.wait(timeout_s) or not self.address:
            raise ChildFailed(f"{self.name} did not come up within {timeout_s:.0f} s:\n{self.log_tail()}")
        return self.address

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status; negative: the signal that killed it. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, as a crash would: nothing is flushed, nothing is said."""
        self._process.kill()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends it: politely, then not. Returns when it is gone; may be called twice."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def log_tail(self, size_bytes: int = 3000) -> str:
        return self._log.read_bytes()[-size_bytes:].decode(errors="replace")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._log.open("ab") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                text = line.decode(errors="replace").strip()
                if not self.address and text.startswith(READY):
                    self.address = text.removeprefix(READY).split()[0]
                    self._ready.set()
        self._ready.set()  # it ended: nobody needs to wait any longer


def say_listening(address: str) -> None:
    """In the child: tells the parent, as `txmsg broker` does too."""
    print(f"{READY}{address}", flush=True)


def exit_with_parent() -> None:
    """In the child: ends this process at once when the parent is gone, however it went."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os._exit(3)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
