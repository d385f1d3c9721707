"""Calls that append at once: each polls for the reports of all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Message

from txmsg.metaq.format.frame import Columns
from txmsg.metaq.kafka.appender import Appender, ColumnsFor
from txmsg.metaq.kafka.clients import Clients
from txmsg.metaq.kafka.location import parse_address


class Producer:
    def __init__(self) -> None:
        self.reports: list[Callable[[None, Message], None]] = []
        self.poll_count = 0

    def produce(self, *_: object, on_delivery: Callable[[None, Message], None], **__: object) -> None:
        self.reports.append(on_delivery)

    def poll(self, _: float) -> None:
        self.poll_count += 1


def test_a_call_whose_records_were_reported_to_another_does_not_poll_for_more() -> None:
    producer = Producer()

    class Fake(Clients):
        def producer(self, **_: object) -> Any:
            return producer

    @contextmanager
    def after_another() -> Any:
        for offset, report in enumerate(producer.reports):
            report(None, Message(offset=offset))
        yield

    topics: Any = None
    appender = Appender(Fake(parse_address("kafka://127.0.0.1:9"), {}, timeout_s=1), topics)
    appender._partitions["t"] = 1
    polling: Any = after_another()
    appender._polling = polling
    assert appender.append([ColumnsFor("t", 0, Columns([b"x", b"y"], [5000]))]) == [[0, 1]]
    assert producer.poll_count == 0
