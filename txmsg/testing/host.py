"""A process that runs one broker after the other, each on the database that a test names; and its owner's side.

A process of its own, as in production: what a test blocks, or mocks, does not reach the broker, and the broker's log
stays out of the test's. One for all tests of a run: most of the time that a broker takes to start goes into imports.

Commands and answers are lines of JSON. The process ends when its owner closes the pipe, or dies.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txmsg.errors import TxmsgError, error_of_code
from txmsg.runtime.logs import log_to_stderr

if TYPE_CHECKING:
    from txmsg.broker.config import BrokerConfig

_END_S_MAX = 30.0


class BrokerHost:
    """The process, as its owner sees it. Not for several threads at once."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: subprocess.Popen[str] | None = None
        self._start()  # it has something to import while a database is made

    def start_broker(self, storage: str, listen: str) -> None:
        """Returns when the broker answers at `listen`. Raises what the broker raises."""
        if self._process is None:
            self._start()
        self._ask({"storage": storage, "listen": listen})

    def _start(self) -> None:
        with self.log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "txmsg.testing.host"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def stop_broker(self) -> None:
        """Stops the broker in order, if there is one."""
        if self._process is not None:
            self._ask({})

    def kill(self) -> None:
        """SIGKILL: the broker ends at once, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self.close()

    def close(self) -> None:
        """Ends the process and the broker in it. Twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, process.stdout:
            process.stdin.close()
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _ask(self, command: Mapping[str, str]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(command)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"the broker of the tests has ended; its log says\n{self.log_end()}")
        answer = json.loads(line)
        if "code" in answer:
            raise error_of_code(answer["code"], answer["text"])

    def log_end(self) -> str:
        """What it logged last."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


# ---- in the process, which alone imports the broker


class _Served:
    """The broker that runs now."""

    def __init__(self, serve: Callable[[BrokerConfig, Callable[[str], None], asyncio.Event], Awaitable[None]]) -> None:
        self._serve = serve
        self._stop = asyncio.Event()
        self._task: asyncio.Future[None] | None = None

    async def start(self, storage: str, listen: str) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[str] = loop.create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.ensure_future(self._serve(_config(storage, listen), ready.set_result, self._stop))
        either: list[asyncio.Future[Any]] = [self._task, ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            task, self._task = self._task, None
            task.result()  # raises why

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            self._stop.set()
            await task


def _config(storage: str, listen: str) -> BrokerConfig:
    """Everything that a broker looks for from time to time, it looks for often: tests wait for it.

    And for all that is due, not only for what is newly due: the clock of a test makes it due in the past.
    """
    from txmsg.broker.config import BrokerConfig
    from txmsg.broker.delivery import DeliveryConfig
    from txmsg.broker.scheduler import SchedulerConfig
    from txmsg.checker.loop import CheckLoopConfig

    return BrokerConfig(
        storage=storage,
        listen=listen,
        stop_timeout_s=2.0,
        topic_refresh_s=0.5,
        delivery=DeliveryConfig(flush_s=0.02, expire_s=0.05, retry_poll_s=0.05, poll_s=0.1),
        check_loop=CheckLoopConfig(poll_interval_s=0.1, sweep_interval_s=0.1),
        scheduler=SchedulerConfig(interval_s=0.05, sweep_s=0.05),
    )


async def _main() -> None:
    from txmsg.broker import server

    served = _Served(server.serve)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        answer: dict[str, str] = {}
        try:
            await served.stop()
            if command:
                await served.start(**command)
        except TxmsgError as exc:
            answer = {"code": exc.code, "text": str(exc)}
        print(json.dumps(answer), flush=True)
    await served.stop()


if __name__ == "__main__":
    log_to_stderr("INFO")
    asyncio.run(_main())
