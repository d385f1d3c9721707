"""A restartable process of a test, the base of brokers, servers, tailers and processes of chaos."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import prestarted
from txmsg.runtime.child import LISTENING, Child, Spawn
from txmsg.runtime.child import spawn as spawn_module

_START_S_MAX = 120.0
_END_S_MAX = 90.0


class Restartable:
    """Successive processes that run the same module. A subclass defines module and arguments.

    environment: for a process of another release, which imports other files than this one.
    spawn: for a program that is no module of Python. Default: what starts modules.
    """

    module = "txmsg.ops.cli.main"
    ready = LISTENING

    def __init__(
        self, name: str, log: Path, *, environment: Mapping[str, str] | None = None, spawn: Spawn | None = None
    ) -> None:
        self.name = name
        self.log = log
        """The file of its stderr, over all starts."""
        self._environment = environment
        self._spawn = spawn or (prestarted.spawn if environment is None else spawn_module)
        self._child: Child | None = None

    def arguments(self) -> Sequence[str]:
        """Return the arguments of the module."""
        raise NotImplementedError

    def on_line(self, line: str) -> None:
        """Receive each line that the process prints, on another thread."""

    @property
    def child(self) -> Child:
        """The latest process."""
        assert self._child is not None, f"{self.name} is not running"
        return self._child

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_started(self) -> bool:
        """True if it was started and not ended by the test."""
        return self._child is not None

    def launch(self) -> None:
        """Start it without waiting."""
        assert self._child is None, f"{self.name} is running"
        self._child = Child(
            self.name,
            [self.module, *self.arguments()],
            log=self.log,
            ready=self.ready,
            env=self._environment,
            on_line=self.on_line,
            start=self._spawn,
        )

    def start(self) -> None:
        """Start it and return when it is ready. Raises ChildFailed with the end of its log when it ends or takes too
        long.
        """
        self.launch()
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the launched process is ready, as `start` does."""
        try:
            self.child.wait_ready(_START_S_MAX)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """Send SIGKILL. Idempotent."""
        self.end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM and return the exit status. Idempotent."""
        return self.end(signal.SIGTERM)

    def restart(self, *, kill: bool = False) -> None:
        """End it, by SIGKILL if requested, and start it again."""
        self.end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def end(self, how: signal.Signals) -> int:
        """Send a signal and return the exit status; fails if it does not end in time."""
        if self._child is None:
            return 0
        child, self._child = self._child, None
        assert child.stop(_END_S_MAX, how), f"{self.name} did not end by {how.name}; its log:\n{child.log_tail()}"
        status = child.returncode
        assert status is not None
        return status

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its connections and does nothing."""
        self.child.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.child.send_signal(signal.SIGCONT)
