"""Takes damaged data out of a log, keeps it aside, and recreates cells and checkpoint. Nothing whole is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from txmsg.errors import CorruptLog
from txmsg.metaq.format.frame import (
    HEADER_SIZE_BYTES_MAX,
    MAGIC,
    BadFrame,
    Buffer,
    FrameKind,
    cut,
    fitted,
    hole,
    pack,
    pad,
    read_header,
    verify,
)
from txmsg.metaq.fsck.check import Findings, check, guessed_identity, strange_names
from txmsg.metaq.fsck.report import Lost
from txmsg.metaq.fsck.scan import Progress, Region
from txmsg.metaq.store.cells import queue_directory
from txmsg.metaq.store.commit_log import CommitLogReader, files_of, log_file, sync_directory
from txmsg.metaq.store.keys import keys_file
from txmsg.metaq.store.lock import WriteLock
from txmsg.metaq.store.queues import Queues, Unsynced, remove_cells, sync_files
from txmsg.metaq.store.recovery import recover
from txmsg.metaq.store.state import (
    Checkpoint,
    LogIdentity,
    checkpoint_of,
    identity_of,
    write_checkpoint,
    write_identity,
)
from txmsg.metaq.store.topics import read_topics
from txmsg.runtime.owners import require_own

_PAD_SIZE_BYTES_MAX: Final = 1024**3
_COPIED_BYTES: Final = 1024 * 1024


def repair(root: Path, progress: Progress = lambda _: None) -> list[str]:
    """Repair a log as docs/log_format.md says, under its lock. Returns sentences that say what was done.

    Raises LogBusy while another process writes it, CorruptLog when nothing tells its identity. Interrupted, it can be
    repeated: each step leaves the damage as it was, or less of it.
    """
    require_own(root, "the log")
    renamed = _name_directory(root)
    lock = WriteLock(root)
    try:
        return renamed + _Repair(root).run(progress)
    finally:
        lock.release()


def _name_directory(root: Path) -> list[str]:
    """Give the directory of the commit log its name back. Without its files there is nothing to repair."""
    places = [place for place in sorted(root.iterdir()) if place.is_dir() and files_of(place, ".log")]
    log = root / "commitlog"
    if log in places:
        return []
    if len(places) != 1:
        raise CorruptLog(f"{root} has no file of a commit log: restore a copy, or give its directory the name back")
    if log.exists():
        log.rmdir()  # made, and empty
    places[0].rename(log)
    sync_directory(root)
    return [f"{places[0].name}: has the files of the commit log, and is named commitlog again"]


class _Repair:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._log = root / "commitlog"
        self._done: list[str] = []

    def run(self, progress: Progress) -> list[str]:
        # Identity and names first: without them nothing in the files can be recognised.
        identity = self._identity()
        self._put_names_right(identity)
        self._put_topics_aside()
        findings = check(self._root, progress)
        if findings.report.problems:
            self._remove_keys(findings)
            if self._put_back(findings, identity):
                findings = check(self._root, progress)
            self._tidy(findings)
            for region, lost in _merged(findings.damage):
                self._take_out(findings, identity, region, lost)
            self._recreate(findings, identity)
        return self._done

    # ---- small files and names

    def _identity(self) -> LogIdentity:
        try:
            return identity_of(self._root, create=False)
        except CorruptLog:
            found = guessed_identity(self._root)
            if found is None:
                raise
            if (self._root / "log.json").exists():
                self._aside(self._root / "log.json")
            write_identity(self._root, found)
            self._done.append(f"log.json: recreated from its frames: log {found.log_id}, generation {found.generation}")
            return found

    def _put_topics_aside(self) -> None:
        try:
            read_topics(self._root)
        except CorruptLog:
            self._aside(self._root / "topics.json")
            self._done.append("topics.json: put aside; all topics have the settings of the log's configuration now")

    def _put_names_right(self, identity: LogIdentity) -> None:
        """Name files of the commit log by the positions that they begin with; set other wrong names aside."""
        known = checkpoint_of(self._root, identity.log_id)
        places = {_file_end(self._log, first) for first in files_of(self._log, ".log")} | {known.begin if known else 0}
        for path in sorted(self._log.iterdir()):
            first = _first_position(path, identity)
            if first not in places or path == log_file(self._log, first) or log_file(self._log, first).exists():
                continue
            path.rename(log_file(self._log, first))
            sync_directory(self._log)
            self._done.append(f"commitlog/{path.name}: begins at position {first}, and is named so again")
        for name in strange_names(self._root):
            self._aside(self._root / name)
            self._done.append(f"{name}: is not a file of the log, moved aside")

    def _aside(self, path: Path) -> Path:
        directory = self._root / "damaged"
        directory.mkdir(mode=0o700, exist_ok=True)
        name = path.relative_to(self._root).as_posix().replace("/", "-")
        target = next(free for n in count() if not (free := directory / f"{n:03}-{name}").exists())
        shutil.move(path, target)
        sync_directory(directory)
        return target

    def _remove_keys(self, findings: Findings) -> None:
        for problem in findings.report.problems:
            if problem.file.endswith(".keys"):
                (self._root / problem.file).unlink()
                self._done.append(f"{problem.file}: deleted, the writer recreates it")

    # ---- frames

    def _put_back(self, findings: Findings, identity: LogIdentity) -> int:
        """Move whole frames from places where they do not belong to the places where cells name them and nothing whole
        stands.
        """
        found = _displaced(self._root, findings, identity)
        scan = findings.scan
        assert scan is not None
        found = {position: data for position, data in found.items() if position >= scan.begin}
        if found:
            for region, _ in findings.damage:
                self._copy_aside(region)
        for position, data in found.items():
            first = max(file for file in files_of(self._log, ".log") if file <= position)
            with log_file(self._log, first).open("r+b") as file:
                os.pwrite(file.fileno(), data, position - first)
                os.fsync(file.fileno())
        if found:
            self._done.append(
                f"{len(found)} frames stood where they do not belong: put back, from position {min(found)} on"
            )
        return len(found)

    def _tidy(self, findings: Findings) -> None:
        """Overwrite the bytes behind a whole frame with zeros again."""
        untidy = findings.scan.untidy if findings.scan else []
        for position, size in untidy:
            first = max(file for file in files_of(self._log, ".log") if file <= position)
            with log_file(self._log, first).open("r+b") as file:
                os.pwrite(file.fileno(), bytes(size), position - first)
                os.fsync(file.fileno())
        if untidy:
            self._done.append(f"{len(untidy)} frames had bytes behind them that are not zero: set to zero")

    def _take_out(self, findings: Findings, identity: LogIdentity, region: Region, lost: Sequence[Lost]) -> None:
        """Overwrite a damaged place with marks of lost offsets, and with pads."""
        scan = findings.scan
        assert scan is not None
        where = f"positions {region.begin} to {region.end - 1}"
        if region.begin < scan.begin:
            self._done.append(f"{where}: given up, with {_told(lost)}")
            return
        # Kept before anything is overwritten: a repair never destroys the only copy of damaged bytes.
        kept = self._copy_aside(region)
        first = max(
            file
            for file in files_of(self._log, ".log")
            if file < region.begin or (file == region.begin and not region.is_excess)
        )
        path, at = log_file(self._log, first), region.begin - first
        is_tail = region.begin >= scan.end
        if is_tail or region.is_excess:
            os.truncate(path, at)
        end = region.end
        if is_tail:  # the same size, so that lost messages have room if they are found elsewhere
            end = max(region.begin + sum(map(_size_of_mark, lost)), region.on_disk) if lost else region.begin
        if not region.is_excess:
            _fill(path, at, list(_filling(identity, region, end, lost)))
        self._done.append(f"{where}: taken out, with {_told(lost)}{kept}")

    def _copy_aside(self, region: Region) -> str:
        """Copy the bytes of a place aside, if there are any."""
        firsts = [file for file in files_of(self._log, ".log") if file < region.end]
        first = max((file for file in firsts if file <= region.begin), default=None)
        if region.is_excess:
            first = max((file for file in firsts if file < region.begin), default=None)
        if first is None:
            return ""
        directory = self._root / "damaged"
        directory.mkdir(mode=0o700, exist_ok=True)
        target = next(free for n in count() if not (free := directory / f"{n:03}-{region.begin:020}.bytes").exists())
        with log_file(self._log, first).open("rb") as file, target.open("wb") as copy:
            file.seek(region.begin - first)
            left = region.end - region.begin
            while left and (data := file.read(min(left, _COPIED_BYTES))):
                copy.write(data)
                left -= len(data)
            size = copy.tell()
            copy.flush()
            os.fsync(copy.fileno())
        if not size:
            target.unlink()
            return ""
        sync_directory(directory)
        return f"; what stood there is in damaged/{target.name}"

    # ---- what is recreated

    def _recreate(self, findings: Findings, identity: LogIdentity) -> None:
        """Recreate cells and checkpoint from the frames."""
        root = self._root
        begin = CommitLogReader(self._log).begin_position()
        ends = {key: queue.end for key, queue in findings.queues.items() if queue.end}
        for key, queue in findings.queues.items():
            if not len(queue.live) and key in (known := findings.known.ends if findings.known else {}):
                ends[key] = max(ends.get(key, 0), known[key])
        write_checkpoint(root, identity.log_id, Checkpoint(begin, begin, ends))
        for key in findings.queues:
            # After a checkpoint that knows the ends: interrupted here, recovery makes the cells from the frames, and no
            # queue begins at an earlier offset.
            remove_cells(queue_directory(root, *key))
        queues = Queues(root, 64)
        try:
            # The same code as after a crash makes the cells, so there is no second description of what a frame does to
            # them.
            end = recover(root, identity.log_id, queues, lambda _: True)
            unsynced, queues.files.unsynced = queues.files.unsynced, Unsynced()
            sync_files(root, unsynced)
        finally:
            queues.files.close()
        write_checkpoint(root, identity.log_id, Checkpoint(end, begin, queues.ends()))
        for first in files_of(root / "keys", ".keys"):  # they may name frames that were taken out
            if any(region.begin < _file_end(self._log, first) and region.end > first for region, _ in findings.damage):
                keys_file(root, first).unlink()
        self._done.append(f"cells of {len(findings.queues)} queues and the checkpoint: recreated from the frames")


def _file_end(directory: Path, first: int) -> int:
    path = log_file(directory, first)
    return first + (path.stat().st_size if path.exists() else 0)


def _told(lost: Sequence[Lost]) -> str:
    return ", ".join(map(str, lost)) if lost else "no message that is known of"


def _first_position(path: Path, identity: LogIdentity) -> int | None:
    """Return the position with which a file begins, if it begins with a frame of this log."""
    try:
        with path.open("rb") as file:
            header = read_header(file.read(_COPIED_BYTES))
    except (BadFrame, OSError):
        return None
    return header.position if header.log_id == identity.log_id else None


def _merged(damage: Sequence[tuple[Region, list[Lost]]]) -> list[tuple[Region, list[Lost]]]:
    """Return a file's broken end and the missing bytes behind it as one place."""
    merged: list[tuple[Region, list[Lost]]] = []
    for region, lost in damage:
        last = merged[-1] if merged else None
        if last and not region.is_file and not last[0].is_excess and last[0].end == region.begin:
            whole = Region(last[0].begin, region.end, last[0].why, is_file=False, generation=last[0].generation)
            merged[-1] = (whole, _joined([*last[1], *lost]))
        else:
            merged.append((region, lost))
    return merged


