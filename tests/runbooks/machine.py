"""A machine with its own PostgreSQL server, as an operator has it: a data directory, a port, a user."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.ports import own_port
from txmsg.broker.embedded.owner import OtherUser
from txmsg.broker.embedded.programs import programs_for, run

_CONF = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
fsync = on
"""


class Machine:
    """A context manager: at its end processes and files are removed. `create` makes an empty server of it."""

    def __init__(self) -> None:
        nobody = pwd.getpwnam("nobody")
        self._user = OtherUser(nobody.pw_uid, nobody.pw_gid) if os.geteuid() == 0 else None
        self._programs = programs_for(self._user)
        # Not below pytest's directory, which root closes to the server's user.
        self.directory = Path(tempfile.mkdtemp(prefix="txmsg-runbook-"))
        if self._user is not None:
            os.chown(self.directory, self._user.uid, self._user.gid)
        self.data = self.directory / "data"
        self.port = own_port()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self.directory)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def shell(self) -> str:
        """Return a shell function body that runs "$@" on this machine as the server's user."""
        as_user: list[str | Path] = []
        if self._user is not None:
            as_user = ["setpriv", f"--reuid={self._user.uid}", f"--regid={self._user.gid}", "--clear-groups"]
        variables = ["env", f"PGPORT={self.port}", f"PATH={self._programs}:{os.environ['PATH']}"]
        return f'(cd {self.directory}; {shlex.join(map(str, [*as_user, *variables]))} "$@")'

    def create(self) -> None:
        """Create and start a new, empty server."""
        self._run("initdb", "-D", self.data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(_CONF)
        self._run("pg_ctl", "-D", self.data, "-l", self.data / "server.log", "-o", f"-p {self.port}", "-w", "start")

    def kill(self) -> None:
        """Send SIGKILL to all of the server's processes: as in a power failure."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()  # or one that is forked meanwhile would wait for ever for locks of those killed
        found = self._processes()
        for process in found:
            with suppress(psutil.NoSuchProcess):  # it ended with the first of them
                process.kill()
        psutil.wait_procs(found, 30)

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(self.data)]

    def _run(self, program: str, *args: str | Path) -> None:
        done = run(self._programs / program, *args, user=self._user, cwd=self.directory)
        assert done.returncode == 0, done.stdout
