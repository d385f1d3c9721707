"""Commands of txmsg run as parts of one process: started, watched, their trouble passed on, ended in order.

A part ends in order, too, when the process that started it is gone without a word. Run as a program, this module is the
part: it runs the command that follows.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

__all__ = ["Part", "PartEnded"]

_LINE_SIZE_BYTES_MAX: Final = 1024 * 1024


class PartEnded(Exception):
    """A part ended before it was ready, or did not get ready in time. The text says which, and how."""


class Part:
    """One command, as a process of its own. `trouble` is told each line that it writes to stderr."""

    def __init__(self, name: str, *command: str, trouble: Callable[[str, str], None]) -> None:
        self.name = name
        self._command = command
        self._trouble = trouble
        self._process: asyncio.subprocess.Process | None = None
        self._told: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process, once it is started."""
        return None if self._process is None else self._process.pid

    async def start(self, timeout_s: float) -> dict[str, Any]:
        """The first line that it prints, which is JSON and says that it is ready. Raises PartEnded."""
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "txmsg.cli.parts",
            *self._command,
            stdin=asyncio.subprocess.PIPE,  # its end tells the part that this process is gone
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_SIZE_BYTES_MAX,
            start_new_session=True,  # Ctrl-C is for this process, which ends its parts in order
        )
        assert process.stdout is not None
        self._told = asyncio.create_task(self._tell())
        try:
            async with asyncio.timeout(timeout_s):
                line = await process.stdout.readline()
        except TimeoutError:
            raise PartEnded(f"{self.name} was not ready after {timeout_s:g} s") from None
        if not line:
            raise PartEnded(f"{self.name} ended while it started: {await self.ended()}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    async def ended(self) -> str:
        """Returns when it has ended, however it did: what is said of that."""
        assert self._process is not None
        assert self._told is not None
        status = await self._process.wait()
        await asyncio.shield(self._told)
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"

    async def stop(self, timeout_s: float) -> bool:
        """Asks it to end, and ends it when it has not after this time; whether it ended by itself.

        Stopping what is not started, or has ended, is fine.
        """
        process = self._process
        if process is None:
            return True
        in_order = True
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(timeout_s):
                    await process.wait()
            except TimeoutError:
                in_order = False
                process.kill()
        await self.ended()
        return in_order

    async def _tell(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._trouble(self.name, line.decode(errors="replace").rstrip())


def _end_with_parent() -> None:
    """Has this process end in order when its stdin does."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    from txmsg.cli.main import main

    _end_with_parent()
    main(prog_name="txmsg")
