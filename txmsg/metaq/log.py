"""The log as its one writer has it: appends to many queues at once, syncs for all that wait, drops what is too old."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from txmsg.errors import CorruptLog, LogBusy, MisuseError, StorageError
from txmsg.message import QUEUES_MAX, check_name
from txmsg.metaq.cells import Cell, Cells, OpenFiles, QueueEnd, cells_file, queue_directory, queues_of
from txmsg.metaq.commit_log import FILE_SIZE_BYTES_MAX, CommitLogWriter, files_of, log_file
from txmsg.metaq.frame import Buffer, Kind, Payload, hole_end, pack, verify
from txmsg.metaq.reader import LogReader
from txmsg.metaq.recovery import (
    DamagedFrame,
    checkpoint_of,
    frames,
    identity_of,
    torn_end,
    write_checkpoint,
    write_whole,
)

__all__ = ["Append", "Flush", "Log", "LogConfig"]

_OPEN_FILES_SPARED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How a log is kept."""

    file_size_bytes_max: int = FILE_SIZE_BYTES_MAX
    """Size of a commitlog file. Default 1 GiB. Retention deletes whole files."""
    flush_s: float = 0.5
    """Seconds after which what timed topics appended is on disk. Default 0.5."""
    checkpoint_s: float = 10.0
    """Seconds between checkpoints. Default 10: what was appended since is read again after a crash."""
    open_files_max: int = 16_384
    """Files of cells kept open. Default 16,384, or as many as the process may open less 256."""
    retention_s: float | None = None
    """Age at which files are deleted, or None: never."""
    retention_size_bytes: int | None = None
    """Size of all files above which the oldest are deleted, or None: never."""


class Append(NamedTuple):
    """A batch for one queue. base_offset: where it must begin, or None: at the queue's end."""

    topic: str
    queue: int
    payload: Payload
    base_offset: int | None = None


class Flush:
    """How a topic's appends come to disk."""

    SYNC = "sync"
    """On disk before `append` returns; one fdatasync for all that wait."""
    TIMED = "timed"
    """Within `flush_s`."""


