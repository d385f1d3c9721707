"""A real broker process for tests: started, killed, stopped and started again on the same port."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests import prestarted
from tests.ports import own_port

_READY = "listening on "
_START_S_MAX = 120.0
_STOP_S_MAX = 90.0


class BrokerProcess:
    """`txmsg broker` as a child process, on a database or (None) the embedded one.

    `address` is HOST:PORT, the same after a restart; of its own unless one is given. `environment` is for a broker of
    another release.
    """

    module = "txmsg.cli.main"
    """What is run. A subclass names another server."""

    def __init__(
        self,
        storage: str | None,
        *options: str,
        log: Path,
        address: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.storage = storage
        self.options = options
        self.log = log
        self.address = address or f"127.0.0.1:{own_port()}"
        self._environment = environment
        self._process: prestarted.Prestarted | subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def is_started(self) -> bool:
        """Whether it was started, and not ended by the test."""
        return self._process is not None

    def start(self) -> None:
        """Returns when the broker says that it is ready; fails with its log when it ends or takes too long."""
        assert self._process is None, "the broker is running"
        with self.log.open("ab") as stderr:
            if self._environment is None:
                self._process = prestarted.start(self.module, *self.arguments(), stderr=stderr)
            else:
                command = [sys.executable, "-m", self.module, *self.arguments()]
                self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=self._environment)
        line = self._first_line()
        if not line.startswith(_READY):
            self.kill()
            raise AssertionError(f"the broker printed {line!r} and logged:\n{self.log.read_text()}")
        self.address = line.removeprefix(_READY).strip()

    def arguments(self) -> list[str]:
        """What the module is called with."""
        storage = [] if self.storage is None else ["--storage", self.storage]
        return ["broker", *storage, "--listen", self.address, *self.options]

    def kill(self) -> None:
        """SIGKILL. Killing a broker that has ended is fine."""
        self.end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; returns the exit status. Stopping a broker that has ended is fine."""
        return self.end(signal.SIGTERM)

    def restart(self, *, kill: bool = False) -> None:
        """Ends the broker, by SIGKILL if asked, and starts it on the same port."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the process lives, keeps its connections, and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        deadline = time.monotonic() + _START_S_MAX
        read = b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in read and selector.select(deadline - time.monotonic()):
                piece = os.read(fd, 1000)
                if not piece:
                    break
                read += piece
        return read.decode()

    def end(self, how: signal.Signals) -> int:
        """Sends a signal and returns the exit status, which must come in time."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        assert process.stdout is not None
        with process.stdout:
            process.send_signal(how)
            try:
                return process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(
                    f"the broker did not end by {how.name}; its log:\n{self.log.read_text()}"
                ) from None


@contextmanager
def running_broker(storage: str, *options: str, log: Path) -> Iterator[BrokerProcess]:
    """A broker that must end in order, when the block ends or before."""
    broker = BrokerProcess(storage, *options, log=log)
    broker.start()
    try:
        yield broker
        assert broker.stop() == 0, log.read_text()
    finally:
        broker.kill()
