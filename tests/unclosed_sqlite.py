"""Which SQLite connections are open, and where each was opened; one that is collected while it is open warns.

Python 3.13 and later warn of such a connection, too: without its origin, and in whichever test the collection comes. It
always comes late, as a connection refers to itself. Earlier ones say nothing. With this, all of them say the same.
A plugin of pytest for the projects of users that tests run, too.
"""

from __future__ import annotations

import re
import sqlite3
import sqlite3.dbapi2
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

_CLOSES_S_MAX = 10.0
_LOOK_S = 0.01
_OF_PYTEST = re.compile(r"/(_pytest|pluggy|pytest|xdist|execnet)/|runpy|^<string>$")


class _Connection(sqlite3.Connection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._database = args[0] if args else options.get("database")
        # Not traceback.extract_stack: it looks for each file on disk, at each opening.
        self._stack = [(frame.f_code, line) for frame, line in traceback.walk_stack(sys._getframe(1))]
        self.is_reported = _is_dropping
        with _adding:
            _connections.add(self)

    @property
    def origin(self) -> str:
        """Its database, and the stack in which it was opened, without pytest's frames."""
        frames = [
            traceback.FrameSummary(code.co_filename, line, code.co_name)
            for code, line in reversed(self._stack)
            if not _OF_PYTEST.search(code.co_filename)
        ]
        return f"{self._database!r}, opened at\n{''.join(traceback.StackSummary.from_list(frames).format())}"

    @property
    def is_open(self) -> bool:
        try:
            _ = self.in_transaction
        except sqlite3.ProgrammingError:
            return False
        return True

    def __del__(self) -> None:
        if self.is_open and not self.is_reported:
            text = f"unclosed database in {self!r}: {self.origin}"
            warnings.warn(text, ResourceWarning, stacklevel=1, source=self)


_Connection.__module__, _Connection.__qualname__ = sqlite3.Connection.__module__, "Connection"  # as what it stands for
_connections: WeakSet[_Connection] = WeakSet()
_adding = threading.Lock()
_is_dropping = False


def install() -> None:
    """Connections that are opened from now on are watched."""
    if sqlite3.connect is not sqlite3.dbapi2.connect or getattr(sqlite3.connect, "__module__", None) == __name__:
        return
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        if len(args) < 6:  # the sixth is the factory
            options.setdefault("factory", _Connection)
        return connect(*args, **options)

    sqlite3.connect = watched  # type: ignore[assignment]
    sqlite3.dbapi2.connect = watched  # type: ignore[assignment]


@contextmanager
def not_judged() -> Iterator[None]:
    """Connections that are opened in the block may stay open: aiosqlite drops one whose opening is cancelled."""
    global _is_dropping  # noqa: PLW0603 - connections are opened on threads of aiosqlite
    _is_dropping = True
    try:
        yield
    finally:
        _is_dropping = False


@contextmanager
def none_left(within_s: float = _CLOSES_S_MAX) -> Iterator[None]:
    """Raises AssertionError unless all connections that are opened in the block are closed when it ends.

    within_s: afterwards, as aiosqlite closes on a thread of its own.
    """
    before = _open_connections()
    yield
    deadline = time.monotonic() + within_s
    while left := _open_connections() - before:
        if time.monotonic() >= deadline:
            for each in left:
                each.is_reported = True
            raise AssertionError("\n".join(["SQLite connections are left open: to", *(each.origin for each in left)]))
        time.sleep(_LOOK_S)


def _open_connections() -> set[_Connection]:
    """Those of this process that are not reported, also those that only a collection of garbage would free."""
    with _adding:
        known = list(_connections)
    return {each for each in known if each.is_open and not each.is_reported}


def pytest_configure() -> None:
    install()
