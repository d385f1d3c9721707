"""Allowed uses of the session inside a transaction that txmsg ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from txmsg.client.flows.guard import SessionGuard
from txmsg.errors import MisuseError


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "row"

    id: Mapped[int] = mapped_column(primary_key=True)


class Elsewhere(Base):
    __tablename__ = "elsewhere"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'one.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(Row)).scalar_one()


def test_flushes_and_savepoints_are_allowed(engine: Engine, session: Session) -> None:
    with SessionGuard(session, owner="f()") as guard:
        session.add(Row(id=1))
        session.flush()
        with session.begin_nested():
            session.add(Row(id=2))
        savepoint = session.begin_nested()
        session.add(Row(id=3))
        session.flush()
        savepoint.rollback()
        guard.check_intact()
    session.commit()
    assert count(engine) == 2


def test_a_commit_inside_is_refused(engine: Engine, session: Session) -> None:
    with SessionGuard(session, owner="f()"):
        session.add(Row(id=1))
        with pytest.raises(MisuseError, match=r"commit inside f\(\)"):
            session.commit()
    session.close()
    assert count(engine) == 0


def test_a_commit_to_the_outer_transaction_from_a_savepoint_is_refused(engine: Engine, session: Session) -> None:
    with SessionGuard(session, owner="f()"):
        session.add(Row(id=1))
        session.flush()  # or the driver begins no transaction, and releasing a savepoint commits
        session.begin_nested()
        session.add(Row(id=2))
        with pytest.raises(MisuseError, match="commit inside"):
            session.commit()
    session.close()
    assert count(engine) == 0


def test_a_commit_of_the_connection_is_refused(engine: Engine, session: Session) -> None:
    with SessionGuard(session, owner="f()"):
        session.add(Row(id=1))
        session.flush()
        with pytest.raises(MisuseError, match="commit inside"):
            session.connection().commit()
    session.close()
    assert count(engine) == 0


def test_a_statement_after_a_rollback_is_refused(session: Session) -> None:
    with SessionGuard(session, owner="f()"):
        session.execute(text("select 1"))
        session.rollback()
        with pytest.raises(MisuseError, match="after the rollback"):
            session.execute(text("select 1"))


@pytest.mark.parametrize("end", ["rollback", "close"])
def test_a_rolled_back_transaction_is_detected(session: Session, end: str) -> None:
    with SessionGuard(session, owner="f()") as guard:
        session.execute(text("select 1"))
        getattr(session, end)()
        with pytest.raises(MisuseError, match="returned normally"):
            guard.check_intact()


def test_a_rollback_followed_by_an_exception_is_allowed(session: Session) -> None:
    def work() -> None:
        with SessionGuard(session, owner="f()"):
            session.execute(insert(Row), {"id": 1})
            try:
                session.execute(insert(Row), {"id": 1})
            except IntegrityError:
                session.rollback()
                raise

    with pytest.raises(IntegrityError):
        work()


def test_a_second_database_is_refused(tmp_path: Path, engine: Engine) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'two.db'}")
    Base.metadata.create_all(other)
    with sessionmaker(binds={Row: engine, Elsewhere: other})() as session, SessionGuard(session, owner="f()"):
        session.add(Row(id=1))
        session.flush()
        session.add(Elsewhere(id=1))
        with pytest.raises(MisuseError, match="one transaction is one database"):
            session.flush()
    other.dispose()


def test_after_the_guard_the_session_is_unrestricted_again(engine: Engine, session: Session) -> None:
    with SessionGuard(session, owner="f()"):
        session.add(Row(id=1))
    session.commit()
    session.add(Row(id=2))
    session.commit()
    session.rollback()
    assert count(engine) == 2


def heard(engine: Engine) -> list[str]:
    """Record the statements sent from now on."""
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *said: statements.append(said[2]))
    return statements


def there(read: list[Connection]) -> Callable[[Connection], bool]:
    """A fence row that always exists and counts its reads."""

    def own_row(connection: Connection) -> bool:
        read.append(connection)
        return True

    return own_row


def test_without_an_error_no_further_statement_is_sent(engine: Engine, session: Session) -> None:
    read: list[Connection] = []
    statements = heard(engine)
    with SessionGuard(session, owner="f()") as guard:
        guard.own_row = there(read)
        session.execute(insert(Row).values(id=1))
        with session.begin_nested():
            session.execute(insert(Row).values(id=2))
        guard.end_work()
        session.commit()
        guard.check_committed()
    assert (len(statements), read) == (4, [])  # two inserts, a savepoint and its release


def test_an_error_costs_one_read_of_the_fence_row(session: Session) -> None:
    read: list[Connection] = []
    with SessionGuard(session, owner="f()") as guard:
        guard.own_row = there(read)
        session.execute(insert(Row).values(id=1))
        with suppress(IntegrityError):
            session.execute(insert(Row).values(id=1))
        with suppress(IntegrityError):
            session.execute(insert(Row).values(id=1))
        guard.end_work()
        session.commit()
        guard.check_committed()
    assert len(read) == 1


def test_a_missing_fence_row_means_that_the_transaction_was_rolled_back(engine: Engine, session: Session) -> None:
    with SessionGuard(session, owner="f()") as guard:
        session.execute(insert(Row).values(id=1))
        guard.own_row = lambda connection: False
        with suppress(IntegrityError):
            session.execute(insert(Row).values(id=1))
        with pytest.raises(MisuseError, match=r"caught inside it \(IntegrityError"):
            guard.end_work()
    session.close()
    assert count(engine) == 0


def test_a_caught_refusal_is_raised_again_at_the_end(engine: Engine, session: Session) -> None:
    with SessionGuard(session, owner="f()") as guard:
        session.execute(insert(Row).values(id=1))
        with suppress(MisuseError):
            session.execute(text("/* enough */ ROLLBACK"))
        with pytest.raises(MisuseError, match="ROLLBACK as SQL"):
            guard.end_work()
    session.close()
    assert count(engine) == 0


def test_a_session_joined_to_an_outer_transaction_commits_nothing(engine: Engine) -> None:
    with engine.connect() as connection, connection.begin():
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            with SessionGuard(session, owner="f()") as guard:
                session.execute(insert(Row).values(id=1))
                guard.end_work()
                session.commit()
                with pytest.raises(MisuseError, match="committed nothing"):
                    guard.check_committed()


def test_a_two_phase_session_is_refused(engine: Engine) -> None:
    with Session(engine, twophase=True) as session, pytest.raises(MisuseError, match="two phases"):
        SessionGuard(session, owner="f()").__enter__()
