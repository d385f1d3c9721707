"""Kafka records in Spark SQL: the same messages as `received` returns. Needs no Kafka."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from txmsg.message import datetime_of_us
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.kafka.record import received, records_of
from txmsg.spark.columns import schema_of
from txmsg.spark.kafka.columns import OWN, expressions, readable
from txmsg.wire.headers import pack_headers

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]  # a JVM starts

_RECORD = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>"
)
_STORED_AT_US = 1_777_629_600_123_456
Headers = list[tuple[str, str | bytes | None]] | None


def _written(topic: str, number: int) -> list[tuple[bytes | None, bytes | None, int, Headers]]:
    """Return key, value, timestamp in ms and headers of records of a mirror and a producer in this partition."""
    columns = FrameColumns(
        body=[b"plain", b"ordered", b"", b"both", b"exactly"],
        stored_at_us=[_STORED_AT_US] * 4 + [_STORED_AT_US // 1000 * 1000],
        born_at_us=[_STORED_AT_US - 7] * 4 + [_STORED_AT_US // 1000 * 1000],
        transaction_id=bytes(16 * 5),
        n=[0] * 5,
        key=["", "", "k", "käse", ""],
        tag=["", "paid", "", "x", ""],
        ordering_key=["", "order-1", "", "order-2", ""],
        headers=[
            b"",
            pack_headers({"trace": "1", "a": "2"}),
            pack_headers({"txmsg-place": "mine", "txmsg-tried": "3"}),
            pack_headers({"empty": ""}),
            b"",
        ],
    )
    made = chain(records_of(columns, topic, number, 17), records_of(columns, topic, number))
    return [
        (record.key, record.value, record.timestamp_ms, [(name, _bytes(value)) for name, value in record.headers])
        for record in made
    ]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


_COPIED = [*_written("pre.trade.order", 30), *_written("pre.trade.order", 0), *_written("pre.trade", 3)]
"""Records from another partition or topic, with all their headers."""
_OTHERS: list[tuple[bytes | None, bytes | None, int, Headers]] = [
    (None, None, 0, None),
    (b"", b"v", 5, []),
    (b"key", b"v", 5, [("twice", b"1"), ("other", None), ("twice", b"2")]),
    (b"key", b"v", 5, [("txmsg-id", b"x"), ("txmsg-times", b"1 noon"), ("txmsg-key", b"k"), ("txmsg-header.a", b"b")]),
    (b"key", b"v", 5, [("txmsg-place", b"x"), ("txmsg-tag", b"x"), ("txmsg-place", b"pre.trade.order/3/5")]),
    (b"key", b"v", 5, [("txmsg-place", None)]),
    (b"key", b"v", 5, [("txmsg-place", b"5")]),
    (b"key", b"v", 5, [("txmsg-place", b"pre.trade.order/3/x")]),
    (b"key", b"v", 5, [("txmsg-place", b"pre.trade.order/3/5/6")]),
    (b"key", b"v", 5, [("txmsg-place", b"pre.trade.order/3/"), ("txmsg-tag", b"paid")]),
    (b"key", b"v", 5, [("txmsg-place", b"pre.trade.order/3/" + b"9" * 20)]),
]


def _records(spark: SparkSession, records: list[tuple[bytes | None, bytes | None, int, Headers]]) -> DataFrame:
    rows = [
        (key, value, "pre.trade.order", 3, 100 + place, datetime.fromtimestamp(at_ms / 1000, UTC), headers)
        for place, (key, value, at_ms, headers) in enumerate(records)
    ]
    return spark.createDataFrame(rows, _RECORD).selectExpr("*", OWN)


def _columns(records: DataFrame) -> DataFrame:
    made = expressions("pre.")
    return records.selectExpr(*(f"{made[name]} as `{name}`" for name in schema_of(include_headers=True).names))


def _frame(spark: SparkSession, records: list[tuple[bytes | None, bytes | None, int, Headers]]) -> DataFrame:
    return _columns(_records(spark, records))


def test_columns_equal_those_of_the_metaq_format(spark: SparkSession) -> None:
    wanted = schema_of(include_headers=True)
    found = _frame(spark, []).schema
    assert [(field.name, field.dataType.simpleString()) for field in found] == [
        (field.name, field.dataType.simpleString()) for field in wanted
    ]


def test_messages_equal_those_of_other_readers(spark: SparkSession) -> None:
    records = [*_written("pre.trade.order", 3), *_OTHERS, *_COPIED]
    rows = _frame(spark, records).collect()
    assert [row.offset for row in rows] == [17, 18, 19, 20, 21, *range(105, 100 + len(records))]
    for place, (row, (key, value, at_ms, headers)) in enumerate(zip(rows, records, strict=True)):
        read = Message(
            topic="pre.trade.order",
            partition=3,
            offset=100 + place,
            key=key,
            value=value,
            headers=headers,
            timestamp=(TIMESTAMP_CREATE_TIME, at_ms),
        )
        told = received(read, "trade.order", 3)
        expected: dict[str, Any] = {
            "topic": told.topic,
            "queue": told.queue,
            "offset": told.offset,
            "key": told.key,
            "tag": told.tag,
            "ordering_key": told.ordering_key,
            "value": told.body,
            "headers": dict(told.headers),
            "born_at": datetime_of_us(told.born_at_us).replace(tzinfo=None),
            "stored_at": datetime_of_us(told.stored_at_us).replace(tzinfo=None),
        }
        assert {**row.asDict(), "value": bytes(row.value)} == expected


def test_foreign_text_that_is_not_utf_8_does_not_fail_a_query(spark: SparkSession) -> None:
    [row] = _frame(spark, [(b"k\xff", b"v", 0, [("h", b"\xff")])]).collect()
    assert (row.key, row.headers) == ("k\ufffd", {"h": "\ufffd"})


_HERE = ("txmsg-place", b"pre.trade.order/3")
_NS_AS_US = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    "headers",
    [
        [_HERE, ("txmsg-times", b"1 noon")],
        [_HERE, ("txmsg-times", b"1")],
        [_HERE, ("txmsg-times", b"1 %d" % _NS_AS_US)],
        [_HERE, ("txmsg-times", b"%d 1" % _NS_AS_US)],
        [_HERE, ("txmsg-tag", b"\xff")],
        [_HERE, ("txmsg-key", b"\xff")],
        None,
    ],
)
def test_unreadable_record_fails_the_query_or_is_skipped(spark: SparkSession, headers: Headers) -> None:
    others: list[tuple[bytes | None, bytes | None, int, Headers]] = [(None, b"v", 5, []), (None, b"v", 5, [_HERE])]
    records = [others[0], (None, b"bad", 5, headers or []), others[1]]
    frame = _records(spark, records)
    if headers is None:  # Spark's source makes such a timestamp of one in microseconds
        frame = frame.withColumn("timestamp", expr(f"if(offset = 101, timestamp_micros({_NS_AS_US}), timestamp)"))
    with pytest.raises(
        PySparkException, match=r"offset 101 of partition 3 of topic pre.trade.order of Kafka cannot be"
    ):
        _columns(frame).collect()
    assert [row.offset for row in _columns(frame.where(readable())).collect()] == [100, 102]
