"""Copies of logs for tests: a leader and its copies as processes, and comparing what is on their disks."""

from __future__ import annotations

from pathlib import Path

from tests.metaq.servers import MetaQProcess
from tests.waiting import until
from txmsg.metaq.store.commit_log import CommitLogReader, files_of, log_file


class CopyProcess(MetaQProcess):
    """`txmsg metaq follow` as a child process. Its leader may be another one after a restart."""

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
    """The files of messages of a log that have something in them, by their first position."""
    directory = root / "commitlog"
    found = {first: log_file(directory, first).read_bytes() for first in files_of(directory, ".log")}
    return {first: data for first, data in found.items() if data}


def end_of(root: Path) -> int:
    """Where a log ends."""
    return CommitLogReader(root / "commitlog").end()


def until_copied(leader: Path, copy: Path) -> None:
    """Waits for the copy to have as much, while nothing is appended; then both have the same bytes."""
    until(lambda: (copy / "log.json").exists() and end_of(copy) == end_of(leader))
    assert frames_of(copy) == frames_of(leader)
