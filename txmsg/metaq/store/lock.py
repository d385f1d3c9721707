"""Directories that one process uses at a time, and the write lock of a log."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from txmsg.errors import LogBusy, MisuseError, StorageError
from txmsg.runtime.forks import renew_in_children
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text, require_own

_log = EventLog(__name__)


def make_private(directory: Path, *, below: Path | None = None) -> None:
    """Create a directory that no other user can read, and likewise its missing parents below `below`.

    Existing directories are not changed. Raises StorageError if this is root and the directory, or one on the way
    there, another user's.
    """
    require_own(directory if below is None else below, "the directory")
    if below is None or directory.parent == below:
        directory.parent.mkdir(parents=True, exist_ok=True)
    else:
        make_private(directory.parent, below=below)
    directory.mkdir(mode=0o700, exist_ok=True)
    require_own(directory, "the directory")  # another user may have been faster


def lock_private(directory: Path, *, what: str, user: str) -> int:
    """Make a private directory, and lock it until the returned descriptor is closed.

    what, user: of the directory, for errors. Raises LogBusy, and StorageError for a directory that cannot be made, or
    that of another user if this is root.
    """
    require_own(directory, what)
    try:
        make_private(directory)
        fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StorageError(f"{what} {directory} cannot be used: {refusal_text(exc, directory)}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(fd)
        raise LogBusy(f"{what} {directory} is used by another {user}: give each {user} a directory of its own") from exc
    return fd


class WriteLock:
    """A write lock, held until `release` by the process that created it, not by its forked children.

    Creates the directories of the log. Raises LogBusy, and StorageError for a directory that cannot be written, or
    that of another user if this is root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.is_copy = False
        """True if this process was forked from the one that holds it."""
        require_own(root, "the log")
        try:
            make_private(root)
            make_private(root / "commitlog")
            self._fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StorageError(
                f"the log {root} cannot be written: {refusal_text(exc, root)}; reading needs no write permission"
            ) from exc
        try:
            # flock, not a file with a process id: the kernel drops it with the process, so a killed writer leaves
            # nothing stale.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.read(self._fd, 20).decode("ascii", "replace").strip() or "?"
            os.close(self._fd)
            raise LogBusy(
                f"the log {root} is being written by process {holder}: a log has one writer; read it, or use its server"
            ) from exc
        self._is_held = True
        renew_in_children(self)
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)
        except OSError:
            _log.warning(
                "log.lock_unnamed", "the disk of the log %(log)s is full: its lock does not name this process", log=root
            )

    def release(self) -> None:
        """Let another process write."""
        self._is_held = False
        os.close(self._fd)

    def _renew(self) -> None:
        """Close a forked child's copy of the file, which does not release the parent's lock."""
        self.is_copy = True
        if self._is_held:
            self.release()

    def require(self) -> None:
        """Raise MisuseError in a forked child, because it and its parent would overwrite each other's data."""
        if self.is_copy:
            raise MisuseError(
                f"process {os.getpid()} was forked from the one that writes the log {self._root}, and must not write "
                "it, too: open a log after forking, or use its server"
            )
