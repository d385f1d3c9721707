"""A real gateway process for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.ports import own_port
from tests.restartable import Restartable


class GatewayProcess(Restartable):
    """`txmsg rocketmq` as a child process, on the same port after a restart."""

    def __init__(self, brokers: str, *options: str, log: Path) -> None:
        super().__init__("the gateway", log)
        self._brokers = brokers
        self._options = options
        self.address = f"127.0.0.1:{own_port()}"

    def arguments(self) -> Sequence[str]:
        return ["rocketmq", "--broker", self._brokers, "--listen", self.address, *self._options]


@contextmanager
def running_gateway(brokers: str, *options: str, log: Path) -> Iterator[GatewayProcess]:
    """A gateway with options of `txmsg rocketmq` that must end in order."""
    gateway = GatewayProcess(brokers, *options, log=log)
    gateway.start()
    try:
        yield gateway
        assert gateway.stop() == 0, log.read_text()
    finally:
        gateway.kill()
