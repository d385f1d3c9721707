"""What Kafka's client logs."""

from __future__ import annotations

import logging

import pytest

from txmsg.metaq.kafka import clients
from txmsg.metaq.kafka.clients import ClientLog


def test_a_line_that_comes_again_at_once_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka tries to reach a server that is away twenty times a second, and logs each time."""
    caplog.set_level(logging.INFO, clients.__name__)
    now_s = 100.0
    log = ClientLog(lambda: now_s)
    for _ in range(20):
        log.log(logging.ERROR, "%s: %s", "node-1", "refused")
        log.log(logging.ERROR, "node-2: refused")
    assert [record.getMessage() for record in caplog.records] == [
        "Kafka's client: node-1: refused",
        "Kafka's client: node-2: refused",
    ]
    now_s += 10
    log.log(logging.ERROR, "node-1: refused")
    assert len(caplog.records) == 3


def test_as_many_lines_as_come_are_not_all_remembered() -> None:
    log = ClientLog()
    for number in range(1000):
        log.log(logging.ERROR, f"line {number}")
    assert len(log._told) < 1000
