"""Kafka topics that nodes learn of one by one, and the translation of Kafka errors."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from txmsg.errors import BrokerUnavailable, InvalidMessage, TxmsgError
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.interface import ColumnsFor
from txmsg.metaq.kafka.appender import KafkaAppender
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.errors import error_of
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.topics import KafkaTopicAdmin


def answer(found: object) -> Future[object]:
    future: Future[object] = Future()
    if isinstance(found, int):
        future.set_exception(KafkaException(KafkaError(found)))
    else:
        future.set_result(found)
    return future


class StaleAdmin:
    """An administrator of a topic with four partitions created by another process: it is known after `looks`."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def describe_topics(self, _: object, request_timeout: float) -> dict[str, Future[object]]:
        self._looks -= 1
        is_known = self._looks < 0
        return {"t": answer(SimpleNamespace(partitions=[0] * 4) if is_known else KafkaError.UNKNOWN_TOPIC_OR_PART)}

    def create_topics(self, _: object, request_timeout: float) -> dict[str, Future[object]]:
        return {"t": answer(KafkaError.TOPIC_ALREADY_EXISTS)}


def topics_of(admin: Any, timeout_s: float = 60.0) -> KafkaTopicAdmin:
    return KafkaTopicAdmin(KafkaClients(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=timeout_s), admin)


def test_a_topic_just_created_by_another_process_is_waited_for() -> None:
    topics_of(StaleAdmin(3)).ensure("t", 4)  # `StaleAdmin` cannot add partitions


def test_waiting_for_a_topic_unknown_to_all_nodes_is_bounded() -> None:
    with pytest.raises(BrokerUnavailable, match=r"topic t .* have not heard of it"):
        topics_of(StaleAdmin(10**9), timeout_s=0.1).ensure("t", 4)


def test_a_new_queue_is_not_created_twice_because_of_stale_metadata() -> None:
    made: list[int] = []
    topics: Any = SimpleNamespace(ensure=lambda _, count: made.append(count), partitions_of=lambda _: 0)
    appender = KafkaAppender(KafkaClients(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=1.0), topics)
    for _ in range(2):
        appender._require("t", ColumnsFor("t", 2, FrameColumns([b""], [0])))
    assert made == [3]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (InvalidMessage, ["INVALID_RECORD", "INVALID_TIMESTAMP"]),
        (BrokerUnavailable, ["OFFSET_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR", "NOT_CONTROLLER", "FENCED_LEADER_EPOCH"]),
        (BrokerUnavailable, ["UNKNOWN_LEADER_EPOCH", "UNSTABLE_OFFSET_COMMIT", "CONCURRENT_TRANSACTIONS"]),
    ],
)
def test_transient_errors_and_errors_of_one_message_are_distinguished(kind: type[TxmsgError], names: list[str]) -> None:
    for name in names:
        assert type(error_of(KafkaError(getattr(KafkaError, name)), "appending")) is kind
