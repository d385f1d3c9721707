"""The verifier says equal of what is equal, and finds every kind of difference that was planted."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from tests.conftest import PostgresServer
from tests.integration.cli_harness import json_of, said
from tests.mirror.rows import Stored, append, lose_messages, make_queues, store, written
from txmsg.cli.main import main
from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.store.log import Log, LogConfig
from txmsg.verifier.compare import Report, verify

COUNT = 60
ROWS = [written("trade", queue, offset) for queue in (0, 1) for offset in range(COUNT)]
CELL_BYTES = 40
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def table(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    """A database that holds ROWS, and a topic without messages."""
    name = f"verified_{os.getpid()}_{next(_numbers)}"
    url = postgres.create_database(name, template=notify_template)
    make_queues(url, "trade", 2)
    make_queues(url, "idle", 1)
    store(url, ROWS)
    yield url
    postgres.drop_database(name)


def found_by(report: Report) -> dict[str, int]:
    return dict(report.differing)


@pytest.mark.parametrize("compression", Compression)
def test_a_mirror_is_equal_however_it_is_framed(table: str, tmp_path: Path, compression: Compression) -> None:
    for frame_size in (1, 7, COUNT):
        root = tmp_path / str(frame_size)
        append(root, ROWS, frame_size=frame_size, compression=compression, config=LogConfig(file_size_bytes_max=20_000))
        report = verify(table, root)
        assert report.is_equal, report.differences
        assert (report.messages, report.queues, report.in_holes) == (2 * COUNT, 3, 0)


def test_progress_is_told_up_to_the_end(table: str, tmp_path: Path) -> None:
    append(tmp_path, ROWS)
    told: list[tuple[int, int]] = []
    verify(table, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (2 * COUNT, 2 * COUNT)


FIELDS: list[tuple[str, dict[str, object]]] = [
    ("body", {"body": b"altered"}),
    ("key", {"key": "another"}),
    ("key", {"key": None}),
    ("tag", {"tag": "another"}),
    ("ordering key", {"ordering_key": "another"}),
    ("headers", {"headers": b""}),
    ("transaction id", {"id_bytes": bytes(16)}),
    ("n", {"n": 7}),
    ("born_at", {"born_at_us": 1}),
    ("stored_at", {"stored_at_us": 1_750_000_000_010_001}),
]


@pytest.mark.parametrize(("name", "change"), FIELDS)
def test_a_message_with_another_field_is_found(
    table: str, tmp_path: Path, name: str, change: dict[str, object]
) -> None:
    rows = list(ROWS)
    rows[10] = rows[10]._replace(**change)  # type: ignore[arg-type]
    append(tmp_path, rows)
    report = verify(table, tmp_path)
    assert found_by(report) == {"different": 1}
    assert str(report.differences[0]).startswith(f"different: topic trade queue 0 offset 10: {name} is ")


def _renumbered(rows: list[Stored]) -> list[Stored]:
    """With offsets as their places are: as a tailer would append them that knows no better."""
    places = {queue: itertools.count() for queue in (0, 1)}
    return [each._replace(offset=next(places[each.queue])) for each in sorted(rows, key=lambda each: each.queue)]


def _without(*places: int) -> list[Stored]:
    return [each for place, each in enumerate(ROWS) if place not in places]


def _moved() -> list[Stored]:
    return _renumbered([*ROWS[: COUNT - 1], *ROWS[COUNT:], ROWS[COUNT - 1]._replace(queue=1)])


def _swapped() -> list[Stored]:
    return _renumbered([*ROWS[:20], ROWS[21], ROWS[20], *ROWS[22:]])


PLACES: dict[str, tuple[list[Stored], dict[str, int], str]] = {
    "missing at the end": (_without(58, 59), {"missing": 2}, "missing: topic trade queue 0 offsets 58 to 59"),
    "missing altogether": (ROWS[:COUNT], {"missing": COUNT}, "missing: topic trade queue 1 offsets 0 to 59"),
    "lost in the middle": (
        _renumbered(_without(30)),
        {"different": 29, "missing": 1},
        "different: topic trade queue 0 offset 30: transaction id is ",
    ),
    "marked as a hole": (
        _without(30, 31),
        {"hole": 2},
        "hole: topic trade queue 0 offsets 30 to 31: marked as missing, but the table has it",
    ),
    "doubled": (
        _renumbered([*ROWS[:31], ROWS[30], *ROWS[31:]]),
        {"different": 29, "extra": 1},
        "different: topic trade queue 0 offset 31: transaction id is ",
    ),
    "swapped": (_swapped(), {"different": 2}, "different: topic trade queue 0 offset 20: transaction id is "),
    "moved to another queue": (_moved(), {"missing": 1, "extra": 1}, "missing: topic trade queue 0 offset 59"),
    "extra at the end": (
        [*ROWS, written("trade", 1, 60), written("trade", 1, 61)],
        {"extra": 2},
        "extra: topic trade queue 1 offsets 60 to 61",
    ),
    "in a queue without messages": (
        [*ROWS, written("idle", 0, 0)],
        {"extra": 1},
        "extra: topic idle queue 0 offset 0",
    ),
    "in a queue that is not there": (
        [*ROWS, written("trade", 2, 0)],
        {"extra": 1},
        "extra: topic trade queue 2 offset 0: the database has no such queue",
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_message_in_another_place_is_found(table: str, tmp_path: Path, name: str) -> None:
    rows, kinds, first = PLACES[name]
    append(tmp_path, rows)
    report = verify(table, tmp_path)
    assert found_by(report) == kinds
    assert str(report.differences[0]).startswith(first)


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
def test_bytes_that_are_not_as_they_were_written_are_found(table: str, tmp_path: Path, name: str) -> None:
    plant, kinds = BYTES[name]
    append(tmp_path, ROWS)
    plant(tmp_path)
    assert found_by(verify(table, tmp_path)) == kinds


def test_holes_that_retention_made_are_counted_and_an_unmarked_one_is_found(notify_url: str, tmp_path: Path) -> None:
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


def test_what_the_logs_retention_deleted_is_counted_and_no_difference(table: str, tmp_path: Path) -> None:
    append(tmp_path, ROWS, config=LogConfig(file_size_bytes_max=20_000))
    with Log(tmp_path, LogConfig(file_size_bytes_max=20_000, retention_size_bytes=50_000)) as log:
        assert log.delete_old()
    report = verify(table, tmp_path)
    assert report.is_equal, report.differences
    assert report.table_only > 0
    assert report.messages + report.table_only == 2 * COUNT


def test_only_the_topics_that_are_asked_for_are_compared(table: str, tmp_path: Path) -> None:
    append(tmp_path, [written("elsewhere", 0, 0)])
    report = verify(table, tmp_path, topics=["id*"])
    assert (report.is_equal, report.queues, report.other_topics) == (True, 1, ["elsewhere"])


def test_what_is_no_log_and_what_is_no_notify_database_is_said(table: str, tmp_path: Path, database_url: str) -> None:
    with pytest.raises(CorruptLog, match=r"is not a log: its log\.json cannot be read"):
        verify(table, tmp_path)
    append(tmp_path, ROWS[:1])
    with pytest.raises(StorageError, match=r"cannot be read: relation .* does not exist"):
        verify(database_url, tmp_path)
    with pytest.raises(StorageError, match=r"cannot be read: .*Connection refused"):
        verify("postgresql://nobody@127.0.0.1:1/x", tmp_path)


def test_the_command_compares_what_the_mirror_holds_and_tells(table: str, tmp_path: Path) -> None:
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
