"""Python 3.11 and 3.12 warn of a SQLite connection that is collected while it is open, as later ones do.

A plugin of pytest for the projects of users that tests run: an engine without an owner is found on each Python.
"""

from __future__ import annotations

import sqlite3
import sqlite3.dbapi2
import sys
import warnings
from collections.abc import Callable
from typing import Any


class _Connection(sqlite3.Connection):
    def __del__(self) -> None:
        try:
            _ = self.in_transaction
        except sqlite3.ProgrammingError:
            return  # it was closed
        warnings.warn(f"unclosed database in {self!r}", ResourceWarning, stacklevel=1, source=self)


_Connection.__module__, _Connection.__qualname__ = sqlite3.Connection.__module__, "Connection"  # as what it stands for


def install() -> None:
    """Connections that are opened from now on warn."""
    if sys.version_info >= (3, 13) or sqlite3.connect is not sqlite3.dbapi2.connect:
        return
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        if len(args) < 6:  # the sixth is the factory
            options.setdefault("factory", _Connection)
        return connect(*args, **options)

    sqlite3.connect = watched  # type: ignore[assignment]
    sqlite3.dbapi2.connect = watched  # type: ignore[assignment]


def pytest_configure() -> None:
    install()
