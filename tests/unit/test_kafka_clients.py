"""Log lines of the Kafka client."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException

from txmsg.errors import BrokerUnavailable
from txmsg.metaq.kafka import clients
from txmsg.metaq.kafka.clients import ClientLog, KafkaClients
from txmsg.metaq.kafka.location import parse_address


def test_an_immediately_repeated_log_line_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka tries to reach an unavailable server twenty times a second, and logs each attempt."""
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


def test_the_number_of_remembered_log_lines_is_bounded() -> None:
    log = ClientLog()
    for number in range(1000):
        log.log(logging.ERROR, f"line {number}")
    assert len(log._told) < 1000


def test_a_coordinator_that_does_not_know_a_group_yet_is_asked_again() -> None:
    made = KafkaClients(parse_address("kafka://127.0.0.1:1"), {}, timeout_s=10.0)
    said = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS]

    def ask() -> int:
        if said:
            raise KafkaException(KafkaError(said.pop()))
        return 7

    assert made.of_group("reading offsets", ask) == 7


def test_other_failures_are_raised_at_once() -> None:
    made = KafkaClients(parse_address("kafka://127.0.0.1:1"), {}, timeout_s=10.0)
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        raise KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT))

    with pytest.raises(BrokerUnavailable, match="reading offsets"):
        made.of_group("reading offsets", ask)
    assert len(asked) == 1
