"""A check finds all damage and nothing else; a repair removes it and keeps everything intact."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest

from tests.metaq.corrupt import KINDS, PreparedLogs, damaged_logs, judge, mended, prepare
from tests.metaq.logs import batch, bodies, fill, read_all, readable
from txmsg.errors import CorruptLog, LogBusy, MisuseError, OffsetsMissing
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.fsck.check import check
from txmsg.metaq.fsck.groups import check_with_groups, repair_with_groups
from txmsg.metaq.fsck.repair import repair
from txmsg.metaq.fsck.report import Lost
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.protocol import error_of_log_error, log_error_of
from txmsg.metaq.store.commit_log import files_of, log_file
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> PreparedLogs:
    return prepare(tmp_path_factory.mktemp("material"))


@pytest.mark.parametrize("seed", [11, 12])
def test_every_kind_of_damage_is_found_and_never_served(material: PreparedLogs, tmp_path: Path, seed: int) -> None:
    results = [judge(material, *each) for each in damaged_logs(material, tmp_path, seed, len(KINDS))]
    assert {result.kind for result in results} == {kind.__name__ for kind in KINDS}
    assert [result for result in results if not result.found or result.wrong or result.silent] == []


def test_repaired_log_serves_all_intact_messages_and_accepts_appends(material: PreparedLogs, tmp_path: Path) -> None:
    results = [mended(material, *each) for each in damaged_logs(material, tmp_path, 13, 2 * len(KINDS))]
    assert [result for result in results if result.repaired] == []


def test_intact_log_has_no_problems_and_its_holes_are_reported(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(file_size_bytes_max=1000)) as log:
        fill(log, "t", 0, [2, 3] * 10)
        log.append([Append("t", 0, hole(60, 5)), batch("t", 0, 60, 2)])
        log.truncate("t", 0, 61)
        log.index_keys()
        assert check(tmp_path).report.problems == [], "an open log"
    report = check(tmp_path).report
    assert (report.problems, report.notes, report.lost) == ([], [], 0)
    assert report.holes == [Lost("t", 0, 50, 60)]


def test_error_about_a_damaged_queue_names_the_offset_to_continue_at(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2, 2, 2, 2])
        frames = [batch.header for batch in log.reader.queue("t", 0).fetch(0)]
    for frame in frames[1:3]:
        _flip(log_file(tmp_path / "commitlog", 0), frame.position + frame.start)
    with open_log(tmp_path) as reading:
        [first] = reading.fetch({LogQueue("t", 0): 0})
        assert first.batches[-1].end_offset == 2
        [damaged] = reading.fetch({LogQueue("t", 0): 2})
        assert isinstance(damaged.error, CorruptLog)
        assert damaged.error.next_offset == 6
        assert "txmsg group seek GROUP --log LOG --topic t --queue 0 --to 6" in str(damaged.error)
        assert [message.body for message in reading.fetch({LogQueue("t", 0): 6})[0].batches[0].messages()] == bodies(
            "t", 0, 6, 2
        )
    told = error_of_log_error(log_error_of(damaged.error))
    assert isinstance(told, CorruptLog)
    assert told.next_offset == 6


def test_queue_truncated_below_its_checkpoint_differs_from_one_with_lost_cells(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(flush_s=3600)) as log:
        fill(log, "cut", 0, [2] * 4)
        fill(log, "lost", 0, [2] * 4)
        log.checkpoint()
        log.truncate("cut", 0, 3)
        cells = tmp_path / f"queues/lost/0000/{0:020}.cells"
        cells.write_bytes(cells.read_bytes()[:80])
        assert readable(tmp_path, "cut", 0) == bodies("cut", 0, 0, 3)
        reader = LogReader(tmp_path).queue("lost", 0)
        assert reader.fetch(0)[-1].end_offset == 4
        for look in (lambda: reader.fetch(4), reader.range, reader.end_offset):
            with pytest.raises(CorruptLog, match="were on disk up to offset 8"):
                look()
        shutil.rmtree(tmp_path / "queues/lost")
        assert LogReader(tmp_path).topics() == {"cut": [0], "lost": [0]}


def test_concurrent_writes_are_not_damage(tmp_path: Path) -> None:
    config = LogConfig(file_size_bytes_max=20_000, flush_s=0.01, checkpoint_s=0.02, retention_size_bytes=60_000)
    begun, stopped = threading.Event(), threading.Event()

    def write() -> None:
        with Log(tmp_path, config) as log:
            log.set_topic("timed", TopicSettings(flush=Flush.TIMED))
            at = {"timed": 0, "safe": 0}
            while not stopped.is_set():
                for topic in at:
                    at[topic] = log.append([batch(topic, 0, at[topic], 5)])[0] + 5
                if at["safe"] % 250 == 0:
                    log.truncate("safe", 0, at["safe"] - 3)
                    at["safe"] -= 3
                    log.append([batch("safe", 0, at["safe"], 3)])
                    at["safe"] += 3
                    begun.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert begun.wait(60)
        reports = [check(tmp_path).report]
        deadline = time.monotonic() + 60
        while len(reports) < 30 or reports[0].end == reports[-1].end:
            assert time.monotonic() < deadline, "the writer has come no further"
            reports.append(check(tmp_path).report)
    finally:
        stopped.set()
        thread.join()
    assert [report.problems for report in reports if report.problems] == []


def test_queue_truncated_during_every_check_is_not_damage_and_real_damage_is_found(
    tmp_path: Path,
) -> None:
    with Log(tmp_path, LogConfig(flush_s=3600)) as log:
        fill(log, "t", 0, [5] * 10)
        fill(log, "damaged", 0, [1] * 3)
        log.checkpoint()
        looks = 0

        def cut(_: int) -> None:  # frames were read just now, and cells are read next
            nonlocal looks
            looks += 1
            end = log.reader.queue("t", 0).end_offset()
            log.truncate("t", 0, end - 3)
            log.append([batch("t", 0, end - 3, 3)])
            log.checkpoint()

        assert check(tmp_path, cut).report.problems == []
        assert looks > 1
        _flip(tmp_path / f"queues/damaged/0000/{0:020}.cells", 50)
        problems = check(tmp_path, cut).report.problems
        assert {problem.file for problem in problems} == {"queues/damaged/0000", f"queues/damaged/0000/{0:020}.cells"}


def test_hole_filled_during_a_check_is_not_damage(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [4, 4])
    path = log_file(tmp_path / "commitlog", 0)
    _flip(path, 120)
    repair(tmp_path)
    with Log(tmp_path) as log:

        def refill(_: int) -> None:
            if log.reader.queue("t", 0).holes():
                assert log.refill("t", 0, 0, batch("t", 0, 0, 4).payload)

        report = check(tmp_path, refill).report
        assert (report.problems, report.holes) == ([], [])


def test_crash_during_truncation_leaves_no_damage(tmp_path: Path) -> None:
    """The truncation is on disk, and the cells that it voids are not removed yet."""
    cells = tmp_path / f"log/queues/t/0000/{0:020}.cells"
    with Log(tmp_path / "log", LogConfig(flush_s=3600)) as log:
        fill(log, "t", 0, [2] * 5)
        log.checkpoint()
        before = cells.read_bytes()
        log.truncate("t", 0, 7)
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
    (tmp_path / "copy" / cells.relative_to(tmp_path / "log")).write_bytes(before)
    assert check(tmp_path / "copy").report.problems == []
    assert readable(tmp_path / "log", "t", 0) == bodies("t", 0, 0, 7)
    with Log(tmp_path / "copy"):
        assert readable(tmp_path / "copy", "t", 0) == bodies("t", 0, 0, 7)


def test_torn_end_is_reported_and_is_not_damage(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        log.checkpoint()
        before = {path: path.read_bytes() for path in (tmp_path / "checkpoint", *tmp_path.glob("queues/*/*/*"))}
        fill(log, "t", 0, [20])
    [file] = (tmp_path / "commitlog").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    for path, data in before.items():
        path.write_bytes(data)
    report = check(tmp_path).report
    assert report.problems == []
    assert "bytes at the end are not a whole frame" in report.notes[0]


def test_repair_sets_damaged_frames_aside_and_leaves_a_hole(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [4, 4, 4])
        [_, second, _] = log.reader.queue("t", 0).fetch(0)
    [file] = (tmp_path / "commitlog").iterdir()
    data = bytearray(file.read_bytes())
    data[second.header.position + 20] ^= 1
    file.write_bytes(data)
    [problem] = check(tmp_path).report.problems
    assert problem.lost == (Lost("t", 0, 4, 8),)
    assert problem.position == second.header.position
    repair(tmp_path)
    assert check(tmp_path).report.problems == []
    [aside] = (tmp_path / "damaged").iterdir()
    assert aside.read_bytes() == data[second.header.position : second.header.end]
    queue = LogReader(tmp_path).queue("t", 0)
    with pytest.raises(
        OffsetsMissing, match="offsets 4 to 7 of topic t queue 0 are missing: they were damaged"
    ) as caught:
        queue.fetch(4)
    assert (caught.value.begin, caught.value.end) == (4, 8)
    assert queue.holes() == [(4, 8)]
    assert repair(tmp_path) == [], "a whole log is left alone"


@pytest.mark.parametrize("number", range(3))
def test_repair_fills_a_hole_with_messages_found_elsewhere(tmp_path: Path, number: int) -> None:
    with Log(tmp_path, LogConfig(file_size_bytes_max=400)) as log:
        for base, at_us in ((0, 10), (4, 90), (8, 30)):
            log.append([batch("t", 0, base, 4, at_us=at_us)])
        log.index_keys()
        header = log.reader.queue("t", 0).fetch(4 * number)[0].header
    first = max(each for each in files_of(tmp_path / "commitlog", ".log") if each <= header.position)
    path = log_file(tmp_path / "commitlog", first)
    data = bytearray(path.read_bytes())
    data[header.position - first + 120] ^= 1
    path.write_bytes(data)
    repair(tmp_path)
    reader = LogReader(tmp_path).queue("t", 0)
    at_us = header.last_stored_at_us
    with Log(tmp_path) as log:
        assert log.reader.queue("t", 0).holes() == [(4 * number, 4 * number + 4)]
        with pytest.raises(MisuseError, match="are not a whole hole"):
            log.refill("t", 0, 4 * number, batch("t", 0, 4 * number, 3).payload)
        assert not log.refill("t", 0, 4 * number, encode(FrameColumns([b"x" * 400] * 4, [1]))), "larger than the hole"
        assert log.refill("t", 0, 4 * number, batch("t", 0, 4 * number, 4, at_us=at_us).payload)
        with pytest.raises(MisuseError, match="is not in a hole"):
            log.refill("t", 0, 4 * number, batch("t", 0, 4 * number, 4).payload)
        assert read_all(reader) == bodies("t", 0, 0, 12), "a reader of before sees them"
        assert check(tmp_path).report.problems == []
        fill(log, "t", 0, [2])
    shutil.rmtree(tmp_path / "queues")
    Log(tmp_path).close()
    assert check(tmp_path).report.problems == [], "cells that are made anew are as the frames say, too"
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 14)


def test_repair_of_a_log_with_a_writer_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path):
        with pytest.raises(LogBusy):
            repair(tmp_path)
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 0)


def test_retry_logs_and_files_of_groups_are_checked_and_repaired(tmp_path: Path) -> None:
    with open_log(tmp_path, append=True) as access:
        access.append([batch("t", 0, 0, 3)])
        member = access.join("g", ["t"])
        member.take_queues([LogQueue("t", 0)])
        for topic, counts in ((RETRIES + "g", (2, 1)), (DEAD_LETTERS + "g", (1,))):
            for count in counts:
                access.append([Append(topic, 0, encode(FrameColumns(bodies(topic, 0, 0, count), [1])))])
        assert check_with_groups(tmp_path).problems == [], "while all is open"
    [retries] = (tmp_path / "groups/g/retries/commitlog").iterdir()
    _flip(retries, 60)
    _flip(tmp_path / "groups/g/queues/t/0000", 40)
    (tmp_path / "groups/g/begins.json").write_text("{")

    report = check_with_groups(tmp_path)
    files = ["groups/g/begins.json", "groups/g/queues/t/0000", "groups/g/retries/commitlog"]
    assert [problem.file for problem in report.problems] == files
    assert [problem.way_out for problem in report.problems][:2] == ["delete the file, then seek the group"] * 2
    assert report.problems[2].lost == (Lost(RETRIES + "g", 0, 0, 2),)
    assert check(tmp_path).report.problems == [], "the log itself is whole"

    assert any("groups/g/retries: positions" in each for each in repair_with_groups(tmp_path))
    report = check_with_groups(tmp_path)
    assert ([problem.file for problem in report.problems], report.holes) == (files[:2], [Lost(RETRIES + "g", 0, 0, 2)])
    assert readable(tmp_path / "groups/g/dead_letters", DEAD_LETTERS + "g", 0) == bodies(DEAD_LETTERS + "g", 0, 0, 1)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
