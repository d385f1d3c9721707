"""Offsets that readers may have seen are not reassigned after a power cut: the hole is reported."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, fill, read_around
from tests.metaq.power import ForgetfulDisk
from txmsg.binlog.mirror.log_sink import LogSink
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.errors import OffsetsMissing, StorageError
from txmsg.message import QueueNumber
from txmsg.metaq.format.frame import FrameColumns, encode, hole
from txmsg.metaq.fsck.check import check
from txmsg.metaq.group.groups import LocalMember
from txmsg.metaq.interface import LogAccess, LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.protocol import appends_of, batch_of_append
from txmsg.metaq.store.ahead import AHEAD_MAX, queues_in_doubt
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.topics import Flush, TopicSettings

CONFIG = LogConfig(file_size_bytes_max=2000, flush_s=3600, checkpoint_s=3600)
TIMED = TopicSettings(flush=Flush.TIMED)
QUEUES = [LogQueue("safe", 0), LogQueue("timed", 0), LogQueue("timed", 1), LogQueue("mirrored", 0)]
MIRRORED = QUEUES[-1]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgetfulDisk]:
    disk = ForgetfulDisk(monkeypatch)
    yield disk
    disk.close()


class Reader:
    """Reads all queues and remembers the messages. Its caller stores the positions."""

    def __init__(self, log: LogAccess, read: dict[tuple[LogQueue, int], bytes]) -> None:
        self._log = log
        self._read = read
        self.passed: dict[LogQueue, list[tuple[int, int]]] = {}

    def read_to_the_end(self, queue: LogQueue, offset: int) -> int:
        """Read from an offset to the end. A redelivered message must be identical."""
        while found := self._log.fetch({queue: offset}, size_bytes_max=300):
            error = found[0].error
            if isinstance(error, OffsetsMissing):
                assert queue.topic == "timed", "only what was not on disk may be gone"
                assert "not given out again" in str(error)
                self.passed.setdefault(queue, []).append((offset, error.end))
                offset = error.end
                continue
            assert error is None, error
            for each in (message for one in found[0].batches for message in one.messages()):
                before = self._read.setdefault((queue, each.offset or 0), each.body)
                assert before == each.body, f"offset {each.offset} of {queue} was given out twice"
            offset = found[0].batches[-1].end_offset
        return offset


class Machine:
    """A log, a group that stores its offsets in it, and a reader and a table elsewhere."""

    def __init__(self, root: Path, choice: random.Random) -> None:
        self.choice = choice
        self.at = dict.fromkeys(QUEUES, 0)
        """Positions of the reader on another machine, as in a Spark checkpoint."""
        self.read: dict[tuple[LogQueue, int], bytes] = {}
        self.table: list[bytes] = []
        self._number = 0
        self._open(root)

    def _open(self, root: Path) -> None:
        self.root = root
        self.log = Log(root, CONFIG)
        if self.log.settings_of("timed") != TIMED:
            for topic in ("timed", "mirrored"):
                self.log.set_topic(topic, TIMED)
        self.access = LocalLog(root)
        self.member: LocalMember = self.access.join("g", ["safe", "timed"])

    def close(self) -> None:
        self.access.close()
        self.log.close()

    def step(self) -> None:
        match self.choice.choice(
            ["append"] * 5 + ["mirror", "read", "read", "handle", "handle", "flush", "checkpoint"]
        ):
            case "append":
                self.append(self.choice.choice(QUEUES[:-1]))
            case "mirror":
                self.mirror(self.choice.randint(1, 3))
            case "read":
                self.read_on()
            case "handle":
                self.handle()
            case "flush":
                self.log.flush()
            case "checkpoint":
                self.log.checkpoint()

    def append(self, queue: LogQueue) -> tuple[int, bytes]:
        self._number += 1
        body = f"message {self._number} of {queue}".encode()
        return self.log.append([Append(*queue, encode(FrameColumns([body], [1])))])[0], body

    def mirror(self, count: int) -> None:
        """Append the messages that the log lacks, and so many more rows, as a tailer does."""
        self.table += [f"row {len(self.table) + each}".encode() for each in range(count)]
        end = self.log.reader.queue(*MIRRORED).end_offset()
        if rows := self.table[end:]:
            self.log.append([Append(*MIRRORED, encode(FrameColumns(rows, [1])), end, is_mirrored=True)])

    def read_on(self) -> Reader:
        reader = Reader(self.access, self.read)
        for queue in QUEUES:
            self.at[queue] = reader.read_to_the_end(queue, self.at[queue])
        return reader

    def handle(self) -> dict[LogQueue, int]:
        """Handle messages from the stored offset to the end; return the offset where it began."""
        taken = self.member.take_queues(self.member.view().queues)
        read = self.read if not self.choice.randrange(2) else {}
        self.member.store({queue: Reader(self.access, read).read_to_the_end(queue, at) for queue, at in taken.items()})
        self.member.release({queue: self.member._owned[queue].stored for queue in taken})
        return taken

    def cut_power(self, disk: ForgetfulDisk, to: Path) -> None:
        """Stop the machine and restart it with the data on its disk."""
        disk.after_power_cut(self.root, to, self.choice)
        self.close()
        disk.sync_all(to)
        self._open(to)


@pytest.mark.parametrize("seed", range(3))
def test_readers_miss_no_message_after_power_cuts(tmp_path: Path, disk: ForgetfulDisk, seed: int) -> None:
    machine = Machine(tmp_path / "0", random.Random(seed))
    for number in range(1, 7):
        for _ in range(machine.choice.randint(1, 15)):
            machine.step()
        machine.cut_power(disk, tmp_path / str(number))
        machine.mirror(1)
        new = {(queue, *machine.append(queue)) for queue in QUEUES[:-1] for _ in range(3)}
        before = dict(machine.at)
        passed = machine.read_on().passed
        taken = machine.handle()
        for queue, offset, body in new:
            assert machine.read[queue, offset] == body
            assert offset >= max(before[queue], taken[queue]), "readers go on before what is new"
        assert check(machine.root).report.problems == []
        for queue, end in machine.at.items():
            said = {offset for begin, after in passed.get(queue, ()) for offset in (begin, after - 1)}
            there = read_around(LogReader(machine.root).queue(*queue))
            assert {each for each in there if before[queue] <= each < end} <= {
                at for of, at in machine.read if of == queue
            }
            assert not said & there.keys()
    assert [machine.read[MIRRORED, each] for each in range(len(machine.table))] == machine.table
    machine.close()


def test_group_ahead_of_the_log_gets_the_missing_range_and_all_new_messages(
    tmp_path: Path, disk: ForgetfulDisk
) -> None:
    config = LogConfig(flush_s=3600, topic=TIMED)
    queue = LogQueue("t", 0)
    with Log(tmp_path / "log", config) as log, LocalLog(tmp_path / "log") as reading:
        log.append([batch(*queue, 0, 50)])
        log.flush()
        log.append([batch(*queue, 50, 100)])
        member = reading.join("g", ["t"])
        member.take_queues([queue])
        member.store({queue: 150})
        [stored] = (tmp_path / "log/groups/g/queues/t").iterdir()
        disk.sync(stored, *stored.parents[:5])  # the kernel wrote these first
        disk.after_power_cut(tmp_path / "log", tmp_path / "copy", random.Random(2))
    with Log(tmp_path / "copy", config) as log, LocalLog(tmp_path / "copy") as reading:
        fill(log, "t", 0, [200])
        member = reading.join("g", ["t"])
        at = member.take_queues([queue])[queue]
        assert at == 150
        [missing] = reading.fetch({queue: at})
        assert isinstance(missing.error, OffsetsMissing)
        assert (missing.error.begin, missing.error.end) == (50, 50 + AHEAD_MAX)
        [found] = reading.fetch({queue: missing.error.end})
        assert [message.body for message in found.batches[0].messages()] == bodies("t", 0, 50 + AHEAD_MAX, 200)


def test_clean_stop_and_killed_process_leave_no_hole(tmp_path: Path, disk: ForgetfulDisk) -> None:
    config = LogConfig(flush_s=3600, topic=TIMED)
    for _ in range(2):
        with Log(tmp_path / "log", config) as log:
            fill(log, "t", 0, [2])
            assert queues_in_doubt(tmp_path / "log") == [], "the machine runs on"
    with Log(tmp_path / "log", config) as log:
        fill(log, "t", 0, [2])
        disk.sync_all(tmp_path / "log")
        killed = tmp_path / "killed"
        killed.mkdir()
        for each in (tmp_path / "log").rglob("*"):
            to = killed / each.relative_to(tmp_path / "log")
            to.mkdir() if each.is_dir() else to.write_bytes(each.read_bytes())
    for root in (tmp_path / "log", killed):
        with Log(root, config) as log:
            assert (log.reader.queue("t", 0).end_offset(), log.reader.queue("t", 0).holes()) == (6, [])


def test_truncation_after_a_failed_sync_leaves_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    config = LogConfig(flush_s=3600, topic=TIMED)
    log = Log(tmp_path, config)
    fill(log, "t", 0, [2])
    log.flush()
    log.append([batch("t", 0, 2, 5)])
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fails)
        with pytest.raises(StorageError):
            log.flush()
    log.close()
    with Log(tmp_path, config) as log:
        assert log.reader.queue("t", 0).holes() == [(2, 2 + AHEAD_MAX)]


def test_offsets_of_a_mirrored_queue_are_never_skipped(tmp_path: Path, disk: ForgetfulDisk) -> None:
    mirrored = Append("t", 0, encode(FrameColumns([b"row"], [1])), 7, is_mirrored=True)
    sent = [mirrored, mirrored._replace(is_mirrored=False)]
    data = b"".join(append.payload.parts[0] for append in sent)
    came = list(appends_of(map(batch_of_append, sent), memoryview(data)))
    assert [append.is_mirrored for append in came] == [True, False]
    assert [append.payload for append in came] == [append.payload for append in sent]
    with closing(LogSink(LocalLog(tmp_path / "log", append=True, config=LogConfig(topic=TIMED)), "log")) as sink:
        row = TableRow(bytes(16), 0, b"", b"", b"", b"body", 0, 0, b"")
        sink.append([RowBatch("t", QueueNumber(0), 7, [row])])
        sink.mark_hole("t", 0, 8, 9)
        disk.after_power_cut(tmp_path / "log", tmp_path / "copy", random.Random(1))
        assert queues_in_doubt(tmp_path / "copy") == []
    with Log(tmp_path / "copy") as log:
        assert log.reader.queue("t", 0).range() == (7, 9)


def test_appends_wait_for_the_disk_at_the_limit_of_unsynced_offsets(tmp_path: Path, disk: ForgetfulDisk) -> None:
    config = LogConfig(flush_s=3600, topic=TIMED)
    with Log(tmp_path / "log", config) as log:
        log.append([Append("t", 0, hole(AHEAD_MAX, 1))])
        log.append([batch("t", 0, AHEAD_MAX, 3)])
        disk.after_power_cut(tmp_path / "log", tmp_path / "copy", random.Random(1))
    with Log(tmp_path / "copy", config) as log:
        assert log.reader.queue("t", 0).holes()[-1] == (AHEAD_MAX + 3, 2 * AHEAD_MAX + 3)
        assert read_around(log.reader.queue("t", 0)) == dict(enumerate(bodies("t", 0, AHEAD_MAX, 3), AHEAD_MAX))


def test_queue_ending_in_a_deleted_hole_continues_after_it(tmp_path: Path) -> None:
    config = LogConfig(file_size_bytes_max=300)
    with Log(tmp_path, config) as log:
        log.append([batch("t", 0, 0, 2)])
        log.append([Append("t", 0, hole(9, 1))])
        fill(log, "other", 0, [2] * 4)
        assert log.delete_old(size_bytes_max=1)
        assert log.reader.queue("t", 0).range() == (9, 9)
    assert check(tmp_path).report.problems == []
    with Log(tmp_path, config) as log:
        assert log.append([Append("t", 0, encode(FrameColumns([b"new"], [1])))]) == [9]
