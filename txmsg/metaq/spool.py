"""Batches on disk until they are in a log: a bounded queue of frames. Independent of logs; starts no thread.

DIR/lock            held by the only process that uses the spool
DIR/00000012.spool  frames as in a commit log, whose `base_offset` says how many frames of the same `put_batches` follow
DIR/relayed         the file and the position in it up to which everything is in the log

Frames of one `put_batches` are kept or lost together: an unfinished `put_batches` is cut off after a crash.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from txmsg.errors import CorruptLog, MisuseError, Overloaded, StorageError
from txmsg.metaq.format.frame import HEADER_SIZE_BYTES_MAX, MAGIC, BadFrame, Header, Payload, pack, read_header, verify
from txmsg.metaq.store.commit_log import sync_directory
from txmsg.metaq.store.lock import lock_private
from txmsg.metaq.store.log import Append
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text

_log = EventLog(__name__)

SIZE_BYTES_MAX: Final = 1024**3
"""The default bound."""
SIZE_BYTES_MIN: Final = 1024**2
_FILES: Final = 8
"""Files of a full spool, about: space is freed a file at a time."""
_FILE_SIZE_BYTES_MAX: Final = 16 * 1024**2
_RELAYED = struct.Struct("<QQ")
_CRC = struct.Struct("<I")


class SpoolPosition(NamedTuple):
    """A position between two frames."""

    file: int
    at: int


class Spool:
    """A spool in a directory. Threads may share it.

    Raises LogBusy if another process uses the directory, StorageError if it cannot be written, CorruptLog for damage
    that a crash does not explain. size_bytes_max: of its files together. A single larger `put_batches` is accepted when
    nothing is waiting. cure: the way to continue without a damaged file, for errors.
    """

    def __init__(
        self,
        directory: Path,
        *,
        size_bytes_max: int = SIZE_BYTES_MAX,
        cure: str = "stop this process and move the file away",
    ) -> None:
        if size_bytes_max < SIZE_BYTES_MIN:
            raise MisuseError(f"a spool of {size_bytes_max} bytes: {SIZE_BYTES_MIN} at least are needed")
        self.directory = directory
        self.size_bytes_max = size_bytes_max
        self._cure = cure
        self._file_size_bytes_max = min(_FILE_SIZE_BYTES_MAX, size_bytes_max // _FILES)
        self._lock = threading.Lock()  # guards the fields below
        self._sync_lock = threading.Lock()  # one fdatasync at a time, for all that wait; taken before _lock
        self._pid = os.getpid()
        self._failed = ""  # why nothing is taken any more
        self._fd = self._relayed_fd = -1
        self._lock_fd = lock_private(directory, what="the spool", user="process")
        try:
            self._relayed_fd = os.open(directory / "relayed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._sizes = {file: self._path(file).stat().st_size for file in self._files()}
            self._relayed = self._read_relayed()
            self._recover()
            self._end = self._relayed
            last = max(self._sizes, default=self._relayed.file)
            self._fd = self._open(last)
            self._begin_file(last)
        except OSError as exc:
            self.close()
            raise self._unwritable(exc) from exc
        except BaseException:
            self.close()  # or its lock would be held until this process ends
            raise
        self._synced = self._end

    # ---- what is in it

    @property
    def is_empty(self) -> bool:
        """True if everything is in the log."""
        return self._relayed == self._end

    @property
    def has_failed(self) -> bool:
        """True if nothing is accepted until it is opened again."""
        return bool(self._failed)

    @property
    def size_bytes(self) -> int:
        """The size of its files, including relayed data that is not deleted yet."""
        return sum(self._sizes.values())

    @property
    def waiting_size_bytes(self) -> int:
        """The size of what is not in the log yet."""
        with self._lock:
            return sum(size for file, size in self._sizes.items() if file >= self._relayed.file) - self._relayed.at

    # ---- writing

    def put_batches(self, appends: Sequence[Append]) -> None:
        """Store batches for the log, all or none; on disk on return. Raises Overloaded if the spool is full.

        Raises StorageError, and then none are stored; after a failed sync it accepts nothing until it is opened again.
        """
        if os.getpid() != self._pid:
            raise MisuseError(
                f"process {os.getpid()} was forked from the one that uses the spool {self.directory}, and must not "
                "write it, too: make the LogProducer after forking, with a directory of its own"
            )
        parts = list(_packed(appends))
        size = sum(map(len, parts))
        with self._lock:
            self._check()
            # Under `_lock` batches get their place in the file; the sync is outside it, so that callers which come
            # meanwhile share the next one.
            if self.size_bytes + size > self.size_bytes_max:
                self._make_room(size)
            elif self._end.at >= self._file_size_bytes_max:
                self._roll()
            self._write(parts, size)
            mine = self._end
        with self._sync_lock:
            if self._synced < mine:
                with self._lock:
                    self._check()
                    fd, end = os.dup(self._fd), self._end  # its own: the file may be closed meanwhile, being full
                try:
                    self._sync(fd)
                except StorageError:
                    with self._lock:
                        # After a failed fdatasync the kernel regards the pages as written: what is not known to be on
                        # disk is cut off, so that it is not sent although its sender was told that it failed.
                        self._take_back()
                    raise
                finally:
                    os.close(fd)
                self._synced = max(self._synced, end)

    def _make_room(self, size: int) -> None:
        if not self.is_empty:
            raise Overloaded(
                f"the spool {self.directory} holds {self.size_bytes} bytes that are not in the log yet, of "
                f"{self.size_bytes_max} that it may: nothing was sent; it takes more when the log has taken these"
            )
        self._roll()
        self._delete_relayed()

    def _write(self, parts: Sequence[bytes], size: int) -> None:
        """Write frames, and undo the part that a full disk has let through."""
        try:
            written = os.pwrite(self._fd, b"".join(parts), self._end.at)
        except OSError as exc:
            raise self._unwritable(exc) from exc
        if written != size:
            # A short write means a full disk: the part is taken back, so that the next frame does not stand behind half
            # a frame.
            os.ftruncate(self._fd, self._end.at)
            raise self._unwritable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        self._end = SpoolPosition(self._end.file, self._end.at + size)
        self._sizes[self._end.file] = self._end.at

    def _roll(self) -> None:
        """Finish the last file, on disk, and begin the next. Raises StorageError, and then nothing has changed."""
        try:
            self._sync(self._fd)
        except StorageError:
            self._take_back()
            raise
        self._synced = max(self._synced, self._end)
        fd = self._open(self._end.file + 1)
        self._fd, old = fd, self._fd
        os.close(old)
        is_empty = self.is_empty
        self._begin_file(self._end.file + 1)
        if is_empty:
            self._note(self._end)

    def _open(self, file: int) -> int:
        try:
            fd = os.open(self._path(file), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                sync_directory(self.directory)
            except OSError:
                os.close(fd)
                raise
        except OSError as exc:
            raise self._unwritable(exc) from exc
        return fd

    def _begin_file(self, file: int) -> None:
        """Continue at the end of the file that is open."""
        self._end = SpoolPosition(file, os.fstat(self._fd).st_size)
        self._sizes[file] = self._end.at

    def _sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as exc:  # the disk's contents are unknown now: https://wiki.postgresql.org/wiki/Fsync_Errors
            self._failed = f"the spool {self.directory} cannot be synced: {exc.strerror}; close it and open it again"
            raise StorageError(self._failed) from exc

    def _check(self) -> None:
        if self._failed:
            raise StorageError(self._failed)

    def _take_back(self) -> None:
        """Cut off what is not known to be on disk, except what is in the log by now: nothing is put after it."""
        end = max(self._synced, self._relayed, SpoolPosition(self._end.file, 0))
        if end < self._end:
            os.ftruncate(self._fd, end.at)
            self._end, self._sizes[end.file] = end, end.at

    # ---- reading

    def head(self, *, size_bytes_max: int, count_max: int) -> tuple[list[Append], SpoolPosition]:
        """Return the oldest waiting batches, and the mark after them, for `done`.

        Whole `put_batches`s; at least one, if any waits.

        Raises CorruptLog for damage, once everything before it is in the log.
        """
        with self._lock:
            mark, end = self._relayed, self._end
        found: list[Append] = []
        whole, after = 0, mark
        size = 0
        try:
            for header, append, following in self._frames(mark, end):
                # Only whole `put_batches` are handed on: they are kept or lost together.
                if whole and (size + header.size_bytes > size_bytes_max or len(found) >= count_max):
                    break
                size += header.size_bytes
                found.append(append)
                if not header.base_offset:
                    whole, after = len(found), following
        except CorruptLog:
            if not whole:
                raise
        return found[:whole], after

    def done(self, mark: SpoolPosition) -> None:
        """Record that everything before this mark is in the log.

        Does nothing after `close`: another process may use the files.
        """
        with self._lock:
            if self._lock_fd < 0:
                return
            mark = min(mark, self._end)  # batches that were read may have been taken back
            is_file_done = mark.file < self._end.file and mark.at >= self._sizes[mark.file]
            try:
                self._note(SpoolPosition(mark.file + 1, 0) if is_file_done else mark)
            finally:
                self._delete_relayed()  # on a full disk this alone makes room for the mark

    def _note(self, mark: SpoolPosition) -> None:
        """Write the mark. Not synced: after a power cut batches before it are appended once more, under their ids."""
        # Set before it is written: after a failed write the relay continues, and only a restart sends these batches
        # again.
        self._relayed = mark
        told = _RELAYED.pack(*mark)
        try:
            os.pwrite(self._relayed_fd, told + _CRC.pack(crc32c(told)), 0)
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def _delete_relayed(self) -> None:
        for file in [file for file in self._sizes if file < self._relayed.file]:
            self._path(file).unlink(missing_ok=True)
            del self._sizes[file]

    def _frames(self, mark: SpoolPosition, end: SpoolPosition) -> Iterator[tuple[Header, Append, SpoolPosition]]:
        """Return the frames from a mark on. Raises CorruptLog for the first one that is not whole."""
        for file in range(mark.file, end.file + 1):
            at = mark.at if file == mark.file else 0
            size = end.at if file == end.file else self._sizes.get(file, 0)
            if at >= size:
                continue
            fd = os.open(self._path(file), os.O_RDONLY | os.O_CLOEXEC)
            try:
                while at < size:
                    header, append = self._frame(fd, file, at)
                    at += header.size_bytes
                    yield header, append, SpoolPosition(file, at)
            finally:
                os.close(fd)

    def _frame(self, fd: int, file: int, at: int) -> tuple[Header, Append]:
        try:
            header = read_header(os.pread(fd, HEADER_SIZE_BYTES_MAX, at))
            frame = os.pread(fd, header.size_bytes, at)
            if len(frame) < header.size_bytes:
                raise BadFrame("the frame is cut off")
            stored = bytes(verify(header, frame))
        except BadFrame as exc:
            raise CorruptLog(
                f"{self._path(file)} is damaged at byte {at} ({exc}): what follows in it cannot be sent; to go on "
                f"without it, {self._cure}"
            ) from exc
        return header, Append(header.topic, header.queue, _payload(header, stored))

    # ---- starting and ending

    def _read_relayed(self) -> SpoolPosition:
        """Return the end of the log's part; the begin of the first file, if that is not known."""
        told = os.pread(self._relayed_fd, _RELAYED.size + _CRC.size, 0)
        first = SpoolPosition(min(self._sizes, default=1), 0)
        if len(told) != _RELAYED.size + _CRC.size or _CRC.unpack_from(told, _RELAYED.size)[0] != crc32c(
            told[: _RELAYED.size]
        ):
            return first
        mark = max(first, SpoolPosition(*_RELAYED.unpack_from(told)))
        if mark.at and mark.file not in self._sizes:  # moved away, being damaged: a new file may get its number
            mark = SpoolPosition(mark.file + 1, 0)
            self._note(mark)
        return mark

    def _recover(self) -> None:
        """Cut off the part of the last `put_batches` that a crash left, and delete files that the log has."""
        self._delete_relayed()
        if not self._sizes:
            return
        last = max(self._sizes)
        end = SpoolPosition(last, self._sizes[last])
        if self._relayed > end:  # a power cut took batches that were sent and not synced
            self._note(end)
        for _ in self._frames(self._relayed, SpoolPosition(last, 0)):
            pass  # files before the last one are whole
        whole = max(self._relayed, SpoolPosition(last, 0))
        try:
            for header, _, following in self._frames(whole, end):
                if not header.base_offset:
                    whole = following
        except CorruptLog:
            if self._has_frame(last, whole.at, end.at):
                raise
        if whole < end:
            _log.warning(
                "spool.cut",
                "%(size_bytes)d bytes at the end of %(file)s are cut off: they were being written at a crash",
                size_bytes=end.at - whole.at,
                file=self._path(last),
            )
            os.truncate(self._path(last), whole.at)
            self._sizes[last] = whole.at

    def _has_frame(self, file: int, begin: int, end: int) -> bool:
        """Return True if a whole frame ends a `put_batches` in between: then a crash did not cut off what is
        before it.
        """
        data = self._path(file).read_bytes()[:end]
        at = data.find(MAGIC, begin)
        while at >= 0:
            try:
                header = read_header(data, at)
                verify(header, data, at)
            except BadFrame:
                pass
            else:
                if not header.base_offset:
                    return True
            at = data.find(MAGIC, at + 1)
        return False

    def close(self) -> None:
        """Release the directory for other processes. Waiting batches stay. Closing twice is fine."""
        with self._sync_lock, self._lock:
            for fd in (self._fd, self._relayed_fd, self._lock_fd):
                if fd >= 0:
                    os.close(fd)
            self._lock_fd = self._fd = self._relayed_fd = -1

    def _files(self) -> list[int]:
        """Return the numbers of its files. Others are not its own: one that was renamed, being damaged, is set
        aside.
        """
        numbers = [int(path.stem) for path in self.directory.glob("*.spool") if path.stem.isdecimal()]
        return sorted({file for file in numbers if self._path(file).exists()})

    def _path(self, file: int) -> Path:
        return self.directory / f"{file:08}.spool"

    def _unwritable(self, exc: OSError) -> StorageError:
        return StorageError(f"the spool {self.directory} cannot be written: {refusal_text(exc, self.directory)}")


def _packed(appends: Sequence[Append]) -> Iterator[bytes]:
    following = len(appends)
    for append in appends:
        following -= 1
        frame = pack(
            append.payload, append.topic.encode(), append.queue, following, position=0, log_id=0, synced=0, generation=0
        )
        yield b"".join(frame)


def _payload(header: Header, stored: bytes) -> Payload:
    return Payload(
        (stored, bytes(-len(stored) & 7)),
        header.payload_size_bytes,
        header.raw_size_bytes,
        header.payload_crc,
        header.compression,
        header.kind,
        header.columns,
        header.count,
        header.first_stored_at_us,
        header.last_stored_at_us,
    )
