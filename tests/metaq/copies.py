"""Copies of logs for tests: leader and copies as processes, and comparison of their files."""

from __future__ import annotations

from pathlib import Path

from tests.metaq.servers import MetaQProcess
from tests.waiting import until
from txmsg.metaq.copy.beginning import begin_copy
from txmsg.metaq.copy.copier import whole_frames
from txmsg.metaq.copy.source import read_piece, tail_of
from txmsg.metaq.store.commit_log import CommitLogReader, files_of, log_file
from txmsg.metaq.store.log import Log
from txmsg.metaq.store.role import CopyOf


class CopyProcess(MetaQProcess):
    """`txmsg metaq follow` as a child process. It can have another leader after a restart."""

    def __init__(self, leader: str, data_dir: Path, *options: str, log: Path) -> None:
        super().__init__(data_dir, *options, log=log)
        self.leader = leader

    def arguments(self) -> list[str]:
        return [
            "metaq",
            "follow",
            self.leader,
            "--data-dir",
            str(self.data_dir),
            "--listen",
            self.address,
            *self.options,
        ]


def frames_of(root: Path) -> dict[int, bytes]:
    """Return the non-empty message files of a log, by their first position."""
    directory = root / "commitlog"
    found = {first: log_file(directory, first).read_bytes() for first in files_of(directory, ".log")}
    return {first: data for first, data in found.items() if data}


def end_of(root: Path) -> int:
    """Return the end of a log."""
    return CommitLogReader(root / "commitlog").end_position()


def until_copied(leader: Path, copy: Path) -> None:
    """Wait until the copy has caught up, while nothing is appended; then both have the same bytes."""
    until(lambda: (copy / "log.json").exists() and end_of(copy) == end_of(leader))
    assert frames_of(copy) == frames_of(leader)


def begun_copy(root: Path, leader: Log) -> Log:
    """Return an empty copy without a server: see `take_rest`."""
    begin_copy(root, CopyOf("leader:7720", bytes(16), is_begun=True), leader.identity, 0, {})
    return Log(root, follows=True)


def take_rest(copy: Log, leader: Log) -> None:
    """Copy everything available, as a copier does."""
    while True:
        tail = tail_of(copy.root, copy.synced)
        piece = read_piece(leader.root, tail, leader.synced, 4 * 1024 * 1024)
        if not piece.data:
            return
        headers, size_bytes, _ = whole_frames(piece.data, tail.position, copy.identity.log_id)
        copy.take_frames(piece.first, piece.data[:size_bytes], headers)
