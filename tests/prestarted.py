"""Python processes that have imported everything in advance: imports are most of the start time of a broker.

    process = start("txmsg.ops.cli.main", "broker", "--listen", "127.0.0.1:0", stderr=log)

is `python -m txmsg.ops.cli.main broker ...`: a process of its own, with its own pid, signals, standard streams and end,
but forked from a server that this process starts at the first call. All that the server does is import, wait, and
fork: it has one thread; others would not survive the fork.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import IO
from weakref import finalize

_IMPORTED = (
    "click",
    "rich.progress",
    "sqlalchemy.ext.asyncio",
    "txmsg.binlog.tailer",
    "txmsg.broker.server",
    "txmsg.client",
    "txmsg.metaq.server.server",
    "txmsg.binlog.mirror",
    "txmsg.binlog.verifier.compare",
)
"""Modules of brokers, MetaQ servers and tailers. None of txmsg.ops.cli: each process imports its own main module."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""NumPy and PyArrow start threads when they are imported, unless they are told not to."""
_THREADS = Path("/proc/self/task")
_PID_S_MAX = 200.0
_ROOT = Path(__file__).parents[1]
_LENGTH = struct.Struct("!I")


class Prestarted:
    """A prestarted process, with the part of the interface of subprocess.Popen that tests use.

    Threads may share it, as one that kills it does with one that waits until it is ready.
    """

    def __init__(self, module: str, stdin: IO[bytes] | None, stdout: IO[bytes] | None, status_fd: int) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        self._module = module
        self._status_fd = status_fd
        finalize(self, os.close, status_fd)  # not before: another thread may wait for its report
        self._told = b""
        self._hearing = threading.Lock()
        deadline = time.monotonic() + _PID_S_MAX
        while b"\n" not in self._told:
            assert self._hear(deadline - time.monotonic()), f"no process for {module} within {_PID_S_MAX} s"
        first, _, self._told = self._told.partition(b"\n")
        self.pid = int(first)

    def poll(self) -> int | None:
        """Return the exit status if it has ended: -N after signal N."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit status; raises subprocess.TimeoutExpired after the timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            if self._told.endswith(b"\n"):
                self.returncode = int(self._told)
                break
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._hear(left_s):
                raise subprocess.TimeoutExpired(self._module, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended, and its server has not reported that yet
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _hear(self, timeout_s: float | None) -> bool:
        """Read what the server reports of this process; False if it reports nothing in time."""
        if not select.select([self._status_fd], [], [], timeout_s)[0]:
            return False
        with self._hearing:
            if not self._told.endswith(b"\n"):  # otherwise another thread has read the report
                piece = os.read(self._status_fd, 100)
                assert piece, "the server of prestarted processes has ended"
                self._told += piece
        return True


def start(
    module: str,
    *arguments: str,
    stderr: IO[bytes],
    has_stdin: bool = False,
    new_session: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Prestarted:
    """Start `python -m module arguments`; its `stdout`, and with has_stdin its `stdin`, are pipes."""
    with ExitStack() as given:  # these ends belong to the process: closed here after it has them

        def pipe() -> tuple[int, int]:
            reading, writing = os.pipe()
            return reading, writing

        status, its_status = pipe()
        output, its_output = pipe()
        for fd in (its_status, its_output):
            given.callback(os.close, fd)
        if has_stdin:
            its_input, to_input = pipe()
        else:
            its_input, to_input = os.open(os.devnull, os.O_RDONLY), None
        given.callback(os.close, its_input)
        asked = {
            "module": module,
            "arguments": arguments,
            "environment": dict(os.environ if environment is None else environment),
            "directory": os.getcwd(),
            "new_session": new_session,
        }
        _server().ask(json.dumps(asked).encode(), [its_input, its_output, stderr.fileno(), its_status])
    stdin = None if to_input is None else os.fdopen(to_input, "wb")
    return Prestarted(module, stdin, os.fdopen(output, "rb"), status)


def spawn(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> Prestarted:
    """Start a process for txmsg.runtime.child.Child."""
    module, *arguments = command
    return start(module, *arguments, stderr=stderr, has_stdin=True, new_session=True, environment=environment)


# ---- the server, as its owner sees it


class _Server:
    def __init__(self) -> None:
        self._control, its_control = socket.socketpair()
        with its_control:
            fd = its_control.fileno()
            command = [sys.executable, "-m", __name__, str(fd)]
            environment = {**os.environ, **_ONE_THREAD}
            self._process = subprocess.Popen(
                command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[fd]
            )
        self.pid = self._process.pid
        self._lock = threading.Lock()

    def ask(self, asked: bytes, fds: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._control, [_LENGTH.pack(len(asked))], fds)
            self._control.sendall(asked)

    def end(self) -> None:
        self._control.close()
        self._process.wait()


_starting = threading.Lock()
_the_server: _Server | None = None


def _server() -> _Server:
    global _the_server  # noqa: PLW0603 - one per process is the point
    with _starting:
        if _the_server is None:
            _the_server = _Server()
        return _the_server


def server_pid() -> int | None:
    """The pid of the server of this process, if it has one."""
    return None if _the_server is None else _the_server.pid


def end_server() -> None:
    """End the server; processes that it has forked live on."""
    global _the_server  # noqa: PLW0603
    with _starting:
        if _the_server is not None:
            _the_server.end()
        _the_server = None


# ---- in the server


def _serve(control: socket.socket) -> Callable[[], None] | None:
    """Forks until the owner has gone: then returns None. In a forked process: returns what it is there for."""
    told_fd_of: dict[int, int] = {}  # by process: where its end is told
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 1000)
            _tell_of_the_dead(told_fd_of)
        if control.fileno() in ready:
            head, fds, _, _ = socket.recv_fds(control, _LENGTH.size, 4)
            if not head:
                return None
            asked = json.loads(_read(control, _LENGTH.unpack(head)[0]))
            status_fd = fds.pop()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (ended, wake, status_fd, *told_fd_of.values()):
                    os.close(fd)
                control.close()
                return lambda: _become(asked, fds)
            for fd in fds:
                os.close(fd)
            told_fd_of[pid] = status_fd
            _tell(status_fd, pid)


def _tell_of_the_dead(told_fd_of: dict[int, int]) -> None:
    while told_fd_of:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        fd = told_fd_of.pop(pid)
        _tell(fd, os.waitstatus_to_exitcode(status))
        os.close(fd)


def _tell(fd: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the reader is gone
        os.write(fd, b"%d\n" % number)


def _read(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += control.recv(size - len(data))
    return data


def _become(asked: Mapping[str, object], fds: Sequence[int]) -> None:
    """Turn this process into the requested one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard, fd in enumerate(fds):
        os.dup2(fd, standard)
        os.close(fd)
    if asked["new_session"]:
        os.setsid()
    sys.path[0] = str(asked["directory"])  # as -m does
    os.chdir(sys.path[0])
    environment, arguments, module = asked["environment"], asked["arguments"], str(asked["module"])
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the owner
    for module in _IMPORTED:
        import_module(module)
    assert not _THREADS.exists() or len(list(_THREADS.iterdir())) == 1, "a fork would leave its threads behind"
    gc.collect()
    gc.freeze()  # keep these objects shared: no collection writes to their pages
    work = _serve(socket.socket(fileno=int(sys.argv[1])))
    if work is not None:
        work()


if __name__ == "__main__":
    main()
