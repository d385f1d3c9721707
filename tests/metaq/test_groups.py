"""Members of a group, local or remote: a queue has one owner, and its offset outlives its owners."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.metaq.logs import batch, bodies, fill
from tests.metaq.servers import log_at, served
from txmsg.errors import CorruptLog, MembershipLost, MisuseError, StorageError, UnknownGroup
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.group.files import OwnedQueue, offset_in, queue_file
from txmsg.metaq.group.logs import GroupLogs
from txmsg.metaq.interface import LogAccess, LogQueue, QueueRange
from txmsg.metaq.location import open_log
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.wire.start import Start

A, B = LogQueue("t", 0), LogQueue("t", 1)
RETRY = LogQueue("%RETRY%g", 0)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LogAccess]:
    """A log in a directory."""
    with Log(tmp_path) as log:
        fill(log, "t", 0, [5])
        fill(log, "t", 1, [3])
    with open_log(tmp_path, append=True) as access:
        yield access


@pytest.fixture(params=["directory", "server"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAccess]:
    """The log in a directory, and the same at the address of a server."""
    local: LogAccess = request.getfixturevalue("local")
    if request.param == "directory":
        yield local
        return
    local.close()
    with (
        served(MetaQConfig(data_dir=tmp_path, listen=f"unix:{tmp_path}/socket")) as address,
        log_at(address) as access,
    ):
        yield access


def test_queue_has_one_owner_and_its_offset_moves_with_it(access: LogAccess) -> None:
    one, other = access.join("g", ["t"]), access.join("g", ["t"])
    assert one.take_queues([A, B]) == {A: 0, B: 0}
    assert other.take_queues([A, B]) == {}
    one.store({A: 2})
    one.release({A: 3})
    assert other.take_queues([A, B]) == {A: 3}
    assert one.take_queues([A]) == {}
    with pytest.raises(MisuseError, match="topic t queue 0 is not owned by"):
        one.store({B: 1, A: 4})
    one.leave({B: 1})
    assert other.take_queues([A, B]) == {A: 3, B: 1}
    state = access.group("g")
    assert [member.id for member in state.members] == [other.id]
    assert [(queue.queue, queue.owner, queue.offset, queue.kept) for queue in state.queues] == [
        (A, other.id, 3, QueueRange(0, 5)),
        (B, other.id, 1, QueueRange(0, 3)),
    ]


def test_group_start_at_an_offset_is_refused(access: LogAccess) -> None:
    with pytest.raises(MisuseError, match="is not a valid start position"):
        access.join("g", ["t"], start=Start.offset(2))


def test_view_shows_the_members_and_the_queues_of_their_topics(access: LogAccess) -> None:
    one = access.join("g", ["t"])
    other = access.join("g", ["u", RETRY.topic], strategy="mine")
    assert sorted(one.view().members) == list(one.view().members)
    assert {(member.topics, member.strategy) for member in one.view().members} == {
        (("t",), "averaged"),
        ((RETRY.topic, "u"), "mine"),
    }
    assert one.view().queues == (A, B)
    access.append([batch("u", 7, 0, 1)])
    access.append([Append("%RETRY%g", 0, encode(FrameColumns([b"x"], [1])))])
    assert one.view().queues == (RETRY, A, B, LogQueue("u", 7)), "what is new is not seen"
    other.leave({})
    assert one.view().queues == (A, B)


def test_all_members_append_to_the_retry_log_of_their_group(tmp_path: Path, access: LogAccess) -> None:
    with pytest.raises(UnknownGroup, match="group g is unknown"):
        access.append([Append("%RETRY%g", 0, encode(FrameColumns([b"x"], [1])))])
    access.join("g", ["t"])
    assert access.fetch({RETRY: 0}) == []
    with open_log(tmp_path) as other:
        for each in (access, other, access):
            each.append([Append("%RETRY%g", 0, encode(FrameColumns([b"x"], [1])))])
    assert access.ranges([RETRY]) == {RETRY: QueueRange(0, 3)}
    [found] = access.fetch({RETRY: 1})
    assert [each.base_offset for each in found.batches] == [1, 2]
    with pytest.raises(MisuseError, match="nothing was appended"):
        access.append([batch("%RETRY%g", 0, 3, 1), batch("%DLQ%g", 0, 0, 1)])
    access.append([batch("%DLQ%g", 0, 0, 2)])
    [letters] = access.fetch({LogQueue("%DLQ%g", 0): 0})
    assert letters.batches[0].to_arrow()["body"].to_pylist() == bodies("%DLQ%g", 0, 0, 2)


def test_queues_of_a_killed_member_are_released_at_their_stored_offsets(tmp_path: Path, access: LogAccess) -> None:
    text = """
        import sys, os
        from txmsg.metaq.interface import LogQueue
        from txmsg.metaq.location import open_log
        member = open_log(sys.argv[1]).join("g", ["t"])
        member.take_queues([LogQueue("t", 0)])
        member.store({LogQueue("t", 0): 4})
        print(flush=True)
        sys.stdin.read()
    """
    program = "\n".join(line.strip() for line in text.splitlines())
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        member = access.join("g", ["t"])
        assert len(member.view().members) == 2
        assert member.take_queues([A, B]) == {B: 0}
        process.kill()
        process.wait()
        assert member.take_queues([A]) == {A: 4}
        assert [each.id for each in member.view().members] == [member.id]


FORKING = """
import os, sys
from txmsg.errors import MisuseError
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.location import open_log
member = open_log(sys.argv[1]).join("g", ["t"])
member.take_queues([LogQueue("t", 0)])
parent_ended, parent_lives = os.pipe()
if os.fork() == 0:
    os.close(parent_lives)
    try:
        member.store({LogQueue("t", 0): 1})
    except MisuseError as exc:
        print(exc, flush=True)
    os.read(parent_ended, 1)
    os._exit(0)
