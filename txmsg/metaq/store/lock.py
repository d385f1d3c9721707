"""The right to write a log, which one process has at a time."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from txmsg.errors import LogBusy, StorageError

__all__ = ["lock_log"]

_LOGGER = logging.getLogger(__name__)


def lock_log(root: Path) -> int:
    """Makes the directories of a log and takes its lock: held until what is returned is closed."""
    try:
        (root / "commitlog").mkdir(parents=True, exist_ok=True)
        fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as exc:
        raise StorageError(
            f"the log {root} cannot be written: {exc.strerror}; to read it needs no right to write"
        ) from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.read(fd, 20).decode("ascii", "replace").strip() or "?"
        os.close(fd)
        raise LogBusy(
            f"the log {root} is being written by process {holder}: a log has one writer; read it, or use its server"
        ) from exc
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except OSError:
        _LOGGER.warning("the disk of the log %s is full: its lock does not name this process", root)
    return fd
