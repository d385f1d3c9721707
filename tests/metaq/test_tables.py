"""`read_arrow`, and files of `txmsg metaq export`: they contain each message once and in order."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from tests.integration.cli_harness import json_of, said
from tests.metaq.logs import append_compressible
from tests.metaq.servers import log_at, served
from txmsg import Start
from txmsg.errors import MisuseError, OffsetOutOfRange, StorageError, UnknownTopic
from txmsg.message import Message, ReceivedMessage, new_transaction_id_bytes, us_of_datetime
from txmsg.metaq import TABLE_SCHEMA, Log, LogAccess, LogProducer, LogQueue, open_log, read_arrow
from txmsg.metaq import export as export_module
from txmsg.metaq.export import Format, PartitionScheme, export
from txmsg.metaq.format.frame import Compression, FrameColumns, encode, hole
from txmsg.metaq.format.readable import header_maps, id_texts
from txmsg.metaq.local import LocalLog
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append
from txmsg.metaq.tables import spans_of

MIDNIGHT = datetime(2026, 5, 2, tzinfo=UTC)
QUEUES = 3
PER_QUEUE = 40


def _filled(log: LogAccess) -> None:
    """Return batches of 4 in each queue, a message a minute, until 00:20; some without optional columns."""
    for queue in range(QUEUES):
        for first in range(0, PER_QUEUE, 4):
            rows = range(first, first + 4)
            columns = FrameColumns(
                body=[b"\xff\x00" if row == 7 else f"body {row}".encode() for row in rows],
                stored_at_us=[
                    us_of_datetime(MIDNIGHT + timedelta(minutes=row - 20, microseconds=queue)) for row in rows
                ],
                transaction_id=b"".join(new_transaction_id_bytes() for _ in rows),
                n=[row % 2 * 11 for row in rows],
                key=[f"k{row}" for row in rows],
                tag=["paid" if row % 2 else "" for row in rows],
            )
            log.append([Append("trade", queue, encode(columns, Compression.LZ4))])
    LogProducer(log).send(Message("told", b"{}", key="1", headers={"b": "2", "a": "1"}))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tables") / "log"
    with open_log(directory, append=True) as log:
        _filled(log)
    return directory


@pytest.fixture(scope="module")
def log(root: Path) -> Iterator[LogAccess]:
    with open_log(root) as log:
        yield log


def _messages(log: LogAccess, topic: str = "trade") -> list[ReceivedMessage]:
    found = []
    for number in log.queues_of(topic):
        for fetched in log.fetch({LogQueue(topic, number): 0}):
            found += [message for batch in fetched.batches for message in batch.messages()]
    return found


def _row(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "topic": message.topic, "queue": message.queue, "offset": message.offset, "id": message.id, "key": message.key,
        "tag": message.tag, "ordering_key": message.ordering_key, "headers": list(message.headers.items()),
        "body": message.body, "born_at": message.born_at, "stored_at": message.stored_at,
    }  # fmt: skip


def _offsets(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["queue"].to_pylist(), table["offset"].to_pylist(), strict=True))


# ---- read_arrow


def test_table_has_all_fields_of_messages(log: LogAccess) -> None:
    table = read_arrow(log, "trade").read_all()
    table.validate(full=True)
    assert table.schema == TABLE_SCHEMA
    assert table.to_pylist() == [_row(message) for message in _messages(log)]
    assert len(table) == QUEUES * PER_QUEUE
    [told] = read_arrow(log, "told").read_all().to_pylist()
    assert told["headers"] == [("a", "1"), ("b", "2")]


def test_log_given_by_name_is_closed_at_the_end(root: Path, log: LogAccess) -> None:
    assert read_arrow(root, "trade").read_all().equals(read_arrow(log, "trade").read_all())
    with served(MetaQConfig(data_dir=root.parent / "served", listen="127.0.0.1:0")) as address:
        with log_at(address) as remote:
            _filled(remote)
        assert read_arrow(address, "trade").read_all()["body"] == read_arrow(log, "trade").read_all()["body"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_log_is_closed_even_if_its_messages_are_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, is_begun: bool
) -> None:
    closed: list[Path] = []
    monkeypatch.setattr(LocalLog, "close", lambda log: closed.append(log.root))
    reader = read_arrow(root, "trade")
    if is_begun:
        reader.read_next_batch()
    assert closed == []
    del reader
    assert closed == [root]


def test_adjacent_time_ranges_contain_each_message_once(log: LogAccess) -> None:
    moments = [MIDNIGHT + timedelta(minutes=minutes, microseconds=1) for minutes in (-30, -13, -13, 0, 7, 60)]
    parts = [
        read_arrow(log, "trade", start=Start.at(begin), until=Start.at(end)).read_all()
        for begin, end in pairwise(moments)
    ]
    assert [len(part) for part in parts] == [22, 0, 39, 21, 38]
    assert sorted(place for part in parts for place in _offsets(part)) == _offsets(read_arrow(log, "trade").read_all())
    for part, end in zip(parts, moments[1:], strict=True):
        assert all(stored_at < end for stored_at in part["stored_at"].to_pylist())


def test_table_can_be_limited_to_offsets_and_queues(log: LogAccess) -> None:
    found = read_arrow(log, "trade", start=Start.offset(5), until=Start.offset(7), queues=[2, 0]).read_all()
    assert _offsets(found) == [(0, 5), (0, 6), (2, 5), (2, 6)]
    assert len(read_arrow(log, "trade", start=Start.latest()).read_all()) == 0
    assert len(read_arrow(log, "trade", start=Start.offset(9), until=Start.offset(3)).read_all()) == 0


def test_unknown_topics_and_queues_are_named(log: LogAccess) -> None:
    with pytest.raises(UnknownTopic, match="'trades' is not in this log: its topics are told, trade"):
        read_arrow(log, "trades")
    with pytest.raises(UnknownTopic, match="has no queue 7: its queues are 0, 1, 2"):
        read_arrow(log, "trade", queues=[0, 7])


def test_deleted_offsets_are_an_error_or_reported_and_skipped(log: LogAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = log.fetch

    def kept_from_8(wanted: dict[LogQueue, int], **options: Any) -> Any:
        [found] = fetch(wanted, **options)
        [(queue, offset)] = wanted.items()
        if offset >= 8:
            return [found]
        return [type(found)(queue, error=OffsetOutOfRange(f"offset {offset} is not kept any more", 8, PER_QUEUE))]

    monkeypatch.setattr(log, "fetch", kept_from_8)
    with pytest.raises(OffsetOutOfRange, match="offset 0 is not kept"):
        read_arrow(log, "trade").read_all()
    said: list[str] = []
    found = read_arrow(log, "trade", queues=[1], on_missing=said.append).read_all()
    assert _offsets(found)[0] == (1, 8)
    assert said == ["offset 0 is not kept any more"]


def test_empty_fetch_within_the_range_of_a_log_is_an_error(log: LogAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "fetch", lambda *_, **__: [])
    with pytest.raises(StorageError, match="gives nothing at offset 0 of queue 0 of 'trade', which ends at 40"):
        read_arrow(log, "trade").read_all()


def test_missing_or_unreadable_ids_and_headers_become_null_or_empty() -> None:
    ids = pa.array([None, bytes(range(16))], pa.binary(16))
    assert id_texts(ids, pa.array([0, 12], pa.int16())).to_pylist() == [
        None,
        "00010203-0405-0607-0809-0a0b0c0d0e0f.12",
    ]
    assert id_texts(ids.slice(1), pa.array([3], pa.int16())).to_pylist() == ["00010203-0405-0607-0809-0a0b0c0d0e0f.3"]
    assert header_maps(pa.array([None, b"\xff\xff"])).to_pylist() == [[], None]


# ---- files


@pytest.fixture
def expected(log: LogAccess) -> pa.Table:
    return read_arrow(log, "trade").read_all()


def _read(path: Path) -> pa.Table:
    return ipc.open_file(path).read_all() if path.suffix == ".arrow" else pq.read_table(path, partitioning=None)


@pytest.mark.parametrize("format", [Format.PARQUET, Format.ARROW])
def test_exported_file_has_all_columns(log: LogAccess, expected: pa.Table, tmp_path: Path, format: Format) -> None:
    path = tmp_path / "new" / f"trade{format.value}"
    done = export(log, spans_of(log, "trade"), path, format)
    assert _read(path).equals(expected)
    assert (done.messages, done.files, done.size_bytes) == (len(expected), (path,), path.stat().st_size)
    assert list(path.parent.iterdir()) == [path]


def test_json_lines_export_is_lossless(log: LogAccess, expected: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "trade.jsonl"
    export(log, spans_of(log, "trade"), path, Format.JSON_LINES)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected.to_pylist(), strict=True):
        body = base64.b64decode(row.pop("body_base64")) or row["body"].encode()
        moments = {name: datetime.fromisoformat(row[name]) for name in ("born_at", "stored_at")}
        assert row | {"body": body, "headers": list(row["headers"].items())} | moments == wanted


def test_json_lines_are_readable_with_inferred_types(tmp_path: Path) -> None:
    bodies = [b"text"] * 30_000 + [b"\xff\x00", b""]
    path = tmp_path / "trade.jsonl"
    with open_log(tmp_path / "log", append=True) as log:
        LogProducer(log).send_many([Message("trade", body, ordering_key="one") for body in bodies])
        export(log, spans_of(log, "trade"), path, Format.JSON_LINES)
    query = f"select body, body_base64 from read_json('{path}') where body <> 'text' order by body_base64"
    found = duckdb.sql(query)
    assert found is not None, "a SELECT has rows"
    assert found.fetchall() == [("", ""), ("", "/wA=")]
    read = polars.read_ndjson(path, infer_schema_length=100)
    assert read.filter(polars.col("body") == "")["body_base64"].sort().to_list() == ["", "/wA="]


@pytest.mark.parametrize("size", [1, 50, 1_000_000])
def test_small_batches_are_written_in_row_groups(
    log: LogAccess, expected: pa.Table, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "_GROUP_COUNT", size)
    export(log, spans_of(log, "trade"), tmp_path / "trade.parquet", Format.PARQUET)
    assert _read(tmp_path / "trade.parquet").equals(expected)
    groups = pq.ParquetFile(tmp_path / "trade.parquet").num_row_groups
    assert groups == {1: QUEUES, 50: 2, 1_000_000: 1}[size]


@pytest.mark.parametrize(
    "partitions", [[], [PartitionScheme.QUEUE], [PartitionScheme.DAY], [PartitionScheme.QUEUE, PartitionScheme.DAY]]
)
def test_partitioned_export_has_each_message_in_its_partition(
    log: LogAccess, expected: pa.Table, tmp_path: Path, partitions: list[PartitionScheme]
) -> None:
    to = tmp_path / "trade"
    done = export(log, spans_of(log, "trade"), to, Format.PARQUET, partitions=partitions)
    assert done.messages == len(expected)
    assert sorted(done.files) == sorted(to.rglob("*.parquet"))
    assert len(done.files) == QUEUES * (2 if PartitionScheme.DAY in partitions else 1)
    found = []
    for path in done.files:
        names = dict(part.split("=") for part in path.relative_to(to).parts[:-1])
        rows = _read(path).to_pylist()
        assert len({row.get("queue", names.get("queue")) for row in rows}) == 1
        assert [row["offset"] for row in rows] == sorted(row["offset"] for row in rows)
        for row in rows:
            assert names.get("day", f"{row['stored_at']:%Y-%m-%d}") == f"{row['stored_at']:%Y-%m-%d}"
            found.append(row | {"queue": row.get("queue", int(names.get("queue", "-1")))})
    assert sorted(found, key=lambda row: (row["queue"], row["offset"])) == expected.to_pylist()
    from pyarrow import dataset  # with pandas, which no other test needs

    assert dataset.dataset(to, partitioning="hive").count_rows() == len(expected)


def test_alternating_days_keep_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "_FILES_OPEN_MAX", 2)
    days = [0, 1, 0, 2, 0, 3, 0]
    with open_log(tmp_path / "log", append=True) as log:
        stored_at_us = [us_of_datetime(MIDNIGHT + timedelta(days=day)) for day in days]
        for each in stored_at_us:
            log.append([Append("t", 0, encode(FrameColumns([b"x"], [each]), Compression.NONE))])
        done = export(log, spans_of(log, "t"), tmp_path / "t", Format.ARROW, partitions=[PartitionScheme.DAY])
    offsets = sorted(offset for path in done.files for offset in _read(path)["offset"].to_pylist())
    assert offsets == list(range(len(days)))
    assert "queue-0-1.arrow" in {path.name for path in done.files}


def test_failed_export_leaves_no_file_and_existing_file_is_refused(
    log: LogAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = spans_of(log, "trade")

    def interrupted(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(log, spans, tmp_path / "trade.parquet", Format.PARQUET, on_written=interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(log, spans, tmp_path / "trade", Format.PARQUET, partitions=[], on_written=interrupted)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "trade.parquet").write_text("mine")
    with pytest.raises(MisuseError, match=r"trade.parquet exists: name another one, or delete it"):
        export(log, spans, tmp_path / "trade.parquet", Format.PARQUET)
    assert (tmp_path / "trade.parquet").read_text() == "mine"
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot be written: .*; or name another place"):
        export(log, spans, tmp_path / "file" / "trade.parquet", Format.PARQUET)


@pytest.mark.parametrize("has_hard_links", [True, False])
def test_file_created_meanwhile_is_not_replaced(
    log: LogAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_hard_links: bool
) -> None:
    spans = spans_of(log, "trade")
    file, directory = tmp_path / "trade.parquet", tmp_path / "trade"

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if has_hard_links:
        with pytest.raises(MisuseError, match=r"trade.parquet exists"):
            export(log, spans, file, Format.PARQUET, on_written=lambda _: file.write_text("mine"))
        assert file.read_text() == "mine"
        file.unlink()
    else:
        monkeypatch.setattr("os.link", refused)
    assert export(log, spans, file, Format.PARQUET).files == (file,)
    assert len(_read(file)) == QUEUES * PER_QUEUE

    def made(_: int) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "mine").touch()

    with pytest.raises(StorageError, match=r"trade cannot be written: Directory not empty"):
        export(log, spans, directory, Format.PARQUET, partitions=[], on_written=made)
    assert [path.name for path in directory.iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trade", "trade.parquet"]


def test_unreadable_log_is_not_reported_as_an_unwritable_file(
    log: LogAccess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    spans = spans_of(log, "trade")
    monkeypatch.setattr(log, "fetch", broken)
    with pytest.raises(OSError, match="Input/output error") as caught:
        export(log, spans, tmp_path / "trade.parquet", Format.PARQUET)
    assert not isinstance(caught.value, StorageError)
    assert list(tmp_path.iterdir()) == []


# ---- the command


def test_command_writes_the_files_that_it_lists(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "trade.parquet"
    told = json_of("metaq", "export", "trade", "--log", str(root), "--into", str(path), "--queue", "1", "--from", "10")
    assert told["messages"] == PER_QUEUE - 10
    assert told["files"] == [str(path)]
    assert told["queues"] == [{"queue": 1, "begin": 10, "end": PER_QUEUE}]
    assert _read(path)["offset"].to_pylist() == list(range(10, PER_QUEUE))
    directory = tmp_path / "days"
    by_day = ("--partition", "day", "--format", "arrow", "--before", "2026-05-02T00:00:00Z")
    line = said("metaq", "export", "trade", "--log", str(root), "--into", str(directory), *by_day)
    assert line.startswith(f"{20 * QUEUES} messages of 3 queues are in {directory} in 3 files, ")
    assert {path.suffix for path in directory.rglob("*") if path.is_file()} == {".arrow"}


def test_command_names_invalid_options(root: Path, tmp_path: Path) -> None:
    base = ("metaq", "export", "trade", "--log", str(root), "--into")
    path = str(tmp_path / "trade.parquet")
    assert "--partition is for directories" in said(*base, path, "--partition", "day", status=2)
    assert "is the name of a file of .parquet, not of arrow" in said(*base, path, "--format", "arrow", status=2)
    said(*base, path)
    assert "exists: name another one" in said(*base, path, status=1)
    assert "its topics are told, trade" in said(
        "metaq", "export", "none", "--log", str(root), "--into", path + "x", status=1
    )


def test_missing_messages_stop_the_command_unless_they_are_skipped(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with Log(root) as log:
        payload = encode(FrameColumns([b"x"], [1]), Compression.NONE)
        log.append([Append("t", 0, payload), Append("t", 0, hole(6, 1)), Append("t", 0, payload)])
    to = str(tmp_path / "t.jsonl")
    assert "missing" in said("metaq", "export", "t", "--log", str(root), "--into", to, status=1)
    assert said("metaq", "export", "t", "--log", str(root), "--into", to, "--skip-missing").startswith("2 messages")


@pytest.mark.parametrize("at_server", [False, True])
def test_highly_compressed_topic_is_read_in_pieces(tmp_path: Path, at_server: bool) -> None:
    with open_log(tmp_path / "log", append=True) as log:
        append_compressible(log, "t", 40)
        [fetched] = log.fetch({LogQueue("t", 0): 0}, size_bytes_max=1024 * 1024)
        assert len(fetched.batches) == 40, "one fetch returns all of it"
    with ExitStack() as opened:
        where: Path | str = tmp_path / "log"
        if at_server:
            where = opened.enter_context(served(MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0")))
        before = pa.total_allocated_bytes()
        found = iter(read_arrow(where, "t"))
        sizes = [next(found).nbytes]
        assert pa.total_allocated_bytes() - before < 20 * 1024 * 1024, "more is unpacked than was asked for"
        sizes += [batch.nbytes for batch in found]
        assert sum(sizes) > 40 * 1024 * 1024
        assert max(sizes) < 10 * 1024 * 1024
        within = list(read_arrow(where, "t", start=Start.offset(3), until=Start.offset(70)))
        assert [offset for batch in within for offset in batch["offset"].to_pylist()] == list(range(3, 70))
