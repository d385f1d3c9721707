"""A PostgreSQL whose clock tests can step, even for running statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.chaos.keeper import DisturbedPostgres, prepare_clock, set_clock
from tests.preloaded import HOW_TO_INSTALL_CC, compiler
from txmsg.broker import migrate

_TEMPLATE = "template"


class SteppedServer:
    """A server whose clock is right until `set_by` changes it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count(1)
        self._server = DisturbedPostgres(directory / "postgres")

    def start(self) -> None:
        prepare_clock(self._directory)
        self._server.start()
        self.set_by(60.0)
        with psycopg.connect(self._server.url("postgres"), connect_timeout=10) as connection:
            ((is_ahead,),) = connection.execute(
                "select clock_timestamp() > %s + interval '30 s'", [datetime.now(UTC)]
            ).fetchall()
        assert is_ahead, "the clock that is preloaded does not move"
        self.set_by(0.0)
        migrate.upgrade(self._server.create_database(_TEMPLATE))

    def stop(self) -> None:
        self._server.stop()

    @contextmanager
    def empty(self) -> Iterator[str]:
        """A fresh, empty database, dropped at the end: a single test does not delete the files of all."""
        name = f"empty_{next(self._numbers)}"
        yield self._server.create_database(name)
        self._server.drop_database(name)

    @contextmanager
    def notify(self) -> Iterator[str]:
        """A fresh Notify database, dropped at the end."""
        name = f"notify_{next(self._numbers)}"
        url = self._server.create_database(name, template=_TEMPLATE)
        with psycopg.connect(url, connect_timeout=10) as connection:
            connection.execute("update txmsg.notify_db set shard = gen_random_uuid()")
        yield url
        self._server.drop_database(name)

    def set_by(self, offset_s: float) -> None:
        """Shift the clock by so much from now on."""
        set_clock(self._directory, offset_s)


@contextmanager
def stepped_server() -> Iterator[SteppedServer]:
    """A server with a steppable clock; skips the test without a C compiler."""
    if compiler() is None:
        pytest.skip(HOW_TO_INSTALL_CC)
    with TemporaryDirectory(prefix="txmsg-stepped-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL may run as another user, and reads its clock file
        server = SteppedServer(directory)
        server.start()
        try:
            yield server
        finally:
            server.stop()
