"""One PostgreSQL cluster: created, configured, started, stopped. Knows not who uses it."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from txmsg.embedded.place import START_S_MAX, STEP_S, STOP_S_MAX, Place
from txmsg.embedded.programs import OtherUser, binaries_dir, programs_for, run
from txmsg.errors import StorageError

SUPERUSER: Final = "postgres"

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


def start_server(place: Place) -> None:
    user = _other_user(place)
    programs = programs_for(user)
    if not (place.cluster / "PG_VERSION").exists():
        _create_cluster(place, programs, user)
    settings = SETTINGS | {"unix_socket_directories": f'"{place.socket_dir}"'.replace("'", "''")}
    conf = place.cluster / "txmsg.conf"
    conf.write_text("".join(f"{name} = '{value}'\n" for name, value in settings.items()))
    conf.chmod(0o644)  # whatever the umask: the server may run as another user
    # Nobody runs here (keeper.lock is ours): the pid in a leftover may be another program's by now, or a zombie's, and
    # PostgreSQL would refuse to start. It still notices by its shared memory if old server processes are about.
    (place.cluster / "postmaster.pid").unlink(missing_ok=True)
    for leftover in place.socket_dir.glob(".s.PGSQL.*"):
        leftover.unlink()
    deadline = time.monotonic() + START_S_MAX
    while True:
        with place.log.open("a+b") as log:
            log.seek(0, os.SEEK_END)
            start_size_bytes = log.tell()
            options = shlex.join(["-c", place.server_setting])
            step = ("-o", options, "-w", "-s", "-t", str(max(1, int(deadline - time.monotonic()))), "start")
            cluster = _as_seen_by(user, place.cluster)
            if run(programs / "pg_ctl", "-D", cluster, *step, user=user, cwd=place.cluster, log=log).returncode == 0:
                return
            log.seek(start_size_bytes)
            said = log.read().decode(errors="replace")
        # The processes of a server that was killed take a moment to notice; they hold its shared memory until then.
        if "shared memory block" not in said or time.monotonic() > deadline:
            tail = "\n".join(said.splitlines()[-8:])
            raise StorageError(f"PostgreSQL does not start in {place.cluster}; {place.log} ends with\n{tail}")
        time.sleep(STEP_S)


def await_ready(place: Place) -> None:
    deadline = time.monotonic() + START_S_MAX
    while run(binaries_dir() / "pg_isready", "-q", "-h", place.socket_dir, "-t", "5").returncode != 0:
        if time.monotonic() > deadline:
            raise StorageError(f"PostgreSQL in {place.cluster} runs but accepts no connections: read {place.log}")
        time.sleep(STEP_S)


def _other_user(place: Place) -> OtherUser | None:
    if os.geteuid() != 0:
        return None
    uid = place.server_uid
    try:
        return OtherUser(uid, pwd.getpwuid(uid).pw_gid)
    except KeyError:
        return OtherUser(uid, uid)


def _as_seen_by(user: OtherUser | None, directory: Path) -> Path:
    """What a program that runs in this directory is told as its data directory.

    PostgreSQL stays in it, so another user reaches it by the working directory that it was given, even where the
    directories above are closed to this user.
    """
    here = Path("/proc/self/cwd")
    return directory if user is None or not here.exists() else here


def _create_cluster(place: Place, programs: Path, user: OtherUser | None) -> None:
    """By way of another name: a cluster that initdb did not finish is never taken for one."""
    uid = os.geteuid() if user is None else user.uid
    try:
        pwd.getpwuid(uid)
    except KeyError as exc:
        raise StorageError(
            f"PostgreSQL's initdb needs a user with a name, and user id {uid} has none here: add a line to /etc/passwd "
            f"(`txmsg:x:{uid}:{uid}::/tmp:/bin/sh`), run txmsg as a user with a name, or name a database of your own "
            "with --storage postgresql://user@host:5432/database"
        ) from exc
    new = place.cluster_new
    new.mkdir(mode=0o700)
    if user is not None:
        os.chown(new, user.uid, user.gid)
    locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
    options = ("-U", SUPERUSER, "--auth=trust", *locale)
    done = run(programs / "initdb", "-D", _as_seen_by(user, new), *options, user=user, cwd=new)
    if done.returncode != 0:
        raise StorageError(f"PostgreSQL cannot create {new}: {done.stdout.strip()}")
    with (new / "postgresql.conf").open("a") as conf:
        conf.write("\ninclude 'txmsg.conf'\n")
    new.rename(place.cluster)


def stop_server(place: Place) -> None:
    for how, wait_s in ((signal.SIGINT, STOP_S_MAX), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + wait_s
        if (process := place.postmaster()) is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(how)
        # Not process.wait(): where orphans are not reaped promptly, it waits for a process that has ended.
        while place.postmaster() is not None and time.monotonic() < deadline:
            time.sleep(STEP_S)
