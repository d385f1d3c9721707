"""Appended messages are read by offset, by time, in any process; missing ones are reported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, fill, read_all, readable
from txmsg.errors import MessageTooLarge, MisuseError, OffsetOutOfRange, OffsetsMissing, StorageError
from txmsg.message import new_transaction_id_bytes
from txmsg.metaq.format.frame import Compression, FrameColumns, encode, hole
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.store.commit_log import CommitLogWriter
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings


def test_appended_messages_are_read_by_offset(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "trade", 0, [1, 3, 2])
        fill(log, "trade", 1, [4])
        queue = log.reader.queue("trade", 0)
        assert queue.range() == (0, 6)
        assert read_all(queue) == bodies("trade", 0, 0, 6)
        [first, *_] = queue.fetch(2)
        assert first.to_arrow()["offset"].to_pylist() == [2, 3], "a batch begins where it was asked for"
        assert LogReader(tmp_path).topics() == {"trade": [0, 1]}


@pytest.mark.parametrize("compression", Compression)
def test_every_column_round_trips(tmp_path: Path, compression: Compression) -> None:
    ids = [new_transaction_id_bytes() for _ in range(3)]
    columns = FrameColumns(
        body=[b"a" * 100, b"", b"c\0\xff"],
        stored_at_us=[30, 10, 20],
        transaction_id=b"".join(ids),
        n=[0, 1, 999],
        born_at_us=[1, 2, 3],
        key=["k", "", "ключ"],
        tag=["", "created", ""],
        ordering_key=["o1", "o2", ""],
    )
    with Log(tmp_path) as log:
        log.append([Append("t", 7, encode(columns, compression))])
        [found] = LogReader(tmp_path).queue("t", 7).fetch(0)
    arrow = found.to_arrow()
    assert arrow["body"].to_pylist() == columns.body
    assert arrow["key"].to_pylist() == ["k", None, "ключ"]
    assert arrow["ordering_key"].to_pylist() == ["o1", "o2", None]
    assert arrow["headers"].to_pylist() == [None, None, None]
    messages = list(found.messages())
    assert [message.id_bytes for message in messages] == ids
    assert [message.n for message in messages] == [0, 1, 999]
    assert [message.stored_at_us for message in messages] == [30, 10, 20]
    assert [(message.born_at_us, message.tag, message.offset, message.queue) for message in messages] == [
        (1, None, 0, 7),
        (2, "created", 1, 7),
        (3, None, 2, 7),
    ]


def test_append_to_several_queues_is_atomic(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        appends = [batch("t", queue, 0, 2) for queue in range(50)] + [batch("t", 0, 2, 1)]
        assert log.append(appends) == [0] * 50 + [2]
        with pytest.raises(MisuseError, match="offset 9 of topic t queue 1: the next one is 2"):
            log.append([batch("t", 0, 3, 1), batch("t", 1, 9, 1)])
        assert log.reader.queue("t", 0).end_offset() == 3, "half of a refused call was appended"
        fill(log, "t", 0, [1])
    assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 4)


def test_error_about_a_missing_offset_names_the_kept_range(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        for offset in (-1, 3, 99):
            with pytest.raises(OffsetOutOfRange, match="there are 0 to 1") as caught:
                log.reader.queue("t", 0).fetch(offset)
            assert (caught.value.begin, caught.value.end) == (0, 2)
        assert log.reader.queue("t", 0).fetch(2) == []
        assert log.reader.queue("t", 1).fetch(0) == []


def test_queue_can_begin_at_any_offset(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([Append("t", 0, hole(1000, 5)), batch("t", 0, 1000, 2)])
        queue = log.reader.queue("t", 0)
        for _ in range(2):
            with pytest.raises(OffsetsMissing) as caught:
                queue.fetch(0)
        assert (caught.value.begin, caught.value.end) == (0, 1000)
        assert [each.base_offset for each in queue.fetch(1000)] == [1000]
    with Log(tmp_path) as log:
        fill(log, "t", 0, [1])
        assert log.reader.queue("t", 0).range() == (0, 1003)


def test_offset_is_found_by_time(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.append([batch("t", 0, 10 * each, 10, at_us=max(1, 1000 * each)) for each in range(5)])
        queue = log.reader.queue("t", 0)
        assert [queue.offset_at(us) for us in (0, 1, 2, 1000, 1001, 4000, 4001)] == [0, 0, 10, 10, 20, 40, 50]


def test_files_roll_and_readers_follow(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(file_size_bytes_max=1000)) as log:
        reader = LogReader(tmp_path).queue("t", 0)
        fill(log, "t", 0, [5] * 20)
        assert read_all(reader) == bodies("t", 0, 0, 100)
        fill(log, "t", 0, [5] * 20)
        assert read_all(reader) == bodies("t", 0, 0, 200)
    assert len(list((tmp_path / "commitlog").iterdir())) > 5


def test_files_of_a_log_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    root = tmp_path / "logs/new"
    with LocalLog(root, append=True) as log:
        log.append([batch("t", 0, 0, 1)])
        log.set_topic("timed", TopicSettings(flush=Flush.TIMED))
        log.append([batch("timed", 0, 0, 1)])
        member = log.join("g", ["t"])
        member.take_queues([LogQueue("t", 0)])
        log.append([batch("%RETRY%g", 0, 0, 1)])
        log.seek("g", {LogQueue("t", 0): 0})
        files = [each for each in root.rglob("*") if each.is_file()]
        assert {"ahead", "lock", "begins.json", "0000"} <= {file.name for file in files}
        assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
        directories = [root, *(each for each in root.rglob("*") if each.is_dir())]
        assert {"commitlog", "queues", "%RETRY%g", "0000", "groups", "g"} <= {each.name for each in directories}
        assert {oct(each.stat().st_mode & 0o777) for each in directories} == {"0o700"}
    root.chmod(0o755)
    LocalLog(root, append=True).close()
    assert oct(root.stat().st_mode & 0o777) == "0o755", "who has opened it to others meant it"


def test_sync_during_a_file_roll_syncs_an_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Log(tmp_path).close()
    writer = CommitLogWriter(tmp_path / "commitlog", end=0)
    writer.append([bytes(8)], 1)
    dup = os.dup
    rolls: list[threading.Thread] = []

    def late(fd: int) -> int:
        if not rolls:
            rolls.append(threading.Thread(target=writer.roll))
            rolls[0].start()
            rolls[0].join(0.2)
        return dup(fd)

    monkeypatch.setattr(os, "dup", late)
    assert writer.sync() == 8
    rolls[0].join()
    assert writer.first == 8
    writer.close()


def test_retention_deletes_whole_files_and_readers_get_an_error(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(file_size_bytes_max=1000, retention_size_bytes=3000, checkpoint_s=3600)) as log:
        fill(log, "t", 0, [5] * 40)
        fill(log, "idle", 0, [1])
        reader = LogReader(tmp_path).queue("t", 0)
        assert reader.range() == (0, 200)
        assert log.delete_old()
        begin, end = reader.range()
        assert 0 < begin < end == 200
        with pytest.raises(OffsetOutOfRange, match=f"there are {begin} to 199"):
            reader.fetch(0)
        assert read_all(reader) == bodies("t", 0, begin, 200 - begin)
        fill(log, "t", 0, [5] * 40)
        log.delete_old()
        assert log.reader.queue("idle", 0).range() == (1, 1), "a queue whose messages are gone goes on where it was"
    with Log(tmp_path) as log:
        assert fill(log, "idle", 0, []) == 1
        fill(log, "t", 0, [1])


def test_second_writer_of_a_log_is_refused(tmp_path: Path) -> None:
    with Log(tmp_path):
        with pytest.raises(StorageError, match="is being written by process"):
            Log(tmp_path)
    Log(tmp_path).close()


def test_forked_child_neither_writes_nor_locks_the_log_of_its_parent(tmp_path: Path) -> None:
    log = Log(tmp_path, LogConfig(flush_s=3600))
    fill(log, "t", 0, [2])
    told, tell = os.pipe()
    waits, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        try:
            log.append([batch("t", 0, 2, 1)])
        except MisuseError as exc:
            log.close()
            os.write(tell, str(exc).encode())
        os.read(waits, 1)
        os._exit(0)
    try:
        os.close(tell)
        assert b"was forked from the one that writes the log" in os.read(told, 1000)
        with pytest.raises(StorageError, match="is being written by process"):
            Log(tmp_path)
        fill(log, "t", 0, [2])
        log.close()
        with Log(tmp_path) as again:
            assert fill(again, "t", 0, [1]) == 5
        assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 5)
    finally:
        for fd in (end, told, waits):
            os.close(fd)
        os.waitpid(pid, 0)


def test_checkpoint_does_not_use_the_reader_of_other_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path, LogConfig(flush_s=3600)) as log:
        fill(log, "t", 0, [2])
        monkeypatch.setattr(log.reader.commit_log, "files", lambda: 1 / 0)
        log.checkpoint()


def test_message_of_a_timed_topic_is_visible_at_once_and_on_disk_after_a_flush(tmp_path: Path) -> None:
    with Log(tmp_path, LogConfig(flush_s=3600)) as log:
        log.set_topic("t", TopicSettings(flush=Flush.TIMED))
        fill(log, "t", 0, [3])
        assert readable(tmp_path, "t", 0) == bodies("t", 0, 0, 3)
        fill(log, "synchronous", 0, [1])
    with Log(tmp_path) as log:
        assert (log.settings_of("t").flush, log.settings_of("synchronous").flush) == (Flush.TIMED, Flush.SYNC)


def test_readers_in_another_process_see_flushed_messages(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.metaq.logs import readable\n"
        "for _ in sys.stdin: print(len(readable(Path(sys.argv[1]), 't', 0)), flush=True)"
    )
    with (
        Log(tmp_path) as log,
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other,
    ):
        assert other.stdin is not None
        assert other.stdout is not None
        for count in range(1, 4):
            fill(log, "t", 0, [1])
            print(file=other.stdin, flush=True)
            assert other.stdout.readline() == f"{count}\n"
        other.stdin.close()


def test_empty_cells_file_is_an_empty_queue(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [1])
    directory = tmp_path / "queues/u/0000"
    directory.mkdir(parents=True)
    (directory / f"{0:020}.cells").touch()
    queue = LogReader(tmp_path).queue("u", 0)
    assert (queue.range(), queue.fetch(0)) == ((0, 0), [])
    with pytest.raises(OffsetOutOfRange, match="it is empty, and goes on at 0"):
        queue.fetch(1)
    with Log(tmp_path) as log:
        fill(log, "u", 0, [2])
        assert read_all(queue) == bodies("u", 0, 0, 2)


def test_columns_that_do_not_fit_a_frame_are_refused() -> None:
    with pytest.raises(MessageTooLarge, match="0 messages"):
        encode(FrameColumns([], [1]))
    with pytest.raises(ValueError, match="column key has 1 entries"):
        encode(FrameColumns([b"a", b"b"], [1], key=["x"]))
    with pytest.raises(ValueError, match="column transaction_id has 16"):
        encode(FrameColumns([b"a", b"b"], [1], transaction_id=bytes(16)))


def test_queue_before_its_first_cell_is_written_is_empty(tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        fill(log, "t", 0, [2])
        queue = log.reader.queue("new", 0)
        directory = tmp_path / "queues" / "new" / "0000"
        directory.mkdir(parents=True)
        (directory / f"{0:020}.cells").touch()
        assert queue.fetch(0) == []
        (tmp_path / "queues" / "t" / "0000" / f"{2:020}.cells").touch()
        reader = LogReader(tmp_path).queue("t", 0)
        assert reader.fetch(2) == []
        assert len(reader.fetch(0)) == 1


def test_log_processes_do_not_import_pandas(tmp_path: Path) -> None:
    """pandas is installed here, and PyArrow imports it when it builds an array from values that are not Arrow's."""
    program = """
import sys
import txmsg.metaq.consumer, txmsg.metaq.server.server, txmsg.binlog.mirror
from tests.metaq.logs import fill
from txmsg.metaq.format.batch import to_arrow
from txmsg.metaq.store.log import Log
from txmsg.wire.tags import parse_tags

with Log(sys.argv[1]) as log:
    fill(log, "t", 0, [3] * 20)
    batches = log.reader.queue("t", 0).fetch(1)
assert len(to_arrow(batches)) == 59
assert len(batches[0].to_arrow()) == 2
assert len(to_arrow(batches, parse_tags("a"))) == 0
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
