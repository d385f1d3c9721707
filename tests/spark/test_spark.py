"""The data source within Spark: reads, filters, streams, checkpoints."""

from __future__ import annotations

import re
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.metaq.copies import until_copied
from tests.metaq.logs import batch, fill
from tests.metaq.servers import served
from tests.ports import own_port
from tests.spark import totals
from txmsg.message import Message
from txmsg.metaq import LogProducer
from txmsg.metaq.copy.promotion import promote
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.location import open_log
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append, Log, LogConfig

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]  # a JVM starts

_WAIT_S_MAX = 120.0
_EXAMPLES = Path(__file__).parents[2] / "examples"


def of_offsets(begin: int, end: int) -> tuple[int, int]:
    """Return the sink's result for messages."""
    return end - begin, sum(range(begin, end))


def test_a_batch_has_all_columns_in_utc_and_headers_when_asked(spark: SparkSession, tmp_path: Path) -> None:
    at = datetime(2026, 11, 11, 0, 0, 0, 123456, UTC)
    at_us = int(at.timestamp()) * 1_000_000 + 123456
    with Log(tmp_path) as log:
        LogProducer(log).send(Message("t", b"\0\xff", "k", "a", {"x": "1"}, ordering_key="o"), queue=0)
        log.append([Append("t", 1, encode(FrameColumns([b""], [at_us])))])
    read = spark.read.format("metaq").option("topics", "t")
    found = read.option("includeHeaders", True).load(str(tmp_path)).orderBy("queue")
    full, bare = found.collect()
    assert found.columns == [
        *("topic", "queue", "offset", "key", "tag", "ordering_key", "value", "headers", "born_at", "stored_at"),
    ]
    assert full[:8] == ("t", 0, 0, "k", "a", "o", b"\0\xff", {"x": "1"})
    assert bare[:8] == ("t", 1, 0, None, None, None, b"", {})
    assert bare.stored_at.astimezone(UTC) == bare.born_at.astimezone(UTC) == at
    [told] = found.where("queue = 1").selectExpr("date_format(stored_at, 'yyyy-MM-dd HH:mm:ss.SSSSSS') as at").collect()
    assert told.at == "2026-11-11 00:00:00.123456"


@pytest.mark.parametrize("prefetch", ["false", "true"])
def test_running_stream_reads_new_messages_once(
    spark: SparkSession, tmp_path: Path, database_url: str, prefetch: str
) -> None:
    """Through a server, with a sink whose first batch fails after it was written: it is read again."""
    failed: list[int] = []
    sink = totals.counted(database_url)

    def failing_once(frame: DataFrame, batch_id: int) -> None:
        sink(frame, batch_id)
        if not failed:
            failed.append(batch_id)
            raise RuntimeError("between sink and checkpoint")

    root = tmp_path / "metaq"
    with Log(root) as log:
        fill(log, "t1", 0, [30])
    with served(MetaQConfig(data_dir=root, listen="127.0.0.1:0")) as address:
        source = spark.readStream.format("metaq").options(server=address, topics="t*", startingOffsets="earliest")
        source = source.option("prefetch", prefetch)
        writer = source.option("maxOffsetsPerTrigger", 20).load().writeStream.foreachBatch(failing_once)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises(StreamingQueryException, match="between sink and checkpoint"):
            writer.start().processAllAvailable()
        with open_log(address) as log_of_server:
            query = writer.start()
            query.processAllAvailable()
            assert totals.figures(database_url) == {("t1", 0): of_offsets(0, 30)}
            log_of_server.append([batch("t1", 3, 0, 5), batch("t2", 0, 0, 7)])
            query.processAllAvailable()
            query.stop()
    assert totals.figures(database_url) == {
        ("t1", 0): of_offsets(0, 30),
        ("t1", 3): of_offsets(0, 5),
        ("t2", 0): of_offsets(0, 7),
    }
    first, second, *rest = [each.numInputRows for each in query.recentProgress if each.numInputRows]
    assert (first, second, sum(rest)) == (20, 10, 12)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_sums_of_a_query_are_exact_after_a_promotion(
    spark: SparkSession, tmp_path: Path, database_url: str, is_restarted: bool
) -> None:
    """The promoted copy is served at the address of its leader, while the query runs or before it is restarted."""
    address = f"127.0.0.1:{own_port()}"
    leading = MetaQConfig(data_dir=tmp_path / "leader", listen=address)
    copy = MetaQConfig(data_dir=tmp_path / "copy", listen="127.0.0.1:0", follow=address)
    source = spark.readStream.format("metaq").options(server=address, topics="t*", startingOffsets="earliest")
    writer = source.load().writeStream.foreachBatch(totals.counted(database_url))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with served(leading):
        with served(copy), open_log(address, append=True) as log:
            log.append([batch("t1", 0, 0, 30), batch("t2", 1, 0, 7)])
            query = writer.start()
            query.processAllAvailable()
            until_copied(tmp_path / "leader", tmp_path / "copy")
        with open_log(address, append=True) as log:
            log.append([batch("t1", 0, 30, 10)])  # which the promotion copies; the query may have it before or after
        assert promote(tmp_path / "copy").is_complete
        if is_restarted:
            query.stop()
    with served(MetaQConfig(data_dir=tmp_path / "copy", listen=address)), open_log(address, append=True) as log:
        assert log.identity().generation == 2
        log.append([batch("t1", 0, 40, 5), batch("t3", 0, 0, 2)])
        if is_restarted:
            query = writer.start()
        query.processAllAvailable()
        assert query.exception() is None
        query.stop()
    assert totals.figures(database_url) == {
        ("t1", 0): of_offsets(0, 45),
        ("t2", 1): of_offsets(0, 7),
        ("t3", 0): of_offsets(0, 2),
    }


