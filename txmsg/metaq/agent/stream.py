"""One followed file, under any name, and the position up to which it is read.

It is told from others by its device, its inode and fingerprints of the bytes that were read of it: an inode alone is
given to another file as soon as this one is deleted. Its name for receivers (`id`) is random and kept with the
position. It is not derived from these: two files that begin alike would be one to receivers, and the lines of the
second one repeats.
"""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from txmsg.metaq.agent.records import STREAM_ID_SIZE_BYTES

HEAD_SIZE_BYTES: Final = 1024
TAIL_SIZE_BYTES: Final = 256


class Truncated(Exception):
    """Another content in the file than before: it was cut, or its inode belongs to another file now."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A checksum of some bytes of a file."""

    size: int = 0
    digest: str = ""

    @classmethod
    def of(cls, data: bytes) -> Fingerprint:
        return cls(len(data), blake2b(data, digest_size=16).hexdigest())

    def is_at(self, fd: int, at: int) -> bool:
        """Return True if these bytes are in a file at this position. No bytes are at every position."""
        return not self.size or Fingerprint.of(os.pread(fd, self.size, at)) == self


@dataclass(slots=True)
class FollowedFile:
    """A file that is read. `fd` is open as long as it may have unread bytes."""

    id: bytes
    path: Path
    """The name under which it was found: its lines keep this name, even if the file is renamed."""
    fd: int
    device: int
    inode: int
    position: int = 0
    """Everything before this position is in the log, or in the spool."""
    head: Fingerprint = Fingerprint()
    """Fingerprint of its first bytes, as far as they were read. On disk before any of them is sent."""
    tail: Fingerprint = Fingerprint()
    """Fingerprint of the last bytes before the position: a file may begin as the one before did."""
    size: int = 0
    """The file's size when it was last checked."""
    mtime_ns: int = 0
    is_moved: bool = False
    """True if another file has its path now, or none."""
    grown_at: float = 0.0
    """The time at which it was last seen to grow, by the source's clock."""
    is_saved: bool = False
    """True if its id is on disk. Before that, and before its head is on disk, nothing of it is sent."""
    target: Path = Path()
    """The file that its path led to when it was opened: after a link changes, it is found there."""

    @classmethod
    def opened(cls, path: Path, name: Path, *, now: float) -> FollowedFile:
        """Open a file that was not read before. name: the path that it belongs to. Raises OSError."""
        fd = open_to_read(path)
        stat = os.fstat(fd)
        return cls(
            # The id is random: two files that begin alike would share an id derived from their content.
            secrets.token_bytes(STREAM_ID_SIZE_BYTES), name, fd, stat.st_dev, stat.st_ino, grown_at=now,
            size=stat.st_size, mtime_ns=stat.st_mtime_ns, target=name,
        )  # fmt: skip

    @property
    def unread_bytes(self) -> int:
        return max(0, self.size - self.position)

    def is_file(self, stat: os.stat_result) -> bool:
        """Return True if this is its file, as far as device and inode tell."""
        return (stat.st_dev, stat.st_ino) == (self.device, self.inode)

    def skip_to_end(self) -> None:
        """Begin after the last line that is there now."""
        begin = max(0, self.size - 65_536)
        data = os.pread(self.fd, self.size - begin, begin)
        line_end = data.rfind(b"\n") + 1
        self.position = begin + line_end if line_end else self.size
        self._extend_head()

    def stat_file(self, now: float) -> bool:
        """Update the size, and return True if the file was written to.

        Raises Truncated if it is smaller than what was read.
        """
        stat = os.fstat(self.fd)
        if stat.st_size < self.position:
            raise Truncated
        has_changed = (stat.st_size, stat.st_mtime_ns) != (self.size, self.mtime_ns)
        if has_changed:
            self.grown_at = now
        self.size, self.mtime_ns = stat.st_size, stat.st_mtime_ns
        return has_changed

    def read(self, size_bytes: int) -> bytes:
        """Read the bytes after the position. Raises Truncated if they belong to another content.

        Compares fingerprints after reading: what was read before a truncation is right in any case.
        """
        data = os.pread(self.fd, size_bytes, self.position)
        # After the read, not before: a truncation between a check and the read would go unnoticed.
        if not self.is_content_of(self.fd):
            raise Truncated
        self.size = max(self.size, self.position + len(data))
        return data

    def is_content_of(self, fd: int) -> bool:
        """Return True if a file holds the bytes that were read of this one, as far as fingerprints tell."""
        return self.head.is_at(fd, 0) and self.tail.is_at(fd, self.position - self.tail.size)

    def begin_content(self, data: bytes) -> None:
        """Record that its first bytes are about to be sent: from now on its id is for this content alone."""
        if not self.position:
            self.head = Fingerprint.of(data[:HEAD_SIZE_BYTES])

    def advance(self, data: bytes) -> None:
        """Record that these bytes, which `read` returned, are in the log, or in the spool."""
        self.begin_content(data)
        self.position += len(data)
        self.tail = Fingerprint.of(data[-TAIL_SIZE_BYTES:])
        self._extend_head()

    def _extend_head(self) -> None:
        size = min(self.position, HEAD_SIZE_BYTES)
        if self.head.size < size:
            try:
                data = os.pread(self.fd, size, 0)
            except OSError:
                return  # the next read reports it: the position of sent lines must be stored in any case
            if Fingerprint.of(data[: self.head.size]) == self.head or not self.head.size:
                self.head = Fingerprint.of(data)  # else it was truncated since: the next read finds that

    def move_to(self, fd: int) -> None:
        """Continue in a copy of the file, which must be on disk before more is sent.

        Otherwise, if the truncated file were renamed or deleted before a crash, nothing would lead to the copy: it
        would be read as a new file, from its beginning.
        """
        self.reopen(fd)
        # The positions must name the copy before more of it is sent.
        self.is_saved = False
        stat = os.fstat(fd)
        self.inode = stat.st_ino
        self.size, self.mtime_ns, self.is_moved = stat.st_size, stat.st_mtime_ns, True

    def reopen(self, fd: int) -> None:
        """Continue in the same file, opened again. Its device may have another number by now."""
        device = os.fstat(fd).st_dev
        self.close()
        self.fd, self.device = fd, device

    @property
    def is_deleted(self) -> bool:
        """True if the file has no name any more. Raises OSError."""
        return os.fstat(self.fd).st_nlink == 0

    @property
    def name(self) -> str:
        """The file's current name, if the system tells it."""
        try:
            return os.readlink(f"/proc/self/fd/{self.fd}")
        except OSError:
            return str(self.path)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    # ---- on disk

    def told(self) -> dict[str, Any]:
        """Return it as JSON values, to be stored."""
        return {
            "id": self.id.hex(), "path": str(self.path), "device": self.device, "inode": self.inode,
            "position": self.position, "head": [self.head.size, self.head.digest],
            "tail": [self.tail.size, self.tail.digest], "size": self.size, "mtime_ns": self.mtime_ns,
            "is_moved": self.is_moved, "target": str(self.target),
        }  # fmt: skip

    @classmethod
    def of(cls, told: dict[str, Any]) -> FollowedFile:
        """Return the file of stored values, without opening it: the inverse of `told`.

        Raises KeyError, ValueError, TypeError for others.

        target: an earlier release wrote none.
        """
        return cls(
            bytes.fromhex(told["id"]), Path(told["path"]), -1, int(told["device"]), int(told["inode"]),
            int(told["position"]), Fingerprint(int(told["head"][0]), str(told["head"][1])),
            Fingerprint(int(told["tail"][0]), str(told["tail"][1])),
            int(told["size"]), int(told["mtime_ns"]), bool(told["is_moved"]), is_saved=True,
            target=Path(told.get("target", told["path"])),
        )  # fmt: skip


def open_to_read(path: Path) -> int:
    """Open a file to read it. Raises OSError; IsADirectoryError for anything but a regular file.

    Does not wait, as opening a pipe would.
    """
    # O_NONBLOCK: a named pipe under the pattern would otherwise block the thread until a writer opens it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, "it is not a regular file", str(path))
    return fd


def head_of(fd: int) -> bytes:
    """Return the first bytes of a file."""
    return os.pread(fd, HEAD_SIZE_BYTES, 0)
