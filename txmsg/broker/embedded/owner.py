"""The user that runs the server in place of root, and the transfer of files to it. Knows nothing of PostgreSQL.

The user is an id without a name, which no other process has: it is chosen at random when a cluster is created, and kept
as the owner of its directory. `nobody` is shared with other services: each of them could read the data, and as
PostgreSQL's superuser run programs (decision 99).
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import secrets
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from txmsg.errors import StorageError
from txmsg.runtime.owners import name_of

_UNUSED: Final = (range(2_000_200_001, 2**31 - 1), range(61_184, 65_520))
"""Ids that no distribution assigns to users: above those of directory services and user namespaces; and, for containers
with ids of 16 bits only, those that systemd gives to services while they run."""
_NOBODY_UID: Final = 65534
"""The kernel's id of `nobody`."""
_TRIES: Final = 1000
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WAY_OUT: Final = (
    "run txmsg as a user other than root, or name a database of your own with --storage "
    "postgresql://user@host:5432/database"
)
"""The advice where root cannot run PostgreSQL as another user."""


@dataclass(frozen=True, slots=True)
class OtherUser:
    """The user that runs the server in place of root."""

    uid: int
    gid: int


def nobody_uid() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return _NOBODY_UID


def user_of(uid: int) -> OtherUser:
    """Return the user with this id, which may have no name."""
    try:
        return OtherUser(uid, pwd.getpwuid(uid).pw_gid)
    except KeyError:
        return OtherUser(uid, uid)


def new_user() -> OtherUser:
    """Return a user and a group that no process uses now. Raises StorageError if this system has none."""
    used = {uid for process in psutil.process_iter(["uids"]) for uid in process.info["uids"] or ()}
    for ids in _UNUSED:
        mapped = [each for each in ids[:: len(ids) - 1] if _is_mapped(each)]
        if len(mapped) < 2:
            continue
        for _ in range(_TRIES):
            found = ids[secrets.randbelow(len(ids))]
            if found not in used and is_private(found):
                return OtherUser(found, found)
    raise StorageError(
        "PostgreSQL refuses to run as root, and this system maps no user id that nothing uses (/proc/self/uid_map): "
        f"{WAY_OUT}"
    )


def is_private(uid: int) -> bool:
    """Return True if `new_user` can have chosen this id, and no user or group has got a name with it since."""
    if not any(uid in ids for ids in _UNUSED) or name_of(uid) is not None:
        return False
    try:
        grp.getgrgid(uid)
    except KeyError:
        return True
    return False


def change_owner(file: int | Path, uid: int, gid: int) -> None:
    """Change the owner as os.chown; -1 leaves it unchanged. Raises StorageError where root may not do it."""
    try:
        os.chown(file, uid, gid)
    except PermissionError as exc:
        if exc.errno != errno.EPERM:
            raise
        raise StorageError(
            f"PostgreSQL refuses to run as root, and root cannot give its files to user {uid} ({exc.strerror}; the "
            f"container may lack CAP_CHOWN, or the file system keeps no owners): {WAY_OUT}"
        ) from exc


def require_on_one_disk(cluster_fd: int) -> None:
    """Raise StorageError for a cluster with a part elsewhere, whose link `give` would refuse half-way.

    An administrator makes such links, but the user who has the cluster can make them too: their targets are not given
    away.
    """
    if _is_link(cluster_fd, "pg_wal"):
        path, target = _link(cluster_fd, "pg_wal")
        link, away = shlex.quote(str(path)), shlex.quote(target)
        raise _on_another_disk(
            path,
            target,
            f"put the directory back in its place (`rm {link} && mv {away} {link}`), start txmsg again, and move it "
            "out again after that, while txmsg is stopped",
        )
    tablespaces_fd = os.open("pg_tblspc", _DIRECTORY, dir_fd=cluster_fd)
    try:
        for name in os.listdir(tablespaces_fd):
            if _is_link(tablespaces_fd, name):
                raise _on_another_disk(
                    *_link(tablespaces_fd, name),
                    "start the version of txmsg before, move what is in the tablespace (`alter database NAME set "
                    "tablespace pg_default`), and drop it (`drop tablespace NAME`); then start this version",
                )
    finally:
        os.close(tablespaces_fd)


def _is_link(directory_fd: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)


def _link(directory_fd: int, name: str) -> tuple[Path, str]:
    return _path_of(directory_fd) / name, os.readlink(name, dir_fd=directory_fd)


def _on_another_disk(path: Path, target: str, way_out: str) -> StorageError:
    return StorageError(
        f"the cluster of the embedded PostgreSQL cannot be given to a user of its own: {path} is a link to {target}, "
        "as where PostgreSQL's data is on another disk, and root follows no link of the user who had the cluster. Do "
        f"not remove it while it may lead to data. If it is yours, {way_out}"
    )


def give(directory_fd: int, old_uid: int, new: OtherUser) -> None:
    """Give a directory, with all its contents, to another user.

    Follows no link and changes only what belongs to the old user, by descriptors: the old user may change the directory
    meanwhile. Can be repeated after it was interrupted. Raises StorageError for files that PostgreSQL does not make.
    """
    for name in os.listdir(directory_fd):
        status = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        if stat.S_ISSOCK(status.st_mode) or stat.S_ISFIFO(status.st_mode):
            continue
        kind = os.O_DIRECTORY if stat.S_ISDIR(status.st_mode) else 0
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | kind, dir_fd=directory_fd)
        except OSError as exc:
            raise _unexpected(directory_fd, name, exc.strerror or str(exc)) from exc
        try:
            if kind:
                give(fd, old_uid, new)
            else:
                _give_one(fd, old_uid, new, directory_fd, name)
        finally:
            os.close(fd)
    _give_one(directory_fd, old_uid, new, directory_fd, ".")


def _give_one(fd: int, old_uid: int, new: OtherUser, directory_fd: int, name: str) -> None:
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode) and status.st_nlink != 1:
        raise _unexpected(directory_fd, name, "it is also linked from elsewhere")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _unexpected(directory_fd, name, "it is neither a file nor a directory")
    # Root: written there by an earlier version. Private: from a run that was interrupted.
    if status.st_uid not in (old_uid, new.uid, 0) and not is_private(status.st_uid):
        raise _unexpected(directory_fd, name, f"it belongs to user {status.st_uid}")
    change_owner(fd, new.uid, new.gid)


def _path_of(directory_fd: int) -> Path:
    try:
        return Path(f"/proc/self/fd/{directory_fd}").readlink()
    except OSError:
        return Path("the cluster")


def _unexpected(directory_fd: int, name: str, what: str) -> StorageError:
    path = _path_of(directory_fd) / name
    return StorageError(
        f"the cluster of the embedded PostgreSQL cannot be given to a user of its own: {path} is not as "
        f"PostgreSQL makes it ({what}). Look at it and remove it if it is not yours; then start txmsg again"
    )


def _is_mapped(number: int) -> bool:
    """Return True if processes can have this user id and group id here: in a user namespace, few are mapped."""
    for kind in ("uid", "gid"):
        try:
            lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
        except OSError:
            continue  # not Linux
        ranges = [tuple(map(int, line.split())) for line in lines]
        if not any(first <= number < first + count for first, _, count in ranges):
            return False
    return True
