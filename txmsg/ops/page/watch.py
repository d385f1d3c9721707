"""Reads figures when their database notifies of new ones. Knows neither the figures nor the browsers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from txmsg.errors import StorageError
from txmsg.ops.page.board import BoardSnapshot
from txmsg.runtime.logs import EventLog
from txmsg.runtime.postgres import FORM, connect

_log = EventLog(__name__)

Read = Callable[[psycopg.Connection[Any]], BoardSnapshot]
"""A function that reads all figures in one snapshot. The connection is in no transaction, before and after."""

_READ_EVERY_S_MIN: Final = 0.1
_READ_EVERY_S_MAX: Final = 2.0
"""Maximum seconds between reads, also without notifications, so that an unavailable database is noticed."""
_AGAIN_S: Final = 1.0
_STOP_S_MAX: Final = 1.0
_CONNECTION: Final[Mapping[str, str | int]] = {
    "application_name": "txmsg-page",
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "options": "-c statement_timeout=10s",
}
"""Connection parameters, unless the URL has others."""
_SETTINGS: Final[Mapping[str, str]] = {**FORM, "TimeZone": "UTC"}


class TableWatch:
    """Listens on a channel and reads, at most ten times a second, on one connection and one thread.

    A thread, since a read that hangs must hold up neither the browsers nor the end of the process. Raises StorageError
    when `url` is none.
    """

    def __init__(self, url: str, channel: str, read: Read, on_read: Callable[[BoardSnapshot], None]) -> None:
        self._conninfo = _conninfo(url)
        self._channel = channel
        self._read = read
        self._on_read = on_read
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txmsg-page-watch", daemon=True)
        self._trouble: str | None = None

    def start(self) -> None:
        """Start to read. `on_read` is called on the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End reading. A read that hangs ends with the process. Stopping twice is fine."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S_MAX)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                with connect(self._conninfo, _SETTINGS) as connection:
                    self._watch(connection)
            except Exception as exc:  # noqa: BLE001 - the root of a thread, and `read` may find odd figures
                self._log_failure(exc)
                self._is_stopping.wait(_AGAIN_S)

    def _watch(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
        while not self._is_stopping.is_set():
            begun = time.monotonic()
            self._on_read(self._read(connection))
            if self._trouble is not None:
                _log.info("page.figures_back", "the figures can be read again")
                self._trouble = None
            self._is_stopping.wait(begun + _READ_EVERY_S_MIN - time.monotonic())
            self._wait_for_news(connection, begun + _READ_EVERY_S_MAX)

    def _wait_for_news(self, connection: psycopg.Connection[Any], until: float) -> None:
        """Wait for a notification since the last read began, or until it is time to read again."""
        while not self._is_stopping.is_set() and (left_s := until - time.monotonic()) > 0:
            if list(connection.notifies(timeout=min(left_s, _STOP_S_MAX / 2), stop_after=1)):
                return

    def _log_failure(self, exc: Exception) -> None:
        trouble = " ".join(str(exc).split()) or type(exc).__name__
        if trouble != self._trouble:  # once, not each second
            _log.warning("page.figures_unreadable", "the figures cannot be read: %(error)s", error=trouble)
        self._trouble = trouble


def _conninfo(url: str) -> str:
    try:
        return make_conninfo("", **{**_CONNECTION, **conninfo_to_dict(url)})
    except (psycopg.Error, ValueError) as exc:  # ValueError: NUL, half of a surrogate pair
        raise StorageError(
            f"the URL of the figures is not a database URL ({exc}): write postgresql://user@host:5432/database"
        ) from exc
