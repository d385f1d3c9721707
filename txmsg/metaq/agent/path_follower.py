"""The files that a path has had, one after the other, so that their lines stay in order across rotations.

A file that was renamed is read to its end before the one that has its path now. It stays open as long as it may grow:
the writer may not have noticed yet. One that was truncated continues in the copy that was made of it before, if there
is one, and what is at the path is another file from then on, whatever its inode.

A file that cannot be read holds this lane and no other: it is tried again after longer and longer pauses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from txmsg.metaq.agent.names import files_between, rotated_files
from txmsg.metaq.agent.records import Records, RecordSplitter
from txmsg.metaq.agent.stream import FollowedFile, Truncated, head_of, open_to_read
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text

_log = EventLog(__name__)

FileId = tuple[int, int]
"""Device and inode."""

GONE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that say that no file has this name. After any other OSError there may be one, which cannot be read now."""
_PAUSE_S_MAX: Final = 30.0
_COPY_END_SIZE_BYTES: Final = 65_536


class RecordBlock(NamedTuple):
    """Records that were read from a file, and not handed on yet."""

    stream: FollowedFile
    base: int
    records: Records
    data: bytes
    """The bytes that the records were cut from."""

    def commit(self) -> None:
        """Record that these records are in the log, or in the spool."""
        self.stream.advance(self.data[: self.records.size_bytes])


@dataclass(slots=True)
class RetriedFailure:
    """The reason why something cannot be done now, and the time of the next attempt."""

    text: str = ""
    retry_at: float = 0.0
    _pause_s: float = 1.0

    def note(self, path: Path | str, exc: OSError, now: float) -> None:
        """Record a failure, and log it when it begins and when the reason changes."""
        error = refusal_text(exc, path)
        text = f"{path} cannot be read: {error}"
        if text != self.text:
            _log.warning(
                "agent.unreadable",
                "%(path)s cannot be read, and is tried again, while other files are read: %(error)s; to go on without "
                "the rest of the file, delete it",
                path=path,
                error=f"{error}; check the disk or the mount" if error == exc.strerror else error,  # it names no cause
            )
        self.text = text
        self.retry_at = now + self._pause_s
        self._pause_s = min(_PAUSE_S_MAX, 2 * self._pause_s)

    def clear(self, path: Path) -> None:
        if self.text:
            _log.info("agent.readable", "%(path)s is read again", path=path)
            self.text, self._pause_s = "", 1.0


@dataclass(slots=True)
class FileReadOptions:
    """Options for reading the files of a source."""

    cutter: RecordSplitter
    block_size_bytes: int
    """Bytes that the cutter needs at least. May change between two reads."""
    rest_s: float
    """Seconds after which an unfinished record counts as complete."""
    closed_s: float
    """Seconds without growth after which a file is closed that was deleted, or renamed twice."""


