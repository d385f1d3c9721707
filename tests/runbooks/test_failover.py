"""docs/runbooks/failover.md and move.md under load: brokers, tailer and clients continue by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.acceptance.neighbour import TOPIC, Neighbour, neighbour
from tests.broker_process import running_broker
from tests.mirror.tailer_process import TailerProcess
from tests.runbooks.machine import Machine
from tests.runbooks.notify import DATABASE, create_notify, is_mirrored, whichever_takes_writes
from tests.runbooks.page import Page
from tests.waiting import until

pytestmark = pytest.mark.long  # tests/acceptance/test_faults_standby.py tests what each step relies on


class Shop:
    """A broker, a tailer and clients on the first of two servers, and the run-books with their settings."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.first, self.second = stack.enter_context(Machine()), stack.enter_context(Machine())
        create_notify(self.first)
        storage = whichever_takes_writes((self.first, self.second))
        broker = stack.enter_context(running_broker(storage, log=directory / "broker.log"))
        self._log = directory / "log"
        tailer = stack.enter_context(TailerProcess(storage, self._log, said=directory / "tailer.log"))
        tailer.start()
        self.clients: Neighbour = stack.enter_context(neighbour(broker.address))
        self.clients.goes_on()
        moving = {
            "FIRST": self.first.url(DATABASE),
            "SECOND": self.second.url(DATABASE),
            "FIRST_DATA": self.first.data,
            "SECOND_DATA": self.second.data,
            "STORAGE": storage,
            "BROKER": broker.address,
        }
        servers = {"on_first": self.first.shell, "on_second": self.second.shell}
        self.move = Page("move", moving, servers)
        self.failover = Page("failover", {**moving, "TOPIC": TOPIC}, servers)

    def is_mirrored(self) -> bool:
        return is_mirrored(self.second.url(DATABASE), self._log)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A shop. At its end everything committed has been received, as `neighbour` reports."""
    with ExitStack() as stack:
        yield Shop(stack, tmp_path)


def test_standby_replaces_a_lost_primary(shop: Shop) -> None:
    shop.failover.run("Make a standby")
    shop.failover.run("Store topics on both")
    shop.clients.goes_on(100)
    shop.first.kill()
    shop.failover.run("When the first server is lost")
    shop.failover.run("Attach a new standby")
    shop.clients.goes_on(100)
    shop.failover.run("Check")
    assert shop.failover.left == []
    until(shop.is_mirrored)
    print(f"failover: longest pause of sends {shop.clients.pause_s_max:.1f} s")


def test_database_is_moved_without_loss(shop: Shop) -> None:
    shop.failover.run("Make a standby")
    shop.clients.goes_on(100)
    shop.move.run("Change places")
    shop.clients.goes_on(100)
    shop.move.run("Check")
    assert shop.move.left == []
    until(shop.is_mirrored)
    print(f"move: longest pause of sends {shop.clients.pause_s_max:.1f} s")