sys.stdin.readline()
member.leave({LogQueue("t", 0): 2})
print("left", flush=True)
sys.stdin.readline()
"""


def test_forked_child_neither_keeps_nor_uses_queues_of_its_parent(tmp_path: Path, local: LogAccess) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert "was forked from member" in parent.stdout.readline()
        other = local.join("g", ["t"])
        assert other.take_queues([A]) == {}
        print(file=parent.stdin, flush=True)
        assert parent.stdout.readline() == "left\n"
        assert other.take_queues([A]) == {A: 2}, "the child keeps what its parent has given back"
        assert len(other.view().members) == 1
        parent.stdin.close()


def test_torn_offset_write_leaves_the_old_or_the_new_offset(tmp_path: Path, access: LogAccess) -> None:
    member = access.join("g", ["t"])
    member.take_queues([A])
    path = queue_file(tmp_path / "groups" / "g", A)
    states: list[bytes] = []
    for offset in (300, 70_000, 5):
        member.store({A: offset})
        states.append(path.read_bytes())
    for before, after, offsets in ((states[0], states[1], {300, 70_000}), (states[1], states[2], {70_000, 5})):
        seen = set()
        for cut in range(len(before) + 1):
            path.write_bytes(after[:cut] + before[cut:])
            seen.add(offset_in(path))
        assert seen == offsets
    path.write_bytes(bytes(5) + b"x" * 40)
    with pytest.raises(CorruptLog, match="cannot be read: delete the file"):
        offset_in(path)


def test_queue_with_unreadable_first_offset_does_not_block_others(
    tmp_path: Path, access: LogAccess, caplog: pytest.LogCaptureFixture
) -> None:
    [cells] = (tmp_path / "queues/t/0001").iterdir()
    whole = cells.read_bytes()
    cells.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    member = access.join("g", ["t"])
    for _ in range(2):
        assert member.take_queues([A, B]) == {A: 0}
    assert caplog.text.count("takes it when it is mended: topic t queue 1 is damaged") == 1
    cells.write_bytes(whole)
    assert access.join("g", ["t"]).take_queues([B]) == {B: 0}, "the first one has kept it"


def test_member_leaves_although_it_cannot_store_offsets(local: LogAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    member = local.join("g", ["t"])
    member.take_queues([A, B])

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(OwnedQueue, "store", fails)
        with pytest.raises(StorageError, match="cannot be written: Input/output error"):
            member.leave({A: 4})
    other = local.join("g", ["t"])
    assert other.take_queues([A, B]) == {A: 0, B: 0}
    assert [member.id for member in other.view().members] == [other.id]


def test_seek_reaches_the_running_owner_and_the_next_one(access: LogAccess) -> None:
    with pytest.raises(UnknownGroup):
        access.seek("g", {A: 1})
    member = access.join("g", ["t"])
    member.take_queues([A])
    member.store({A: 5})
    access.seek("g", {A: 1, B: 2})
    assert [queue.offset for queue in access.group("g").queues] == [1, 2]
    assert dict(member.view().sought) == {A: 1}
    member.store({A: 5})  # by a handler that was under way
    access.seek("g", {A: 0})
    member.seek_done({A: 1})
    assert dict(member.view().sought) == {A: 0}, "a later wish is forgotten with the earlier one"
    member.release({A: 1})
    assert member.take_queues([A, B]) == {A: 0, B: 2}
    assert dict(member.view().sought) == {}


def test_group_can_be_deleted_only_without_members(access: LogAccess) -> None:
    member = access.join("g", ["t"])
    member.take_queues([A])
    with pytest.raises(MisuseError, match=f"group g has 1 members, such as {member.id}"):
        access.delete_group("g")
    member.leave({A: 3})
    member.leave({})
    assert access.groups() == ["g"]
    access.delete_group("g")
    assert access.groups() == []
    with pytest.raises(UnknownGroup, match="group g is unknown to this log"):
        access.group("g")
    assert access.join("g", ["t"]).take_queues([A]) == {A: 0}


def test_member_whose_files_were_removed_loses_its_queues(tmp_path: Path, local: LogAccess) -> None:
    member = local.join("g", ["t"])
    member.take_queues([A])
    (tmp_path / "groups").rename(tmp_path / "gone")
    other = local.join("g", ["t"])
    with pytest.raises(MembershipLost, match="were removed while member"):
        member.view()
    with pytest.raises(MisuseError, match="has left group g: join again"):
        member.store({A: 9})
    assert other.take_queues([A]) == {A: 0}


def test_closing_a_log_leaves_its_groups_in_order(tmp_path: Path, access: LogAccess) -> None:
    with open_log(tmp_path) as other:
        other.join("g", ["t"]).take_queues([A, B])
    assert access.join("g", ["t"]).take_queues([A, B]) == {A: 0, B: 0}


@pytest.mark.parametrize(("start", "begin"), [(Start.earliest(), 0), (Start.latest(), 5), (Start("time", 20), 3)])
def test_group_starts_at_the_given_position_and_new_queues_at_their_first_message(
    tmp_path: Path, start: Start, begin: int
) -> None:
    with open_log(tmp_path, append=True) as access:
        access.append([batch("t", 0, 0, 3, at_us=10), batch("t", 0, 3, 2, at_us=20)])
        first = access.join("g", ["t", "later"], start=start)
        access.append([batch("t", 0, 5, 1, at_us=30), batch("t", 1, 0, 1, at_us=5), batch("later", 0, 0, 1, at_us=5)])
        new = [LogQueue("t", 1), LogQueue("later", 0)]
        second = access.join("g", ["t", "later", "third"], start=Start.latest())
        assert second.take_queues([A, *new]) == {A: begin, new[0]: 0, new[1]: 0}, (
            "a member that came later moved the group"
        )
        assert dict(first.view().sought) == {}


def test_unreadable_start_position_of_a_group_is_an_error(tmp_path: Path, access: LogAccess) -> None:
    access.join("g", ["t"], start=Start.latest())
    (tmp_path / "groups" / "g" / "begins.json").write_bytes(b'["t"]')
    with pytest.raises(CorruptLog, match=r"begins.json cannot be read"):
        access.join("g", ["t"])


def test_retry_files_are_deleted_when_all_their_retries_are_done(tmp_path: Path, access: LogAccess) -> None:
    logs = GroupLogs(tmp_path, LogConfig(file_size_bytes_max=1))
    root = logs.root_of("%RETRY%g")
    assert root is not None
    later = LogQueue("%RETRY%g", 5)
    member = access.join("g", ["t"])
    member.take_queues([RETRY, later])
    for queue, count in ((0, 4), (5, 1), (0, 2)):
        for _ in range(count):
            logs.append(root, [Append("%RETRY%g", queue, encode(FrameColumns([b"x"], [1])))])
    assert access.ranges([RETRY, later]) == {RETRY: QueueRange(0, 6), later: QueueRange(0, 1)}, "what waits was deleted"
    member.store({RETRY: 6})
    logs.append(root, [Append("%RETRY%g", 0, encode(FrameColumns([b"x"], [1])))])
    assert access.ranges([RETRY, later]) == {RETRY: QueueRange(4, 7), later: QueueRange(0, 1)}
    member.store({later: 1})
    logs.append(root, [Append("%RETRY%g", 0, encode(FrameColumns([b"x"], [1])))])
    assert access.ranges([RETRY, later]) == {RETRY: QueueRange(6, 8), later: QueueRange(1, 1)}


def test_queue_can_be_taken_again_after_a_failed_offset_write(
    local: LogAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    member = local.join("g", ["t"])
    member.take_queues([A])
    member.leave({A: 1})
    with monkeypatch.context() as patch:
        patch.setattr(OwnedQueue, "store", full)
        with pytest.raises(StorageError, match="No space left on device"):
            local.seek("g", {A: 3})
    assert local.join("g", ["t"]).take_queues([A]) == {A: 3}
