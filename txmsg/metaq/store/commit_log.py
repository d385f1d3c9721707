"""The commit log: consecutive files of frames. Handles bytes and positions; independent of queues."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from txmsg.errors import CorruptLog, StorageError
from txmsg.metaq.format.frame import Buffer
from txmsg.metrics.counts import SECONDS, Histogram
from txmsg.runtime.owners import is_full, refusal_text

FILE_SIZE_BYTES_MAX = 1024**3
_DIGITS = 20
_FILES_MAX = 64
_READ_AHEAD_BYTES = 1024 * 1024
_SEARCHED_AT_ONCE_BYTES = 1024 * 1024
_PARTS_MAX = os.sysconf("SC_IOV_MAX")


def files_of(directory: Path, suffix: str) -> list[int]:
    """Return the numbers that name the files of a directory, in order; none when it does not exist.

    Ignores other files.
    """
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[:_DIGITS]) for name in names if is_named(name, suffix))


def is_named(name: str, suffix: str) -> bool:
    """Return True if a name is that of a file of a log: 20 digits and this suffix."""
    digits = name[:_DIGITS]
    return digits + suffix == name and len(digits) == _DIGITS and digits.isascii() and digits.isdecimal()


def unwritten(log: Path, exc: OSError) -> str:
    """Return the begin of an error's text: that a log cannot be written, and why."""
    return f"the log {log} {'is full' if is_full(exc) else 'cannot be written'}: {refusal_text(exc, log)}"


