"""The end of a queue can be truncated between frames of other queues; a queue can begin at any offset."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, fill, read_all, readable
from txmsg.errors import MisuseError, OffsetOutOfRange, OffsetsMissing
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.store.cells import Cell, CellFile
from txmsg.metaq.store.commit_log import CommitLogReader
from txmsg.metaq.store.keys import KeyFinder
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.reader import LogReader


@pytest.mark.parametrize("offset", range(10))
def test_queue_can_be_truncated_at_any_offset_and_continues_there(tmp_path: Path, offset: int) -> None:
    with Log(tmp_path) as log:
        for _ in range(3):
            fill(log, "t", 0, [2, 1])
            fill(log, "other", 0, [1])
        reader = LogReader(tmp_path).queue("t", 0)
        reader.fetch(0)  # remembers 9 as the next offset
        log.truncate("t", 0, offset)
        assert read_all(reader) == bodies("t", 0, 0, offset)
        if offset < 9:
            with pytest.raises(OffsetOutOfRange):
                reader.fetch(9)
        log.append([batch("t", 0, offset, 4)])
        assert read_all(reader) == bodies("t", 0, 0, offset + 4)
        assert readable(tmp_path, "other", 0) == bodies("other", 0, 0, 3)
    shutil.rmtree(tmp_path / "queues")
    (tmp_path / "checkpoint").unlink()
    with Log(tmp_path) as log:
        assert log.reader.queue("t", 0).range() == (0, offset + 4)
        fill(log, "t", 0, [1])
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, offset + 5), "what was cut comes back with its frames"


def test_truncation_interrupted_by_a_power_cut_is_completed_when_the_log_is_opened(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        fill(log, "t", 0, [2, 2])
        log.checkpoint()
        shutil.copytree(tmp_path / "log" / "queues", tmp_path / "queues")
        log.truncate("t", 0, 3)
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "queues")
    shutil.copytree(tmp_path / "queues", tmp_path / "copy" / "queues")  # as if no cell had been dropped
    Log(tmp_path / "copy").close()
    assert readable(tmp_path / "copy", "t", 0) == bodies("t", 0, 0, 3)


def test_queue_truncated_before_its_first_kept_offset_restarts_there(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([batch("t", 0, 50, 3)])
        log.truncate("t", 0, 20)
        assert LogReader(tmp_path).queue("t", 0).range() == (20, 20)
        log.append([batch("t", 0, 20, 2)])
    (tmp_path / "checkpoint").unlink()
    shutil.rmtree(tmp_path / "queues")
    with Log(tmp_path) as log:
        assert log.reader.queue("t", 0).range() == (20, 22)
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 20, 2)


def test_truncation_beyond_the_end_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        with pytest.raises(OffsetOutOfRange, match="there are 0 to 1"):
            log.truncate("t", 0, 3)
        log.truncate("t", 0, 2)
        log.truncate("new", 0, 0)
        assert (log.reader.commit_log.end_position(), log.reader.topics()) == (
            log.reader.queue("t", 0).fetch(0)[0].header.end,
            {"t": [0]},
        )


def test_new_queue_begins_at_the_offset_of_its_first_append(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        assert log.append([batch("t", 0, 1000, 2), batch("t", 0, 1002, 1), Append("t", 1, hole(7, 1), 3)]) == [
            1000,
            1002,
            3,
        ]
        with pytest.raises(MisuseError, match=r"offset 1004 .* the next one is 1003"):
            log.append([batch("t", 0, 1004, 1)])
        with pytest.raises(MisuseError, match=r"offset 12 .* the next one is 11"):
            log.append([batch("t", 2, 10, 1), batch("t", 2, 12, 1)])
    with Log(tmp_path) as log:
        queue = log.reader.queue("t", 0)
        assert (queue.range(), log.reader.queue("t", 2).range()) == ((1000, 1003), (0, 0))
        assert read_all(queue) == bodies("t", 0, 1000, 3)
        with pytest.raises(OffsetOutOfRange, match="there are 1000 to 1002"):
            queue.fetch(0)


def test_holes_are_listed_and_can_be_truncated(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        log.append([Append("t", 0, hole(10, 5)), batch("t", 0, 10, 1), Append("t", 0, hole(20, 5))])
        queue = log.reader.queue("t", 0)
        assert queue.holes() == [(2, 10), (11, 20)]
        log.truncate("t", 0, 15)
        assert (queue.holes(), queue.range()) == ([(2, 10), (11, 15)], (0, 15))
        log.truncate("t", 0, 5)
        assert (queue.holes(), queue.range()) == ([(2, 5)], (0, 5))
        with pytest.raises(OffsetsMissing) as caught:
            queue.fetch(3)
        assert (caught.value.begin, caught.value.end) == (2, 5)


def test_fork_truncates_queues_and_raises_the_generation_of_later_frames(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        for queue in range(3):
            fill(log, "t", queue, [1, 2])
        assert log.fork([("t", 0, 2), ("t", 2, 0)]) == 2
        fill(log, "t", 0, [1])
    with Log(tmp_path) as log:
        assert log.identity.generation == 2
        fill(log, "t", 1, [1])
        assert [log.reader.queue("t", queue).range() for queue in range(3)] == [(0, 3), (0, 4), (0, 0)]
        assert [each.header.generation for each in log.reader.queue("t", 0).fetch(0)] == [1, 2, 2]
        assert [each.header.generation for each in log.reader.queue("t", 1).fetch(0)] == [1, 1, 2]


def test_frames_of_one_append_call_are_in_one_file(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(file_size_bytes_max=1000)) as log:
        fill(log, "t", 0, [5])
        log.append([batch("t", 0, 5 + each, 1) for each in range(20)])
        fill(log, "t", 0, [5])
        assert len(list((tmp_path / "commitlog").iterdir())) == 3
        assert read_all(log.reader.queue("t", 0)) == bodies("t", 0, 0, 30)


def test_read_interrupted_by_growth_or_truncation_of_the_queue_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, size = CellFile.read, CellFile.__len__
    changes: list[Callable[[], object]] = []

    def change() -> None:
        if changes:
            changes.pop()()

    def read_late(self: CellFile, start: int, count: int) -> list[Cell]:
        if count > 1:
            change()
        return read(self, start, count)

    def cut_meanwhile(self: CellFile) -> int:
        found = size(self)
        if found > 3:
            change()
        return found

    with Log(tmp_path, LogConfig(flush_s=3600)) as log:
        fill(log, "t", 0, [2, 2])
        with monkeypatch.context() as growing:
            growing.setattr(CellFile, "read", read_late)
            changes.append(lambda: log.append([batch("t", 0, 4, 2)]))
            [found] = LogReader(tmp_path).queue("t", 0).fetch(4)
            assert (found.base_offset, found.end_offset, changes) == (4, 6, [])
        fill(log, "t", 0, [1] * 3)
        with monkeypatch.context() as cutting:
            cutting.setattr(CellFile, "__len__", cut_meanwhile)
            looks: list[Callable[[], int]] = [
                lambda: LogReader(tmp_path).queue("t", 0).fetch(2)[0].base_offset,
                lambda: LogReader(tmp_path).queue("t", 0).range()[0] + 2,
                lambda: LogReader(tmp_path).queue("t", 0).offset_at(2) - 2,
            ]
            for look in looks:
                end = log.reader.queue("t", 0).end_offset()
                changes.append(lambda: log.truncate("t", 0, 4))
                assert (look(), changes) == (2, [])
                fill(log, "t", 0, [1] * (end - 4))


def test_keys_can_be_looked_up_while_files_are_deleted_and_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = encode(FrameColumns([bytes(100)], [1], key=["k"]))
    with Log(tmp_path, LogConfig(file_size_bytes_max=600, flush_s=3600)) as log:
        for _ in range(9):
            log.append([Append("t", 0, keyed)])
        files, positions = CommitLogReader.files, KeyFinder.positions
        changes: list[Callable[[], object]] = []

        def files_early(self: CommitLogReader) -> list[int]:
            found = list(files(self))
            if changes:
                changes.pop()()
            return found

        def positions_early(self: KeyFinder, topic: str, key: str) -> Iterator[int]:
            found = list(positions(self, topic, key))
            log.delete_old(size_bytes_max=1)
            return iter(found)

        with monkeypatch.context() as rolling:
            rolling.setattr(CommitLogReader, "files", files_early)
            reader = LogReader(tmp_path)
            assert reader.log_id
            changes.append(lambda: [log.append([Append("t", 0, keyed)]) for _ in range(5)])
            assert len(reader.find("t", "k")) >= 9
            assert not changes
        monkeypatch.setattr(KeyFinder, "positions", positions_early)
        begin, end = 14 - len(LogReader(tmp_path).find("t", "k")), 14
        assert LogReader(tmp_path).queue("t", 0).range() == (begin, end)
        assert begin > 0