def _joined(lost: Sequence[Lost]) -> list[Lost]:
    """Join ranges to one of each queue."""
    found: dict[tuple[str, int], Lost] = {}
    for missing in lost:
        key = (missing.topic, missing.queue)
        before = found.get(key, missing)
        found[key] = Lost(*key, min(before.begin, missing.begin), max(before.end, missing.end))
    return list(found.values())


def _displaced(root: Path, findings: Findings, identity: LogIdentity) -> dict[int, bytes]:
    """Return whole frames that stand elsewhere than cells name them, where nothing whole stands: by position."""
    wanted = {cell.position: cell.header_crc for queue in findings.queues.values() for cell in queue.named}
    found: dict[int, bytes] = {}
    log = CommitLogReader(root / "commitlog")
    for first in log.files() if wanted else ():
        start, end = first, _file_end(log.directory, first)
        while (start := log.find_bytes(MAGIC, start, end)) < end:
            try:
                header = read_header(log.ahead(start, min(HEADER_SIZE_BYTES_MAX, end - start), end))
                is_wanted = wanted.get(header.position) == header.header_crc and header.log_id == identity.log_id
                if is_wanted and header.position != start and start + header.size_bytes <= end:
                    data = log.ahead(start, header.size_bytes, end)
                    verify(header, data)
                    found[header.position] = bytes(data)
                # A frame in its place is skipped as a whole. A header elsewhere may be bytes of a payload, so the
                # search continues right behind its first byte.
                start += max(1, header.size_bytes if header.position == start else 1)
            except BadFrame:
                start += 1
    return found