class Log:
    """A log opened for writing. Threads may share it. Close it, or what timed topics appended last may be lost.

    Raises StorageError when another process writes it, CorruptLog when it is damaged before its end.
    """

    def __init__(
        self, root: Path | str, config: LogConfig | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.root = Path(root)
        self.config = config or LogConfig()
        self._clock = clock
        self._lock = threading.Lock()  # order of appends
        self._sync_lock = threading.Lock()  # one fdatasync at a time, for all that wait
        self._failed: Exception | None = None
        (self.root / "commitlog").mkdir(parents=True, exist_ok=True)
        self._lock_fd = _locked(self.root / "lock")
        try:
            self.identity = identity_of(self.root, create=True)
            self._topics = _topics_of(self.root)
            self._files = OpenFiles(_open_files_max(self.config.open_files_max))
            self._queues: dict[tuple[str, int], QueueEnd] = {}
            self._waiting: set[tuple[str, int]] = set()  # queues with cells that are not written
            self.reader = LogReader(self.root)
            self._writer = self._recovered()
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._closed = threading.Event()
        self._flusher = threading.Thread(target=self._flush_now_and_then, name="txmsg-metaq-flush", daemon=True)
        self._flusher.start()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- topics

    def flush_of(self, topic: str) -> str:
        """How this topic's appends come to disk: Flush.SYNC unless it was set."""
        return self._topics.get(topic, Flush.SYNC)

    def set_flush(self, topic: str, flush: str) -> None:
        """Chooses how this topic's appends come to disk, from the next one on."""
        check_name("topic", topic)
        if flush not in {Flush.SYNC, Flush.TIMED}:
            raise MisuseError(f"flush={flush!r} of topic {topic!r} is none of {Flush.SYNC!r} and {Flush.TIMED!r}")
        with self._lock:
            topics = {**self._topics, topic: flush}
            write_whole(self.root / "topics.json", json.dumps(topics, sort_keys=True).encode())
            self._topics = topics

    # ---- appending

    def append(self, appends: Sequence[Append]) -> list[int]:
        """Appends all batches, or none, and returns their first offsets. On disk as each topic's flush promises.

        Raises MisuseError for a base_offset that is not the queue's end, InvalidName, StorageError for a full disk.
        """
        wait_for = 0
        with self._lock:
            self._require_usable()
            bases, end = self._append(appends)
            if any(self.flush_of(each.topic) == Flush.SYNC for each in appends):
                wait_for = end
            self._write_cells(self._writer.synced, only_timed=True)
        if wait_for:
            self._sync(wait_for)
        return bases

    def _append(self, appends: Sequence[Append]) -> tuple[list[int], int]:
        writer, bases = self._writer, list[int]()
        parts, cells = list[Buffer](), list[tuple[tuple[str, int], Cell, int]]()
        ends: dict[tuple[str, int], int] = {}
        position = writer.end
        for topic, queue, payload, base_offset in appends:
            key = (topic, queue)
            at = ends.get(key)
            if at is None:
                at = (self._queues.get(key) or self._queue(topic, queue)).end
            if base_offset is not None and base_offset != at:
                raise MisuseError(
                    f"offset {base_offset} of topic {topic} queue {queue}: the next one is {at}; nothing was appended"
                )
            frame = pack(
                payload,
                topic.encode(),
                queue,
                at,
                position=position,
                log_id=self.identity.log_id,
                synced=writer.synced,
                generation=self.identity.generation,
            )
            size = sum(map(len, frame))
            if not writer.room(position - writer.end + size):
                self._write(parts, cells)
                parts, cells = [], []
                self._roll()
                position = writer.end
            end = hole_end_of(payload) if payload.kind is Kind.HOLE else at + payload.count
            parts += frame
            cells.append((key, Cell(at, position, size, payload.count, payload.last_stored_at_us), end))
            bases.append(at)
            ends[key] = end
            position += size
        self._write(parts, cells)
        return bases, writer.end

    def _write(self, parts: list[Buffer], cells: Iterable[tuple[tuple[str, int], Cell, int]]) -> None:
        if parts:
            self._writer.append(parts)
        for key, cell, end in cells:
            self._queues[key].add(cell, end)
            self._waiting.add(key)

    def _queue(self, topic: str, queue: int) -> QueueEnd:
        check_name("topic", topic)
        if not 0 <= queue < QUEUES_MAX:
            raise MisuseError(f"queue {queue} of topic {topic!r}: 0 to {QUEUES_MAX - 1} are allowed")
        end = self._queues[topic, queue] = _queue_end(self.root, topic, queue, self.reader)
        return end

    def _roll(self) -> None:
        self._writer.roll()
        self._write_cells(self._writer.synced)

    def _write_cells(self, synced: int, *, only_timed: bool = False) -> None:
        """Writes the cells of all that may be seen: timed topics' at once, others' when they are on disk."""
        for key in list(self._waiting):
            is_timed = self.flush_of(key[0]) == Flush.TIMED
            if only_timed and not is_timed:
                continue
            if not self._queues[key].write(self._files, self._writer.end if is_timed else synced):
                self._waiting.discard(key)

    def _require_usable(self) -> None:
        if self._failed is not None:
            raise StorageError(f"the log {self.root} is not written any more: {self._failed}") from self._failed

    # ---- to disk

    def _sync(self, position: int) -> None:
        """Returns when everything before this position is on disk, and seen by readers."""
        with self._sync_lock:  # whoever comes second finds its work done by the first
            if self._writer.synced < position:
                try:
                    self._writer.sync()
                except StorageError as exc:
                    self._failed = exc
                    raise
            with self._lock:
                self._write_cells(self._writer.synced)
        self._require_usable()

    def flush(self) -> None:
        """Everything that was appended is on disk."""
        self._sync(self._writer.end)

    def checkpoint(self) -> None:
        """Flushes, syncs cells, and notes it, so that a recovery has little to read."""
        self.flush()
        with self._lock:
            position = self._writer.synced
            self._write_cells(position)
            complete = (
                position if not self._waiting else min(self._queues[k].waiting[0].position for k in self._waiting)
            )
            self._files.sync()
        write_checkpoint(self.root, self.identity.log_id, complete)

    def _flush_now_and_then(self) -> None:
        since_checkpoint_s = 0.0
        while not self._closed.wait(self.config.flush_s):
            since_checkpoint_s += self.config.flush_s
            try:
                if since_checkpoint_s >= self.config.checkpoint_s:
                    self.checkpoint()
                    self.delete_old()
                    since_checkpoint_s = 0.0
                elif self._writer.synced < self._writer.end:
                    self.flush()
            except (OSError, StorageError) as exc:
                self._failed = exc  # the next append says so

    def close(self) -> None:
        """Flushes everything and lets another process write. Closing twice is fine."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._flusher.join()
        try:
            if self._failed is None:
                self.checkpoint()
                self._writer.close()
        finally:
            self._files.close()
            os.close(self._lock_fd)

    # ---- retention

    def delete_old(self) -> list[int]:
        """Deletes the oldest files that are beyond the age or the size to be kept; which ones, by first position.

        Never the file that is written.
        """
        config, directory = self.config, self.root / "commitlog"
        with self._lock:
            firsts = files_of(directory, ".log")
            size = self._writer.end - firsts[0]
            deleted: list[int] = []
            for first, following in pairwise(firsts):
                path = log_file(directory, first)
                age_s = self._clock() - path.stat().st_mtime
                too_old = config.retention_s is not None and age_s > config.retention_s
                too_large = config.retention_size_bytes is not None and size > config.retention_size_bytes
                if not (too_old or too_large):
                    break
                path.unlink()
                size -= following - first
                deleted.append(first)
            if deleted:
                self._delete_cells(firsts[len(deleted)])
        return deleted

    def _delete_cells(self, kept_from: int) -> None:
        for topic, queue in queues_of(self.root):
            cells = Cells(queue_directory(self.root, topic, queue))
            bases = cells.files()
            for base in bases[:-1]:  # the last one tells where the queue goes on
                if cells.load(base)[-1]["position"] >= kept_from:
                    break
                cells_file(cells.directory, base).unlink()

    # ---- opening

    def _recovered(self) -> CommitLogWriter:
        """Reads from the checkpoint on, adds the cells that are lost, and cuts a torn end."""
        log, log_id = self.reader.commit_log, self.identity.log_id
        begin, end = log.begin(), log.end()
        start = max(begin, min(checkpoint_of(self.root, log_id), end))
        self._drop_cells_from(start)
        try:
            for header in frames(log, log_id, start, end):
                queue = self._queues.get((header.topic, header.queue)) or self._queue(header.topic, header.queue)
                after = header.base_offset + header.count
                if header.kind is Kind.HOLE:
                    after = hole_end(header, verify(header, log.read(header.position, header.size_bytes)))
                cell = Cell(
                    header.base_offset, header.position, header.size_bytes, header.count, header.last_stored_at_us
                )
                queue.add(cell, after)
                self._waiting.add((header.topic, header.queue))
        except DamagedFrame as exc:
            if not torn_end(log, log_id, exc.position, end):
                raise CorruptLog(
                    f"the log {self.root} is damaged at {exc}; frames behind it are whole: run `txmsg metaq check`"
                ) from exc
            end = exc.position
            _cut(self.root / "commitlog", end)
        for key in self._waiting:
            self._queues[key].write(self._files, end)
        self._waiting.clear()
        self.reader = LogReader(self.root)
        return CommitLogWriter(self.root / "commitlog", end=end, file_size_bytes_max=self.config.file_size_bytes_max)

    def _drop_cells_from(self, position: int) -> None:
        """Forgets cells that point at or past this position: what they say is found out anew."""
        for topic, queue in queues_of(self.root):
            cells = Cells(queue_directory(self.root, topic, queue))
            for base in reversed(cells.files()):
                path = cells_file(cells.directory, base)
                kept = int((cells.load(base)["position"] < position).sum())
                if kept:
                    os.truncate(path, kept * 32)
                    break
                path.unlink()


def hole_end_of(payload: Payload) -> int:
    """The offset after the last one that this hole says is missing."""
    return int.from_bytes(bytes(payload.parts[0])[:8], "little")


def _queue_end(root: Path, topic: str, queue: int, reader: LogReader) -> QueueEnd:
    directory = queue_directory(root, topic, queue)
    cells = Cells(directory)
    bases = cells.files()
    if not bases:
        return QueueEnd(directory, 0, 0, directory, 0)
    last = cells.load(bases[-1])
    return QueueEnd(
        directory,
        reader.queue(topic, queue).end(),
        int(last[-1]["last_stored_at"]) if len(last) else 0,
        cells_file(directory, bases[-1]),
        len(last),
    )


def _cut(directory: Path, end: int) -> None:
    for first in reversed(files_of(directory, ".log")):
        if first > end or (first == end and first != files_of(directory, ".log")[0]):
            log_file(directory, first).unlink()
        else:
            os.truncate(log_file(directory, first), end - first)
            return


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.read(fd, 20).decode("ascii", "replace").strip() or "?"
        os.close(fd)
        raise LogBusy(
            f"the log {path.parent} is being written by process {holder}: a log has one writer; read it, or use its "
            "server"
        ) from exc
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def _topics_of(root: Path) -> dict[str, str]:
    try:
        topics: dict[str, str] = json.loads((root / "topics.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        path = root / "topics.json"
        raise CorruptLog(f"{path} cannot be read ({exc}): delete it, and all topics are synchronous") from exc
    return topics


def _open_files_max(wanted: int) -> int:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(64, min(wanted, hard - _OPEN_FILES_SPARED))
