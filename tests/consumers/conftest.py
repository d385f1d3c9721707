"""Each test that takes `place` runs at brokers and on the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumers.sources import AtBrokers, OfLog, Place
from txmsg.metaq import Log
from txmsg.testing import Broker, MakeProducer


@pytest.fixture
def log_place(tmp_path: Path) -> Iterator[OfLog]:
    with Log(tmp_path / "log") as writer:
        yield OfLog(tmp_path / "log", writer)


@pytest.fixture(params=["brokers", "log"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "log":
        of_log: OfLog = request.getfixturevalue("log_place")
        return of_log
    broker: Broker = request.getfixturevalue("txmsg_broker")
    make: MakeProducer = request.getfixturevalue("txmsg_producer")
    return AtBrokers(broker, make("p"))