def test_query_whose_messages_expire_fails_or_continues_as_configured(
    spark: SparkSession, tmp_path: Path, database_url: str
) -> None:
    config = LogConfig(file_size_bytes_max=4096, retention_size_bytes=4096, checkpoint_s=3600)
    with Log(tmp_path / "log", config) as log:

        def run(**options: str) -> None:
            writer = totals.start(spark, tmp_path / "log", tmp_path / "checkpoint", database_url, **options)
            query = writer.foreachBatch(totals.counted(database_url)).trigger(availableNow=True).start()
            query.awaitTermination()

        fill(log, "t", 0, [3])
        run()
        fill(log, "t", 0, [100])
        fill(log, "other", 0, [400] * 3)
        log.delete_old()
        fill(log, "t", 0, [2])
        begin, end = log.reader.queue("t", 0).range()
        assert begin > 3
        with pytest.raises(StreamingQueryException, match=r"OffsetOutOfRange.*retention has deleted them"):
            run()
        assert totals.figures(database_url) == {("t", 0): of_offsets(0, 3)}
        run(failOnDataLoss="false")
    count, total = of_offsets(begin, end)
    assert totals.figures(database_url) == {("t", 0): (3 + count, 3 + total)}


def test_the_example_replays_an_interval(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the session of the tests."""
    midnight_us = int(datetime(2026, 11, 11, tzinfo=UTC).timestamp()) * 1_000_000
    with Log(tmp_path) as log:
        for minute, start in enumerate((0, 4, 9)):
            log.append([batch("trade", 0, start, 4 + minute, at_us=midnight_us + minute * 60_000_000)])
    times = ["2026-11-11T08:01:00+08:00", "2026-11-11T08:02:00+08:00"]
    monkeypatch.setattr(sys, "argv", ["replay_interval.py", str(tmp_path), "tra*", *times])

    runpy.run_path(str(_EXAMPLES / "replay_interval.py"))

    said = capsys.readouterr().out
    assert re.search(r"2026-11-11 00:01:00\|trade\|NULL\|5 +\|", said), said
    assert re.search(r"\|trade\|0 +\|4 +\|8 +\|5 +\|", said), said
    assert "00:00:00" not in said
    assert "00:02:00" not in said
