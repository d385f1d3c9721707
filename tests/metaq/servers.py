"""MetaQ servers for tests: in a thread of the test, or as a process that can be killed."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.broker_process import BrokerProcess
from tests.chaos.network import Link, Network
from txmsg.metaq.server.config import MetaQConfig
from txmsg.metaq.server.server import serve
from txmsg.settings.live import Given

WAIT_S = 60.0
SERVER_THREAD = "metaq-server"
"""On which the loop of a server in a thread runs."""


@contextmanager
def served(config: MetaQConfig) -> Iterator[str]:
    """A server in a thread; its address. What it raises, the test raises."""
    told: queue.Queue[str | BaseException] = queue.Queue()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def run() -> None:
        try:
            loop.run_until_complete(serve(Given(config), told.put, stop))
        except BaseException as exc:  # noqa: BLE001 - raised in the test
            told.put(exc)

    thread = threading.Thread(target=run, name=SERVER_THREAD)
    thread.start()
    try:
        address = told.get(timeout=WAIT_S)
        if isinstance(address, BaseException):
            raise address
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_S)
        assert not thread.is_alive(), "the server did not stop"
        loop.close()
    if not told.empty():
        raise AssertionError("the server failed") from told.get()  # type: ignore[misc]  # an exception by now


@contextmanager
def linked(address: str) -> Iterator[tuple[Link, str]]:
    """A network between the test and a server that can be cut, and the address at its near end."""
    host, _, port = address.rpartition(":")
    with Network() as network:
        link = network.link((host, int(port)))
        yield link, f"127.0.0.1:{link.port}"


class MetaQProcess(BrokerProcess):
    """`txmsg metaq serve` as a child process."""

    def __init__(self, data_dir: Path, *options: str, log: Path, address: str | None = None) -> None:
        super().__init__(None, *options, log=log, address=address)
        self.data_dir = data_dir

    def arguments(self) -> list[str]:
        return ["metaq", "serve", "--data-dir", str(self.data_dir), "--listen", self.address, *self.options]
