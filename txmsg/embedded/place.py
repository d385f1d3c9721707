"""Every file name in a data directory, and the locks on three of them. Knows how to find a server, starts none."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from txmsg.errors import MisuseError, StorageError

START_S_MAX: Final = 120.0
"""Recovery of 4 GB of WAL on a slow disk."""
STOP_S_MAX: Final = 60.0
STEP_S: Final = 0.05
_SOCKET_PARENTS: Final = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))
"""Where the socket of a server is whose directory is too long for it. The first that can be written."""
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
class Place:
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
        """Who runs the server: the owner of an existing cluster, else the starting user; `nobody` in root's place."""
        uid = self.cluster.stat().st_uid if self.cluster.exists() else os.geteuid()
        return uid if uid != 0 else _nobody_uid()

    @property
    def socket_dir(self) -> Path:
        inside = self.root / "socket"
        # `nobody` may be unable to pass through the directories above: then neither server nor standby would reach it.
        if self.server_uid != _nobody_uid() and len(os.fsencode(inside / ".s.PGSQL.5432")) <= _SOCKET_PATH_BYTES_MAX:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        # Not TMPDIR: all users must find the same.
        parent = next((each for each in _SOCKET_PARENTS if os.access(each, os.W_OK | os.X_OK)), _SOCKET_PARENTS[0])
        return parent / f"txmsg-{digest}"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

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

    def postmaster(self) -> psutil.Process | None:
        """The running server of this cluster, or None. A pid that now belongs to another program is not it."""
        try:
            pid = int((self.cluster / "postmaster.pid").read_text().split("\n", 1)[0])
            process = psutil.Process(pid)
            # Not by its working directory: root without CAP_SYS_PTRACE cannot read that of another user's process.
            running = process.status() != psutil.STATUS_ZOMBIE and self.server_setting in process.cmdline()
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess, psutil.ZombieProcess):
            return None
        return process if running else None


def _nobody_uid() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return 65534  # as the kernel has it; initdb says so if it must have a name


def lock(path: Path, how: int, *, timeout_s: float) -> int:
    """Takes a lock and returns the file descriptor that holds it; closed on exec, so programs do not inherit it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
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
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
