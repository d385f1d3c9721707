"""Every file name in a data directory, and the locks on three of them. Knows how to find a server, starts none."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from txmsg.broker.embedded.contents import contents_of
from txmsg.broker.embedded.owner import nobody_uid
from txmsg.errors import MisuseError, StorageError

START_S_MAX: Final = 120.0
"""Recovery of 4 GB of WAL on a slow disk."""
STOP_S_MAX: Final = 60.0
STEP_S: Final = 0.05
_SOCKET_PARENTS: Final = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))
"""Where the socket of a server is whose directory is too long for it. The first that can be written."""
_ROOT_PARENT: Final = Path("/run")
"""Before these for a server that root has started: only root can make a directory there."""
_SOCKET_PATH_BYTES_MAX: Final = 100  # the kernel's limit is 107 on Linux, 103 on macOS


def default_data_dir() -> Path:
    """The user's data directory for txmsg, such as ~/.local/share/txmsg. Not created here. Raises MisuseError."""
    from platformdirs import user_data_path

    try:
        return user_data_path("txmsg", appauthor=False).expanduser()
    except RuntimeError as exc:  # by platformdirs, whose older releases leave it to expanduser
        raise MisuseError(
            f"the user with id {os.geteuid()} has no home directory: set HOME, or name a directory with --data-dir"
        ) from exc


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """Every file name in a data directory."""

    root: Path

    @property
    def cluster(self) -> Path:
        return self.root / "cluster"

    @property
    def cluster_new(self) -> Path:
        return self.root / "cluster.new"

    @property
    def server_uid(self) -> int:
        """Who runs the server: the owner of an existing cluster, else this user. 0: one that is still to be chosen."""
        return self.cluster.stat().st_uid if self.cluster.exists() else os.geteuid()

    @property
    def is_run_by_nobody(self) -> bool:
        """Whether a version of txmsg that started servers of root as `nobody` was the last to start it."""
        return self.cluster.exists() and self.server_uid == nobody_uid() != self.root.stat().st_uid

    @property
    def socket_dir(self) -> Path:
        """Where the socket is: in here if that can be, else where the starter of the server has found a place."""
        inside = self.root / "socket"
        # Another user cannot pass through this directory.
        is_within_reach = self.server_uid == (self.root.stat().st_uid if self.root.exists() else os.geteuid())
        if is_within_reach and self.server_uid != 0:
            if len(os.fsencode(inside / ".s.PGSQL.5432")) <= _SOCKET_PATH_BYTES_MAX:
                return inside
            parents: Sequence[Path] = _SOCKET_PARENTS
        else:
            parents = _SOCKET_PARENTS if self.is_run_by_nobody else (_ROOT_PARENT, *_SOCKET_PARENTS)
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        with suppress(OSError):
            chosen = Path(os.fsdecode(self.socket_file.read_bytes()))
            if chosen.parent in parents and chosen.name == f"txmsg-{digest}":  # this directory may be a copy
                return chosen
        # Not TMPDIR: all users must find the same.
        parent = next((each for each in parents if os.access(each, os.W_OK | os.X_OK)), parents[0])
        return parent / f"txmsg-{digest}"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    @property
    def socket_file(self) -> Path:
        """While a server runs whose socket is elsewhere, where: another process may see /run or /tmp otherwise."""
        return self.root / "socket.path"

    @property
    def start_lock(self) -> Path:
        return self.root / "start.lock"

    @property
    def users_lock(self) -> Path:
        return self.root / "users.lock"

    @property
    def keeper_lock(self) -> Path:
        return self.root / "keeper.lock"

    @property
    def server_setting(self) -> str:
        """The argument by which a server is known to be that of this cluster; a setting that nothing reads."""
        return f"txmsg.cluster={self.cluster}"

    def require_data_dir(self) -> None:
        """Raises StorageError if this is root, and the directory has contents that are not those of a data directory.

        A user who owns one of the directories above can have put a link to any other in its place, which root would
        close to others, and write to.
        """
        own = {path.name for path in (self.cluster, self.cluster_new, self.start_lock)}
        if os.geteuid() == 0 and self.root.is_dir() and (found := set(os.listdir(self.root))) and not found & own:
            raise StorageError(
                f"the data directory {self.root} has contents, and not those of a database: name another one, or an "
                "empty one, with --data-dir"
            )

    def postmaster(self) -> psutil.Process | None:
        """The running server of this cluster, or None. A pid that now belongs to another program is not it."""
        try:
            with contents_of(self.cluster) as cluster:
                pid = int(cluster.read("postmaster.pid").split(b"\n", 1)[0])
            process = psutil.Process(pid)
            # Not by its working directory: root without CAP_SYS_PTRACE cannot read that of another user's process.
            running = process.status() != psutil.STATUS_ZOMBIE and self.server_setting in process.cmdline()
            is_of_server = process.uids().real == self.server_uid
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess, psutil.ZombieProcess):
            return None
        return process if running and is_of_server else None


def lock(path: Path, how: int, *, timeout_s: float) -> int:
    """Takes a lock and returns the file descriptor that holds it; closed on exec, so programs do not inherit it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return fd
        except BlockingIOError as exc:
            if time.monotonic() > deadline:
                os.close(fd)
                raise StorageError(
                    f"{path} is held by another process for more than {timeout_s:.0f} s: look with `fuser {path}`"
                ) from exc
        except BaseException:
            os.close(fd)
            raise
        time.sleep(STEP_S)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    fd = lock(path, fcntl.LOCK_EX, timeout_s=START_S_MAX + STOP_S_MAX)
    try:
        yield
    finally:
        os.close(fd)


def is_locked(path: Path, how: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock cannot be had in this way."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
