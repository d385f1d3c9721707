"""A log in Kafka, read by Spark: with the same columns, options and rows as a MetaQ log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.kafka.twins import STORED_AT_US, Twins
from tests.kafka_server import Kafka
from txmsg.errors import BrokerUnavailable, MisuseError, OffsetOutOfRange, UnknownTopic
from txmsg.metaq import LogQueue
from txmsg.spark import read_log, stream_log

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # JVMs start

_A0, _A1, _B0 = LogQueue("trade.a", 0), LogQueue("trade.a", 1), LogQueue("trade.b", 0)


@pytest.fixture
def twins(kafka: Kafka, kafka_prefix: str, kafka_source: Path, tmp_path: Path) -> Twins:
    return _filled(Twins(tmp_path / "log", kafka, kafka_prefix))


@pytest.fixture(scope="module")
def still(kafka: Kafka, kafka_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    """For tests that only read."""
    return _filled(Twins(tmp_path_factory.mktemp("still") / "log", kafka, "still-"))


def _filled(twins: Twins) -> Twins:
    twins.create("trade.a", 2)
    twins.append({_A0: 20, _A1: 7})
    return twins


def rows(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.queue, row.offset))


def spans(found: list[Any]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the range of each queue; no offset is missing or duplicated."""
    offsets: dict[tuple[str, int], list[int]] = {}
    for row in found:
        offsets.setdefault((row.topic, row.queue), []).append(row.offset)
    for queue, each in offsets.items():
        assert sorted(each) == list(range(min(each), max(each) + 1)), queue
    return {queue: (min(each), max(each) + 1) for queue, each in offsets.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"topics": "*", "includeHeaders": True},
        {"topics": "trade.a", "startingOffsets": '{"trade.a": {"0": 9}}', "endingOffsets": '{"trade.a": {"0": 13}}'},
        {"topics": "trade.[ab]", "startingOffsets": '{"trade.a": {"0": -2, "1": 7}}'},
        {"topics": "*", "startingTimestamp": STORED_AT_US // 1000 + 2 * 60_000},
        {"topics": "*", "endingTimestamp": STORED_AT_US // 1000 + 5 * 60_000, "minPartitions": 3},
        {"topics": "trade.b*"},
    ],
    ids=["all", "offsets", "end of a queue", "since a time", "until a time", "no such topic yet"],
)
def test_batch_has_the_same_rows_as_one_of_a_metaq_log(
    spark: SparkSession, still: Twins, options: dict[str, Any]
) -> None:
    ours = read_log(spark, still.directory, **options)
    kafkas = read_log(spark, still.address, **options)
    found = rows(ours)
    assert rows(kafkas) == found
    assert kafkas.columns == ours.columns
    if options == {"topics": "*", "includeHeaders": True}:
        assert spans(found) == {("trade.a", 0): (0, 20), ("trade.a", 1): (0, 7)}
        assert [row.headers for row in found[:2]] == [{"trace": "0", "txmsg-id": "mine"}, {}]


def test_batch_is_unchanged_by_later_messages(spark: SparkSession, twins: Twins) -> None:
    frame = read_log(spark, twins.address, topics="*", columns=("queue", "offset"))
    twins.append({_A0: 5})
    assert frame.columns == ["queue", "offset"]
    assert frame.count() == 27
    assert read_log(spark, twins.address, topics="*").count() == 32


def test_stream_resumes_from_its_checkpoint_and_finds_new_topics(
    spark: SparkSession, twins: Twins, tmp_path: Path
) -> None:
    found: list[Any] = []
    start = _starter(spark, twins, tmp_path / "checkpoint", found)
    query = start()
    query.processAllAvailable()
    assert spans(found) == {("trade.a", 0): (9, 20), ("trade.a", 1): (0, 7)}
    twins.append({_A0: 3})
    query.processAllAvailable()
    query.stop()
    twins.create("trade.b", 1)
    twins.append({_A1: 2, _B0: 4})
    query = start()
    query.processAllAvailable()
    query.stop()
    assert spans(found) == {("trade.a", 0): (9, 23), ("trade.a", 1): (0, 9), ("trade.b", 0): (0, 4)}


def _starter(spark: SparkSession, twins: Twins, checkpoint: Path, found: list[Any]) -> Callable[[], Any]:
    def start() -> Any:
        frame = stream_log(
            spark,
            twins.address,
            topics="trade.*",
            columns=("topic", "queue", "offset"),
            startingOffsets='{"trade.a": {"0": 9}}',
            maxOffsetsPerTrigger=10,
            prefetch=True,
        )
        writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        return writer.option("checkpointLocation", str(checkpoint)).start()

    return start


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "latest"}, {("trade.a", 0): (20, 21), ("trade.a", 1): (7, 8)}),
        (
            {"startingTimestamp": STORED_AT_US // 1000 + 5 * 60_000},
            {("trade.a", 0): (5, 21), ("trade.a", 1): (5, 8)},
        ),
        (
            {"startingTimestamp": STORED_AT_US // 1000 + 1},  # the first one has this millisecond, and is earlier
            {("trade.a", 0): (1, 21), ("trade.a", 1): (1, 8)},
        ),
    ],
    ids=["latest", "time", "just after the first"],
)
def test_stream_starts_at_the_configured_offsets(
    spark: SparkSession,
    twins: Twins,
    tmp_path: Path,
    options: dict[str, Any],
    expected: dict[tuple[str, int], tuple[int, int]],
) -> None:
    found: list[Any] = []
    topics = "trade.a"
    frame = stream_log(spark, twins.address, topics=topics, columns=("topic", "queue", "offset"), **options)
    writer = frame.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        twins.append({_A0: 1, _A1: 1})
        query.processAllAvailable()
    finally:
        query.stop()
    assert spans(found) == expected


def test_deleted_messages_are_reported(spark: SparkSession, still: Twins, tmp_path: Path) -> None:
    offsets = '{"trade.a": {"0": 30}}'
    with pytest.raises(OffsetOutOfRange, match=r"offsets 20 to 29 cannot be read.*failOnDataLoss=false"):
        read_log(spark, still.address, topics="trade.a", startingOffsets=offsets)
    frame = stream_log(spark, still.address, topics="trade.a", startingOffsets=offsets)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        query.processAllAvailable()


def test_invalid_read_is_refused_before_it_starts(spark: SparkSession, still: Twins, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic, match=r"'trade.aa' is not in the log .* \(is it trade.a\?\)"):
        read_log(spark, still.address, topics="trade.aa")
    with pytest.raises(MisuseError, match=r"MetaQ has no column 'body': there are topic"):
        read_log(spark, still.address, topics="*", columns=("body",))
    with pytest.raises(MisuseError, match=r"kafka.isolation.level is set by txmsg"):
        stream_log(spark, still.address, topics="*", **{"kafka.isolation.level": "read_uncommitted"})
    with pytest.raises(MisuseError, match=r"bodyKeys is for logs of txmsg's own"):
        read_log(spark, still.address, topics="*", bodyKeys="localhost:7700")
    with pytest.raises(MisuseError, match=r"kafka_config is for a log at kafka://"):
        read_log(spark, tmp_path, topics="*", kafka_config=tmp_path)
    with pytest.raises(PySparkException, match=r"use txmsg.spark.read_log or stream_log"):
        spark.read.format("metaq").option("topics", "*").load(still.address).count()
    with pytest.raises(BrokerUnavailable, match=r"127.0.0.1:1"):
        read_log(spark, "kafka://127.0.0.1:1", topics="*")
