"""What a crash may have left, told apart: whole frames, a torn end, damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.cells import Cell
from txmsg.metaq.commit_log import CommitLogReader, files_of, log_file, sync_directory
from txmsg.metaq.frame import MAGIC, BadFrame, Header, Kind, hole_end, read_header, verify
from txmsg.metaq.queues import Queues
from txmsg.metaq.state import Identity, checkpoint_of, identity_of

__all__ = [
    "DamagedFrame",
    "Identity",
    "frames",
    "identity_of",
    "recover",
    "torn_end",
    "whole_frame",
]

_CELLS_HELD_MAX = 65_536


def recover(root: Path, log_id: int, queues: Queues) -> int:
    """Reads from the checkpoint on, adds the cells that are lost, and cuts a torn end.

    Returns the position where the log goes on; all before it is on disk. Raises CorruptLog for damage before that.
    """
    directory = root / "commitlog"
    log = CommitLogReader(directory)
    begin, end = log.begin(), log.end()
    start = max(begin, min(checkpoint_of(root, log_id), end))
    _sync_from(directory, start)
    queues.drop_from(start)
    try:
        for number, header in enumerate(frames(log, log_id, start, end)):
            _replay(header, log, queues)
            if number % _CELLS_HELD_MAX == _CELLS_HELD_MAX - 1:
                _write_cells(root, queues, header.end)
    except DamagedFrame as exc:
        if not torn_end(log, log_id, exc.position, end):
            raise CorruptLog(
                f"the log {root} is damaged at {exc}; frames behind it are whole: run `txmsg metaq check`"
            ) from exc
        end = exc.position
        _cut(directory, end)
    _write_cells(root, queues, end)
    return end


def _write_cells(root: Path, queues: Queues, up_to: int) -> None:
    try:
        queues.write(up_to)
    except OSError as exc:
        raise StorageError(f"the cells of {root} cannot be written: {exc.strerror}; make room, and open it") from exc


def _sync_from(directory: Path, position: int) -> None:
    """The process that wrote it may have been killed before it was on disk: from now on the log says that it is."""
    firsts = files_of(directory, ".log")
    for first, following in zip(firsts, [*firsts[1:], position + 1], strict=False):
        if following <= position:
            continue
        fd = os.open(log_file(directory, first), os.O_WRONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
    sync_directory(directory)


def _replay(header: Header, log: CommitLogReader, queues: Queues) -> None:
    """Does to the cells of its queue what appending this frame did."""
    queue = queues.of(header.topic, header.queue)
    if header.kind is Kind.CUT:
        queue.cut(queues.files, header.base_offset)
    elif header.base_offset != queue.end and not queue.is_new:
        raise CorruptLog(
            f"topic {header.topic} queue {header.queue} goes on at offset {header.base_offset} (position "
            f"{header.position}), but its cells end at {queue.end}: run `txmsg metaq check`"
        )
    end = header.base_offset + header.count
    if header.kind is Kind.HOLE:
        end = hole_end(header, verify(header, log.read(header.position, header.size_bytes)))
    cell = Cell(header.base_offset, header.position, header.size_bytes, header.count, header.last_stored_at_us)
    queues.add(queue, cell, end)


def _cut(directory: Path, end: int) -> None:
    firsts = files_of(directory, ".log")
    for first in reversed(firsts):
        path = log_file(directory, first)
        if first >= end and first != firsts[0]:
            path.unlink()
            continue
        with path.open("r+b") as file:
            file.truncate(end - first)
            os.fsync(file.fileno())
        break
    sync_directory(directory)


def frames(log: CommitLogReader, log_id: int, start: int, end: int) -> Iterator[Header]:
    """The headers of whole frames from `start` on. Raises DamagedFrame at the first that is not."""
    firsts = log.files()
    for first, file_end in zip(firsts, [*firsts[1:], end], strict=False):  # none at all in a new log
        position = max(first, start)
        while position < file_end:
            try:
                header = whole_frame(log, log_id, position, file_end)
            except BadFrame as exc:
                raise DamagedFrame(position, str(exc)) from exc
            yield header
            position = header.end


class DamagedFrame(Exception):
    """What stands at `position` is no whole frame."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"position {position}: {why}")
        self.position = position


def whole_frame(log: CommitLogReader, log_id: int, position: int, end: int) -> Header:
    """The header of the frame at this position, whose payload matches its checksum, too. Raises BadFrame."""
    data = log.read(position, end - position)
    header = read_header(data)
    if header.position != position:
        raise BadFrame(f"a frame written for position {header.position} stands there")
    if header.log_id != log_id:
        raise BadFrame("a frame of another log stands there")
    verify(header, data)
    if header.size_bytes > len(data):
        raise BadFrame("the frame is cut off")
    return header


def torn_end(log: CommitLogReader, log_id: int, position: int, end: int) -> bool:
    """Whether what is not whole at `position` is the torn end of a crash: no later frame says it was on disk."""
    firsts = log.files()
    for first, file_end in zip(firsts, [*firsts[1:], end], strict=False):
        start = max(first, position + 1)
        while (start := log.find(MAGIC, start, file_end)) < file_end:
            try:
                header = whole_frame(log, log_id, start, file_end)
            except BadFrame:
                start += 1
                continue
            if header.synced > position:
                return False
            start = header.end
    return True
