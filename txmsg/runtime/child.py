"""A child process: started, awaited until it is ready, killed or stopped in order. Knows nothing of its program.

`txmsg up`, the demos, the tests and the benchmarks start their processes by this. Run as a program, this module runs
another one that need not know its parent, and that ends in order when the parent is gone:

    python -P -m txmsg.runtime.child MODULE ARGUMENTS...
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

LISTENING: Final = "listening on "
"""The prefix of the line by which a server reports that it is ready; the address follows."""


class ChildFailed(RuntimeError):
    """A child did not get ready, or ended by itself. The text holds the end of its log."""


class ChildProcess(Protocol):
    """The process interface of a Child, as subprocess.Popen has it. Its stdout is a pipe."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, signum: int, /) -> None: ...


Spawn = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], ChildProcess]
"""Starts `python -m COMMAND` in a session of its own, with this environment and stderr, and pipes to the parent."""


def spawn(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> ChildProcess:
    """Start a module whose imports exclude the working directory, which may be another user's, or /tmp."""
    return spawn_program([sys.executable, "-P", "-m", *command], environment, stderr)


def spawn_application(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> ChildProcess:
    """Start a user's module, which may be in the working directory."""
    return spawn_program([sys.executable, "-m", *command], environment, stderr)


def spawn_program(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> ChildProcess:
    """Start a program that is not a module of Python."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,  # Its end of file shows the child that the parent is gone.
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C is for the parent, which ends its children in order
    )


class Child:
    """One process, started by the constructor, with its own children, which end with it.

    name: its name in errors. log: the file to which its stderr is appended, or a function that is called with each line
    of it, on another thread. ready: the prefix of the line of its stdout that reports it as ready. env: additions to
    this process's environment. on_line: called with each line of its stdout, on another thread; on_end: called when its
    stdout is closed.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path | Callable[[str], object],
        ready: str = LISTENING,
        env: Mapping[str, str] | None = None,
        on_line: Callable[[str], object] | None = None,
        on_end: Callable[[], object] | None = None,
        start: Spawn = spawn,
    ) -> None:
        self.name = name
        self.address = ""
        """The text that it printed after `ready`."""
        self.last_line = ""
        """The last line of its stdout."""
        self._log, self._ready_prefix, self._on_line, self._on_end = log, ready, on_line, on_end
        self._is_ready = self._is_stopped = False
        self._is_ready_or_ended = threading.Event()
        environment = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"}
        self._readers: list[threading.Thread] = []
        if isinstance(log, Path):
            with log.open("ab") as stderr:
                self._process = start(command, environment, stderr)
        else:
            reading, writing = os.pipe()
            with os.fdopen(writing, "wb") as stderr:
                self._process = start(command, environment, stderr)
            self._read_on_thread(lambda: _pass_on(reading, log), "log")
        self._read_on_thread(self._read, "output")

    def _read_on_thread(self, read: Callable[[], None], what: str) -> None:
        thread = threading.Thread(target=read, name=f"{what} of {self.name}", daemon=True)
        thread.start()
        self._readers.append(thread)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """True once it has reported that it is ready."""
        return self._is_ready

    @property
    def returncode(self) -> int | None:
        """Its exit status; negative: the signal that killed it; None: it runs."""
        return self._process.poll()

    @property
    def ending(self) -> str:
        """The way it ended: "by SIGKILL", "with exit status 1"."""
        status = self.returncode
        assert status is not None, f"{self.name} runs"
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"

    def wait_ready(self, timeout_s: float = 240.0) -> str:
        """Wait until it is ready, and return its address. Raises ChildFailed if it ends first or takes too long."""
        if not self._is_ready_or_ended.wait(timeout_s):
            raise ChildFailed(f"{self.name} was not ready after {timeout_s:g} s{self._log_says()}")
        if not self._is_ready:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed its output, and is about to end
                self.wait(timeout_s)
            ended = "closed its output" if self.returncode is None else f"ended {self.ending}"
            raise ChildFailed(f"{self.name} {ended} while it started{self._log_says()}")
        return self.address

    def require_running(self) -> None:
        """Raises ChildFailed if it has ended."""
        if self.returncode is not None:
            raise ChildFailed(f"{self.name} ended by itself, {self.ending}{self._log_says()}")

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end, and return its exit status. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def send_signal(self, signum: int) -> None:
        """Send the signal to this process alone. Does nothing if it has ended."""
        self._process.send_signal(signum)

    def write_line(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL to it and its own children, as in a crash: nothing is flushed or reported."""
        if self.returncode is None:
            self._kill_session()

    def stop(self, timeout_s: float = 10.0, signum: int = signal.SIGTERM) -> bool:
        """End it by the signal, or by SIGKILL after `timeout_s`. Return True if it ended in time. May be called again.

        Returns when it and its own children are gone, and its output is read.
        """
        if self._is_stopped:
            return True
        is_in_time = True
        self.send_signal(signum)
        try:
            self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            is_in_time = False
        self._kill_session()  # what it has left behind, or all of it
        self._process.wait()
        self._is_stopped = True
        for reader in self._readers:
            reader.join(timeout_s)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return is_in_time

    def log_tail(self, size_bytes: int = 3000) -> str:
        """Return the end of the log, at most `size_bytes`; "" if the log is not a file."""
        return self._log.read_bytes()[-size_bytes:].decode(errors="replace") if isinstance(self._log, Path) else ""

    def _log_says(self) -> str:
        tail = self.log_tail()
        return f"; the end of its log:\n{tail}" if tail else ""

    def _kill_session(self) -> None:
        self._process.send_signal(signal.SIGKILL)  # it may not have begun its session yet
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last_line = text = line.decode(errors="replace").strip()
            if not self._is_ready and text.startswith(self._ready_prefix):
                self.address = text.removeprefix(self._ready_prefix)
                self._is_ready = True
                self._is_ready_or_ended.set()
            if self._on_line is not None:
                self._on_line(text)
        self._is_ready_or_ended.set()
        if self._on_end is not None:
            self._on_end()


def _pass_on(fd: int, receive: Callable[[str], object]) -> None:
    with os.fdopen(fd, "rb") as lines:
        for line in lines:
            receive(line.decode(errors="replace").rstrip())


def with_name(name: str, line: str) -> str:
    """Return a line of a child's log with its name. A line of JSON names its process itself, and stays unchanged."""
    return line if line.startswith("{") else f"{name:8} {line}"


# ---- in the child


def say(line: str) -> None:
    """Print a line for the parent, and flush it."""
    print(line, flush=True)


def exit_with_parent() -> None:
    """End this process at once when the parent is gone, also after SIGKILL."""
    when_parent_is_gone(lambda: os._exit(3))


def when_parent_is_gone(end: Callable[[], None]) -> None:
    """Call `end` on a thread of its own when the parent is gone, also after SIGKILL. Takes stdin for that."""
    from_parent = take_stdin()

    def watch() -> None:
        while os.read(from_parent, 1024):
            pass
        end()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def take_stdin() -> int:
    """Return a descriptor of stdin for this process alone: programs that it starts find an empty stdin."""
    # A duplicate is not inherited: programs that this process starts must not read the parent's commands from it.
    taken = os.dup(0)
    empty_stdin()
    return taken


def empty_stdin() -> None:
    """Make stdin empty, for this process and for programs that it starts."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # unlike the others, programs inherit this one
    if null != 0:
        os.close(null)


if __name__ == "__main__":
    when_parent_is_gone(lambda: os.kill(os.getpid(), signal.SIGTERM))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
