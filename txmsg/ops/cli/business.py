"""The business database that commands name, and work on it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import click
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.util import greenlet_spawn

from txmsg.errors import StorageError
from txmsg.ops.cli.options import Decorator

T = TypeVar("T")

database_option: Decorator = click.option(
    "--database",
    metavar="URL",
    envvar="TXMSG_FENCE_DATABASE",
    show_envvar=True,
    required=True,
    help="URL of the business database for SQLAlchemy: postgresql+psycopg://user@host/shop.",
)


def with_engine(database: str, work: Callable[[Engine], T]) -> T:
    """Run `work` on an engine of a business database. Returns its result."""
    engine = engine_of(database)

    def call() -> T:
        try:
            return work(engine)
        finally:
            engine.dispose()

    with usable(engine):
        # The application's own URL may name an asyncio driver, with arguments that another driver does not take.
        return asyncio.run(greenlet_spawn(call)) if engine.dialect.is_async else call()


@contextmanager
def usable(engine: Engine) -> Iterator[None]:
    """Translate errors of the driver for a database that cannot be used to StorageError."""
    try:
        yield
    except SQLAlchemyError as exc:
        raise StorageError(f"{engine.url} cannot be used: {getattr(exc, 'orig', None) or exc}") from exc
    except OSError as exc:  # asyncpg tells of a server that is away as the socket does
        raise StorageError(f"{engine.url} cannot be used: {exc}") from exc


def engine_of(database: str) -> Engine:
    """Return an engine that is not connected yet. Raises StorageError for an invalid URL."""
    try:
        engine = create_engine(database)
    except ModuleNotFoundError as exc:
        package = {"MySQLdb": "mysqlclient"}.get(exc.name or "", exc.name)
        raise StorageError(
            f"the driver of --database is not installed ({exc}): run `pip install {package}`, or name one that is, "
            "as in postgresql+psycopg://user@host/shop"
        ) from exc
    except (ArgumentError, ValueError) as exc:  # ValueError: a port that is not a number
        without_password = re.sub(r":(?!//).*@", ":***@", database)
        raise StorageError(
            f"--database {without_password!r} is not a database URL: write it as SQLAlchemy does, such as "
            "postgresql+psycopg://user@host/shop"
        ) from exc
    _check_file(engine)
    return engine


def _check_file(engine: Engine) -> None:
    """Raise StorageError for a missing file: SQLite would create an empty one for a misspelt name."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name.startswith((":memory:", "file:")) or Path(name).exists():
        return
    raise StorageError(
        f"there is no SQLite database {name}: check the path; sqlite:///shop.db is in the working directory, "
        "sqlite:////var/lib/shop.db is absolute"
    )
