"""The small logs of groups: %RETRY%GROUP and %DLQ%GROUP. Any process of the group appends, one at a time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from txmsg.errors import MisuseError, StorageError, UnknownGroup
from txmsg.message import check_name
from txmsg.metaq.group.files import offset_in, queue_file
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, LogQueue
from txmsg.metaq.store.cells import Cell, Cells, queue_directory, queues_of_topic
from txmsg.metaq.store.commit_log import files_of
from txmsg.metaq.store.log import Append, Log, LogConfig
from txmsg.metaq.store.reader import CurrentReader, LogReader

CONFIG: Final = LogConfig(file_size_bytes_max=16 * 1024 * 1024, open_files_max=64)
"""The settings of each of them."""
_WAIT_S_MAX = 10.0
_LOOK_S = 0.002


class GroupLogs:
    """The logs of all groups of one log, by topic. Each is open only during an append."""

    def __init__(self, root: Path, config: LogConfig = CONFIG) -> None:
        self._config = config
        self._directory = root / "groups"
        self._readers: dict[Path, CurrentReader] = {}

    def root_of(self, topic: str) -> Path | None:
        """Return the directory of the log that has this topic; None for a topic of the main log. Raises InvalidName."""
        for prefix, name in ((RETRIES, "retries"), (DEAD_LETTERS, "dead_letters")):
            if topic.startswith(prefix):
                return self._directory / check_name("consumer group", topic.removeprefix(prefix)) / name
        return None

    def reader(self, root: Path) -> LogReader | None:
        """Return a reader of this log; None before its first message."""
        reader = self._readers.setdefault(root, CurrentReader(root)).get()
        if reader is None:
            self._readers.pop(root, None)  # the group may be gone
        return reader

    def append(self, root: Path, appends: Sequence[Append]) -> list[int]:
        """Append, on disk on return.

        Raises UnknownGroup, and StorageError when other processes keep the log for too long.
        """
        if {self.root_of(append.topic) for append in appends} != {root}:
            raise MisuseError(
                "retries, dead letters and messages of other topics were appended in one call, but are in separate "
                "logs: nothing was appended; make a call for each"
            )
        if not root.parent.is_dir():
            raise UnknownGroup(
                f"group {root.parent.name} is unknown to this log: it is created when its first member joins"
            )
        # Opened for each append, because any process of the group may be the writer. That costs some syncs per group of
        # failures (decision 0022). The turn is waited for; the log's own lock would refuse at once.
        with turn(root.with_suffix(".lock")), Log(root, self._config) as log:
            bases = log.append(appends)
            _delete_handled(root, appends[0].topic, log)
            return bases


def _delete_handled(root: Path, topic: str, log: Log) -> None:
    """Delete the files in which every retry was delivered, and every dead letter was dealt with."""
    firsts = files_of(root / "commitlog", ".log")
    if len(firsts) == 1:
        return
    end = needed = log.reader.commit_log.end_position()
    for number in queues_of_topic(root, topic):
        # By the group's own offsets, not by age: a message whose turn has not come stays, however long it waits.
        offset = offset_in(queue_file(root.parent, LogQueue(topic, number))) or 0
        cell = Cells(queue_directory(root, topic, number)).first(_end_of, offset + 1)
        if cell is not None:
            needed = min(needed, cell.position)
    log.delete_old(size_bytes_max=end - max(first for first in firsts if first <= needed))


def _end_of(cell: Cell) -> int:
    return cell.base_offset + cell.count


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait for appends of other processes to the log of this lock. Raises StorageError if that takes too long."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _WAIT_S_MAX
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"{path} has been locked by another process for {_WAIT_S_MAX:g} s: see whether a member of the "
                        "group is stopped"
                    ) from None
                time.sleep(_LOOK_S)  # not a lock that blocks: it would wait for a stopped process for ever
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too
        os.close(fd)
