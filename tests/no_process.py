"""Children of a supervisor without processes, for tests of its decisions."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from txmsg.runtime.child import Child


class NoProcess:
    """The part of a process that a Child uses. It prints nothing, and runs until a signal or until the test sets its
    status.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = io.BytesIO()

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float | None = None) -> int:
        return self.status or 0

    def send_signal(self, signum: int, /) -> None:
        self.status = 0


class ProcesslessChild(Child):
    """A child without a process. pid: any number, as nothing is sent to it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str] = (),
        *,
        pid: int = 0,
        log: Path | Callable[[str], object] = print,
        on_line: Callable[[str], object] | None = None,
    ) -> None:
        self.process = NoProcess(pid)
        super().__init__(name, command, log=log, on_line=on_line, start=lambda *_: self.process)

    def _kill_session(self) -> None:
        self.process.status = -9


class NoAudience:
    """An audience of a demo that shows nothing."""

    def phase(self, title: str, steps: int) -> None: ...

    def progress(self, steps: int, note: str) -> None: ...

    def say(self, text: str) -> None: ...