class PathFollower:
    """Follows the files of a path, as the module says. One thread uses it.

    knows: returns True if a file is read already, by this lane or another. is_found: returns True if the source's
    patterns find it. at_end: True if a first file begins at its end.
    """

    def __init__(
        self,
        path: Path,
        reading: FileReadOptions,
        *,
        knows: Callable[[FileId], bool],
        is_found: Callable[[FileId], bool],
        at_end: bool = False,
    ) -> None:
        self.path = path
        self.streams: list[FollowedFile] = []
        """Open files, the oldest first. All but the last have been moved."""
        self.saved: list[FollowedFile] = []
        """Files that were read before and are not open yet, the oldest first. Nothing is read before they are."""
        self.truncations = 0
        self.lost_bytes = 0
        """Bytes of files that were truncated or deleted before they were read, as far as their size was seen."""
        self._reading = reading
        self._knows = knows
        self._is_found = is_found
        self._at_end = at_end
        self._target = path
        """The file that the path last led to."""
        self._missed_since_ns: int | None = None
        self._unseen, self._unread = RetriedFailure(), RetriedFailure()

    def known(self) -> list[FollowedFile]:
        """Return all its files, open or not, the oldest first."""
        return [*self.streams, *self.saved]

    @property
    def trouble(self) -> str:
        """The reason why one of its files cannot be read now; empty if all can."""
        return self._unseen.text or self._unread.text

    @property
    def is_held(self) -> bool:
        """True if nothing is read until the next attempt."""
        return bool(self.saved or self._unread.text)

    # ---- which files there are

    def restore(self, now: float) -> None:
        """Open the files of `saved` again, each at its path or at a name that rotation gave it, and continue there."""
        if now < self._unseen.retry_at:
            return
        while self.saved:
            stream = self.saved[0]
            try:
                found = self._opened_again(stream)
            except OSError as exc:
                self._unseen.note(exc.filename or self.path, exc, now)
                return
            self._target = stream.target
            if found is None:
                self._lose(stream, "deleted")
                self._missed_since_ns = stream.mtime_ns
            else:
                path, fd = found
                stream.reopen(fd)
                stream.is_moved, stream.grown_at = path != self.path, now
                self.streams.append(stream)
                # A file that is found again bounds the gap in which files may have been missed.
                self._missed_since_ns = None  # files between this one and earlier ones are known
            del self.saved[0]

    def _opened_again(self, stream: FollowedFile) -> tuple[Path, int] | None:
        """Return the place and the descriptor of a file that was read before. None: it does not exist any more.

        Raises OSError if it may be one that cannot be read now.
        """
        unreadable: OSError | None = None
        # A file that has its name is found without listing directories, which may not be allowed.
        for path in chain(dict.fromkeys((self.path, stream.target)), rotated_files(self.path, stream.target)):
            fd = -1
            try:
                if os.stat(path).st_ino != stream.inode:
                    continue
                fd = open_to_read(path)
                stat = os.fstat(fd)
                # At its path a changed content is a truncation, which the first look finds. A device may be known by
                # another number after a restart of the machine.
                if (stream.is_file(stat) and path == self.path) or (
                    stat.st_ino == stream.inode and stream.is_content_of(fd)
                ):
                    fd, found = -1, fd
                    return path, found
            except GONE:
                continue
            except OSError as exc:
                unreadable = OSError(exc.errno, exc.strerror, str(path))
            finally:
                if fd >= 0:
                    os.close(fd)
        if unreadable is not None:
            raise unreadable
        return None

    def look_at_path(self, now: float) -> None:
        """Check which file the path has now, and add or move files accordingly."""
        if self.saved or now < self._unseen.retry_at:
            return
        try:
            self._stat_path(now)
        except OSError as exc:
            self._unseen.note(exc.filename or self.path, exc, now)
        else:
            self._unseen.clear(self.path)
            self._at_end = False

    def _stat_path(self, now: float, *, is_cut: bool = False) -> None:
        """Update the file that is at the path. is_cut: that file was truncated. Raises OSError."""
        current = self.streams[-1] if self.streams and not self.streams[-1].is_moved else None
        try:
            stat = os.stat(self.path)
        except GONE:
            if current is not None:
                current.is_moved = True
            return
        if current is not None and not current.is_file(stat):
            if self._unread.text and stat.st_ino == current.inode:
                return  # it was mounted again: `_reopen` continues in it
            current.is_moved = True
        elif self.streams and self.streams[-1].is_file(stat):
            self.streams[-1].is_moved = False  # it may have got its name again
            return
        since_ns = self._missed_since_ns
        has_missed = self._add_missed(now, is_cut=is_cut)
        if self._knows((stat.st_dev, stat.st_ino)):
            return
        stream: FollowedFile | None = None
        try:
            stream = self._opened_at_path(stat, now)
        finally:
            if stream is None and not has_missed:
                self._missed_since_ns = since_ns  # the file at the path may be renamed before it is opened
        if stream is not None:
            self.streams.append(stream)

    def _opened_at_path(self, stat: os.stat_result, now: float) -> FollowedFile | None:
        """Open the file that was at the path just now. None: it is not there any more. Raises OSError."""
        target = Path(os.path.realpath(self.path))
        try:
            stream = FollowedFile.opened(self.path, self.path, now=now)
        except GONE:
            return None
        if not stream.is_file(stat):  # rotated just now: the one that was there is found beside it at the next look
            stream.close()
            return None
        if self._at_end and not self.streams:
            try:
                stream.skip_to_end()
            except OSError:
                stream.close()
                raise
        stream.target = self._target = target
        return stream

    def _add_missed(self, now: float, *, is_cut: bool = False) -> bool:
        """Add files that had the path unobserved: renamed or copied, and written to since the last known one was.

        Returns True if there are any. They come before the file that has the path now, if that is known already.
        is_cut: it is not known, but was truncated, not renamed. Raises OSError if one of them cannot be read now.
        """
        since_ns, self._missed_since_ns = self._missed_since_ns, None
        at_path = self.streams[-1] if self.streams and not self.streams[-1].is_moved else None
        if since_ns is None and self.streams:
            since_ns = self.streams[-1].mtime_ns
        if since_ns is None:
            return False
        copied: int | None = None
        found: dict[FileId, FollowedFile] = {}
        between = files_between(self._target, Path(os.path.realpath(self.path)))
        try:
            copied = _opened(self.path) if at_path is not None or is_cut else None
            for path in (*rotated_files(self.path, self._target), *between):
                try:
                    stat = os.stat(path)
                    file = stat.st_dev, stat.st_ino
                    if stat.st_mtime_ns < since_ns or file in found or self._knows(file):
                        continue
                    stream = FollowedFile.opened(path, self.path, now=now)
                except GONE:
                    continue
                except OSError as exc:
                    raise OSError(exc.errno, exc.strerror, str(path)) from exc
                found[file] = stream
                # A copy of what is still at the path is about to be truncated there: `_copy_of` finds it then.
                if copied is not None and _is_copy(stream.fd, copied):
                    found.pop(file).close()
                stream.is_moved, stream.target = True, self._target
        except OSError:
            for stream in found.values():
                stream.close()
            self._missed_since_ns = since_ns
            raise
        finally:
            if copied is not None:
                os.close(copied)
        place = len(self.streams) - (at_path is not None)
        # Between the files read so far and the one at the path, by last write: lines stay in order across several
        # rotations.
        self.streams[place:place] = sorted(found.values(), key=lambda stream: stream.mtime_ns)
        return bool(found)

    def _truncated(self, stream: FollowedFile, now: float) -> None:
        """Continue in the copy of a file that was truncated; the file at its path counts as another one from now on."""
        was_at_path = not stream.is_moved
        fd = self._copy_of(stream)
        self.truncations += 1
        if fd is None:
            self.streams.remove(stream)
            self._missed_since_ns = stream.mtime_ns
            self._lose(stream, "truncated")
        else:
            stream.move_to(fd)
        if was_at_path:
            self._stat_path(now, is_cut=True)

    def _copy_of(self, stream: FollowedFile) -> int | None:
        """Return the file that holds what this one held, and was written to since: several may begin alike.

        The oldest of several: later ones are copies of what came after the truncation. One of which nothing was read
        may be any: `_add_missed` finds it. Raises OSError for one that cannot be read now.
        """
        candidates: list[tuple[int, Path]] = []
        for path in rotated_files(self.path, stream.target) if stream.head.size else ():
            try:
                stat = os.stat(path)
            except GONE:
                continue
            is_later = stat.st_mtime_ns >= stream.mtime_ns and stat.st_size >= stream.position
            if is_later and not self._knows((stat.st_dev, stat.st_ino)):
                candidates.append((stat.st_mtime_ns, path))
        for _, path in sorted(candidates):
            fd = _opened(path)
            if fd is None:
                continue
            is_copy = False
            try:
                is_copy = stream.is_content_of(fd)
            finally:
                if not is_copy:
                    os.close(fd)
            if is_copy:
                return fd
        return None

    def _lose(self, stream: FollowedFile, what: str) -> None:
        if stream.unread_bytes:
            self.lost_bytes += stream.unread_bytes
            _log.error(
                "agent.lost",
                "%(path)s was %(what)s before its last %(unread_bytes)d bytes were read, and no copy is beside it",
                path=self.path,
                what=what,
                unread_bytes=stream.unread_bytes,
            )
        stream.close()

    # ---- reading

    def read(self, now: float, count_max: int) -> RecordBlock | None:
        """Return the next records of the oldest file that has any. None: there are none now."""
        # Files of an earlier run come first: a later file read before them would change the order of lines.
        if self.saved or now < self._unread.retry_at:
            return None
        for stream in list(self.streams):
            try:
                if self._unread.text:
                    self._reopen(stream)
                block, is_to_wait = self._read(stream, now, count_max)
            except OSError as exc:
                if _is_deleted(stream):
                    self._lose(stream, "deleted")
                    self.streams.remove(stream)
                    continue
                self._unread.note(exc.filename or stream.name, exc, now)
                return None
            # One file at a time, the oldest first: lines of a later file must not come before those of an earlier one.
            if block is not None or is_to_wait:
                self._unread.clear(self.path)
                return block
        self._unread.clear(self.path)
        return None

    def _read(self, stream: FollowedFile, now: float, count_max: int) -> tuple[RecordBlock | None, bool]:
        """Return the next records of a file, and True if later files have to wait. Raises OSError."""
        size, mtime_ns = stream.size, stream.mtime_ns
        try:
            has_changed = stream.stat_file(now)
            if has_changed and not stream.head.size and not stream.is_moved:
                # Of a file that was empty, nothing tells whether it was copied and truncated since.
                self._missed_since_ns = mtime_ns
                if self._add_missed(now):
                    return None, True
            if has_changed or stream.unread_bytes:
                block = self._cut(stream, now, count_max)
                if block is not None:
                    return block, True
        except Truncated:
            stream.size, stream.mtime_ns = size, mtime_ns
            # Size and time are set back: what the copy holds is judged by what was read, not by the truncated file.
            self._truncated(stream, now)
            return None, True
        except OSError:
            stream.mtime_ns = mtime_ns  # what has changed is looked at again
            raise
        if stream.unread_bytes:
            return None, True  # the record may not be complete yet
        if self._is_over(stream, now):
            stream.close()
            self.streams.remove(stream)
        return None, False

    def _reopen(self, stream: FollowedFile) -> None:
        """Open a file again after a failed read: the mount may be another one, for which an old descriptor is
        useless.
        """
        try:
            found = self._opened_again(stream)
        except OSError:
            return
        if found is not None:
            stream.reopen(found[1])

    def _cut(self, stream: FollowedFile, now: float, count_max: int) -> RecordBlock | None:
        size_bytes = self._reading.block_size_bytes
        data = stream.read(size_bytes)
        is_all = len(data) < size_bytes
        # A writer may be in the middle of a line: its end counts only after a rest.
        is_quiet = now - stream.grown_at >= self._reading.rest_s
        records = self._reading.cutter.cut(data, is_end=is_all and is_quiet).first(count_max)
        return RecordBlock(stream, stream.position, records, data) if records else None

    def _is_over(self, stream: FollowedFile, now: float) -> bool:
        """Return True if a file can be forgotten: read to its end, no longer written to, and never found as a
        new one.
        """
        if not stream.is_moved or now - stream.grown_at < self._reading.closed_s:
            return False
        # The writer may keep writing to the file that was renamed last, until it notices the rotation.
        is_followed = len(self.streams) - self.streams.index(stream) > 2
        return stream.is_deleted or (is_followed and not self._is_found((stream.device, stream.inode)))

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


def _is_copy(fd: int, of: int) -> bool:
    """Return True if a file is a copy of another, or of its beginning, as far as times, first and last bytes tell.

    One that is older and begins alike is a copy of what was there before. Raises OSError.
    """
    copy, original = os.fstat(fd), os.fstat(of)
    if not 0 < copy.st_size <= original.st_size or copy.st_mtime_ns < original.st_mtime_ns:
        return False
    head, begin = head_of(fd), max(0, copy.st_size - _COPY_END_SIZE_BYTES)
    end = os.pread(fd, copy.st_size - begin, begin)
    # First and last bytes only: comparing whole files would read every rotated file twice.
    return head_of(of).startswith(head) and os.pread(of, len(end), begin) == end


def _is_deleted(stream: FollowedFile) -> bool:
    try:
        return stream.is_deleted
    except OSError:
        return False


def _opened(path: Path) -> int | None:
    """Return the opened file. None: it does not exist any more. Raises OSError."""
    try:
        return open_to_read(path)
    except GONE:
        return None
