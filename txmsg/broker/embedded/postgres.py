"""The embedded PostgreSQL as its users see it: starts a keeper if necessary, and holds a share of the server."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import quote

from txmsg.broker.embedded.cluster import SUPERUSER
from txmsg.broker.embedded.place import STOP_S_MAX, DataDirectory, default_data_dir, is_locked, lock, locked
from txmsg.errors import MisuseError, StorageError
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text, require_own

_log = EventLog(__name__)


class EmbeddedPostgres:
    """A PostgreSQL shared by all processes that name the same data directory; a context manager.

    The server is started by the first user and stopped when the last one ends, however it ends. If it ends before, as
    when it is killed, it stays down until `start` is called again: see `watched`. Objects may be used from several
    threads once started. A forked child counts as a user until it ends or executes a program. Raises StorageError, with
    the end of the server's log, when PostgreSQL cannot be started.
    """

    _keeper: ClassVar = "txmsg.broker.embedded.keeper"

    def __init__(self, data_dir: Path | str | None = None) -> None:
        self._named = Path(data_dir or default_data_dir() / "pg").expanduser().absolute()
        self._place = DataDirectory(self._named.resolve())
        self._users_fd: int | None = None

    @property
    def data_dir(self) -> Path:
        """The server's data directory, as an absolute path."""
        return self._place.root

    @property
    def running(self) -> bool:
        """True if the server process runs. For tests and status pages: it may end at any moment."""
        return self._place.postmaster() is not None

    @property
    def is_kept(self) -> bool:
        """True if a keeper runs: it starts the server, and ends with it."""
        return is_locked(self._place.keeper_lock, fcntl.LOCK_SH)

    @property
    def log(self) -> Path:
        """The file that the server logs to."""
        return self._place.log

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Return when the server accepts connections. Idempotent, also after `kill`.

        Raises StorageError, too, if this is root and the directory, or one on the way there, belongs to another user,
        or it has other contents.
        """
        self._require_own()
        self._place.require_data_dir()
        try:
            self._place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._require_own()  # another user may have been faster, in /tmp
            with locked(self._place.start_lock):
                if self._users_fd is None:
                    self._users_fd = lock(self._place.users_lock, fcntl.LOCK_SH, timeout_s=STOP_S_MAX)
                try:
                    self._start_keeper()
                except BaseException:
                    self._leave()
                    raise
        except OSError as exc:
            raise StorageError(
                f"the data directory {self._place.root} cannot be used: {refusal_text(exc, self._place.root)}, or "
                "choose another one with --data-dir"
            ) from exc

    def stop(self) -> None:
        """End this use. If it was the last one, return after the server has ended. Idempotent."""
        if self._users_fd is None:
            return
        with locked(self._place.start_lock):
            self._leave()
            # A keeper that has seen the last user leave holds the lock alone until the server has ended.
            if not is_locked(self._place.users_lock) or is_locked(self._place.users_lock, fcntl.LOCK_SH):
                self._await_keeper_end()

    def kill(self) -> None:
        """End the server at once as a crash would, without checkpoint: for tests. `start` starts it again."""
        self._signal_postmaster(signal.SIGQUIT)

    def restart(self, *, crash: bool = False) -> None:
        """End the server for all its users and start it again. crash: as `kill` does."""
        self._signal_postmaster(signal.SIGQUIT if crash else signal.SIGINT)
        self.start()

    def url(self, dbname: str = "txmsg") -> str:
        """Return postgresql://... for psycopg and libpq; SQLAlchemy needs the scheme postgresql+psycopg://."""
        return f"postgresql://{SUPERUSER}@/{quote(dbname)}?host={quote(str(self._place.socket_dir), safe='')}"

    def create_database(self, name: str = "txmsg", *, template: str | None = None) -> str:
        """Create the database unless it exists, as a copy of `template` if given. Returns its URL."""
        import psycopg
        from psycopg import sql

        from txmsg.runtime.postgres import connect

        statement = sql.SQL("create database {}").format(sql.Identifier(name))
        if template is not None:
            # file_copy would force a checkpoint before and after; the log of a small template is cheaper.
            statement += sql.SQL(" template {} strategy wal_log").format(sql.Identifier(template))
        with connect(self.url("postgres"), connect_timeout=10) as connection:
            if connection.execute("select from pg_database where datname = %s", [name]).fetchone() is None:
                # Another process may have created it since, which is as good.
                with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                    connection.execute(statement)
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop the database and end its connections. Idempotent."""
        from psycopg import sql

        from txmsg.runtime.postgres import connect

        with connect(self.url("postgres"), connect_timeout=10) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _require_own(self) -> None:
        require_own(self._named, "the data directory")  # with the links that led here
        require_own(self._place.root, "the data directory")

    def _start_keeper(self) -> None:
        """Start a keeper unless one runs. The caller holds start.lock and a share of users.lock."""
        if is_locked(self._place.keeper_lock) and self._place.postmaster() is None:
            self._await_keeper_end()  # its server was killed a moment ago
        if not is_locked(self._place.keeper_lock):
            command = [sys.executable, "-P", "-m", self._keeper, str(self._place.root)]
            # In this session at first: Ctrl-C while it starts reaches both. It leaves the group when it is ready.
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise StorageError(done.stderr.strip() or f"the keeper of {self._place.root} ended: {done.returncode}")
            if (lost := done.stdout.strip()).isdigit():
                _log.warning(
                    "embedded.access_lines_unused",
                    "%(lines)d lines of pg_hba.conf in %(cluster)s, as for TCP or a standby, do not apply any more "
                    "(pg_hba.conf.before has them): put those that you need into pg_hba_own.conf there, which the "
                    "server's user must be able to read, and call pg_reload_conf()",
                    lines=int(lost),
                    cluster=self._place.cluster,
                )

    def _signal_postmaster(self, how: signal.Signals) -> None:
        if self._users_fd is None:
            raise MisuseError("this EmbeddedPostgres is not started: call start() first")
        with locked(self._place.start_lock):
            if (process := self._place.postmaster()) is not None:
                process.send_signal(how)
            self._await_keeper_end()

    def _leave(self) -> None:
        if self._users_fd is not None:
            os.close(self._users_fd)
            self._users_fd = None

    def _await_keeper_end(self) -> None:
        os.close(lock(self._place.keeper_lock, fcntl.LOCK_SH, timeout_s=STOP_S_MAX + 30))
