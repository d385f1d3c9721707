"""The fence on SQLite: one writer at a time, two journals, and three ways to begin a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.integration.fence.business import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    create_users,
    recorded,
    register,
    users,
    users_count,
)
from txmsg.checker.fence import Fence
from txmsg.checker.tables import create_tables
from txmsg.errors import TransactionRefused
from txmsg.message import new_transaction_id


@pytest.fixture(params=["legacy", "BEGIN", "BEGIN IMMEDIATE"])
def begun(request: pytest.FixtureRequest) -> str:
    """The kind of BEGIN: by the driver before the first INSERT, or always, as in SQLAlchemy's documented recipe."""
    way: str = request.param
    return way


@pytest.fixture(params=["delete", "wal"])
def journal(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture
def engine(begun: str, journal: str, tmp_path: Path) -> Iterator[Engine]:
    url = f"sqlite:///{tmp_path / 'business.db'}"
    create_users(url, wal=journal == "wal")
    engine = create_engine(url, connect_args={"timeout": 0.1})
    if begun != "legacy":

        def no_begin_of_its_own(connection: sqlite3.Connection, _record: object) -> None:
            connection.isolation_level = None

        event.listen(engine, "connect", no_begin_of_its_own)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begun))
    create_tables(engine)
    yield engine
    engine.dispose()


def test_the_states_of_a_transaction_are_distinguished(engine: Engine) -> None:
    fence = Fence(engine)
    done, undone, late, running = (new_transaction_id() for _ in range(4))
    with Session(engine) as session:
        fence.write(session, done)
        register(session)
        session.commit()
        fence.write(session, undone)
        register(session)
        session.rollback()
        assert fence.check(late) is ROLLBACK
        with pytest.raises(TransactionRefused):
            fence.write(session, late)
        session.rollback()
        fence.write(session, running)
        assert fence.check(running) is UNKNOWN
        session.commit()
    assert [fence.check(each) for each in (done, undone, late, running)] == [COMMIT, ROLLBACK, ROLLBACK, COMMIT]
    assert users_count(engine) == 1


def test_a_transaction_with_an_old_snapshot_cannot_commit_after_a_rollback_answer(
    engine: Engine, begun: str, journal: str
) -> None:
    fence = Fence(engine)
    fence.fence_id()  # as a producer does when it starts
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        session.execute(select(users)).all()
        state = fence.check(transaction_id)
        try:
            fence.write(session, transaction_id)
            session.commit()
            became = COMMIT
        except (TransactionRefused, OperationalError):
            session.rollback()
            became = ROLLBACK
    assert fence.check(transaction_id) is became
    # A reader inside BEGIN blocks writers of a file without WAL; BEGIN IMMEDIATE always does.
    keeps_writers_out = begun == "BEGIN IMMEDIATE" or (begun == "BEGIN" and journal == "delete")
    assert (state, became) == ((UNKNOWN, COMMIT) if keeps_writers_out else (ROLLBACK, ROLLBACK))


def test_while_another_transaction_writes_a_check_is_unknown_and_leaves_nothing(engine: Engine) -> None:
    fence = Fence(engine)
    asked = new_transaction_id()
    with Session(engine) as session:
        register(session)
        assert fence.check(asked) is UNKNOWN
        session.commit()
    assert recorded(engine) == {}
    assert fence.check(asked) is ROLLBACK


def test_a_check_on_a_read_only_file_raises_instead_of_answering(tmp_path: Path) -> None:
    path = tmp_path / "business.db"
    writable = create_engine(f"sqlite:///{path}")
    fence = Fence(writable)
    create_tables(writable)
    done = new_transaction_id()
    with Session(writable) as session:
        fence.write(session, done)
        session.commit()
    read_only = create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert Fence(read_only).check(done) is COMMIT
    with pytest.raises(OperationalError, match="readonly"):
        Fence(read_only).check(new_transaction_id())
    assert set(recorded(writable)) == {done}
    read_only.dispose()
    writable.dispose()
