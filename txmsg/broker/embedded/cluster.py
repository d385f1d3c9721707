"""One PostgreSQL cluster: created, configured, started, stopped. Does not know its users."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from txmsg.broker.embedded.contents import Contents, contents_of
from txmsg.broker.embedded.owner import (
    OtherUser,
    change_owner,
    give,
    new_user,
    nobody_uid,
    require_on_one_disk,
    user_of,
)
from txmsg.broker.embedded.place import START_S_MAX, STEP_S, STOP_S_MAX, DataDirectory
from txmsg.broker.embedded.programs import binaries_dir, programs_for, run
from txmsg.errors import StorageError
from txmsg.runtime.owners import name_of

SUPERUSER: Final = "postgres"
_HEADER: Final = "# Written at each start of txmsg.\n"
_OWN_ACCESS: Final = "pg_hba_own.conf"
_ACCESS: Final = (
    f"# Written at each start of txmsg; lines of your own, which go before these, belong in {_OWN_ACCESS}.\n"
    f'include_if_exists "{_OWN_ACCESS}"\n'
)
_INITDB_ACCESS: Final = frozenset(
    f"{kind} {database} all {address}trust"
    for database in ("all", "replication")
    for kind, address in (("local", ""), ("host", "127.0.0.1/32 "), ("host", "::1/128 "))
)
"""The lines that initdb wrote into pg_hba.conf in earlier versions."""
_SHARED_MEMORY_LINE: Final = 6
"""The line of postmaster.pid with key and id of the shared memory."""

SETTINGS: Final = {
    # Durable, and readable by the tailer.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_slot_wal_keep_size": "4GB",  # better to lose a forgotten slot than to fill the disk
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
    # Checkpoints are far apart: after each one the next write of every page is a full page in the log.
    "min_wal_size": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "on",
    "wal_buffers": "16MB",
    # Rows of the half table are inserted and deleted all the time: vacuum it early, a little at a time.
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_scale_factor": "0.05",
    "autovacuum_analyze_scale_factor": "0.05",
    "autovacuum_max_workers": "2",
    "autovacuum_vacuum_cost_limit": "1000",
    # Reached through one unix socket.
    "listen_addresses": "",
    "unix_socket_permissions": "0777",  # access is restricted by the directory
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %d ",
    "log_checkpoints": "off",
    "timezone": "UTC",
}
"""The contents of `txmsg.conf` in the cluster. Written at each start; `ALTER SYSTEM` overrides it."""


def create_cluster(place: DataDirectory) -> None:
    """Create the cluster unless it exists. No server runs.

    A cluster that `nobody` ran is given to a user of its own.
    """
    if (place.cluster / "PG_VERSION").exists():
        if os.geteuid() == 0 and (place.server_uid == 0 or place.is_run_by_nobody):
            _give_to_own_user(place)
        return
    user = new_user() if os.geteuid() == 0 else None
    author = _author(user)
    if place.cluster_new.exists():
        shutil.rmtree(place.cluster_new)
    # Under another name first: a cluster that initdb did not finish is never taken for a complete one.
    new = place.cluster_new
    new.mkdir(mode=0o700)
    if author is not None:
        change_owner(new, author.uid, author.gid)
    locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    # In files: shared memory with a name could be opened by other processes of the author.
    memory = () if author is None else ("-c", "dynamic_shared_memory_type=mmap")
    options = ("-U", SUPERUSER, "--auth-local=peer", "--auth-host=scram-sha-256", *locale, *memory)
    done = run(programs_for(author) / "initdb", "-D", _as_seen_by(author, new), *options, user=author, cwd=new)
    if done.returncode != 0:
        raise StorageError(f"PostgreSQL cannot create {new}: {done.stdout.strip()}")
    with contents_of(new) as cluster:
        conf = cluster.read("postgresql.conf") + b"\ninclude 'txmsg.conf'\n"
        if memory and Path("/dev/shm").is_dir():  # for the server, PostgreSQL's own choice
            conf = conf.replace(b"\ndynamic_shared_memory_type = mmap", b"\n#dynamic_shared_memory_type = posix")
        cluster.write("postgresql.conf", conf)
        cluster.remove("pg_hba.conf")
        if author is not None and user is not None:
            give(cluster.fd, author.uid, user)
    with contents_of(place.root) as root:
        root.rename(new.name, place.cluster.name)
        root.sync()


def start_server(place: DataDirectory) -> int:
    """Start the server. Returns the number of access lines that do not apply any more.

    The cluster and the directory of the socket must exist.
    """
    user = user_of(place.server_uid) if os.geteuid() == 0 else None
    programs = programs_for(user)
    settings = SETTINGS | {"unix_socket_directories": f'"{place.socket_dir}"'.replace("'", "''")}
    with contents_of(place.cluster) as cluster:
        cluster.write("txmsg.conf", "".join(f"{name} = '{value}'\n" for name, value in settings.items()).encode())
        lost = _write_access(cluster, place.server_uid)
        # No server runs, as keeper.lock is held here: the pid in a leftover file may belong to another program or a
        # zombie by now, and PostgreSQL would refuse to start. It still finds old server processes by their shared
        # memory.
        cluster.remove("postmaster.pid")
    deadline = time.monotonic() + START_S_MAX
    while True:
        with place.log.open("a+b") as log:
            log.seek(0, os.SEEK_END)
            start_size_bytes = log.tell()
            options = shlex.join(["-c", place.server_setting])
            step = ("-o", options, "-w", "-s", "-t", str(max(1, int(deadline - time.monotonic()))), "start")
            seen = _as_seen_by(user, place.cluster)
            if run(programs / "pg_ctl", "-D", seen, *step, user=user, cwd=place.cluster, log=log).returncode == 0:
                return lost
            log.seek(start_size_bytes)
            said = log.read().decode(errors="replace")
        # The processes of a killed server take a moment to notice it, and hold its shared memory until then.
        if "shared memory block" not in said or time.monotonic() > deadline:
            tail = "\n".join(said.splitlines()[-8:])
            raise StorageError(f"PostgreSQL does not start in {place.cluster}; {place.log} ends with\n{tail}")
        time.sleep(STEP_S)


def await_ready(place: DataDirectory) -> None:
    deadline = time.monotonic() + START_S_MAX
    while run(binaries_dir() / "pg_isready", "-q", "-h", place.socket_dir, "-t", "5").returncode != 0:
        if time.monotonic() > deadline:
            raise StorageError(f"PostgreSQL in {place.cluster} runs but accepts no connections: read {place.log}")
        time.sleep(STEP_S)


def _author(user: OtherUser | None) -> OtherUser | None:
    """Return the user that runs initdb, which needs a user with a name, in place of this user or of root.

    `nobody` with a group of its own: other processes of `nobody` cannot attach to a process of another group, nor enter
    its working directory, and no path leads there.
    """
    name, uid = (name_of(os.geteuid()), os.geteuid()) if user is None else (name_of(nobody_uid()), nobody_uid())
    if name is None:
        raise StorageError(
            f"PostgreSQL's initdb needs a user with a name, and user id {uid} has none here: add a line to /etc/passwd "
            f"(`txmsg:x:{uid}:{uid}::/tmp:/bin/sh`), run txmsg as a user with a name, or name a database of your own "
            "with --storage postgresql://user@host:5432/database"
        )
    return None if user is None else OtherUser(uid, user.gid)


def _give_to_own_user(place: DataDirectory) -> None:
    """Give the cluster to a new user, when the processes of a killed server have ended.

    PostgreSQL would not recognise their shared memory under another user.
    """
    old_uid = place.server_uid
    with contents_of(place.cluster) as cluster:
        require_on_one_disk(cluster.fd)
        with suppress(FileNotFoundError):
            _await_end_of(cluster.read("postmaster.pid"))
        give(cluster.fd, old_uid, new_user())


def _await_end_of(postmaster_pid: bytes) -> None:
    """Return when no process is attached to the shared memory that this file names, or if that is unknown."""
    deadline = time.monotonic() + START_S_MAX
    with suppress(FileNotFoundError, IndexError, ValueError):
        shared_memory = int(postmaster_pid.splitlines()[_SHARED_MEMORY_LINE].split()[1])
        while time.monotonic() < deadline:
            rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
            if not any(int(row[1]) == shared_memory and int(row[6]) for row in rows):
                return
            time.sleep(STEP_S)


def _write_access(cluster: Contents, server_uid: int) -> int:
    """Allow this user, the server's user, and root: the kernel tells the server who connects.

    Returns the number of lines of an earlier version that do not apply any more: those that initdb did not write.
    """
    lost = 0
    names = dict.fromkeys(name_of(uid) for uid in (0, server_uid, os.geteuid()))
    # `peer` needs a user's name. Without one, the directory of the socket is still closed to others.
    method = "peer map=txmsg" if name_of(os.geteuid()) is not None else "trust"
    with suppress(FileNotFoundError):
        before = cluster.read("pg_hba.conf").decode(errors="replace")
        if not before.startswith(_ACCESS):
            lines = (" ".join(line.partition("#")[0].split()) for line in before.splitlines())
            lost = sum(bool(line) and line not in _INITDB_ACCESS for line in lines)
            cluster.rename("pg_hba.conf", "pg_hba.conf.before")
    if _OWN_ACCESS not in cluster.names():  # else the server logs at each start that it is missing
        cluster.write(_OWN_ACCESS, b"")
    cluster.write("pg_hba.conf", f"{_ACCESS}local all all {method}\nlocal replication all {method}\n".encode())
    users = "".join('txmsg "{}" all\n'.format(name.replace('"', '""')) for name in names if name is not None)
    cluster.write("pg_ident.conf", f"{_HEADER}{users}".encode())
    return lost


def _as_seen_by(user: OtherUser | None, directory: Path) -> Path:
    """Return the data directory as a program that runs in it is told.

    PostgreSQL stays in it, so another user reaches it by the working directory that it was given, even where the
    directories above are closed to this user.
    """
    here = Path("/proc/self/cwd")
    return directory if user is None or not here.exists() else here


def stop_server(place: DataDirectory) -> None:
    for how, wait_s in ((signal.SIGINT, STOP_S_MAX), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + wait_s
        if (process := place.postmaster()) is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(how)
        # Not process.wait(): where orphans are not reaped promptly, it waits for a process that has ended.
        while place.postmaster() is not None and time.monotonic() < deadline:
            time.sleep(STEP_S)