def _size_of_mark(lost: Lost) -> int:
    return sum(map(len, _mark(lost, LogIdentity(0), 0, 1)))


def _mark(lost: Lost, identity: LogIdentity, position: int, generation: int) -> tuple[Buffer, ...]:
    payload = hole(lost.end, 0, FrameKind.LOST)
    return pack(
        payload, lost.topic.encode(), lost.queue, lost.begin, position=position, log_id=identity.log_id,
        synced=position, generation=generation,
    )  # fmt: skip


def _filling(identity: LogIdentity, region: Region, end: int, lost: Sequence[Lost]) -> Iterator[tuple[bytes, int]]:
    """Return frames that fill a place without a gap: the first bytes of each, which zeros follow, and its size."""
    position = region.begin
    for topic, queue, offset in region.cuts:
        frame = pack(
            cut(None), topic.encode(), queue, offset, position=position, log_id=identity.log_id, synced=position,
            generation=region.generation,
        )  # fmt: skip
        size = sum(map(len, frame)) if lost or len(region.cuts) > 1 else end - position
        yield fitted(frame, size), size
        position += size
    for number, missing in enumerate(lost):
        frame = _mark(missing, identity, position, region.generation)
        size = end - position if number == len(lost) - 1 else sum(map(len, frame))
        if size < sum(map(len, frame)):
            raise CorruptLog(
                f"positions {region.begin} to {end - 1} are too few to say that {_told(lost)} are lost: restore a copy"
            )
        yield fitted(frame, size), size
        position += size
    while position < end:
        size = min(end - position, _PAD_SIZE_BYTES_MAX)
        frame = pack(
            pad(), b"", 0, 0, position=position, log_id=identity.log_id, synced=position, generation=region.generation
        )
        yield fitted(frame, size), size
        position += size


def _fill(path: Path, at: int, frames: Sequence[tuple[bytes, int]]) -> None:
    """Write frames one behind the other, on disk. A place stays damaged until its frame is whole."""
    with path.open("r+b") as file:
        fd = file.fileno()
        for head, size in frames:
            there = max(0, min(os.fstat(fd).st_size - at, size))
            for start in range(0, there, _COPIED_BYTES):
                os.pwrite(fd, bytes(min(_COPIED_BYTES, there - start)), at + start)
            if there < size:
                os.ftruncate(fd, at + size)
            # Zeros are on disk before the head: with the head first, a crash could leave a whole header before old
            # bytes.
            os.fsync(fd)
            os.pwrite(fd, head, at)
            at += size
        os.fsync(fd)
