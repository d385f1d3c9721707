"""The servers of the Notify database: a primary and its standby, their faults, and the data lost by these.

Their disk can be slow, and a primary that loses its power loses what it had not synced (tests/disk.py).

Whoever connects goes through a link that leads to the primary, as by an address that moves. After a promotion or a
restore nobody is let in before it is read what the new primary holds; the dead one is then started once more, alone, to
read what it held: the difference is what may be missing afterwards, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.acceptance.standby import copy_of, host_of, kill_all
from tests.chaos import tables
from tests.chaos.history import Loss
from tests.chaos.keeper import DisturbedPostgres, prepare_clock, set_clock
from tests.chaos.network import Link, Network
from tests.chaos.plan import Cut, Standby
from tests.disk import Disk
from tests.preloaded import compiler
from tests.waiting import until

DATABASE = "notify"
_COPIES_MAX = 4
_DEAD_WAL = "dead_wal"
_UNSYNCED_S_MAX = 5.0
_STEP_S = 0.01


class Servers:
    """Use `start`, then `add_standby`; `stop` stops all."""

    def __init__(self, directory: Path, network: Network) -> None:
        self.standby: DisturbedPostgres | None = None
        self.losses: list[Loss] = []
        self.crashes: list[float] = []
        """When a primary was certainly dead."""
        self.writes_forgotten = 0
        """Writes to the write-ahead log that losses of power have taken back."""
        self._directory, self._network = directory, network
        self._numbers = count()
        self._links: list[Link] = []
        self._replication: Link
        self._clock = threading.Lock()
        self._disk = Disk(directory)
        self._delays_s: list[float] = []
        self._delaying = threading.Lock()
        self.primary = self._server()

    def start(self) -> str:
        """Start the primary and return the URL of an empty database."""
        prepare_clock(self._directory)
        if compiler() is not None:
            self._disk.prepare()
        self._start(self.primary)
        self._replication = self._network.link(self._socket())
        return self.primary.create_database(DATABASE)

    def stop(self) -> None:
        for server in (self.standby, self.primary):
            if server is not None:
                server.stop()

    def link(self) -> Link:
        """Create a link to the current primary."""
        link = self._network.link(self._socket())
        self._links.append(link)
        return link

    def add_standby(self) -> None:
        """Return once commits that wait for a standby wait for this one."""
        standby = self._server()
        self._copy_primary(standby, "-R")
        settings = standby.data_dir / "cluster" / "postgresql.auto.conf"
        with settings.open("a") as file:
            file.write(f"primary_conninfo = 'host=127.0.0.1 port={self._replication.port} user=postgres'\n")
        self._start(standby)
        self.standby = standby
        self._query(self.primary, "alter system set synchronous_standby_names = '*'")
        self._query(self.primary, "select pg_reload_conf()")
        until(lambda: self._query(self.primary, "select sync_state from pg_stat_replication") == [("sync",)])

    # ---- faults

    def crash(self, wait: Callable[[float], object], down_s: float) -> None:
        """Kill the primary and restart it with the data on its disk."""
        self.primary.kill()
        self.crashes.append(time.monotonic())
        wait(down_s)
        self._start(self.primary)

    def promote(self, how: Standby, wait: Callable[[float], object], behind_s: float) -> None:
        """Lose the primary and promote its standby."""
        assert self.standby is not None
        if how is not Standby.CLOSE:
            self._replication.cut(Cut.LOST)
            wait(behind_s)
        if how is Standby.UNNAMED:  # as failover managers do, so that the primary continues alone
            self._query(self.primary, "alter system set synchronous_standby_names = ''")
            self._query(self.primary, "select pg_reload_conf()")
            wait(behind_s)
        died = self._kill_primary()
        self._replication.heal()
        assert self._query(self.standby, "select pg_promote(true, 60)") == [(True,)]
        new, self.standby = self.standby, None
        self._replace_primary(new, f"promotion of a standby {how.value}", died, is_restored=False)

    def restore(self, wait: Callable[[float], object], for_s: float, *, to_moment: bool) -> None:
        """Lose the primary and replace it with an earlier backup."""
        backup = self._server()
        self._copy_primary(backup)
        wait(for_s)
        moment = self._query(self.primary, "select pg_current_wal_flush_lsn()")[0][0]
        wait(for_s / 2)
        # There must be something behind the moment, or a recovery does not reach it.
        self._query(self.primary, "select pg_logical_emit_message(true, 'chaos', '')")
        died = self._kill_primary()
        if to_moment:
            self._recover_until(backup, moment)
        self._start(backup)
        until(lambda: self._query(backup, "select pg_is_in_recovery()") == [(False,)])
        if to_moment:
            for name in ("restore_command", "recovery_target_lsn", "recovery_target_action"):
                self._query(backup, f"alter system reset {name}")
            shutil.rmtree(backup.data_dir / "cluster" / _DEAD_WAL)
        if self.standby is not None:
            self._remove(self.standby)
            self.standby = None
        self._replace_primary(backup, "restore of a backup", died, is_restored=True)

    @contextmanager
    def slow_disk(self, sync_delay_s: float) -> Iterator[None]:
        """Meanwhile each sync of all servers takes so much longer, or longer still if that is asked for, too."""
        self._change_delays(self._delays_s.append, sync_delay_s)
        try:
            yield
        finally:
            self._change_delays(self._delays_s.remove, sync_delay_s)

    def lose_power(self, wait: Callable[[float], object], down_s: float, *, sync_delay_s: float) -> None:
        """All of the primary is killed on a slow disk, and it comes back with what it has synced."""
        with self.slow_disk(sync_delay_s):
            deadline = time.monotonic() + _UNSYNCED_S_MAX
            while not self.primary.disk.unsynced_bytes() and time.monotonic() < deadline:
                wait(_STEP_S)  # there may be nothing to lose: no load, or all brokers are dead
            self._kill_primary()
        self.writes_forgotten += self.primary.forget_unsynced()
        wait(down_s)
        self._start(self.primary)

    def step_clock(self, offset_s: float) -> None:
        """Set the clock error of all servers, including later replacements."""
        with self._clock:
            set_clock(self._directory, offset_s)

    def assert_clock(self, offset_s: float) -> None:
        """Check the clock error; passes if the primary is down."""
        since = time.time()
        try:
            clock = self._query(self.primary, "select extract(epoch from clock_timestamp())::float8")[0][0] - offset_s
        except psycopg.OperationalError:
            return
        assert since - 0.1 < clock < time.time() + 0.1, f"the clock should be {offset_s} s off, and is {clock - since}"

    def _recover_until(self, backup: DisturbedPostgres, moment: str) -> None:
        """Recover up to this moment from the log left by the dead primary."""
        cluster = backup.data_dir / "cluster"
        # The server may run as another user, which can access only its own directories.
        log, owner = cluster / _DEAD_WAL, cluster.stat()
        shutil.copytree(self.primary.data_dir / "cluster" / "pg_wal", log)
        (cluster / "recovery.signal").touch()
        for path in (log, *log.rglob("*"), cluster / "recovery.signal"):
            os.chown(path, owner.st_uid, owner.st_gid)
        with (cluster / "postgresql.auto.conf").open("a") as file:
            file.write('restore_command = \'cp "dead_wal/%f" "%p"\'\n')
            file.write(f"recovery_target_lsn = '{moment}'\nrecovery_target_action = 'promote'\n")

    def _kill_primary(self) -> float:
        kill_all(self.primary)
        until(lambda: not self.primary.running)
        self.crashes.append(time.monotonic())
        return self.crashes[-1]

    def _replace_primary(self, new: DisturbedPostgres, cause: str, died: float, *, is_restored: bool) -> None:
        """Connect everyone to the new primary, once its contents are known."""
        after = tables.survey(_pinned(new))
        old, self.primary = self.primary, new
        for link in (*self._links, self._replication):
            link.move(self._socket())
        self._start(old)
        before = tables.survey(_pinned(old))
        self._remove(old)
        self.losses.append(Loss.of(before, after, cause=cause, died=died, is_restored=is_restored))
        self.add_standby()

    # ---- one server

    def _server(self) -> DisturbedPostgres:
        server = DisturbedPostgres(self._directory / f"notify-{next(self._numbers)}")
        server.disk.make_forgetful()
        return server

    def _change_delays(self, change: Callable[[float], None], delay_s: float) -> None:
        with self._delaying:
            change(delay_s)
            self._disk.set_delay(max(self._delays_s, default=0.0))

    def _start(self, server: DisturbedPostgres) -> None:
        # pg_ctl takes a server whose start seems to lie before its own for another one, and waits for it in vain.
        with self._clock:
            server.start()

    def _copy_primary(self, to: DisturbedPostgres, *options: str) -> None:
        """Retry the base backup: a clock step or a recent promotion may end it."""
        for attempt in range(_COPIES_MAX):
            try:
                copy_of(self.primary, to, *options)
            except subprocess.CalledProcessError as exc:
                exc.add_note(f"{exc.stderr.decode(errors='replace')}")
                with (self._directory / "servers.log").open("ab") as log:
                    log.write(exc.stderr)
                if attempt + 1 == _COPIES_MAX:
                    raise
                shutil.rmtree(to.data_dir)
            else:
                return

    def _remove(self, server: DisturbedPostgres) -> None:
        server.kill()
        server.stop()
        shutil.rmtree(server.data_dir)

    def _socket(self) -> Path:
        return Path(host_of(self.primary)) / ".s.PGSQL.5432"

    def _query(self, server: DisturbedPostgres, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(_pinned(server), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def _pinned(server: DisturbedPostgres) -> str:
    return tables.pinned(server.url(DATABASE))
