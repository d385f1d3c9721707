"""Each test that takes `place` runs at brokers and on the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumers.sources import BrokerSource, LogSource, SourceUnderTest
from txmsg.metaq import Log
from txmsg.testing import Broker, MakeProducer


@pytest.fixture
def log_place(tmp_path: Path) -> Iterator[LogSource]:
    with Log(tmp_path / "log") as writer:
        yield LogSource(tmp_path / "log", writer)


@pytest.fixture(params=["brokers", "log"])
def place(request: pytest.FixtureRequest) -> SourceUnderTest:
    if request.param == "log":
        of_log: LogSource = request.getfixturevalue("log_place")
        return of_log
    broker: Broker = request.getfixturevalue("txmsg_broker")
    make: MakeProducer = request.getfixturevalue("txmsg_producer")
    return BrokerSource(broker, make("p"))
