"""Concurrent appends: each call polls for the reports of all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, Message

from txmsg.errors import MisuseError, OutcomeUnknown
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.interface import ColumnsFor
from txmsg.metaq.kafka.appender import KafkaAppender
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.topics import KafkaTopicAdmin


class Producer:
    def __init__(self) -> None:
        self.reports: list[Callable[[None, Message], None]] = []
        self.poll_count = 0

    def produce(self, *_: object, on_delivery: Callable[[None, Message], None], **__: object) -> None:
        self.reports.append(on_delivery)

    def poll(self, _: float) -> None:
        self.poll_count += 1


def test_a_call_whose_reports_another_call_polled_does_not_poll_again() -> None:
    producer = Producer()

    class Fake(KafkaClients):
        def producer(self, **_: object) -> Any:
            return producer

    @contextmanager
    def after_another() -> Any:
        for offset, report in enumerate(producer.reports):
            report(None, Message(offset=offset))
        yield

    topics: Any = None
    appender = KafkaAppender(Fake(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=1), topics)
    appender._partitions["t"] = 1
    polling: Any = after_another()
    appender._polling = polling
    assert appender.append([ColumnsFor("t", 0, FrameColumns([b"x", b"y"], [5000]))]) == [[0, 1]]
    assert producer.poll_count == 0


def appended(*offsets: int) -> list[list[int]]:
    """Return the result of a call whose records were reported at these offsets."""
    left = list(offsets)

    class Reporting(Producer):
        def produce(self, *_: object, on_delivery: Callable[[None, Message], None], **__: object) -> None:
            on_delivery(None, Message(offset=left.pop(0)))

    class Fake(KafkaClients):
        def producer(self, **_: object) -> Any:
            return Reporting()

    topics: Any = None
    appender = KafkaAppender(Fake(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=1), topics)
    appender._partitions["t"] = 1
    return appender.append([ColumnsFor("t", 0, FrameColumns([b"x"] * len(offsets), [5000]))])


def test_offsets_with_a_lost_confirmation_are_derived_from_their_neighbours() -> None:
    assert appended(7, 8, 9) == [[7, 8, 9]]
    assert appended(OFFSET_INVALID, OFFSET_INVALID, 9) == [[7, 8, 9]]
    assert appended(7, OFFSET_INVALID, OFFSET_INVALID) == [[7, 8, 9]]
    with pytest.raises(OutcomeUnknown, match="at which offsets was lost"):
        appended(OFFSET_INVALID, OFFSET_INVALID)


class Admin:
    """Returns topic settings; those of a new topic only at the second request."""

    def __init__(self, copies_in_sync: str) -> None:
        self._copies_in_sync = copies_in_sync
        self.asked = 0

    def describe_configs(self, resources: list[Any], **_: object) -> Any:
        self.asked += 1
        answer: Future[Any] = Future()
        if self.asked == 1:
            answer.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        else:
            answer.set_result({"min.insync.replicas": SimpleNamespace(value=self._copies_in_sync)})
        return dict.fromkeys(resources, answer)


def appender_of(admin: Any) -> KafkaAppender:
    class Reporting(Producer):
        def produce(self, *_: object, on_delivery: Callable[[None, Message], None], **__: object) -> None:
            on_delivery(None, Message(offset=7))

    class Fake(KafkaClients):
        def producer(self, **_: object) -> Any:
            return Reporting()

    clients = Fake(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=60)
    made = KafkaAppender(clients, KafkaTopicAdmin(clients, admin))
    made._partitions["t"] = 1
    return made


def test_two_copies_are_promised_if_the_topic_requires_them_which_is_read_once() -> None:
    admin, batch = Admin("2"), ColumnsFor("t", 0, FrameColumns([b"x"], [5000]))
    appender = appender_of(admin)
    for _ in range(2):
        assert appender.append([batch], in_copies=True) == [[7]]
    assert admin.asked == 2, "once, and again, as the topic was new"
    other = appender_of(Admin("1"))
    assert other.append([batch]) == [[7]]
    with pytest.raises(MisuseError, match=r"acks=copies .* topic t .* 1 copy is enough: set its min.insync.replicas"):
        other.append([batch], in_copies=True)


class FailedProducer(Producer):
    """The producer of librdkafka after a fatal error, such as records out of order.

    The next poll raises the reason, once. Its records are lost, and it accepts no more.
    """

    def __init__(self, *, is_told: bool, has_record: bool) -> None:
        super().__init__()
        self._is_told, self._has_record = is_told, has_record

    def produce(self, *_: object, on_delivery: Callable[[None, Message], None], **__: object) -> None:
        if not self._has_record:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        self.reports.append(on_delivery)

    def poll(self, _: float) -> None:
        if not self._is_told:
            self._is_told = True
            raise KafkaException(KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "a made-up gap", fatal=True))
        report: Any = self.reports.pop()
        report(KafkaError(KafkaError._PURGE_QUEUE), Message())


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        pytest.param(FailedProducer(is_told=False, has_record=True), "a made-up gap", id="this call is told"),
        pytest.param(FailedProducer(is_told=True, has_record=True), "_PURGE_QUEUE", id="another call was told"),
        pytest.param(FailedProducer(is_told=True, has_record=False), "_FATAL", id="it had ended before"),
    ],
)
def test_after_a_fatal_producer_error_the_append_is_unknown_and_the_next_uses_a_new_producer(
    ended: FailedProducer, why: str
) -> None:
    class Reporting(Producer):
        def produce(self, *_: object, on_delivery: Callable[[None, Message], None], **__: object) -> None:
            on_delivery(None, Message(offset=7))

    made: list[Any] = [ended, Reporting()]

    class Fake(KafkaClients):
        def producer(self, **_: object) -> Any:
            return made.pop(0)

    topics: Any = SimpleNamespace(ensure=lambda *_: None, partitions_of=lambda _: 1)
    appender = KafkaAppender(Fake(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=60), topics)
    batch = ColumnsFor("t", 0, FrameColumns([b"x"], [5000]))
    with pytest.raises(OutcomeUnknown, match=why):
        appender.append([batch])
    assert appender.append([batch]) == [[7]]
