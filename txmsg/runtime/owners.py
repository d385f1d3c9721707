"""Explains refusals of the operating system by file, owner, user and mode. Keeps root out of others' directories.

Knows nothing of logs and databases.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from txmsg.errors import StorageError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REFUSED: Final = (errno.EACCES, errno.EPERM)
_LINKS_MAX: Final = 40
REFUSALS: Final = frozenset({*_FULL, *_REFUSED, errno.EROFS})
"""Errors outside of the program: an operator can change the disk, the owner or the mode."""


def require_own(directory: Path, what: str) -> None:
    """Raises StorageError if this is root and another user owns the directory, or can replace it.

    That user could not write root's files afterwards, and links of that user could lead root elsewhere. So each
    directory and link on the path must be root's. A path that does not exist yet passes: check again once it is
    created, since /tmp is open to all. what: the directory's name in the error.
    """
    if os.geteuid() != 0 or (found := _of_another(directory)) is None:
        return
    path, status = found
    owner, is_link = status.st_uid, stat.S_ISLNK(status.st_mode)
    user = f"`sudo -u {_sudo_name(owner)} ...`, in a container its user"
    if path == directory.absolute() and not is_link:
        raise StorageError(
            f"{what} {directory} belongs to {user_text(owner)}, and this is root: what root writes there, that user "
            f"cannot. Run this as that user ({user}), or give the directory to root"
        )
    kind = "link" if is_link else "directory"
    raise StorageError(
        f"the way to {what} {directory} leads through the {kind} {path}, which belongs to {user_text(owner)}, and this "
        f"is root: that user could have root write elsewhere. Run this as that user ({user}), or name a directory that "
        "lies in root's alone"
    )


def _of_another(directory: Path) -> tuple[Path, os.stat_result] | None:
    """Return the first directory or link on the path that another user owns; None without one.

    The owner of `/` is trusted, because it can replace everything: in a user namespace, directories of the outer root
    belong to the user called `nobody`.
    """
    # Component by component and by lstat: `resolve` would follow links of other users before their owner is known.
    trusted = {0, os.lstat("/").st_uid}
    here, rest = Path("/"), list(reversed(directory.absolute().parts[1:]))
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            here = here.parent
            continue
        try:
            status = os.lstat(here / part)
            target = Path(os.readlink(here / part)) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return None
        if status.st_uid not in trusted:
            return here / part, status
        if target is None:
            here /= part
            continue
        if (links := links + 1) > _LINKS_MAX:
            return None  # the kernel, too, follows no more
        if target.is_absolute():
            here, target = Path("/"), target.relative_to("/")
        rest += reversed(target.parts)
    return None


def refusal_text(exc: OSError, path: Path | str | None = None) -> str:
    """Return the reason of a refusal and the remedy, in one clause without a full stop.

    path: the refused file, unless `exc` names it.
    """
    named = exc.filename if exc.filename is not None else path
    said = exc.strerror or str(exc)
    if exc.errno in _FULL:
        return f"{said}: free space"
    if exc.errno == errno.EROFS:
        return f"{said}: mount it for writing, or name another directory"
    if exc.errno not in _REFUSED or named is None or isinstance(named, int):
        return said
    missing = _missing(Path(os.fsdecode(named)))
    return f"{said}: {missing}" if missing else said


def is_full(exc: OSError) -> bool:
    """Return True if the disk, or the user's quota, is full."""
    return exc.errno in _FULL


def name_of(uid: int) -> str | None:
    """Return the user's name; None without one."""
    try:
        import pwd  # not on Windows

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return None


def user_text(uid: int) -> str:
    """Return the user's name and id in words."""
    name = name_of(uid)
    return f"user id {uid}" if name is None else f"user {name} (id {uid})"


def _missing(path: Path) -> str:
    """Return the refusing file or directory, its owner, and the remedy; "" if its mode is not the reason."""
    who = user_text(os.geteuid())
    found = _refusing(path)
    try:
        status = os.stat(found)
    except OSError:
        return f"this is {who}, which may not reach {path}"
    mode, needed = stat.S_IMODE(status.st_mode), stat.S_IRWXU if found.is_dir() else stat.S_IRUSR | stat.S_IWUSR
    if os.geteuid() == 0 or (status.st_uid == os.geteuid() and mode & needed == needed):
        return ""
    facts = f"{found} belongs to {user_text(status.st_uid)} and has mode {mode:04o}, and this is {who}"
    if status.st_uid == os.geteuid():
        return f"{facts}: give it the permission (`chmod u+{'rwx' if found.is_dir() else 'rw'} {found}`)"
    return f"{facts}: run this as its owner, or give it to this user (`chown {_sudo_name(os.geteuid())} {found}`)"


def _refusing(path: Path) -> Path:
    """Return the first directory on the path that cannot be passed, else the file, else its directory."""
    absolute = path.absolute()
    for above in reversed(absolute.parents):
        if not os.access(above, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return above
    return absolute if os.path.lexists(absolute) else absolute.parent


def _sudo_name(uid: int) -> str:
    return name_of(uid) or f"'#{uid}'"
