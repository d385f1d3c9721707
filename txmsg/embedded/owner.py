"""Which user runs the server in root's place, and how files become that user's. Knows nothing of PostgreSQL.

The user is an id without a name, which no other process has: it is chosen at random when a cluster is created, and
kept by the owner of its directory. `nobody` is shared with other services: each of them could read the data, and as
PostgreSQL's superuser run programs.
"""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from txmsg.errors import StorageError

_UNUSED: Final = (range(2_000_200_001, 2**31 - 1), range(61_184, 65_520))
"""Ids that no distribution assigns to users: above those of directory services and user namespaces; and, for containers
that have ids of 16 bits only, those that systemd gives to services while they run."""
_NOBODY_UID: Final = 65534
"""As the kernel has it."""
_TRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class OtherUser:
    """Who runs the server in root's place."""

    uid: int
    gid: int


def nobody_uid() -> int:
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return _NOBODY_UID


def user_of(uid: int) -> OtherUser:
    """The user with this id, who may have no name."""
    try:
        return OtherUser(uid, pwd.getpwuid(uid).pw_gid)
    except KeyError:
        return OtherUser(uid, uid)


def name_of(uid: int) -> str | None:
    """The user's name; None if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def new_user() -> OtherUser:
    """A user and a group that nothing uses now. Raises StorageError if this system has none."""
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
        "run txmsg as a user other than root, or name a database of your own with --storage "
        "postgresql://user@host:5432/database"
    )


def is_private(uid: int) -> bool:
    """Whether `new_user` can have chosen it, and nobody has got it since: a user or group of this id has no name."""
    if not any(uid in ids for ids in _UNUSED) or name_of(uid) is not None:
        return False
    try:
        grp.getgrgid(uid)
    except KeyError:
        return True
    return False


def give(directory_fd: int, old_uid: int, new: OtherUser) -> None:
    """Makes a directory, with all that it contains, that of another user.

    Follows no link and changes only what belongs to the old user, by descriptors: the old user may change the directory
    meanwhile. Can be repeated after it was interrupted. Raises StorageError for what is not as PostgreSQL makes it.
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
    # Root's: what the version before wrote there. Private: from a run that was interrupted.
    if status.st_uid not in (old_uid, new.uid, 0) and not is_private(status.st_uid):
        raise _unexpected(directory_fd, name, f"it belongs to user {status.st_uid}")
    os.fchown(fd, new.uid, new.gid)


def _unexpected(directory_fd: int, name: str, what: str) -> StorageError:
    try:
        directory = Path(f"/proc/self/fd/{directory_fd}").readlink()
    except OSError:
        directory = Path("the cluster")
    return StorageError(
        f"the cluster of the embedded PostgreSQL cannot be given to a user of its own: {directory / name} is not as "
        f"PostgreSQL makes it ({what}). Look at it and remove it if it is not yours; then start txmsg again"
    )


def _is_mapped(number: int) -> bool:
    """Whether processes can have this user id and group id here: in a user namespace, few are mapped."""
    for kind in ("uid", "gid"):
        try:
            lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
        except OSError:
            continue  # not Linux
        ranges = [tuple(map(int, line.split())) for line in lines]
        if not any(first <= number < first + count for first, _, count in ranges):
            return False
    return True
