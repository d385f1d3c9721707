"""The process that keeps a server running while it is used: `python -m txmsg.embedded.keeper DIR`."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from txmsg.embedded.cluster import await_ready, start_server, stop_server
from txmsg.embedded.place import STEP_S, STOP_S_MAX, Place, lock
from txmsg.errors import StorageError

_LOG_BYTES_MAX: Final = 8 * 1024 * 1024
_STEPS: Final = 20
"""After so many it is made sure that the process is still that of the server."""


def keep(root: Path) -> None:
    """Starts PostgreSQL, lets the caller go, and stops PostgreSQL when it is no longer used."""
    place = Place(root)
    keeper_fd = lock(place.keeper_lock, fcntl.LOCK_EX, timeout_s=STOP_S_MAX)
    users_fd = os.open(place.users_lock, os.O_RDWR | os.O_CREAT, 0o600)
    _prepare(place)
    if place.postmaster() is None:
        start_server(place)
    else:
        await_ready(place)  # its keeper was killed: this one adopts it
    if os.fork() != 0:
        os._exit(0)  # the caller reads: ready. The locks live on in the child.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.chdir("/")
    while (server := place.postmaster()) is not None:
        if _is_left_by_all(users_fd, server.pid):
            stop_server(place)
    if place.socket_dir.parent != place.root:
        with suppress(OSError):  # not empty after a crash; the next start uses it again
            place.socket_dir.rmdir()
    os.close(users_fd)
    os.close(keeper_fd)


def _is_left_by_all(users_fd: int, server_pid: int) -> bool:
    """Whether the server is no longer used; False after a while, and as soon as the server ends."""
    for _ in range(_STEPS):
        try:
            fcntl.flock(users_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _has_ended(server_pid, within_s=STEP_S):
                return False
        else:
            return True
    return False


def _has_ended(pid: int, *, within_s: float) -> bool:
    """Whether the process ends in this time. True after it where that cannot be told so: the caller looks."""
    try:
        fd = os.pidfd_open(pid)  # to look for it in /proc at each step would keep a core a hundredth busy for ever
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # not Linux, or a sandbox that does not let this through
        time.sleep(within_s)
        return True
    try:
        return bool(select.select([fd], [], [], within_s)[0])
    finally:
        os.close(fd)


def _prepare(place: Place) -> None:
    """Makes the directories and the log with the permissions they need."""
    place.root.chmod(0o700)
    if place.cluster_new.exists():
        shutil.rmtree(place.cluster_new)
    try:
        place.socket_dir.mkdir(exist_ok=True)
    except OSError as exc:
        raise StorageError(
            f"the socket of PostgreSQL cannot be in {place.socket_dir} ({exc.strerror}): make "
            f"{place.socket_dir.parent} writable, or choose a shorter --data-dir; for root, whose server runs as "
            "nobody, only the first helps"
        ) from exc
    if place.socket_dir.is_symlink() or place.socket_dir.stat().st_uid not in (os.geteuid(), place.server_uid):
        raise StorageError(f"{place.socket_dir} belongs to another user: remove it, or choose another --data-dir")
    place.socket_dir.chmod(0o700)
    if place.log.exists() and place.log.stat().st_size > _LOG_BYTES_MAX:
        place.log.replace(place.log.with_name("postgres.log.1"))
    place.log.touch(mode=0o600)
    if os.geteuid() == 0:
        for path in (place.socket_dir, place.log):
            os.chown(path, place.server_uid, -1)


def _main(args: list[str]) -> int:
    try:
        keep(Path(args[0]))
    except (StorageError, OSError, KeyError) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
