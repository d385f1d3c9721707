"""A primary and its synchronous standby, both real servers: killed, stopped for a while, promoted."""

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
    """Two servers with a Notify database; the standby follows, and the primary's commits may wait for it."""

    def __init__(self, primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
        self.primary = primary
        self.standby = standby

    @property
    def url(self) -> str:
        """For a broker that goes to whichever of the two takes writes."""
        hosts = ",".join(host_of(each) for each in (self.primary, self.standby))
        return f"postgresql://postgres@/{_DATABASE}?host={quote(hosts, safe='')}&target_session_attrs=read-write"

    def query(self, statement: str, *, of: EmbeddedPostgres | None = None) -> list[tuple[object, ...]]:
        """On the primary unless another is named; nothing here waits for the standby."""
        with psycopg.connect((of or self.primary).url(_DATABASE), autocommit=True, connect_timeout=10) as connection:
            connection.execute("set synchronous_commit = local")
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def name_standbys(self, names: str) -> None:
        """Has the primary's commits wait for these, from soon on."""
        self.query(f"alter system set synchronous_standby_names = '{names}'")
        self.query("select pg_reload_conf()")

    def commit_waits(self) -> bool:
        """Whether a commit on the primary waits for its standby."""
        return self.query("select pid from pg_stat_activity where wait_event = 'SyncRep'") != []

    def await_standby(self) -> None:
        """Returns when the primary counts on the standby."""
        until(lambda: self.query("select sync_state from pg_stat_replication") == [("sync",)])

    def await_replay(self) -> None:
        """Returns when the standby has all that is committed now."""
        ((written,),) = self.query("select pg_current_wal_insert_lsn()")
        until(lambda: self.query(f"select pg_last_wal_replay_lsn() >= '{written}'", of=self.standby) == [(True,)])

    def kill_primary(self) -> None:
        """SIGKILL, to every process of it."""
        kill_all(self.primary)

    @contextmanager
    def standby_stands_still(self) -> Iterator[None]:
        """SIGSTOP: it stays attached, and confirms nothing."""
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
        """By a program that the primary sees as pg_recvlogical."""
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
        """Returns when the standby takes writes."""
        assert self.query("select pg_promote(true, 60)", of=self.standby) == [(True,)]


def host_of(server: EmbeddedPostgres) -> str:
    """The directory of its socket, which is elsewhere when the server's is named too long."""
    return str(conninfo_to_dict(server.url())["host"])


def processes_of(server: EmbeddedPostgres) -> list[psutil.Process]:
    """The server's, its first process first."""
    pid = int((server.data_dir / "cluster" / "postmaster.pid").read_text().splitlines()[0])
    postmaster = psutil.Process(pid)
    return [postmaster, *postmaster.children(recursive=True)]


def kill_all(server: EmbeddedPostgres) -> None:
    """SIGKILL, to every process of it; returns when all have ended.

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
    """Both servers, running. At the end both are gone."""
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
    """The server of a standby is a user without a name when root starts it; the directory of the socket is closed."""
    cluster = primary.data_dir / "cluster"
    own = cluster / "pg_hba_own.conf"
    own.write_text("local replication postgres trust\n")
    os.chown(own, cluster.stat().st_uid, cluster.stat().st_gid)
    with psycopg.connect(primary.url("postgres"), autocommit=True, connect_timeout=10) as connection:
        connection.execute("select pg_reload_conf()")


def copy_of(primary: EmbeddedPostgres, standby: EmbeddedPostgres, *options: str) -> None:
    """A backup of the one, which runs, becomes the data of the other. options: "-R" makes a standby of it."""
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
