"""A writer of transactions with silent Kafka clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from txmsg.errors import BrokerUnavailable
from txmsg.metaq.kafka import transactions
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.metaq.kafka.record import Record
from txmsg.metaq.kafka.transactions import PartitionWrite, TransactionalWriter, TransactionNote

P0 = KafkaPartition("trade", 0)


class Client:
    """A producer and a consumer. Records are confirmed at this offset."""

    def __init__(self, offset: int = 7) -> None:
        self.offset = offset
        self.noted: list[TopicPartition] = []
        self.answer: list[TopicPartition] = []
        self.hangs: threading.Event | None = None
        self.on_flush: Callable[[], object] = lambda: None
        self.is_committed = False

    def init_transactions(self, _: float) -> None:
        pass

    begin_transaction = purge = close = lambda self: None

    def consumer_group_metadata(self) -> object:
        return object()

    def produce(self, *place: Any, on_delivery: Any, **_: object) -> None:
        if on_delivery is not None:
            told = Message(topic=place[0], partition=place[3], offset=self.offset)
            on_delivery(None, told)

    def flush(self, _: float) -> int:
        self.on_flush()
        return 0

    def send_offsets_to_transaction(self, notes: list[TopicPartition], *_: object) -> None:
        if self.hangs is not None:
            self.hangs.wait()
        self.noted = notes

    def commit_transaction(self, _: float) -> None:
        self.is_committed = True

    def abort_transaction(self, _: float) -> None:
        if self.hangs is not None:
            raise KafkaException(KafkaError(KafkaError._CONFLICT))

    def committed(self, _: object, *, timeout: float) -> list[TopicPartition]:
        return self.answer


def writer_of(client: Client) -> TransactionalWriter:
    class Fake(KafkaClients):
        def producer(self, **_: object) -> Any:
            return client

        def consumer(self, *_: object, **__: object) -> Any:
            return client

    return TransactionalWriter(Fake(parse_address("kafka://h:1"), {}, timeout_s=60.0), "mirror")


def part() -> PartitionWrite:
    return PartitionWrite(P0, [Record(b"x", None, 1, [])], "1")


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_client_that_never_finds_the_group_coordinator_is_replaced(
    hangs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka would wait until a node comes or goes, whatever its timeout."""
    client = Client()
    client.hangs = hangs
    with closing(writer_of(client)) as writer:

        def be_impatient() -> None:  # not before: other calls also run on threads and may have to wait
            monkeypatch.setattr(writer._clients, "timeout_s", 0.05)
            monkeypatch.setattr(transactions, "_SLACK_S", 0.05)

        client.on_flush = be_impatient
        with pytest.raises(BrokerUnavailable, match="noting where the mirror is"):
            writer.write([part()])
    assert not client.is_committed


def test_a_record_with_unknown_position_is_still_noted() -> None:
    """librdkafka omits notes without an offset, without an error."""
    for offset, place in ((7, 8), (-1001, 0)):
        client = Client(offset)
        with closing(writer_of(client)) as writer:
            writer.write([part()])
        assert [(each.offset, each.metadata) for each in client.noted] == [(place, "1")]
        assert client.is_committed


def answered(offset: int, code: int | None = None, number: int = 0) -> Any:
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(topic="trade", partition=number, offset=offset, error=error, metadata="1")


def test_missing_and_hidden_topics_have_no_notes_and_other_errors_are_raised() -> None:
    client = Client()
    with closing(writer_of(client)) as writer:
        client.answer = [
            answered(5),
            answered(-1001, number=1),
            answered(-1001, KafkaError.TOPIC_AUTHORIZATION_FAILED, 2),
            answered(-1001, KafkaError.UNKNOWN_TOPIC_OR_PART, 3),
        ]
        assert writer.notes([P0]) == {P0: TransactionNote(5, "1")}
        client.answer = [answered(-1001, KafkaError.UNSTABLE_OFFSET_COMMIT)]
        with pytest.raises(BrokerUnavailable):
            writer.notes([P0])
