"""A real broker process for tests, which can be started, killed, stopped and restarted on the same port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ports import own_port
from tests.restartable import Restartable


class BrokerProcess(Restartable):
    """`txmsg broker` as a child process, on a database or (None) the embedded one.

    `address` is HOST:PORT, the same after a restart; of its own unless one is given. A context manager: started when it
    is entered, killed when it is left.
    """

    def __init__(
        self,
        storage: str | None,
        *options: str,
        log: Path,
        address: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__("the broker", log, environment=environment)
        self.storage = storage
        self.options = options
        self.address = address or f"127.0.0.1:{own_port()}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        super().start()
        self.address = self.child.address

    def arguments(self) -> list[str]:
        storage = [] if self.storage is None else ["--storage", self.storage]
        return ["broker", *storage, "--listen", self.address, *self.options]


@contextmanager
def running_broker(storage: str, *options: str, log: Path) -> Iterator[BrokerProcess]:
    """A broker that must stop cleanly at the end of the block or earlier."""
    with BrokerProcess(storage, *options, log=log) as broker:
        yield broker
        assert broker.stop() == 0, log.read_text()
