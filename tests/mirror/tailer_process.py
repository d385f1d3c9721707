"""A real tailer for tests: `txmsg tailer run` as a process, started, killed, stopped and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import prestarted

_READY_S_MAX = 120.0
_END_S_MAX = 90.0


class TailerProcess:
    """One tailer, into a directory or to an address; a context manager, which kills what still runs."""

    def __init__(self, storage: str, log: Path | str, *options: str, said: Path) -> None:
        self._command = ["tailer", "run", "--storage", storage, "--metaq", str(log), "--json", *options]
        self.log = said
        """Where its stderr goes, over all starts."""
        self._process: prestarted.Prestarted | None = None
        self._states: list[str] = []
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the tailer is not running"
        return self._process.pid

    @property
    def said(self) -> str:
        """What it wrote to stderr, over all starts."""
        return self.log.read_text() if self.log.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Starts it, and waits for nothing."""
        assert self._process is None, "the tailer is running"
        self._states = []
        with self.log.open("ab") as stderr:
            self._process = prestarted.start("txmsg.cli.main", *self._command, stderr=stderr)
        self._reader = threading.Thread(target=self._read, args=(self._process,), name="tailer's states")
        self._reader.start()

    def start(self) -> None:
        """Returns when it tails."""
        self.launch()
        self.await_state("tailing")

    def await_state(self, state: str) -> None:
        """Returns when it says so; fails with what it logged when it ends, or takes too long."""
        deadline = time.monotonic() + _READY_S_MAX
        with self._changed:
            while state not in self._states:
                assert "ended" not in self._states, f"the tailer ended:\n{self.said}"
                left_s = deadline - time.monotonic()
                assert left_s > 0, f"the tailer is not {state}, but {self._states}:\n{self.said}"
                self._changed.wait(left_s)

    def kill(self) -> None:
        """SIGKILL. Killing one that has ended is fine."""
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it ends in order, or this fails."""
        status = self.end(signal.SIGTERM)
        assert status == 0, f"exit status {status}:\n{self.said}"

    def pause(self) -> None:
        """SIGSTOP: it lives, keeps its connections, and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def refused(self) -> str:
        """Starts one that ends by itself with status 1, as it must; the last line that it says."""
        self.launch()
        assert self._process is not None
        status = self._process.wait(_READY_S_MAX)
        self.end(signal.SIGKILL)
        assert status == 1, f"exit status {status}:\n{self.said}"
        return self.said.splitlines()[-1]

    def rss_max_mib(self) -> float:
        """The most memory it has held since it was started."""
        [line] = [line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if "VmHWM" in line]
        return int(line.split()[1]) / 1024

    def end(self, how: signal.Signals) -> int:
        """Sends a signal and returns the exit status, which must come in time."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            status = process.wait(_END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the tailer did not end by {how.name}; it logged:\n{self.said}") from None
        finally:
            assert self._reader is not None
            self._reader.join()
            assert process.stdout is not None
            process.stdout.close()
        return status

    def _read(self, process: prestarted.Prestarted) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._note(json.loads(line)["state"])
        self._note("ended")

    def _note(self, state: str) -> None:
        with self._changed:
            self._states.append(state)
            self._changed.notify_all()
