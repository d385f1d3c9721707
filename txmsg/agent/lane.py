"""The files that a path has had, one after the other, so that their lines stay in order across rotations.

A file that was renamed is read to its end before the one that has its path now. It stays open as long as it may grow:
the writer may not have noticed yet. One that was truncated goes on in the copy that was made of it before, if there is
one, and what is at the path is another file from then on, whatever its inode.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from txmsg.agent.names import rotated_files
from txmsg.agent.records import Cutter, Records
from txmsg.agent.stream import Stream, Truncated, head_of, open_to_read
from txmsg.logs import EventLog

_log = EventLog(__name__)

FileId = tuple[int, int]
"""Device and inode."""


class Block(NamedTuple):
    """Records that were read from a file, and not handed on yet."""

    stream: Stream
    base: int
    records: Records
    data: bytes
    """Of which they were cut."""

    def commit(self) -> None:
        """They are in the log, or in the spool."""
        self.stream.advance(self.data[: self.records.size_bytes])


@dataclass(slots=True)
class Reading:
    """How the files of a source are read."""

    cutter: Cutter
    block_size_bytes: int
    """What the cutter needs at least. May change between two reads."""
    rest_s: float
    """After so long what may go on is a record."""
    closed_s: float
    """After so long without growth a file is closed that was deleted, or renamed twice."""


class Lane:
    """See the module. One thread uses it.

    knows: whether a file is read already, by this lane or another. is_found: whether the source's patterns find it.
    """

    def __init__(
        self, path: Path, reading: Reading, *, knows: Callable[[FileId], bool], is_found: Callable[[FileId], bool]
    ) -> None:
        self.path = path
        self.streams: list[Stream] = []
        """The oldest first. All but the last are moved."""
        self.truncations = 0
        self.lost_bytes = 0
        """Of files that were truncated or deleted before they were read, as far as they had been seen."""
        self._reading = reading
        self._knows = knows
        self._is_found = is_found
        self._missed_since_ns: int | None = None
        self._unreadable = ""

    # ---- which files there are

    def restore(self, stream: Stream, now: float) -> None:
        """Goes on with a file that was read before: at its path, or at a name that rotation gave it."""
        for path in (self.path, *rotated_files(self.path)):
            fd = _opened(path)
            if fd is None:
                continue
            stat = os.fstat(fd)
            is_same_content = stream.is_content_of(fd)
            # At its path a changed content is a truncation, which the first look finds. A device may be known by
            # another number after a restart of the machine.
            if (stream.is_file(stat) and path == self.path) or (stat.st_ino == stream.inode and is_same_content):
                stream.fd, stream.device, stream.grown_at = fd, stat.st_dev, now
                stream.is_moved = path != self.path
                self.streams.append(stream)
                self._missed_since_ns = None  # what was between this one and those before it was known as well
                return
            os.close(fd)
        self._lose(stream, "deleted")
        self._missed_since_ns = stream.mtime_ns

    def look(self, now: float, *, at_end: bool = False, is_cut: bool = False) -> None:
        """Looks what has become of the path. at_end: a first file begins at its end. is_cut: it was truncated."""
        current = self.streams[-1] if self.streams and not self.streams[-1].is_moved else None
        try:
            stat = os.stat(self.path)
        except OSError:
            if current is not None:
                current.is_moved = True
            return
        if current is not None and not current.is_file(stat):
            current.is_moved = True
        elif self.streams and self.streams[-1].is_file(stat):
            self.streams[-1].is_moved = False  # it may have got its name again
            return
        self._add_missed(now, is_cut=is_cut)
        if self._knows((stat.st_dev, stat.st_ino)):
            return
        try:
            stream = Stream.opened(self.path, self.path, now=now)
        except FileNotFoundError:
            return
        except OSError as exc:
            self._tell_unreadable(exc)
            return
        self._unreadable = ""
        if not stream.is_file(stat):  # rotated just now: the one that was there is found beside it at the next look
            stream.close()
            return
        if at_end and not self.streams:
            stream.skip_to_end()
        self.streams.append(stream)

    def _tell_unreadable(self, exc: OSError) -> None:
        """Once: it is tried again at each look."""
        if self._unreadable != exc.strerror:
            _log.warning(
                "agent.unreadable",
                "%(path)s cannot be read, and is tried again: %(error)s",
                path=self.path,
                error=exc.strerror,
            )
        self._unreadable = exc.strerror or ""

    def _add_missed(self, now: float, *, is_cut: bool = False) -> bool:
        """Files that had the path while nobody looked: renamed or copied, and written to since the last known one was.

        Whether there are any. They come before the file that has the path now, if that is known already. is_cut: that
        is not known, but was truncated, not renamed.
        """
        since_ns, self._missed_since_ns = self._missed_since_ns, None
        at_path = self.streams[-1] if self.streams and not self.streams[-1].is_moved else None
        if since_ns is None and self.streams:
            since_ns = self.streams[-1].mtime_ns
        if since_ns is None:
            return False
        copied = _head_and_mtime(self.path) if at_path is not None or is_cut else None
        found: list[Stream] = []
        for path in rotated_files(self.path):
            try:
                stream = Stream.opened(path, self.path, now=now)
            except OSError:
                continue
            stream.is_moved = True
            # A copy of what is still at the path is about to be truncated there: `_copy_of` finds it then. It is
            # younger: one that is older and begins alike is a copy of what was truncated before.
            is_copy = copied is not None and head_of(stream.fd) == copied[0] and stream.mtime_ns >= copied[1]
            if stream.mtime_ns < since_ns or is_copy or self._knows((stream.device, stream.inode)):
                stream.close()
            else:
                found.append(stream)
        place = len(self.streams) - (at_path is not None)
        self.streams[place:place] = sorted(found, key=lambda stream: stream.mtime_ns)
        return bool(found)

    def _truncated(self, stream: Stream, now: float) -> None:
        """Goes on in the copy of a file that was truncated; what is at its path is another file from now on."""
        self.truncations += 1
        was_at_path = not stream.is_moved
        fd = self._copy_of(stream)
        if fd is None:
            self.streams.remove(stream)
            self._missed_since_ns = stream.mtime_ns
            self._lose(stream, "truncated")
        else:
            stream.move_to(fd)
        if was_at_path:
            self.look(now, is_cut=True)

    def _copy_of(self, stream: Stream) -> int | None:
        """The file that has what this one had. One of which nothing was read may be any: `_add_missed` finds it."""
        for path in rotated_files(self.path) if stream.head.size else ():
            fd = _opened(path)
            if fd is None:
                continue
            stat = os.fstat(fd)
            if (
                stat.st_size >= stream.position
                and not self._knows((stat.st_dev, stat.st_ino))
                and stream.is_content_of(fd)
            ):
                return fd
            os.close(fd)
        return None

    def _lose(self, stream: Stream, what: str) -> None:
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

    def read(self, now: float, count_max: int) -> Block | None:
        """The next records of the oldest file that has any. None: there are none now."""
        for stream in list(self.streams):
            size, mtime_ns = stream.size, stream.mtime_ns
            try:
                has_changed = stream.look(now)
                if has_changed and not stream.head.size and not stream.is_moved:
                    # Of a file that was empty, nothing tells whether it was copied and truncated since.
                    self._missed_since_ns = mtime_ns
                    if self._add_missed(now):
                        return None
                if has_changed or stream.unread_bytes:
                    block = self._cut(stream, now, count_max)
                    if block is not None:
                        return block
            except Truncated:
                stream.size = size
                self._truncated(stream, now)
                return None
            if stream.unread_bytes:
                return None  # what is there may go on yet: later files wait
            if self._is_over(stream, now):
                stream.close()
                self.streams.remove(stream)
        return None

    def _cut(self, stream: Stream, now: float, count_max: int) -> Block | None:
        size_bytes = self._reading.block_size_bytes
        data = stream.read(size_bytes)
        is_all = len(data) < size_bytes
        is_quiet = now - stream.grown_at >= self._reading.rest_s
        records = self._reading.cutter.cut(data, is_end=is_all and is_quiet).first(count_max)
        return Block(stream, stream.position, records, data) if records else None

    def _is_over(self, stream: Stream, now: float) -> bool:
        """Whether it may be forgotten: read to its end, not written to any more, and never found as a new one."""
        if not stream.is_moved or now - stream.grown_at < self._reading.closed_s:
            return False
        is_followed = len(self.streams) - self.streams.index(stream) > 2
        return stream.is_deleted or (is_followed and not self._is_found((stream.device, stream.inode)))

    def close(self) -> None:
        for stream in self.streams:
            stream.close()


def _head_and_mtime(path: Path) -> tuple[bytes, int] | None:
    """The first bytes of a file, and when it was written to last. None of an empty one, or where there is none."""
    fd = _opened(path)
    if fd is None:
        return None
    try:
        head = head_of(fd)
        return (head, os.fstat(fd).st_mtime_ns) if head else None
    finally:
        os.close(fd)


def _opened(path: Path) -> int | None:
    try:
        return open_to_read(path)
    except OSError:
        return None
