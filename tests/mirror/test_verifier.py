"""The verifier reports equal logs as equal, and finds every planted difference."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from tests.integration.cli_harness import json_of, said
from tests.mirror.rows import Stored, append, lose_messages, make_queues, store, written
from tests.mirror.test_each_verified_log import COUNT, ROWS, EachVerifiedLog, found_by, without
from txmsg.binlog.verifier.compare import verify
from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.store.log import Log, LogConfig
from txmsg.ops.cli.main import main

CELL_BYTES = 40


class Directory:
    """A log in a directory."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def write(self, rows: Sequence[Stored]) -> None:
        append(self.where, rows)


class TestDirectory(EachVerifiedLog):
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Directory:
        return Directory(tmp_path)


@pytest.mark.parametrize("compression", Compression)
def test_comparison_does_not_depend_on_frame_sizes(table: str, tmp_path: Path, compression: Compression) -> None:
    for frame_size in (1, 7, COUNT):
        root = tmp_path / str(frame_size)
        append(root, ROWS, frame_size=frame_size, compression=compression, config=LogConfig(file_size_bytes_max=20_000))
        report = verify(table, root)
        assert report.is_equal, report.differences
        assert (report.messages, report.queues, report.in_holes) == (2 * COUNT, 3, 0)


def test_hole_over_messages_that_the_table_has_is_found(table: str, tmp_path: Path) -> None:
    append(tmp_path, without(30, 31))
    report = verify(table, tmp_path)
    assert found_by(report) == {"hole": 2}
    told = "hole: topic trade queue 0 offsets 30 to 31: marked as missing, but the table has it"
    assert str(report.differences[0]).startswith(told)


def _cells(root: Path) -> Path:
    [path] = root.glob("queues/trade/0000/*.cells")
    return path


def _drop_cell(root: Path) -> None:
    data = _cells(root).read_bytes()
    _cells(root).write_bytes(data[: 2 * CELL_BYTES] + data[3 * CELL_BYTES :])


def _repeat_cell(root: Path) -> None:
    data = _cells(root).read_bytes()
    _cells(root).write_bytes(data[: 3 * CELL_BYTES] + data[2 * CELL_BYTES :])


def _flip(root: Path, at: int) -> None:
    [path] = root.glob("commitlog/*.log")
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def _take_identity(root: Path) -> None:
    (root / "log.json").write_text('{"version": 1, "log_id": 1, "generation": 1}')


BYTES: dict[str, tuple[Callable[[Path], None], dict[str, int]]] = {
    "a frame that no cell names": (_drop_cell, {"missing": 7}),
    "a frame that two cells name": (_repeat_cell, {"doubled": 7}),
    "a bit of a header": (lambda root: _flip(root, 40), {"damaged": 7}),
    "a bit of a body": (lambda root: _flip(root, 1000), {"damaged": 7}),
    "another log's identity": (
        _take_identity,
        {"damaged": 2 * COUNT},
    ),
    "no cells at all": (lambda root: shutil.rmtree(root / "queues"), {"missing": 2 * COUNT}),
}


@pytest.mark.parametrize("name", BYTES)
def test_altered_bytes_are_found(table: str, tmp_path: Path, name: str) -> None:
    plant, kinds = BYTES[name]
    append(tmp_path, ROWS)
    plant(tmp_path)
    assert found_by(verify(table, tmp_path)) == kinds


def test_retention_holes_are_counted_and_an_unmarked_hole_is_found(notify_url: str, tmp_path: Path) -> None:
    make_queues(notify_url, "trade", 1)
    first = [written("trade", 0, offset) for offset in range(COUNT)]
    later = [written("trade", 0, offset) for offset in range(COUNT, COUNT + 10)]
    store(notify_url, first)
    lose_messages(notify_url)
    store(notify_url, later, segment=2)
    append(tmp_path / "whole", [*first, *later])
    append(tmp_path / "hole", [*first[:14], *later])
    append(tmp_path / "unmarked", [*first[:14], *later])
    _drop_cell(tmp_path / "unmarked")  # that of the hole
    append(tmp_path / "overlong", [*first[:14], *later[3:]])

    whole, hole, unmarked, overlong = (
        verify(notify_url, tmp_path / name) for name in ("whole", "hole", "unmarked", "overlong")
    )

    assert (whole.is_equal, whole.log_only, whole.in_holes, whole.messages) == (True, COUNT, 0, 10)
    assert (hole.is_equal, hole.log_only, hole.in_holes, hole.messages) == (True, 14, COUNT - 14, 10)
    assert found_by(unmarked) == {"unmarked": COUNT - 14}
    assert str(unmarked.differences[0]).startswith("unmarked: topic trade queue 0 offsets 14 to 59: a gap")
    assert found_by(overlong) == {"hole": 3}


def test_messages_deleted_by_retention_of_the_log_are_counted_and_not_a_difference(table: str, tmp_path: Path) -> None:
    append(tmp_path, ROWS, config=LogConfig(file_size_bytes_max=20_000))
    with Log(tmp_path, LogConfig(file_size_bytes_max=20_000, retention_size_bytes=50_000)) as log:
        assert log.delete_old()
    report = verify(table, tmp_path)
    assert report.is_equal, report.differences
    assert report.table_only > 0
    assert report.messages + report.table_only == 2 * COUNT


def test_invalid_log_and_invalid_notify_database_are_refused(table: str, tmp_path: Path, database_url: str) -> None:
    with pytest.raises(CorruptLog, match=r"is not a log: its log\.json cannot be read"):
        verify(table, tmp_path)
    append(tmp_path, ROWS[:1])
    with pytest.raises(StorageError, match=r"cannot be read: relation .* does not exist"):
        verify(database_url, tmp_path)
    with pytest.raises(StorageError, match=r"cannot be read: .*Connection refused"):
        verify("postgresql://nobody@127.0.0.1:1/x", tmp_path)


def test_command_compares_the_mirrored_messages_and_prints_a_report(table: str, tmp_path: Path) -> None:
    append(tmp_path, [*ROWS, written("idle", 0, 0)])
    compare = ("tailer", "verify", "--storage", table, "--metaq", str(tmp_path), "--wait", "1ms")
    told = said(*compare, "--exclude", "idle")
    assert f"messages    {2 * COUNT}" in told
    assert told.endswith("\nequal\n")
    with psycopg.connect(table) as connection:
        connection.execute("insert into txmsg.mirror (name, include, exclude) values ('part', '{i*}', '{}')")
    result = CliRunner().invoke(main, [*compare, "--name", "part"])
    assert result.exit_code == 1
    assert "extra: topic idle queue 0 offset 0\nNOT equal: 1 messages differ\n" in result.output
    assert json_of(*compare, "--topics", "tr*")["equal"] is True
