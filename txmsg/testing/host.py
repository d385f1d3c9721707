"""A process that runs one broker after the other, each on the database that a test names; and its client side.

A separate process, as in production: a test's blocking calls and mocks do not reach the broker, and the broker's log
stays out of the test's. One for all tests of a run, because imports take most of a broker's start.

Commands and answers are lines of JSON. The process ends on command, or when its owner dies.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from subprocess import TimeoutExpired
from threading import RLock
from typing import TYPE_CHECKING, Any

from txmsg.errors import TxmsgError, error_of_code
from txmsg.runtime.child import Child, take_stdin
from txmsg.runtime.logs import log_to_stderr

if TYPE_CHECKING:
    from txmsg.broker.config import BrokerConfig
    from txmsg.broker.server import BrokerServer

_END_S_MAX = 30.0
_NO_BROKER: dict[str, str] = {}
_IS_CHECKING = {"ask": "checking"}
_END = None


class BrokerHost:
    """The client side of the process. Its calls wait for one another."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = RLock()
        self._child: Child | None = self._start()  # Started now: it imports while the database is created.

    def start_broker(self, storage: str, listen: str) -> None:
        """Start a broker, and return when it answers at `listen`. Raises the broker's errors."""
        with self._lock:
            if self._child is None:
                self._child = self._start()
            self._ask_process(self._child, {"storage": storage, "listen": listen})

    def _start(self) -> Child:
        self._answers = answers = SimpleQueue[str | None]()
        return Child(
            "the broker of the tests",
            ["txmsg.testing.host"],
            log=self._log,
            on_line=answers.put,
            on_end=lambda: answers.put(None),
        )

    def stop_broker(self) -> None:
        """Stop the broker in order, if there is one."""
        with self._lock:
            if self._child is not None:
                self._ask_process(self._child, _NO_BROKER)

    def is_checking(self) -> bool:
        """Return True if the broker runs and a check-back, or a poll that may begin one, is in progress."""
        with self._lock:
            return self._child is not None and bool(self._ask_process(self._child, _IS_CHECKING)["checking"])

    def kill(self) -> None:
        """Send SIGKILL: the broker ends at once, as in a crash."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                child.kill()
                child.stop()

    def close(self) -> None:
        """End the process and the broker in it. May be called twice."""
        with self._lock:
            if self._child is not None:
                with suppress(BrokenPipeError, TimeoutExpired):
                    self._child.write_line(json.dumps(_END))
                    self._child.wait(_END_S_MAX)
            self.kill()

    def _ask_process(self, child: Child, command: Mapping[str, str]) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # it has ended: so it answers nothing
            child.write_line(json.dumps(command))
        try:
            line = self._answers.get()
        except BaseException:  # Interrupted: the next command would read the answer to this one.
            self.kill()
            raise
        if line is None:
            self.kill()
            raise RuntimeError(f"the broker of the tests has ended; its log says\n{child.log_tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "code" in answer:
            raise error_of_code(answer["code"], answer["text"])
        return answer


# ---- in the process, which alone imports the broker


Serve = Callable[
    ["BrokerConfig", Callable[["BrokerServer"], None], Callable[[str], None], asyncio.Event], Awaitable[None]
]


class _Served:
    """The running broker."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._broker: BrokerServer | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Future[None] | None = None

    @property
    def is_checking(self) -> bool:
        return self._broker is not None and self._broker.parts.checking.checks.is_checking

    async def start(self, storage: str, listen: str) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[str] = loop.create_future()
        self._stop = asyncio.Event()
        serving = self._serve(_config(storage, listen), self._set_broker, ready.set_result, self._stop)
        self._task = asyncio.ensure_future(serving)
        either: list[asyncio.Future[Any]] = [self._task, ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            task, self._task = self._task, None
            task.result()  # raises why

    def _set_broker(self, broker: BrokerServer) -> None:
        self._broker = broker

    async def stop(self) -> None:
        task, self._task = self._task, None
        self._broker = None
        if task is not None:
            self._stop.set()
            await task


def _config(storage: str, listen: str) -> BrokerConfig:
    """Return the configuration of tests: short intervals of all periodic work, because tests wait for it.

    Sweeps are as frequent as polls: the clock of a test makes messages due in the past.
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
    from txmsg.settings.live import GivenSettings

    served = _Served(lambda config, made, ready, stop: server.serve(GivenSettings(config), ready, stop, on_made=made))
    # Closed on exec, so that nothing that is started here reads from it.
    commands = os.fdopen(take_stdin())
    while line := await asyncio.to_thread(commands.readline):
        if (command := json.loads(line)) == _END:
            break
        answer: dict[str, Any] = {}
        try:
            if command == _IS_CHECKING:
                answer = {"checking": served.is_checking}
            else:
                await served.stop()
                if command != _NO_BROKER:
                    await served.start(**command)
        except TxmsgError as exc:
            answer = {"code": exc.code, "text": str(exc)}
        print(json.dumps(answer), flush=True)
    await served.stop()


if __name__ == "__main__":
    log_to_stderr("INFO")
    asyncio.run(_main())
