"""A primary and its synchronous standby, real servers that can be killed, paused and promoted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.waiting import until
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.broker.embedded.programs import binaries_dir

_DATABASE = "notify"


class Pair:
    """Two servers with a Notify database; the standby follows, and commits of the primary may wait for it."""

    def __init__(self, primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
        self.primary = primary
        self.standby = standby

    @property
    def url(self) -> str:
        """The URL of a broker that connects to whichever server accepts writes."""
        hosts = ",".join(host_of(each) for each in (self.primary, self.standby))
        return f"postgresql://postgres@/{_DATABASE}?host={quote(hosts, safe='')}&target_session_attrs=read-write"

    def query(self, statement: str, *, of: EmbeddedPostgres | None = None) -> list[tuple[object, ...]]:
        """Run a statement on the primary unless another is named; does not wait for the standby."""
        with psycopg.connect((of or self.primary).url(_DATABASE), autocommit=True, connect_timeout=10) as connection:
            connection.execute("set synchronous_commit = local")
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def name_standbys(self, names: str) -> None:
        """Make commits of the primary wait for these standbys, from soon on."""
        self.query(f"alter system set synchronous_standby_names = '{names}'")
        self.query("select pg_reload_conf()")

    def commit_waits(self) -> bool:
        """Return True if a commit on the primary waits for its standby."""
        return self.query("select pid from pg_stat_activity where wait_event = 'SyncRep'") != []

    def await_standby(self) -> None:
        """Return when the primary counts the standby as synchronous."""
        until(lambda: self.query("select sync_state from pg_stat_replication") == [("sync",)])

    def await_replay(self) -> None:
        """Return when the standby has replayed everything committed now."""
        ((written,),) = self.query("select pg_current_wal_insert_lsn()")
        until(lambda: self.query(f"select pg_last_wal_replay_lsn() >= '{written}'", of=self.standby) == [(True,)])

    def kill_primary(self) -> None:
        """Send SIGKILL to every process of the primary."""
        kill_all(self.primary)

    @contextmanager
    def standby_stands_still(self) -> Iterator[None]:
        """Send SIGSTOP to the standby: it stays attached and confirms nothing."""
        stopped = processes_of(self.standby)
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                process.resume()

    @contextmanager
    def slot_is_read(self, slot: str) -> Iterator[None]:
        """Read the slot with a program that the primary sees as pg_recvlogical."""
        source = f"host={host_of(self.primary)} user=postgres dbname={_DATABASE}"
        options = ["-o", "proto_version=1", "-o", "publication_names=planted", "--status-interval", "1"]
        command = [
            str(binaries_dir() / "pg_recvlogical"),
            "-d",
            source,
            "--start",
            "--slot",
            slot,
            "-f",
            os.devnull,
            *options,
        ]
        reader = subprocess.Popen(command)
        try:
            yield
            assert reader.poll() is None
        finally:
            reader.kill()
            reader.wait()

    def promote(self) -> None:
        """Promote the standby and return when it accepts writes."""
        assert self.query("select pg_promote(true, 60)", of=self.standby) == [(True,)]


def host_of(server: EmbeddedPostgres) -> str:
    """Return the socket directory of a server, which is elsewhere when the server's path is too long."""
    return str(conninfo_to_dict(server.url())["host"])


def processes_of(server: EmbeddedPostgres) -> list[psutil.Process]:
    """Return the processes of a server, the postmaster first."""
    pid = int((server.data_dir / "cluster" / "postmaster.pid").read_text().splitlines()[0])
    postmaster = psutil.Process(pid)
    return [postmaster, *postmaster.children(recursive=True)]


def kill_all(server: EmbeddedPostgres) -> None:
    """Send SIGKILL to every process of a server; returns when all have ended.

    One that is forked meanwhile would wait for ever for locks of those killed.
    """
    postmaster, *_ = processes_of(server)
    postmaster.suspend()
    processes = processes_of(server)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    until(lambda: not any(_runs(process) for process in processes))


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


@contextmanager
def pair(directory: Path) -> Iterator[Pair]:
    """Both servers, running. They are removed at the end."""
    with EmbeddedPostgres(directory / "primary") as primary:
        migrate.upgrade(primary.create_database(_DATABASE))
        _let_standbys_in(primary)
        standby = EmbeddedPostgres(directory / "standby")
        copy_of(primary, standby, "-R")
        with standby:
            found = Pair(primary, standby)
            found.name_standbys("*")
            found.await_standby()
            yield found


def _let_standbys_in(primary: EmbeddedPostgres) -> None:
    """Let the standby's server user, which has no name when root starts it, into the closed socket directory."""
    cluster = primary.data_dir / "cluster"
    own = cluster / "pg_hba_own.conf"
    own.write_text("local replication postgres trust\n")
    os.chown(own, cluster.stat().st_uid, cluster.stat().st_gid)
    with psycopg.connect(primary.url("postgres"), autocommit=True, connect_timeout=10) as connection:
        connection.execute("select pg_reload_conf()")


def copy_of(primary: EmbeddedPostgres, standby: EmbeddedPostgres, *options: str) -> None:
    """Make a backup of a running server the data of another. options: "-R" makes it a standby."""
    cluster = standby.data_dir / "cluster"
    standby.data_dir.mkdir()
    source = f"host={host_of(primary)} user=postgres"
    subprocess.run(
        [binaries_dir() / "pg_basebackup", "-D", cluster, "-d", source, "-X", "stream", "-c", "fast", *options],
        check=True,
        capture_output=True,
        timeout=240,
    )
    owner = (primary.data_dir / "cluster").stat()
    for path in (cluster, *cluster.rglob("*")):  # run by root, the copy is root's
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
