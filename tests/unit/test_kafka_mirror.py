"""The verifier, which shares no code with the mirror, reads the mirror's Kafka records as equal to the table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer

from tests.mirror.rows import Stored, written
from txmsg.binlog.comparing import Compared, compare
from txmsg.binlog.config import TailerConfig
from txmsg.binlog.mirror.kafka_sink import KafkaSink, _mark_of, _note_of, _noted, _records
from txmsg.binlog.mirrors import MirrorPosition
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.binlog.sink import MessageFingerprint, OffsetRange, QueueTail, content_crc
from txmsg.binlog.table import MirroredQueue
from txmsg.binlog.verifier.kafka_walk import headers_of, offset_of, row_of
from txmsg.errors import BrokerUnavailable, CorruptLog, InvalidMessage, MisuseError, UnknownTopic
from txmsg.message import EPOCH_2000_US, QueueId, QueueNumber
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.probe import KafkaPartition, PartitionBounds
from txmsg.metaq.kafka.record import PLACE, Record
from txmsg.metaq.kafka.transactions import PartitionWrite, TransactionalWriter, TransactionNote
from txmsg.wire.headers import pack_headers

HEADERS = {"": "", "shop": "7", "txmsg-id": "mine", "txmsg-header.x": "y", "ключ": "ü" * 200}


@dataclass
class ClientRecord:
    """A record as returned by the Kafka client."""

    record: Record
    place: int

    def topic(self) -> str:
        return "trade"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.place

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes:
        return self.record.value

    def timestamp(self) -> tuple[int, int]:
        return 1, self.record.timestamp_ms

    def headers(self) -> Any:
        return self.record.headers


def row_of_table(stored: Stored) -> TableRow:
    texts = [(text or "").encode() for text in (stored.key, stored.tag, stored.ordering_key)]
    born_at, stored_at = (us - EPOCH_2000_US for us in (stored.born_at_us, stored.stored_at_us))
    return TableRow(
        stored.id_bytes, stored.n, texts[0], texts[1], stored.headers or b"", stored.body, born_at, stored_at, texts[2]
    )


def produced(rows: list[Stored]) -> list[ClientRecord]:
    batch = RowBatch("trade", QueueNumber(0), rows[0].offset, [row_of_table(row) for row in rows])
    return [ClientRecord(record, 2 * place) for place, record in enumerate(_records(batch, KafkaPartition("trade", 0)))]


def shapes() -> list[Stored]:
    """Return messages of all shapes, with each combination of keys."""
    rows = [written("trade", 0, offset) for offset in range(100, 112)]
    rows[1] = rows[1]._replace(headers=pack_headers(HEADERS), body=b"")
    rows[2] = rows[2]._replace(key=None, ordering_key="o")
    rows[3] = rows[3]._replace(key="k", ordering_key=None)
    rows[4] = rows[4]._replace(key="same", ordering_key="same")
    rows[5] = rows[5]._replace(born_at_us=rows[5].stored_at_us // 1000 * 1000, stored_at_us=rows[5].stored_at_us)
    rows[6] = rows[6]._replace(born_at_us=1_750_000_000_000_000, stored_at_us=1_750_000_000_000_000)
    return rows


def test_the_verifier_reads_records_as_the_table_stores_them() -> None:
    rows = shapes()
    for read, stored in zip(produced(rows), rows, strict=True):
        assert offset_of(read) == stored.offset  # type: ignore[arg-type]
        key, tag, ordering_key = ((text or "").encode() for text in (stored.key, stored.tag, stored.ordering_key))
        assert row_of(read, stored.offset) == (  # type: ignore[arg-type]
            stored.offset, stored.id_bytes, stored.n, key, tag, ordering_key, headers_of(stored.headers or b""),
            stored.body, stored.born_at_us, stored.stored_at_us,
        )  # fmt: skip


def test_the_verifier_reads_headers_as_the_table_stores_them() -> None:
    assert headers_of(pack_headers(HEADERS)) == {name.encode(): value.encode() for name, value in HEADERS.items()}
    assert headers_of(b"") == {}


def test_a_record_has_the_mark_of_its_row() -> None:
    rows = shapes()
    for read, stored in zip(produced(rows), rows, strict=True):
        row = row_of_table(stored)
        assert _mark_of(read, "trade", 0, "there") == MessageFingerprint(
            stored.offset, stored.id_bytes, stored.n, content_crc(row)
        )
        assert content_crc(row) != content_crc(row._replace(body=row.body + b"."))


def test_a_record_that_no_mirror_wrote_has_no_mark() -> None:
    [read] = produced([written("trade", 0, 5)])
    headers = [header for header in read.record.headers if header[0] != PLACE]
    for place in ([], [(PLACE, b"trade/0")], [(PLACE, b"trade/1/5")], [(PLACE, b"other/0/5")], [(PLACE, b"5")]):
        read.record.headers[:] = [*place, *headers]
        with pytest.raises(CorruptLog, match="was not written by a mirror"):
            _mark_of(read, "trade", 0, "there")
        assert offset_of(read) is None  # type: ignore[arg-type]


def test_header_comparison_does_not_depend_on_packing() -> None:
    packed = pack_headers({"a": "", "b": "2"})
    by_another = b"\x0a\x06\x0a\x01b\x12\x012" + b"\x0a\x03\x0a\x01a"
    assert packed != by_another
    assert headers_of(packed) == headers_of(by_another)
    row = row_of_table(written("trade", 0, 1))
    assert content_crc(row._replace(headers=packed)) == content_crc(row._replace(headers=by_another))
    assert content_crc(row._replace(headers=b"\xff")) != content_crc(row._replace(headers=b"\xfe"))


def test_a_note_holds_the_next_offset_and_the_mark_of_the_last_message() -> None:
    row = row_of_table(written("trade", 0, 41))
    mark = MessageFingerprint(41, row.transaction_id, row.n, content_crc(row))
    assert _noted(TransactionNote(7, _note_of(42, row)), "there") == (42, mark)
    assert _noted(TransactionNote(7, _note_of(42)), "there") == (42, None)
    for text in ("", "x", "1 2", "1 zz 0 0"):
        with pytest.raises(CorruptLog, match="which no mirror notes"):
            _noted(TransactionNote(7, text), "there")


def test_number_of_copies_is_a_setting_of_kafka_only() -> None:
    with pytest.raises(MisuseError, match="topics in a Kafka"):
        TailerConfig(storage="postgresql://h/d", metaq="log", replication_factor=3)
    with pytest.raises(MisuseError, match="more than replication_factor"):
        TailerConfig(storage="postgresql://h/d", metaq="kafka://h:1", replication_factor=1, min_insync_replicas=2)


# ---- the end of a queue without readable records


def tail_of(bounds: PartitionBounds, note: TransactionNote | None) -> QueueTail | Exception:
    sink = object.__new__(KafkaSink)
    sink.name = "kafka://h:1"
    return sink._tail("trade", 0, bounds, None, note)


def test_a_partition_with_only_aborted_transactions_is_empty() -> None:
    assert tail_of(PartitionBounds(0, 501), None) == QueueTail(OffsetRange(0, 0), None)
    assert tail_of(PartitionBounds(0, 501), TransactionNote(501, _note_of(7))) == QueueTail(OffsetRange(0, 7), None)


def test_a_partition_with_expired_records_ends_at_the_noted_offset() -> None:
    assert tail_of(PartitionBounds(501, 501), TransactionNote(501, _note_of(7))) == QueueTail(OffsetRange(0, 7), None)
    assert tail_of(PartitionBounds(501, 501), None) == QueueTail(None, None)


@dataclass
class ExpiredSink:
    """A sink that no longer knows the end of its queue, and the mirror, which has noted it for a log."""

    log_id: int

    def tails(self, _: object) -> list[QueueTail]:
        return [QueueTail(None, None)]

    def read_row(self) -> ExpiredSink:
        return self

    def positions(self) -> dict[int, MirrorPosition]:
        return {7: MirrorPosition(40, None)}


@pytest.mark.parametrize(("noted", "end"), [(1, 40), (2, 0)])
def test_a_note_of_another_log_is_ignored(noted: int, end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmsg.binlog.comparing.table.marks_at", lambda *_: {})
    mirrors: Any = ExpiredSink(log_id=noted)
    queue = MirroredQueue(QueueId(7), "trade", QueueNumber(0), 0, 50)
    [compared] = compare(cast("Any", None), cast("Any", ExpiredSink(log_id=1)), mirrors, [queue])
    assert isinstance(compared, Compared)
    assert (compared.in_log.end, compared.go_on.next_offset) == (end, end)


FILLED = PartitionBounds(0, 9)


@dataclass
class StaleKafka:
    """A Kafka whose node knows the topic at the third request, or its records then, or never."""

    hears_of: PartitionBounds | None = FILLED
    before: PartitionBounds | None = None
    asked: int = 0

    def all(self) -> dict[str, int]:
        self.asked += 1
        return {"trade": 1} if self._bounds is not None else {}

    @property
    def _bounds(self) -> PartitionBounds | None:
        return self.hears_of if self.asked > 2 else self.before

    def bounds(self, queues: Any) -> dict[LogQueue, PartitionBounds]:
        return dict.fromkeys(queues, self._bounds) if self._bounds is not None else {}


def sink_of(kafka: StaleKafka, note: TransactionNote | None, last: ClientRecord, timeout_s: float = 60.0) -> KafkaSink:
    sink = object.__new__(KafkaSink)
    fake: Any = kafka
    sink.name, sink._wanted = "kafka://h:1", {}
    sink._clients = KafkaClients(parse_address("kafka://h:1"), {}, timeout_s=timeout_s)
    sink._topics = sink._positions = fake
    sink._probe = cast("Any", SimpleNamespace(last=lambda bounds: dict.fromkeys(bounds, last)))
    notes = lambda places: {} if note is None else dict.fromkeys(places, note)  # noqa: E731
    sink._writer = cast("Any", SimpleNamespace(notes=notes, name="txmsg-mirror"))
    return sink


@pytest.mark.parametrize("before", [None, PartitionBounds(0, 0)])
def test_a_node_with_stale_metadata_is_asked_again(before: PartitionBounds | None) -> None:
    """Otherwise the tailer would write all of it again."""
    [last] = produced([written("trade", 0, 6)])
    kafka = StaleKafka(before=before)
    [tail] = sink_of(kafka, TransactionNote(9, _note_of(7, row_of_table(written("trade", 0, 6)))), last).tails(
        [("trade", 0)]
    )
    assert isinstance(tail, QueueTail)
    assert (tail.range, kafka.asked) == (OffsetRange(0, 7), 3)


@pytest.mark.parametrize("bounds", [None, PartitionBounds(0, 0)])
def test_a_noted_record_that_never_appears_stops_its_queue(bounds: PartitionBounds | None) -> None:
    [last] = produced([written("trade", 0, 6)])
    kafka = StaleKafka(hears_of=bounds, before=bounds)
    note = TransactionNote(9, _note_of(7, row_of_table(written("trade", 0, 6))))
    [tail] = sink_of(kafka, note, last, timeout_s=0.2).tails([("trade", 0)])
    assert isinstance(tail, CorruptLog)
    assert re.search(r"nothing from offset 0 on, but 6 was committed.*--group txmsg-mirror", str(tail))


@pytest.mark.parametrize(("note", "end"), [(None, 0), (TransactionNote(0, _note_of(7)), 7)])
def test_a_new_topic_or_one_starting_with_a_gap_is_not_waited_for(note: TransactionNote | None, end: int) -> None:
    [last] = produced([written("trade", 0, 6)])
    kafka = StaleKafka()
    assert sink_of(kafka, note, last).tails([("trade", 0)]) == [QueueTail(OffsetRange(0, end), None)]
    assert kafka.asked == 1


# ---- writing, to librdkafka's own broker for tests


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    broker = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "x", "log_level": 0})
    [node] = broker.list_topics(timeout=60).brokers.values()
    yield f"{node.host}:{node.port}"
    del broker


def record_of(value: bytes) -> Record:
    return Record(value, None, 1, [(PLACE, b"t/0/0")])


def read_from(servers: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"})
    with closing(consumer):
        consumer.assign([KafkaPartition(topic, 0).at(0)])
        return [message.value() for message in consumer.consume(count, timeout=60)]


def test_a_record_that_cannot_be_encoded_does_not_change_the_writer(servers: str) -> None:
    client = Producer({"bootstrap.servers": servers, "log_level": 0})
    for topic in ("good", "bad"):
        client.list_topics(topic, timeout=60)  # which makes it

    def bad() -> Iterator[Record]:
        yield record_of(b"begun")
        raise InvalidMessage("headers that cannot be read")

    writer = TransactionalWriter(KafkaClients(parse_address(f"kafka://{servers}"), {}, timeout_s=60.0), "mirror")
    with closing(writer):
        with pytest.raises(InvalidMessage, match="cannot be read"):
            writer.write([PartitionWrite(KafkaPartition("bad", 0), bad(), "1")])
        writer.write([PartitionWrite(KafkaPartition("good", 0), [record_of(b"taken")], "1")])
    assert read_from(servers, "good", 1) == [b"taken"]


def test_a_producer_does_not_create_topics_implicitly(servers: str) -> None:
    producer = KafkaClients(parse_address(f"kafka://{servers}"), {}, timeout_s=60.0).producer()
    for _ in range(2):  # the first request would create it
        assert producer.list_topics("deleted", timeout=60).topics["deleted"].error is not None


def test_a_topic_deleted_during_the_search_for_its_end_is_a_retryable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def deleted(*_: object) -> None:
        raise UnknownTopic("topic trade is not there")

    [last] = produced([written("trade", 0, 6)])
    sink = sink_of(StaleKafka(), None, last)
    monkeypatch.setattr(sink, "_topics", SimpleNamespace(all=deleted))
    with pytest.raises(BrokerUnavailable, match="topic trade is not there"):
        sink.tails([("trade", 0)])
