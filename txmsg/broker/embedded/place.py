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
"""Seconds for recovery of 4 GB of WAL on a slow disk."""
STOP_S_MAX: Final = 60.0
STEP_S: Final = 0.05
_SOCKET_PARENTS: Final = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))
"""Parents of the socket's directory if the data directory's path is too long for a socket. The first that is
writable."""
_ROOT_PARENT: Final = Path("/run")
"""Tried before these for a server that root has started: only root can make a directory there."""
_SOCKET_PATH_BYTES_MAX: Final = 100  # the kernel's limit is 107 on Linux, 103 on macOS


def default_data_dir() -> Path:
    """Return the user's data directory for txmsg, such as ~/.local/share/txmsg. Not created. Raises MisuseError."""
    from platformdirs import user_data_path

    try:
        return user_data_path("txmsg", appauthor=False).expanduser()
    except RuntimeError as exc:  # raised by platformdirs; its older releases leave it to expanduser
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
        """The user that runs the server: the owner of an existing cluster, else this user. 0: still to be chosen."""
        return self.cluster.stat().st_uid if self.cluster.exists() else os.geteuid()

    @property
    def is_run_by_nobody(self) -> bool:
        """True if the last version that started the server ran servers of root as `nobody`."""
        return self.cluster.exists() and self.server_uid == nobody_uid() != self.root.stat().st_uid

    @property
    def socket_dir(self) -> Path:
        """The directory of the socket: in here if possible, else the one that the starter of the server has chosen."""
        inside = self.root / "socket"
        # The server's user cannot pass through this directory if it is another user.
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
        # Not TMPDIR: all users of the server must find the same directory.
        parent = next((each for each in parents if os.access(each, os.W_OK | os.X_OK)), parents[0])
        return parent / f"txmsg-{digest}"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    @property
    def socket_file(self) -> Path:
        """Names the directory of the socket while a server runs whose socket is elsewhere."""
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
        """Raise StorageError if this is root and the directory has other contents than a data directory.

        A user who owns one of the directories above may have put a link to any other in its place, which root would
        close to others, and write to.
        """
        own = {path.name for path in (self.cluster, self.cluster_new, self.start_lock)}
        if os.geteuid() == 0 and self.root.is_dir() and (found := set(os.listdir(self.root))) and not found & own:
            raise StorageError(
                f"the data directory {self.root} has contents, and not those of a database: name another one, or an "
                "empty one, with --data-dir"
            )

    def postmaster(self) -> psutil.Process | None:
        """Return the running server of this cluster, or None.

        A process of another program with its pid is not returned.
        """
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
    """Take a lock and return the file descriptor that holds it; closed on exec, so programs do not inherit it."""
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
    """Return True if the lock cannot be taken in this way."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
