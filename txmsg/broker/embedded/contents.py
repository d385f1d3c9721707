"""Files of a directory that another user owns, as root reads and writes them: by descriptor, following no link.

The owner can replace each name in it by a link at any moment. With a path through the directory, or a file opened by
its name for writing, root would write where the owner wants.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txmsg.broker.embedded.owner import change_owner

_SIZE_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of an open directory. Names have no slash."""

    fd: int

    def read(self, name: str) -> bytes:
        """Return the first MiB of a regular file; b"" for anything else.

        Raises FileNotFoundError and other OSErrors.
        """
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                return b""
            raise
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return b""
            return os.read(fd, _SIZE_BYTES_MAX)
        finally:
            os.close(fd)

    def write(self, name: str, content: bytes) -> None:
        """Replace a file by a new one, which belongs to the directory's owner. On disk on return."""
        owner = os.fstat(self.fd)
        beside = f"{name}.{secrets.token_hex(8)}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                file.flush()
                if os.geteuid() == 0:
                    change_owner(fd, owner.st_uid, owner.st_gid)
                os.fsync(fd)  # else a power cut could leave an empty file under the name
            self.rename(beside, name)
            self.sync()
        except BaseException:
            self.remove(beside)
            raise

    def sync(self) -> None:
        """Write the names to disk."""
        os.fsync(self.fd)

    def remove(self, name: str) -> None:
        """Remove a file. Idempotent."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def names(self) -> list[str]:
        return os.listdir(self.fd)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file without reading it: it may be a link to a file that only root may read."""
        os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=self.fd)


@contextmanager
def contents_of(directory: Path) -> Iterator[Contents]:
    """Open a directory. Its path must be one that its owner cannot change."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Contents(fd)
    finally:
        os.close(fd)
