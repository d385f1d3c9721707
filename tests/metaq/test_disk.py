"""The disk is full, fails, or is read-only; processes are killed: errors are clear, and work continues where it can.

The small disk is a tmpfs, which only root may mount.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.metaq.logs import batch, bodies, fill, read_all, read_around, readable
from tests.waiting import until
from txmsg.errors import OffsetOutOfRange, StorageError
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.fsck.check import check
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.store.commit_log import files_of
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.queues import OpenFiles
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings

SIZE_BYTES = 1024 * 1024
LARGE = Append("large", 0, encode(FrameColumns([os.urandom(100_000)], [1])))
DEADLINE_S = 60


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def take_all_room(disk: Path) -> Path:
    """Fill the file system with a file and return the file, to be deleted."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file, suppress(OSError):  # another program has used the free space
        while free := os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize:
            file.write(bytes(free))
    return ballast


def test_full_disk_refuses_appends_as_a_whole_until_there_is_room(disk: Path) -> None:
    with Log(disk / "log", LogConfig(flush_s=3600)) as log:
        fill(log, "t", 0, [3])
        ballast = take_all_room(disk)
        for _ in range(2):
            with pytest.raises(StorageError, match="is full: No space left on device: free space; nothing was"):
                log.append([batch("t", 0, 3, 1), LARGE])
        assert readable(disk / "log", "t", 0) == bodies("t", 0, 0, 3)
        for settings in (TopicSettings(flush=Flush.TIMED), TopicSettings(retention_s=1)):
            with pytest.raises(StorageError, match="cannot be written: No space left"):
                log.set_topic("t", settings)
            assert log.settings_of("t") == TopicSettings()
        ballast.unlink()
        assert log.append([batch("t", 0, 3, 1), LARGE]) == [3, 0]
    with Log(disk / "log"):
        assert readable(disk / "log", "t", 0) == bodies("t", 0, 0, 4)


def test_messages_without_room_for_their_cells_become_visible_once_there_is_room(disk: Path) -> None:
    with Log(disk / "log", LogConfig(flush_s=3600)) as log:
        fill(log, "t", 0, [1])
        ballast = take_all_room(disk)
        assert log.append([batch("new", 0, 0, 1)]) == [0], "it fits the page that the log's last file has"
        assert readable(disk / "log", "new", 0) == [], "its cell does not"
        with pytest.raises(
            StorageError, match="nothing was appended, and the messages before it are on disk but not visible"
        ):
            log.append([batch("t", 0, 1, 1)])
        ballast.unlink()
        log.flush()
        assert readable(disk / "log", "new", 0) == bodies("new", 0, 0, 1)
        assert log.append([batch("t", 0, 1, 1)]) == [1]


