"""A real tailer for tests: `txmsg tailer run` as a process, started, killed, stopped and started again."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.restartable import Restartable

_READY_S_MAX = 120.0
_LOOK_S = 0.1


class TailerProcess(Restartable):
    """One tailer, into a directory or to an address; a context manager, which kills it if it still runs."""

    ready = "{"

    def __init__(self, storage: str, log: Path | str, *options: str, said: Path, plant: str | None = None) -> None:
        """plant: a defect of tests.mirror.plant."""
        super().__init__("the tailer", said)
        self._command = ["tailer", "run", "--storage", storage, "--metaq", str(log), "--json", *options]
        if plant is not None:
            self.module = "tests.mirror.plant"
            self._command.insert(0, plant)
        self.states: list[str] = []
        """Lines printed since its last start."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def arguments(self) -> list[str]:
        return self._command

    @property
    def said(self) -> str:
        """Return its stderr over all starts."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self.is_started and self.child.returncode is None

    def launch(self) -> None:
        self.states = []
        super().launch()

    def start(self) -> None:
        """Start the tailer and return once it tails."""
        self.launch()
        self.await_state("tailing")

    def on_line(self, line: str) -> None:
        self.states.append(json.loads(line)["state"])

    def await_state(self, state: str) -> None:
        """Return once it reports this state; fails with its log if it exits or takes too long."""
        await_one(state, self)

    def stop(self) -> int:
        """Send SIGTERM; fails unless it exits cleanly."""
        status = super().stop()
        assert status == 0, f"exit status {status}:\n{self.said}"
        return status

    def refused(self) -> str:
        """Start a tailer that must exit with status 1; return its last line."""
        self.launch()
        status = self.child.wait(_READY_S_MAX)
        self.end(signal.SIGKILL)
        assert status == 1, f"exit status {status}:\n{self.said}"
        return self.said.splitlines()[-1]

    def rss_max_mib(self) -> float:
        """Return its peak resident memory since it was started."""
        status = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [line] = [line for line in status if "VmHWM" in line]
        return int(line.split()[1]) / 1024


def await_one(state: str, *tailers: TailerProcess) -> None:
    """Return once one of them reports this state; fails with their logs if one exits or it takes too long."""

    def said() -> str:
        return "\n".join(f"{tailer.states}:\n{tailer.said}" for tailer in tailers)

    deadline = time.monotonic() + _READY_S_MAX
    while not any(state in tailer.states for tailer in tailers):
        assert all(tailer.is_running for tailer in tailers), f"a tailer ended:\n{said()}"
        assert time.monotonic() < deadline, f"no tailer is {state}:\n{said()}"
        time.sleep(_LOOK_S)