def sync_directory(directory: Path) -> None:
    """Make changes of a directory (files created, renamed, removed) durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def log_file(directory: Path, first: int) -> Path:
    """Return the file that begins at this position."""
    return directory / f"{first:020}.log"


class CommitLogWriter:
    """Appends to the last file. Not safe for threads, but `sync` may run beside `append`."""

    def __init__(
        self,
        directory: Path,
        *,
        end: int,
        file_size_bytes_max: int = FILE_SIZE_BYTES_MAX,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the last file. on_failure: called before bytes that are not known to be on disk are cut off."""
        self.directory = directory
        self.end = end
        """The position after the last byte written."""
        self.synced = end
        """The position before which everything is on disk."""
        self.syncs = Histogram(SECONDS)
        """Seconds that the disk took."""
        self.failed: StorageError | None = None
        """The reason why nothing can be appended any more."""
        self._offsets = self._offsets_synced = 0  # how many were appended since it was opened, and are on disk
        self._on_failure = on_failure
        self._file_size_bytes_max = file_size_bytes_max
        self._rolling = threading.Lock()  # while the file is another one
        firsts = files_of(directory, ".log")
        self.first = firsts[-1] if firsts else end
        """The begin of the last file."""
        self._fd = self._open(self.first)

    def _open(self, first: int) -> int:
        try:
            # The name is synced with the file: fdatasync of the file alone does not make a new name durable. O_APPEND:
            # after a partial write was cut off, the next one begins at the new end.
            fd = os.open(log_file(self.directory, first), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            sync_directory(self.directory)
        except OSError as exc:
            raise StorageError(f"{unwritten(self.directory, exc)}; nothing was appended") from exc
        return fd

    def room(self, size_bytes: int) -> bool:
        """Return True if the last file has room for this many bytes; an empty one always has."""
        used = self.end - self.first
        return used == 0 or used + size_bytes <= self._file_size_bytes_max

    def roll(self) -> None:
        """Complete the last file, on disk, and begin the next. Raises StorageError, and then nothing has changed."""
        # `sync` only syncs the last file, so a file is completed only when all of it is on disk.
        self.sync()
        fd = self._open(self.end)
        with self._rolling:
            self._fd, old = fd, self._fd
            self.first = self.end
            os.close(old)

    @property
    def offsets_unsynced(self) -> int:
        """The number of appended offsets that are not known to be on disk."""
        return self._offsets - self._offsets_synced

    def append(self, parts: Sequence[Buffer], offsets: int) -> None:
        """Write all parts, which contain this many offsets, or nothing. Raises StorageError.

        If the disk is full, a partial write is undone.
        """
        size = sum(map(len, parts))
        written = 0
        try:
            # writev takes the parts as they are: joining them would copy every payload once more.
            for start in range(0, len(parts), _PARTS_MAX):
                some = parts[start : start + _PARTS_MAX]
                taken = os.writev(self._fd, some)
                written += taken
                if taken != sum(map(len, some)):
                    break  # the next parts must follow the rest of these
            if written != size:  # a signal, or a full disk: writing the rest shows which
                self._write_rest(b"".join(parts)[written:])
        except OSError as exc:
            # A partial write is taken back: with the next append behind it, it would be damage in the middle of the
            # log.
            os.ftruncate(self._fd, self.end - self.first)
            raise StorageError(f"{unwritten(self.directory, exc)}; nothing was appended") from exc
        self.end += size
        self._offsets += offsets  # last: `sync` reads it first, and takes none for synced that it may have missed

    def _write_rest(self, rest: bytes) -> None:
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def sync(self) -> int:
        """Return when everything appended before this call is on disk. Returns up to which position.

        Raises StorageError, and from then on `failed` has the reason. After a failed sync the kernel regards the data
        as written and shows it to readers, so everything that is not known to be on disk is cut off, and nothing more
        is appended.
        """
        with self._rolling:
            offsets = self._offsets
            # The position and the descriptor are read together, so that `end` is a position in this file.
            first, end, fd = self.first, self.end, os.dup(self._fd)  # `roll` may close it meanwhile
        begun_at = time.monotonic()
        try:
            # Without a lock of the writer: appends continue while the disk works.
            os.fdatasync(fd)
            self.syncs.observe(time.monotonic() - begun_at)
        except OSError as exc:
            self.failed = StorageError(f"the log {self.directory} cannot be synced: {exc.strerror}; open it again")
            # The record comes before the cut: after a crash between the two the next writer must not assign offsets
            # again that readers have seen.
            self._on_failure()
            os.ftruncate(fd, max(0, min(self.synced, end) - first))
            raise self.failed from exc
        finally:
            os.close(fd)
        # `max`, because `roll` may have synced further meanwhile.
        self.synced = max(self.synced, end)
        self._offsets_synced = max(self._offsets_synced, offsets)
        return self.synced

    def fail(self, why: str) -> None:
        """Refuse all further appends."""
        self.failed = StorageError(why)

    def close(self) -> None:
        """Sync and close."""
        try:
            if self.failed is None:
                self.sync()
        finally:
            os.close(self._fd)


class _OpenFile:
    """A file that is read; closed with its last user."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, at: int, size_bytes: int) -> bytes:
        # No memory map: a copy costs nothing measurable (4.2 million messages/s either way, decision 0036), because the
        # checksum reads each byte in any case.
        return os.pread(self._fd, size_bytes, at)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class CommitLogReader:
    """Reads any position that is kept. Sees what other processes append, cut off and delete.

    Copies data instead of using memory maps: a process that reads a mapped part that a writer has cut off is killed by
    SIGBUS.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._firsts: list[int] = []
        self._files: OrderedDict[int, _OpenFile] = OrderedDict()
        self._window = (0, b"")  # the position and the bytes that `ahead` has buffered

    def files(self) -> list[int]:
        """Return the positions at which the existing files begin. Discards data that was read ahead."""
        self._window = (0, b"")
        self._firsts = files_of(self.directory, ".log")
        for first in self._files.keys() - set(self._firsts):
            del self._files[first]  # or a file that is deleted would fill the disk still
        return self._firsts

    def begin_position(self) -> int:
        """Return the first position that is kept."""
        return next(iter(self.files()), 0)

    def end_position(self) -> int:
        """Return the position after the last byte of the last file."""
        return self.end_after(self.files())

    def end_after(self, firsts: Sequence[int]) -> int:
        """Return the position after the last byte of the last of these files; more files may exist by now."""
        return firsts[-1] + log_file(self.directory, firsts[-1]).stat().st_size if firsts else 0

    def read(self, position: int, size_bytes: int) -> memoryview:
        """Return these bytes. Raises CorruptLog if they are not, or no longer, all there."""
        return memoryview(self._read(position, size_bytes))

    def _read(self, position: int, size_bytes: int) -> bytes:
        first = self._file_at(position)
        data = self._file(first).read(position - first, size_bytes)
        if len(data) < size_bytes:
            first = self._file_at(position, refresh=True)  # it may have rolled
            data = self._file(first).read(position - first, size_bytes)
        if len(data) < size_bytes:
            name = log_file(self.directory, first).name
            raise CorruptLog(f"{name} ends at {position + len(data)}, before {position + size_bytes}")
        return data

    def ahead(self, position: int, size_bytes: int, end: int) -> memoryview:
        """Read as `read` does, for sequential reading up to `end` in the same file: reads ahead and buffers."""
        start, window = self._window
        if not start <= position <= position + size_bytes <= start + len(window):
            size = min(max(size_bytes, _READ_AHEAD_BYTES), max(size_bytes, end - position))
            start, window = self._window = position, self._read(position, size)
        return memoryview(window)[position - start : position - start + size_bytes]

    def read_some(self, position: int, size_bytes_max: int) -> memoryview:
        """Return these bytes, or fewer where their file ends."""
        firsts = self.files()
        following = bisect_right(firsts, position)
        end = firsts[following] if following < len(firsts) else self.end_after(firsts)
        return self.read(position, min(size_bytes_max, end - position))

    def find_bytes(self, sought: bytes, start: int, end: int) -> int:
        """Return the first position of these bytes between `start` and `end` in one file; `end` if they are not
        found.
        """
        while start < end:
            size = min(_SEARCHED_AT_ONCE_BYTES, end - start)
            place = self._read(start, size).find(sought)
            if place >= 0:
                return start + place
            # The steps overlap, as the bytes may stand across the end of a step.
            start += max(1, size - len(sought) + 1)
        return end

    def _file_at(self, position: int, *, refresh: bool = False) -> int:
        place = bisect_right(self._firsts, position) - 1
        if refresh or place < 0:
            place = bisect_right(self.files(), position) - 1
        if place < 0:
            raise CorruptLog(f"position {position} is not kept: the log begins at {self._firsts[:1] or 'nothing'}")
        return self._firsts[place]

    def _file(self, first: int) -> _OpenFile:
        file = self._files.get(first)
        if file is None:
            path = log_file(self.directory, first)
            try:
                file = self._files[first] = _OpenFile(path)
            except FileNotFoundError as exc:
                raise CorruptLog(f"{path.name} is missing") from exc
            while len(self._files) > _FILES_MAX:
                self._files.popitem(last=False)
        return file
