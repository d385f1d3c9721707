"""A pool with one connection: txmsg never asks for a second while the caller's session holds it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from tests.business import POOL_OF_ONE
from txmsg.checker.fence import Fence
from txmsg.checker.tables import create_tables
from txmsg.client import idempotent
from txmsg.errors import StorageError
from txmsg.message import ReceivedMessage, TransactionState, new_transaction_id


@pytest.fixture(params=["legacy", "BEGIN", "BEGIN IMMEDIATE"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 0.1}, **POOL_OF_ONE)
    if request.param != "legacy":

        def no_begin_of_its_own(connection: sqlite3.Connection, _record: object) -> None:
            connection.isolation_level = None

        event.listen(engine, "connect", no_begin_of_its_own)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(request.param))
    yield engine
    engine.dispose()


def written(engine: Engine) -> None:
    """Write with a fence whose id is not known yet, in a session that already holds a connection."""
    fence = Fence(engine)
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        session.connection()
        fence.write(session, transaction_id)
        session.commit()
    assert fence.check(transaction_id) is TransactionState.COMMIT


def handled(engine: Engine) -> None:
    done: list[ReceivedMessage] = []
    idempotent(sessionmaker(engine), group="g")(lambda session, message: done.append(message))(
        ReceivedMessage("t", b"")
    )
    assert len(done) == 1


WAYS: list[Callable[[Engine], Any]] = [written, handled]


@pytest.mark.parametrize("way", WAYS)
def test_one_connection_is_enough(way: Callable[[Engine], Any], engine: Engine) -> None:
    create_tables(engine)
    way(engine)


@pytest.mark.parametrize("way", WAYS)
def test_the_error_of_a_failed_statement_is_raised_unchanged(way: Callable[[Engine], Any], engine: Engine) -> None:
    create_tables(engine)
    with closing(sqlite3.connect(str(engine.url.database))) as other:
        other.execute("begin exclusive")
        with pytest.raises(OperationalError, match="database is locked"):
            way(engine)


@pytest.mark.parametrize("way", WAYS)
def test_missing_tables_are_reported(way: Callable[[Engine], Any], engine: Engine) -> None:
    with pytest.raises(StorageError, match=r"call txmsg\.create_tables"):
        way(engine)
