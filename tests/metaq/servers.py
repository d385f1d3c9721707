"""MetaQ servers for tests: in a thread of the test, or as a process that can be killed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.broker_process import BrokerProcess
from tests.chaos.network import Link, Network
from tests.in_thread import served_in_thread
from txmsg.metaq.remote.remote_log import RemoteLog
from txmsg.metaq.server.server import serve
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.settings.live import GivenSettings

WAIT_S = 60.0
SERVER_THREAD = "metaq-server"
"""Thread of the event loop of a served log."""


def served(config: MetaQConfig) -> AbstractContextManager[str]:
    """Run a server in a thread; yields its address. Its errors are raised in the test."""
    return served_in_thread(
        lambda on_ready, stop: serve(GivenSettings(config), on_ready, stop), thread_name=SERVER_THREAD
    )


def log_at(address: str) -> RemoteLog:
    """Open the log at a server, with timeouts for a slow machine."""
    return RemoteLog(address, timeout_s=WAIT_S)


@contextmanager
def linked(address: str) -> Iterator[tuple[Link, str]]:
    """Run a network that can be cut between test and server; yields the address at its near end."""
    host, _, port = address.rpartition(":")
    with Network() as network:
        link = network.link((host, int(port)))
        yield link, f"127.0.0.1:{link.port}"


class MetaQProcess(BrokerProcess):
    """`txmsg metaq serve` as a child process."""

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        log: Path,
        address: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, *options, log=log, address=address, environment=environment)
        self.data_dir = data_dir

    def arguments(self) -> list[str]:
        return ["metaq", "serve", "--data-dir", str(self.data_dir), "--listen", self.address, *self.options]