def test_partially_written_cell_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, files = tmp_path / "cells", OpenFiles(10)
    files.append(str(path), b"a" * 40, 0)
    write = os.write

    def nearly_full(fd: int, data: bytes) -> int:
        if os.fstat(fd).st_size >= 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[:20])

    with monkeypatch.context() as failing:
        failing.setattr(os, "write", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            files.append(str(path), b"b" * 40, 40)
    assert path.read_bytes() == b"a" * 40
    files.append(str(path), b"b" * 40, 40)
    assert path.read_bytes() == b"a" * 40 + b"b" * 40
    files.close()


def test_full_disk_does_not_stop_the_flusher_and_is_logged_once(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = LogConfig(flush_s=0.01, checkpoint_s=0.02, topic=TopicSettings(flush=Flush.TIMED))
    with caplog.at_level(logging.WARNING, "txmsg.metaq.store.log"), Log(disk / "log", config) as log:
        fill(log, "t", 0, [1])
        checkpoint = disk / "log" / "checkpoint"
        until(checkpoint.exists)

        def is_told() -> bool:
            take_all_room(disk)  # again and again: one that was written meanwhile has left a little
            return bool(caplog.records)

        until(is_told)
        assert "checkpoint cannot be written: No space left" in caplog.text
        (disk / "ballast").unlink()
        checkpoint.unlink()
        until(checkpoint.exists)
        fill(log, "t", 0, [1])
    assert len(caplog.records) == 1
    assert readable(disk / "log", "t", 0) == bodies("t", 0, 0, 2)


def test_group_member_gets_an_error_on_a_full_disk_and_continues_once_there_is_room(disk: Path) -> None:
    queue = LogQueue("t", 0)
    with open_log(disk / "log", append=True) as access:
        access.append([batch("t", 0, 0, 1)])
        member = access.join("g", ["t"])
        ballast = take_all_room(disk)
        with pytest.raises(StorageError, match="a file of a group cannot be written: No space left on device"):
            member.take_queues([queue])
        ballast.unlink()
        assert member.take_queues([queue]) == {queue: 0}


def test_opening_a_log_on_a_full_disk_fails_until_there_is_room(disk: Path) -> None:
    with Log(disk / "log", LogConfig(flush_s=3600)) as log:
        fill(log, "t", 0, [1])
        fill(log, "u", 0, [1])
    for cells in (disk / "log").glob("queues/*/*/*.cells"):
        cells.unlink()
    (disk / "log" / "checkpoint").unlink()
    ballast = take_all_room(disk)
    with pytest.raises(StorageError, match="free space"):
        Log(disk / "log")
    ballast.unlink()
    with Log(disk / "log"):
        assert readable(disk / "log", "u", 0) == bodies("u", 0, 0, 1)


def test_log_on_a_read_only_disk_can_be_read(disk: Path) -> None:
    with Log(disk / "log", LogConfig(file_size_bytes_max=1000)) as log:
        log.append([Append("t", 0, encode(FrameColumns([b"x"] * 5, [1], key=["a", "b"] * 2 + ["a"])))] * 10)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        with pytest.raises(
            StorageError,
            match=r"cannot be written: Read-only file system: .*; reading needs no write permission",
        ):
            Log(disk / "log")
        with pytest.raises(StorageError, match="cannot be written: Read-only file system"):
            Log(disk / "new")
        reader = LogReader(disk / "log")
        assert len(read_all(reader.queue("t", 0))) == 50
        assert len(reader.find("t", "a")) == 30
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


def test_messages_in_doubt_after_a_failed_sync_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, LogConfig(flush_s=3600))
    fill(log, "t", 0, [2])
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", _fails)
        with pytest.raises(StorageError, match="cannot be synced: Input/output error; open it again"):
            log.append([batch("t", 0, 2, 5)])
    with pytest.raises(StorageError, match=r"accepts no more appends: .* cannot be synced"):
        log.append([batch("t", 0, 2, 1)])
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 2)
    log.close()
    with Log(tmp_path) as log:
        assert fill(log, "t", 0, [1]) == 3, "the batch in doubt is gone, and its offsets are given anew"
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 3)


def _fails(_: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_log_closes_although_its_last_sync_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = LogConfig(flush_s=3600, topic=TopicSettings(flush=Flush.TIMED))
    log = Log(tmp_path, config)
    fill(log, "t", 0, [2])
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", _fails)
        with pytest.raises(StorageError, match="cannot be synced: Input/output error"):
            log.close()
    log.close()
    Log(tmp_path, config).close()


def test_failed_opening_of_a_log_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        fill(log, "u", 0, [2])
    (tmp_path / "checkpoint").unlink()
    write, writes = os.write, []

    def nearly_full(fd: int, data: bytes) -> int:
        writes.append(fd)
        if len(writes) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    with monkeypatch.context() as failing:
        failing.setattr(os, "write", nearly_full)
        with pytest.raises(StorageError, match="free space, and open it"):
            Log(tmp_path)
    assert [file.path for file in psutil.Process().open_files() if tmp_path in Path(file.path).parents] == []


def test_unexpected_end_of_the_flusher_stops_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path, LogConfig(flush_s=0.01, topic=TopicSettings(flush=Flush.TIMED))) as log:
        fill(log, "t", 0, [1])
        monkeypatch.setattr(log._end, "sync", lambda _: 1 / 0)

        def stopped() -> bool:
            try:
                log.append([batch("t", 0, log.reader.queue("t", 0).end_offset(), 1)])
            except StorageError as exc:
                return "its flushing ended with ZeroDivisionError" in str(exc)
            return False

        until(stopped)


def test_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []

    def short(fd: int, parts: Sequence[bytes]) -> int:
        if not cut:
            cut.append(os.write(fd, b"".join(parts)[:-5]))
            return cut[0]
        return writev(fd, parts)

    writev = os.writev
    with Log(tmp_path) as log:
        monkeypatch.setattr("txmsg.metaq.store.commit_log._PARTS_MAX", 2)
        monkeypatch.setattr(os, "writev", short)
        log.append([batch("t", 0, 0, 3), batch("t", 1, 0, 3), batch("t", 2, 0, 3)])
        assert cut
        assert check(tmp_path).report.problems == []
        for queue in range(3):
            assert len(read_around(log.reader.queue("t", queue))) == 3


