"""The process that keeps a server running while it is used: `python -m txmsg.broker.embedded.keeper DIR`."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from txmsg.broker.embedded.cluster import await_ready, create_cluster, start_server, stop_server
from txmsg.broker.embedded.contents import contents_of
from txmsg.broker.embedded.owner import change_owner
from txmsg.broker.embedded.place import STEP_S, STOP_S_MAX, DataDirectory, lock
from txmsg.errors import StorageError

_LOG_BYTES_MAX: Final = 8 * 1024 * 1024
_STEPS: Final = 20
"""Steps after which the process is checked to be still the server's."""


def keep_server(root: Path) -> None:
    """Start PostgreSQL, release the caller, and stop PostgreSQL when it is not used any more."""
    place = DataDirectory(root)
    keeper_fd = lock(place.keeper_lock, fcntl.LOCK_EX, timeout_s=STOP_S_MAX)
    users_fd = os.open(place.users_lock, os.O_RDWR | os.O_CREAT, 0o600)
    _prepare(place)
    if place.postmaster() is None:
        create_cluster(place)
        _prepare_socket(place)
        if lost := start_server(place):
            print(lost, flush=True)  # the caller logs it
    else:
        await_ready(place)  # its keeper was killed, and this one adopts it
    if os.fork() != 0:
        os._exit(0)  # the caller reads that it is ready; the locks live on in the child
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
        place.socket_file.unlink(missing_ok=True)
    os.close(users_fd)
    os.close(keeper_fd)


def _is_left_by_all(users_fd: int, server_pid: int) -> bool:
    """Return True if the server is not used any more; False after a while, and as soon as the server ends."""
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
    """Return True if the process ends within this time, or if that cannot be observed: the caller checks."""
    try:
        fd = os.pidfd_open(pid)  # polling /proc at each step would cost 1 % of a core all the time
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):  # not Linux, or a sandbox that does not let this through
        time.sleep(within_s)
        return True
    try:
        return bool(select.select([fd], [], [], within_s)[0])
    finally:
        os.close(fd)


def _prepare(place: DataDirectory) -> None:
    """Create the log with its permissions. The server writes to it by a descriptor that it is given."""
    place.root.chmod(0o700)
    if place.log.exists() and place.log.stat().st_size > _LOG_BYTES_MAX:
        place.log.replace(place.log.with_name("postgres.log.1"))
    place.log.touch(mode=0o600)
    if os.geteuid() == 0:
        change_owner(place.log, 0, -1)  # an earlier version gave it to `nobody`


def _prepare_socket(place: DataDirectory) -> None:
    """Create the directory of the socket, or take over the one that an earlier start of this server has left."""
    place.socket_file.unlink(missing_ok=True)  # of a killed server: other directories may be writable now
    directory = place.socket_dir
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _of_another_user(directory) from exc
        raise StorageError(
            f"the socket of PostgreSQL cannot be in {directory} ({exc.strerror}): make "
            f"{directory.parent} writable, or choose a shorter --data-dir; for root, whose server runs as "
            "another user, only the first helps"
        ) from exc
    try:
        if os.fstat(fd).st_uid not in (os.geteuid(), place.server_uid):
            raise _of_another_user(directory)
        os.fchmod(fd, 0o700)
        for name in os.listdir(fd):
            if name.startswith(".s.PGSQL."):
                os.unlink(name, dir_fd=fd)
        if os.geteuid() == 0:
            change_owner(fd, place.server_uid, -1)
    finally:
        os.close(fd)
    if directory.parent != place.root:
        with contents_of(place.root) as root:
            root.write(place.socket_file.name, os.fsencode(directory))


def _of_another_user(directory: Path) -> StorageError:
    return StorageError(f"{directory} belongs to another user: remove it, or choose another --data-dir")


def _main(args: list[str]) -> int:
    try:
        keep_server(Path(args[0]))
    except (StorageError, OSError, KeyError) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
