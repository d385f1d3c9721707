"""The verifier finds every kind of difference in a Kafka. Its own client writes the records, not the mirror."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from confluent_kafka import Producer

from tests.kafka_server import Kafka, create_topic
from tests.mirror.rows import Stored
from tests.mirror.test_each_verified_log import COUNT, ROWS, EachVerifiedLog, found_by, without
from txmsg.binlog.verifier.compare import verify
from txmsg.wire.headers import unpack_headers

pytestmark = pytest.mark.long

ANSWER_S_MAX = 30.0

Headers = list[tuple[str, str | bytes | None]]


class Topics:
    """Topics of a prefix, with a partition of trade that the table lacks. Kafka keeps old records in it."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self.where = f"{kafka.address}/{prefix}"
        self._prefix = prefix
        for topic, partitions in (("trade", 3), ("idle", 1), ("elsewhere", 1)):
            create_topic(kafka, f"{prefix}{topic}", partitions, retention_ms="-1")
        self._producer = Producer(
            {"bootstrap.servers": kafka.servers, "transactional.id": f"{prefix}test", "log_level": 0}
        )
        self._producer.init_transactions(ANSWER_S_MAX)

    def write(self, rows: Sequence[Stored], *, is_committed: bool = True) -> None:
        self._producer.begin_transaction()
        for row in rows:
            self._produce(row, row.queue)
        assert self._producer.flush(ANSWER_S_MAX) == 0
        if is_committed:
            self._producer.commit_transaction(ANSWER_S_MAX)
        else:
            self._producer.abort_transaction(ANSWER_S_MAX)

    def write_foreign(self, queue: int) -> None:
        """Write a record without headers, and one copied from queue 0 with all its headers."""
        self._producer.begin_transaction()
        self._producer.produce(f"{self._prefix}trade", b"of another program", None, queue)
        self._produce(ROWS[3], queue)
        self._producer.commit_transaction(ANSWER_S_MAX)

    def _produce(self, row: Stored, queue: int) -> None:
        """Write a record to this partition, even if its headers name another."""
        name = self._prefix + row.topic
        self._producer.produce(
            name,
            row.body,
            row.ordering_key or row.key,
            queue,
            timestamp=row.stored_at_us // 1000,
            headers=headers(row, name),
        )


def headers(row: Stored, name: str) -> Headers:
    """Return the headers documented in docs/how-to/kafka.md."""
    found = {
        "txmsg-place": f"{name}/{row.queue}/{row.offset}",
        "txmsg-id": f"{UUID(bytes=row.id_bytes)}.{row.n}",
        "txmsg-times": f"{row.born_at_us} {row.stored_at_us}",
    }
    if row.tag is not None:
        found["txmsg-tag"] = row.tag
    if row.ordering_key is not None:
        found["txmsg-key"] = row.key or ""
    return [*found.items(), *unpack_headers(row.headers or b"").items()]


@pytest.fixture
def copy(kafka: Kafka, kafka_prefix: str) -> Topics:
    return Topics(kafka, kafka_prefix)


class TestKafka(EachVerifiedLog):
    pass


def test_documented_records_are_equal_and_aborted_ones_are_ignored(table: str, copy: Topics) -> None:
    copy.write(ROWS[:30])
    copy.write(ROWS[:10], is_committed=False)
    copy.write(ROWS[30:])
    report = verify(table, copy.where)
    assert report.is_equal, report.differences
    assert (report.messages, report.queues, report.in_holes) == (2 * COUNT, 3, 0)


PLACES: dict[str, tuple[list[Stored], dict[str, int], str]] = {
    "doubled at once": (
        [*ROWS[:31], *ROWS[30:]],
        {"doubled": 1},
        "doubled: topic trade queue 0 offset 30: again, or late, at offset 31 of the partition",
    ),
    "swapped": (
        [*ROWS[:20], ROWS[21], ROWS[20], *ROWS[22:]],
        {"doubled": 1, "missing": 1},
        "missing: topic trade queue 0 offset 20",
    ),
    "missing in the middle": (without(30, 31), {"missing": 2}, "missing: topic trade queue 0 offsets 30 to 31"),
}


@pytest.mark.parametrize("name", PLACES)
def test_record_at_a_different_position_in_its_partition_is_found(table: str, copy: Topics, name: str) -> None:
    rows, kinds, first = PLACES[name]
    copy.write(rows)
    report = verify(table, copy.where)
    assert found_by(report) == kinds
    assert str(report.differences[0]).startswith(first)


def test_aborted_records_are_missing_and_records_of_other_writers_are_foreign(table: str, copy: Topics) -> None:
    copy.write(ROWS[:-5])
    copy.write(ROWS[-5:], is_committed=False)
    copy.write_foreign(1)
    report = verify(table, copy.where)
    assert found_by(report) == {"foreign": 2, "missing": 5}