WRITER = """
import sys
from pathlib import Path
from tests.metaq.logs import batch
from txmsg.metaq.store.log import Log, LogConfig
with Log(Path(sys.argv[1]), LogConfig(file_size_bytes_max=20_000)) as log:
    offset = log.reader.queue("t", 0).end_offset()
    while True:
        log.append([batch("t", 0, offset, 7)])
        offset += 7
        print(offset, flush=True)
"""


def test_killed_writer_loses_no_acknowledged_message_while_readers_continue(tmp_path: Path) -> None:
    Log(tmp_path).close()
    reader = LogReader(tmp_path).queue("t", 0)
    found: list[bytes] = []

    def read_on() -> None:
        for each in reader.fetch(len(found)):
            found.extend(each.to_arrow()["body"].to_pylist())

    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged = 0
            for _ in range(60):
                acknowledged = int(writer.stdout.readline())
                read_on()
                assert len(found) >= acknowledged, "what is acknowledged is seen"
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                acknowledged = int(line) if line.endswith("\n") else acknowledged
        read_on()
        assert len(found) >= acknowledged
        with Log(tmp_path) as log:
            assert log.reader.queue("t", 0).end_offset() >= acknowledged
    read_on()
    assert found == bodies("t", 0, 0, len(found)) == readable(tmp_path, "t", 0)


def test_readers_continue_after_retention_and_get_the_remaining_range(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(file_size_bytes_max=500, retention_size_bytes=1500, checkpoint_s=3600)) as log:
        fill(log, "t", 0, [3] * 12)
        reader = LogReader(tmp_path).queue("t", 0)
        reader.fetch(0, size_bytes_max=1)  # has the first file mapped, and a place
        assert log.delete_old()
        fresh = LogReader(tmp_path).queue("t", 0)
        begin, end = fresh.range()
        assert 0 < begin < end
        for each in (reader, fresh):
            with pytest.raises(OffsetOutOfRange, match=f"there are {begin} to {end - 1}") as caught:
                each.fetch(0)
            assert (caught.value.begin, caught.value.end) == (begin, end)
            assert read_all(each) == bodies("t", 0, begin, end - begin)


def test_file_is_kept_for_the_longest_retention_of_its_topics(tmp_path: Path) -> None:
    clock = [0.0]
    config = LogConfig(file_size_bytes_max=1, retention_s=1000, flush_s=3600)
    with Log(tmp_path, config, clock=lambda: clock[0]) as log:
        log.set_topic("short", TopicSettings(retention_s=10))
        log.set_topic("long", TopicSettings(retention_s=5000))
        appends = [["short"], ["short", "default"], ["long"], ["short"], ["short"]]
        for topics in appends:  # a file each
            log.append([batch(topic, 0, log.reader.queue(topic, 0).end_offset(), 1) for topic in topics])
        for number, first in enumerate(files_of(tmp_path / "commitlog", ".log")):
            os.utime(tmp_path / "commitlog" / f"{first:020}.log", (number, number))

        def left_at(now: float) -> int:
            clock[0] = now
            log.delete_old()
            return len(list((tmp_path / "commitlog").iterdir()))

        assert [left_at(now) for now in (10, 11, 1000, 1002, 5002, 5003)] == [5, 4, 4, 3, 3, 1]
        assert log.reader.queue("short", 0).range() == (3, 4)
        assert log.reader.queue("long", 0).range() == (1, 1), "it goes on where it was"


_READER = """
import sys
from pathlib import Path
from txmsg.metaq.store.reader import LogReader
[found] = LogReader(Path(sys.argv[1])).queue("t", 0).fetch(0)
print("read", flush=True)
sys.stdin.readline()
print(len(next(found.messages()).body) + len(found.to_arrow()["body"][0].as_buffer()))
"""


def test_reader_keeps_its_messages_when_the_log_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed sync truncates messages that another process has already read."""
    log = Log(tmp_path, LogConfig(flush_s=3600, topic=TopicSettings(flush=Flush.TIMED)))
    log.append([Append("t", 0, encode(FrameColumns([b"x" * 50_000], [1])))])
    with subprocess.Popen(
        [sys.executable, "-c", _READER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin
        assert reader.stdout
        assert reader.stdout.readline() == "read\n"
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", _fails)
            with pytest.raises(StorageError, match="cannot be synced"):
                log.flush()
        assert log.reader.commit_log.end_position() == 0
        assert reader.communicate("go on\n")[0] == "100000\n"
    assert reader.returncode == 0
    log.close()
