"""Retention of a log: deletes whole files, the oldest first, and the cells that point into them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from txmsg.metaq.store.cells import Cells, cells_file, queue_directory, queues_of
from txmsg.metaq.store.commit_log import files_of, log_file, sync_directory
from txmsg.metaq.store.keys import keys_file


def delete_old_files(
    root: Path,
    *,
    end: int,
    size_bytes_max: int | None,
    keep_s: Callable[[str], float | None],
    now: float,
    note: Callable[[int], None],
    kept_from: int | None,
) -> list[int]:
    """Delete the oldest commitlog files that exceed the age or size limit, and return their first positions.

    Never the last one. A file exceeds the age limit if it does so for every topic in it. keep_s: the seconds that a
    topic is kept, None: for ever. The age counts from the last write. Readers get OffsetOutOfRange. `note` is called
    first, with the position where the log will begin. kept_from: nothing from this position on is deleted.
    """
    directory = root / "commitlog"
    firsts = files_of(directory, ".log")
    size = end - firsts[0]
    deleted: list[int] = []
    for first, following in pairwise(firsts):
        if kept_from is not None and following > kept_from:
            break
        path = log_file(directory, first)
        # Age is that of the file's last write, not of messages: one message from the future would keep the file, one
        # from the past would lose it (decision 0021).
        too_much = size_bytes_max is not None and size > size_bytes_max
        if not too_much and not _is_let_go(root, first, following, keep_s, now - path.stat().st_mtime):
            break
        size -= following - first
        deleted.append(first)
    if deleted:
        # Before the first file goes: a missing file is damage unless the checkpoint says that the log begins behind it.
        # The oldest file goes first, so a crash leaves files that follow each other.
        note(firsts[len(deleted)])
        for first in deleted:
            log_file(directory, first).unlink(missing_ok=True)
            keys_file(root, first).unlink(missing_ok=True)
        sync_directory(directory)
        # After the frames: cells without frames are out of range for readers, which is what retention means. Frames
        # without cells would be lost while they are still kept.
        _delete_cells(root, firsts[len(deleted)])
    return deleted


def _is_let_go(root: Path, first: int, following: int, keep_s: Callable[[str], float | None], age_s: float) -> bool:
    """Return True if every topic between these positions has exceeded its retention."""
    wanting = ((topic, queue) for topic, queue in queues_of(root) if (s := keep_s(topic)) is None or s >= age_s)
    for topic, queue in wanting:
        cell = Cells(queue_directory(root, topic, queue)).first(lambda cell: cell.position, first)
        if cell is not None and cell.position < following:
            return False
    return True


def _delete_cells(root: Path, kept_from: int) -> None:
    for topic, queue in queues_of(root):
        cells = Cells(queue_directory(root, topic, queue))
        for base in cells.files()[:-1]:  # the last one tells where the queue continues
            with cells.open(base) as found:
                if found[-1].position >= kept_from:
                    break
            cells_file(cells.directory, base).unlink()
