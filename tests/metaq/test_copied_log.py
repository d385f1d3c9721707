"""A copy and its leader's contents, without a server between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metaq.copies import begun_copy, take_rest
from tests.metaq.logs import batch, bodies, read_all
from txmsg.errors import CorruptLog, NotLeader, OffsetOutOfRange, OffsetsMissing, StorageError
from txmsg.metaq.copy.copy_state import CopyState, state_of
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.group.files import offset_in, queue_file
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.local import LocalLog
from txmsg.metaq.store.ahead import AHEAD_MAX, leave_in_doubt
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.mover import Mover
from txmsg.metaq.store.reader import LogReader
from txmsg.metaq.store.role import CopyOf, write_copy
from txmsg.metaq.store.topics import Flush, TopicSettings

T = LogQueue("t", 0)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "leader", LogConfig(file_size_bytes_max=4096)) as log:
        yield log


@pytest.fixture
def copy(tmp_path: Path, leader: Log) -> Iterator[Log]:
    with begun_copy(tmp_path / "copy", leader) as log:
        yield log


def test_copy_deletes_old_files_after_a_delayed_message(
    tmp_path: Path, leader: Log, copy: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmsg.metaq.store.moving.Moving.wake", lambda _: None)
    leader._mover = mover = Mover(leader.root, leader._append_own, leader.flush, leader._queue_that_is_read)
    leader.append([Append("t", 0, encode(FrameColumns([b"delayed"], [1])), due_at_us=1)])
    mover.run_once(2)
    for _ in range(100):
        leader.append([Append("t", 0, encode(FrameColumns([b"x" * 300], [1])))])
    mover.run_once(2)
    take_rest(copy, leader)
    assert leader.delete_old(size_bytes_max=8192)
    copy.delete_old(size_bytes_max=leader.size().size_bytes)
    assert copy.size() == leader.size()


def test_copy_continues_by_itself_after_its_disk_was_full(
    leader: Log, copy: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    leader.append([batch("t", 0, 0, 3)])
    with monkeypatch.context() as patched:
        patched.setattr(copy._queues, "write", full)
        take_rest(copy, leader)  # the frames are on disk: only their cells are not
        leader.append([batch("t", 0, 3, 3)])
        with pytest.raises(StorageError, match="No space left"):
            take_rest(copy, leader)
    take_rest(copy, leader)
    assert read_all(LogReader(copy.root).queue("t", 0)) == bodies("t", 0, 0, 6)


@pytest.mark.parametrize("is_copied", [True, False])
def test_offsets_of_a_group_come_after_its_retries(tmp_path: Path, *, is_copied: bool) -> None:
    with LocalLog(tmp_path / "leader", append=True) as leader:
        leader.append([batch("t", 0, 0, 5)])
        member = leader.join("g", ["t"])
        member.take_queues([T])
        leader.append([batch("%RETRY%g", 0, 0, 1)])
        member.leave({T: 3})
        told = state_of(leader)
        begun_copy(tmp_path / "copy", leader.writer).close()
    path = queue_file(tmp_path / "copy" / "groups" / "g", T)
    with LocalLog(tmp_path / "copy", append=True, follows=True) as copy:

        def copy_log(_: object) -> bool:
            assert offset_in(path) is None
            return is_copied

        CopyState(copy).write_changes(told, copy_log)
    assert told.groups[0].logs
    assert offset_in(path) == (3 if is_copied else None)


def test_a_log_is_fenced_by_one_copy_only(tmp_path: Path, leader: Log, copy: Log) -> None:
    with pytest.raises(NotLeader, match="is itself a copy of the log at leader:7720"):
        copy.fence(2, b"one")
    end = leader.fence(2, b"one")
    leader.close()
    with Log(tmp_path / "leader") as again:
        assert again.fence(2, b"one") == end
        with pytest.raises(NotLeader, match="another copy was promoted, or is being, as generation 2"):
            again.fence(2, b"two")


@pytest.mark.parametrize("is_fenced", [True, False])
def test_log_that_is_not_leader_refuses_changes(tmp_path: Path, *, is_fenced: bool) -> None:
    with LocalLog(tmp_path, append=True) as log:
        log.append([batch("t", 0, 0, 3)])
        log.join("g", ["t"]).leave({})
        if is_fenced:
            log.writer.fence(2, b"one")
            _require_refused(log)
    with LocalLog(tmp_path, append=True, follows=True) as log:  # its new leader has not answered yet
        _require_refused(log)


def _require_refused(log: LocalLog) -> None:
    with pytest.raises(NotLeader):
        log.join("g", ["t"])
    with pytest.raises(NotLeader):
        log.seek("g", {T: 0})
    with pytest.raises(NotLeader):
        log.delete_group("g")
    with pytest.raises(NotLeader):
        log.set_topic("t", TopicSettings(retention_s=77))
    assert log.groups() == ["g"]


def test_former_leader_can_follow_after_a_power_cut(tmp_path: Path) -> None:
    """Cells of its timed topics were ahead of its disk; those of a copy never are."""
    with Log(tmp_path) as log:
        log.set_topic("t", TopicSettings(flush=Flush.TIMED))
        log.append([batch("t", 0, 0, 3)])
        end = log.append([batch("t", 0, 3, 3)])[0]
        log.flush()
    (tmp_path / "checkpoint").unlink()
    [path] = (tmp_path / "commitlog").iterdir()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    write_copy(tmp_path, CopyOf("leader:7720", bytes(16), is_begun=True))
    with pytest.raises(CorruptLog, match="it had been on disk"):
        Log(tmp_path, follows=True)
    (tmp_path / "copy.json").unlink()
    with Log(tmp_path, follows=True) as log:
        assert log.next_offset("t", 0) == end


def test_reader_of_a_lost_leader_continues_after_the_skipped_offsets(tmp_path: Path) -> None:
    """A reader saw messages that the copy never got: it gets an error, and then the next appended messages."""
    queue, mirrored = LogQueue("t", 0), LogQueue("m", 0)
    with Log(tmp_path / "leader") as leader, begun_copy(tmp_path / "copy", leader) as copy:
        for base in (0, 5):
            leader.append([batch("t", 0, base, 5), batch("m", 0, base, 5)._replace(is_mirrored=True)])
            if not base:
                take_rest(copy, leader)
                leave_in_doubt(copy.root, leader.own_queues)
        copy.promote()
    with LocalLog(tmp_path / "copy", append=True) as log:
        [lost] = log.fetch({queue: 10})
        assert isinstance(lost.error, OffsetsMissing)
        assert (lost.error.begin, lost.error.end) == (5, 5 + AHEAD_MAX)
        log.append([batch("t", 0, lost.error.end, 1)])
        assert log.fetch({queue: lost.error.end})[0].batches[0].base_offset == 5 + AHEAD_MAX
        [ahead] = log.fetch({mirrored: 10})
        assert isinstance(ahead.error, OffsetOutOfRange)
        assert not isinstance(ahead.error, OffsetsMissing)
        assert (ahead.error.begin, ahead.error.end) == (0, 5)
        log.append([batch("m", 0, 5, 6)._replace(is_mirrored=True)])  # the tailer mirrors what is missing
        assert log.fetch({mirrored: 10})[0].batches[0].base_offset == 10
