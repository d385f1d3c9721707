"""Find open connections to SQLite and PostgreSQL, with the place where each was opened.

One that is collected while it is open warns: psycopg's on each Python, SQLite's on 3.13 and later, both without their
origin, and in whichever test the collection comes. It always comes late, as a connection refers to itself. With this, a
test is told of its own connections, and an SQLite connection warns on each Python, with its origin.
A plugin of pytest for the projects of users that tests run, too: for SQLite.
"""

from __future__ import annotations

import gc
import re
import sqlite3
import sqlite3.dbapi2
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from psycopg import BaseConnection

_CLOSES_S_MAX = 60.0
_LOOK_S = 0.01
_OF_PYTEST = re.compile(r"/(_pytest|pluggy|pytest|xdist|execnet)/|runpy|^<string>$")

_Connection: TypeAlias = "sqlite3.Connection | BaseConnection[Any]"


class _Opening:
    """Place and database of an opened connection."""

    def __init__(self, database: object) -> None:
        self._database = database
        # Not traceback.extract_stack: it reads each source file at each opening.
        self._stack: list[tuple[CodeType, int]] = [
            (frame.f_code, line) for frame, line in traceback.walk_stack(sys._getframe(2))
        ]
        self.is_excused = _is_dropping or threading.get_ident() in _servers or self._is_of_spark()

    def _is_of_spark(self) -> bool:
        """Return True for connections of Spark sinks: the session keeps them until it ends."""
        return any("/py4j/" in code.co_filename for code, _ in self._stack)

    def __str__(self) -> str:
        """Return the database and the stack without pytest's frames."""
        frames = [
            traceback.FrameSummary(code.co_filename, line, code.co_name)
            for code, line in reversed(self._stack)
            if not _OF_PYTEST.search(code.co_filename)
        ]
        return f"{self._database!r}, opened at\n{''.join(traceback.StackSummary.from_list(frames).format())}"


class _WarningConnection(sqlite3.Connection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.opening = _Opening(args[0] if args else options.get("database"))
        _watch(self, self.opening)

    def __del__(self) -> None:
        if _is_open(self) and not self.opening.is_excused:
            text = f"unclosed database in {self!r}: {self.opening}"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)


_WarningConnection.__module__, _WarningConnection.__qualname__ = sqlite3.Connection.__module__, "Connection"
_openings: WeakKeyDictionary[_Connection, _Opening] = WeakKeyDictionary()
_lock = threading.Lock()
_is_dropping = False
_servers: set[int] = set()
"""Threads that serve several tests."""


def install() -> None:
    """Watch connections that are opened from now on."""
    if sqlite3.connect is not sqlite3.dbapi2.connect or getattr(sqlite3.connect, "__module__", None) == __name__:
        return
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def watched_connect(*args: Any, **options: Any) -> sqlite3.Connection:
        if len(args) < 6:  # the sixth is the factory
            options.setdefault("factory", _WarningConnection)
        return connect(*args, **options)

    sqlite3.connect = watched_connect  # type: ignore[assignment]
    sqlite3.dbapi2.connect = watched_connect  # type: ignore[assignment]


def install_for_postgresql() -> None:
    """Watch connections of psycopg. Not done by the plugin, which is also loaded in users' projects."""
    from psycopg import BaseConnection

    init = BaseConnection.__init__

    def watched_init(self: BaseConnection[Any], pgconn: Any) -> None:
        init(self, pgconn)
        _watch(self, _Opening(pgconn.db.decode()))

    BaseConnection.__init__ = watched_init  # type: ignore[method-assign]


def tasks_are_cancelled(url: str) -> AbstractContextManager[None]:
    """Ignore unclosed connections of cancelled tasks: aiosqlite drops a connection whose opening is cancelled."""
    return not_judged() if "aiosqlite" in url else nullcontext()


@contextmanager
def not_judged() -> Iterator[None]:
    """Allow connections opened in the block to stay open."""
    global _is_dropping  # noqa: PLW0603 - connections are opened on threads of aiosqlite
    _is_dropping = True
    try:
        yield
    finally:
        _is_dropping = False


@contextmanager
def serving_several_tests() -> Iterator[None]:
    """Assign connections that this thread opens in the block to no test: they serve several."""
    _servers.add(threading.get_ident())
    try:
        yield
    finally:
        _servers.remove(threading.get_ident())


@contextmanager
def none_left(within_s: float = _CLOSES_S_MAX) -> Iterator[None]:
    """Raise AssertionError unless all connections opened in the block are closed at its end.

    within_s: afterwards, as aiosqlite closes on a thread of its own.
    """
    before = set(_open_connections())
    yield
    deadline = time.monotonic() + within_s
    if not all(isinstance(each, sqlite3.Connection) for each in _open_connections().keys() - before):
        gc.collect()  # a finalizer may close it; an unclosed one warns
    while left := [opening for each, opening in _open_connections().items() if each not in before]:
        if time.monotonic() >= deadline:
            for opening in left:
                opening.is_excused = True
            raise AssertionError("\n".join(["connections are left open: to", *map(str, left)]))
        time.sleep(_LOOK_S)


def _watch(connection: _Connection, opening: _Opening) -> None:
    with _lock:
        _openings[connection] = opening


def _open_connections() -> dict[_Connection, _Opening]:
    """Return the watched connections of this process, including those that only a garbage collection would close."""
    with _lock:
        known = list(_openings.items())
    return {each: opening for each, opening in known if _is_open(each) and not opening.is_excused}


def _is_open(connection: _Connection) -> bool:
    if not isinstance(connection, sqlite3.Connection):
        return not connection.closed and not hasattr(connection, "_pool")  # a pool closes its own
    try:
        _ = connection.in_transaction
    except sqlite3.ProgrammingError:
        return False
    return True


def pytest_configure() -> None:
    install()
