"""The source of a MetaQ server's users and rules: a file, or brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

from txmsg.errors import MisuseError, TxmsgError
from txmsg.runtime.logs import EventLog
from txmsg.runtime.owners import refusal_text
from txmsg.wire.access.file import read_access
from txmsg.wire.access.guard import Guard
from txmsg.wire.access.limits import NO_LIMITS, UserLimits

LOOK_S: Final = 1.0
"""Seconds between two checks of a file."""
_log = EventLog(__name__)


class UserSource(Protocol):
    """A source that keeps a guard up to date."""

    guard: Guard

    async def run(self) -> None:
        """Update the guard until cancelled."""
        ...


class UsersOfFile:
    """Reads a file when it has changed. An invalid one is logged, and the users read before stay."""

    def __init__(self, path: Path, limits: UserLimits = NO_LIMITS) -> None:
        """Read the file. limits: of users without their own. Raises MisuseError for an invalid file."""
        self.guard = Guard(limits=limits)
        self._path = path
        self._read: tuple[int, ...] | None = None
        self._failed = ""
        self._read_file()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look_once()

    def look_once(self) -> None:
        """Read the file if it has changed."""
        try:
            self._read_file()
        except MisuseError as exc:
            if self._failed != str(exc):
                _log.error("access.file_refused", "users and rules stay as they were: %(error)s", error=exc)
            self._failed = str(exc)
        else:
            self._failed = ""
        self.guard.confirm()

    def _read_file(self) -> None:
        try:
            stat = self._path.stat()
            state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if state == self._read:
                return
            text = self._path.read_text(encoding="utf-8")
        except OSError as exc:
            raise MisuseError(f"--access {self._path} cannot be read: {refusal_text(exc, self._path)}") from exc
        except UnicodeDecodeError as exc:
            raise MisuseError(f"--access {self._path} cannot be read: {exc}") from exc
        try:
            snapshot = read_access(text, self.guard.snapshot.version + 1, str(self._path))
        except TxmsgError as exc:
            raise MisuseError(f"--access {self._path} cannot be used: {exc}") from exc
        self._read = state
        self.guard.use_snapshot(snapshot)
        _log.info(
            "access.file_read",
            "%(users)d users and %(rules)d rules from %(path)s",
            users=len(snapshot.users),
            rules=len(snapshot.rules.all),
            path=self._path,
        )
