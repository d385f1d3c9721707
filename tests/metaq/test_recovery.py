"""After a power cut: torn ends are truncated, cells rebuilt, only intact data is served, and synced data is kept."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, fill, readable
from txmsg.errors import CorruptLog
from txmsg.metaq.store.commit_log import files_of
from txmsg.metaq.store.log import Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.state import write_checked
from txmsg.metaq.store.topics import Flush, TopicSettings, write_topics


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of three queues whose last frames are not synced: copied for each test."""
    root = tmp_path_factory.mktemp("log")
    with Log(root) as log:
        for _ in range(3):
            fill(log, "a", 0, [2, 1])
            fill(log, "b", 3, [3])
    return root


def _log_file(root: Path) -> Path:
    [first] = files_of(root / "commitlog", ".log")
    return root / "commitlog" / f"{first:020}.log"


def _copy(small: Path, to: Path, *, checkpoint: bool = False) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(small, to)
    if not checkpoint:
        (to / "checkpoint").unlink()
    return to


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs return at once: lost data is cut off by the test."""
    for sync in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, sync, lambda _: None)


@pytest.mark.usefixtures("quick_disk")
def test_log_truncated_at_any_byte_opens_and_accepts_appends(small: Path, tmp_path: Path) -> None:
    whole = _log_file(small).read_bytes()
    ends = [header_end for header_end in _frame_ends(small)]
    for size in [*range(0, ends[-2], 13), *range(ends[-2] - 1, ends[-1] + 1)]:
        root = _copy(small, tmp_path / "log")
        shutil.rmtree(root / "queues")  # cells of synchronous topics follow the disk
        _log_file(root).write_bytes(whole[:size])
        with Log(root) as log:
            kept = max([0, *(end for end in ends if end <= size)])
            assert log.reader.commit_log.end_position() == kept, f"cut at {size}"
            end = log.reader.queue("a", 0).end_offset()
            log.append([batch("a", 0, end, 1)])
        assert readable(root, "a", 0) == bodies("a", 0, 0, end + 1)
        assert readable(root, "b", 3) == bodies("b", 3, 0, len(readable(root, "b", 3)))


def test_cells_of_a_timed_topic_can_be_ahead_of_the_disk(small: Path, tmp_path: Path) -> None:
    root = _copy(small, tmp_path / "log")
    _log_file(root).write_bytes(_log_file(small).read_bytes()[:-1])
    with pytest.raises(CorruptLog, match=r"damaged: position .*, and it had been on disk"):
        Log(root)
    write_topics(root, {"b": TopicSettings(flush=Flush.TIMED)})
    with Log(root) as log:
        assert (log.reader.queue("a", 0).end_offset(), log.reader.queue("b", 3).end_offset()) == (9, 6)


def test_loss_of_checkpointed_data_is_an_error(small: Path, tmp_path: Path) -> None:
    damages: dict[str, Callable[[Path], object]] = {
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-8]),
        "gone": lambda path: path.unlink(),
        "another name": lambda path: path.rename(path.with_name(f"{8:020}.log")),
    }
    for name, damaged in damages.items():
        root = _copy(small, tmp_path / name, checkpoint=True)
        damaged(_log_file(root))
        with pytest.raises(CorruptLog, match=r"is damaged: .*; run `txmsg metaq check`"):
            Log(root)


def test_cells_that_disagree_with_the_checkpoint_are_rebuilt(small: Path, tmp_path: Path) -> None:
    damages: dict[str, Callable[[Path], object]] = {
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
        "gone": lambda path: path.unlink(),
        "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
        "doubled": lambda path: path.write_bytes(path.read_bytes() * 2),
        "foreign": lambda path: path.write_bytes((small / "queues/b/0003" / path.name).read_bytes()),
    }
    for name, damaged in damages.items():
        root = _copy(small, tmp_path / name, checkpoint=True)
        damaged(root / "queues/a/0000/00000000000000000000.cells")
        with Log(root) as log:
            assert fill(log, "a", 0, [1]) == 10, name
        assert readable(root, "a", 0) == bodies("a", 0, 0, 10), name


def _frame_ends(root: Path) -> list[int]:
    from txmsg.metaq.store.frames import frames
    from txmsg.metaq.store.state import identity_of

    log = LogReader(root).commit_log
    return [each.end for each in frames(log, identity_of(root, create=False).log_id, 0, log.end_position())]


def test_lost_cells_are_rebuilt(small: Path, tmp_path: Path) -> None:
    root = _copy(small, tmp_path / "log")
    shutil.rmtree(root / "queues")
    Log(root).close()
    assert readable(root, "a", 0) == bodies("a", 0, 0, 9)
    assert readable(root, "b", 3) == bodies("b", 3, 0, 9)


def test_recovery_reads_only_frames_after_the_checkpoint(small: Path, tmp_path: Path) -> None:
    root = _copy(small, tmp_path / "log", checkpoint=True)
    with Log(root, LogConfig(checkpoint_s=3600)) as log:
        fill(log, "a", 0, [5])
        for cells in root.glob("queues/a/0000/*.cells"):
            cells.write_bytes(cells.read_bytes()[:-7])  # as after a power cut: the cells were never synced
        copied = tmp_path / "copy"
        shutil.copytree(root, copied)
    with Log(copied):
        assert readable(copied, "a", 0) == bodies("a", 0, 0, 14)


def test_a_flipped_bit_is_never_served(small: Path, tmp_path: Path) -> None:
    whole = _log_file(small).read_bytes()
    chosen = random.Random(7).sample(range(len(whole) * 8), 400)
    noticed = 0
    root = _copy(small, tmp_path / "log", checkpoint=True)
    for bit in chosen:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        _log_file(root).write_bytes(damaged)
        for topic, queue in (("a", 0), ("b", 3)):
            expected = bodies(topic, queue, 0, 9)
            reader = LogReader(root).queue(topic, queue)
            offset = 0
            while offset < 9:
                try:
                    found = reader.fetch(offset, size_bytes_max=1)
                except CorruptLog:
                    noticed += 1
                    offset += 1
                    continue
                for each in found:
                    assert each.to_arrow()["body"].to_pylist() == expected[each.base_offset : each.end_offset]
                    offset = each.end_offset
    assert noticed > 300, "bits of padding alone go unnoticed"


def test_damage_of_synced_data_is_not_mistaken_for_a_torn_end(small: Path, tmp_path: Path) -> None:
    root = _copy(small, tmp_path / "log")
    ends = _frame_ends(small)
    damaged = bytearray(_log_file(root).read_bytes())
    damaged[ends[2] + 100] ^= 1
    _log_file(root).write_bytes(damaged)
    with pytest.raises(CorruptLog, match=f"position {ends[2]}.*metaq check"):
        Log(root)
    assert _log_file(root).read_bytes() == damaged, "nothing is cut where something safe would be lost"


def test_a_log_of_another_format_or_without_its_identity_is_refused(small: Path, tmp_path: Path) -> None:
    root = _copy(small, tmp_path / "log")
    write_checked(root / "log.json", {"version": 2, "log_id": 1, "generation": 1})
    with pytest.raises(CorruptLog, match="format 2"):
        Log(root)
    (root / "log.json").unlink()
    with pytest.raises(CorruptLog, match=r"log\.json"):
        Log(root)


def test_frames_of_another_log_are_ignored(small: Path, tmp_path: Path) -> None:
    with Log(tmp_path / "other") as log:
        fill(log, "a", 0, [2, 1])
    root = _copy(small, tmp_path / "log")
    _log_file(root).write_bytes(_log_file(tmp_path / "other").read_bytes())
    shutil.rmtree(root / "queues")
    with Log(root) as log:
        assert log.reader.queue("a", 0).end_offset() == 0


def test_a_frame_of_a_log_with_the_same_queues_is_not_served(small: Path, tmp_path: Path) -> None:
    """Same positions, sizes and offsets: the frame's log id and checksum differ."""
    root = tmp_path / "other"
    with Log(root) as log:
        for _ in range(3):
            fill(log, "a", 0, [2, 1])
            fill(log, "b", 3, [3])
    assert _log_file(root).stat().st_size == _log_file(small).stat().st_size
    _log_file(root).write_bytes(_log_file(small).read_bytes())
    with pytest.raises(CorruptLog, match="there is another frame"):
        readable(root, "a", 0)
    with pytest.raises(CorruptLog, match="another position or log"):
        Log(root)
