"""Gateways for tests: real processes, and within the test's process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.in_thread import served_in_thread
from tests.ports import own_port
from tests.restartable import Restartable
from txmsg.rocketmq.config import GatewayConfig
from txmsg.rocketmq.server import serve
from txmsg.settings.live import GivenSettings


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
    """Run a gateway with options of `txmsg rocketmq`; it must exit cleanly."""
    gateway = GatewayProcess(brokers, *options, log=log)
    gateway.start()
    try:
        yield gateway
        assert gateway.stop() == 0, log.read_text()
    finally:
        gateway.kill()


def served_gateway(config: GatewayConfig) -> AbstractContextManager[str]:
    """Run a gateway in a thread of the test, which may have set its broker timeout; yields its address."""
    return served_in_thread(lambda on_ready, stop: serve(GivenSettings(config), on_ready, stop), thread_name="gateway")
