"""A database of Django as the fence needs it: by connections of its own, beside those of Django's threads."""

from __future__ import annotations

import copy
from typing import Any, Final

from django.db import connections
from django.db.utils import load_backend
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

from txmsg.errors import MisuseError

VENDORS: Final = ("postgresql", "mysql", "sqlite")
"""Django's names of the kinds of databases that can have a fence."""


def engine_of(using: str) -> Engine:
    """Return an engine whose connections are made as Django makes its own, one for each use: check-backs are rare.

    Raises MisuseError for a database that cannot have a fence.
    """
    django = connections[using]
    driver = _driver_of(using)
    shown: dict[str, Any] = django.settings_dict
    url = URL.create(driver, host=shown["HOST"] or None, database=str(shown["NAME"]))

    def connect() -> Any:
        # Read at each use: a run of tests gives the database another name.
        settings = copy.deepcopy(connections[using].settings_dict)
        settings["OPTIONS"].pop("pool", None)  # its connections go back to Django's pool, not to us
        own = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, using)
        own.connect()
        # Django's connections are in autocommit; SQLAlchemy expects a transaction to begin with the first statement.
        own.set_autocommit(False)
        return own.connection

    return create_engine(url, creator=connect, poolclass=NullPool)


def _driver_of(using: str) -> str:
    vendor: str = connections[using].vendor
    match vendor:
        case "postgresql":
            from django.db.backends.postgresql.psycopg_any import is_psycopg3

            return "postgresql+psycopg" if is_psycopg3 else "postgresql+psycopg2"
        case "mysql":
            return "mariadb+mysqldb" if connections[using].mysql_is_mariadb else "mysql+mysqldb"
        case "sqlite":
            return "sqlite+pysqlite"
        case _:
            raise MisuseError(
                f"Django's database {using!r} is of {vendor}, which can have no fence: use PostgreSQL, MySQL, "
                "MariaDB or SQLite"
            )
