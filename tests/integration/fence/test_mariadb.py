"""Differences of InnoDB: its locks, its deadlocks, and transactions that continue after an error."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tests.integration.fence.business import COMMIT, LEVELS, ROLLBACK, UNKNOWN, recorded, register, users_count
from txmsg.checker.fence import Fence
from txmsg.checker.tables import fence_table
from txmsg.client.flows.sql_text import StatementKind, steps
from txmsg.errors import TransactionRefused
from txmsg.message import TransactionState, new_transaction_id

DUPLICATE_KEY = 1062


@pytest.mark.parametrize("level", LEVELS)
def test_a_late_plain_insert_is_a_duplicate_key_at_every_level(mariadb_engine: Engine, level: str) -> None:
    fence = Fence(mariadb_engine)
    late = new_transaction_id()
    with Session(mariadb_engine.execution_options(isolation_level=level)) as session:
        session.execute(text("select * from users")).all()
        assert fence.check(late) is ROLLBACK
        with pytest.raises(TransactionRefused) as caught:
            fence.write(session, late)
    cause = caught.value.__cause__
    assert isinstance(cause, IntegrityError)
    assert cause.orig is not None
    assert cause.orig.args[0] == DUPLICATE_KEY


@pytest.mark.parametrize("level", LEVELS)
def test_gap_locks_of_a_business_transaction_make_a_check_unknown_but_never_wrong(
    mariadb_engine: Engine, level: str
) -> None:
    fence = Fence(mariadb_engine)
    asked, running = new_transaction_id(), new_transaction_id()
    with Session(mariadb_engine.execution_options(isolation_level=level)) as session:
        fence.write(session, running)
        session.execute(select(fence_table).with_for_update()).all()  # also locks gaps, at levels that do so
        state = fence.check(asked)
        assert state is (ROLLBACK if level == "READ COMMITTED" else UNKNOWN)
        assert fence.check(running) is UNKNOWN
        session.commit()
    assert [fence.check(each) for each in (asked, running)] == [ROLLBACK, COMMIT]


def test_a_check_that_is_a_deadlock_victim_is_unknown_and_correct_next_time(mariadb_engine: Engine) -> None:
    fence = Fence(mariadb_engine)
    asked = new_transaction_id()
    answers: list[TransactionState] = []

    def lock_across(connection: object, cursor: object, statement: str, *_: object) -> None:
        """Before the insert of a check, lock a row that the business transaction needs while it has the check's row."""
        if "INSERT INTO txmsg_fence" in statement and threading.current_thread() is checker:
            execute = cursor.execute  # type: ignore[attr-defined]
            execute("select * from users where id = 1 for update")
            locked.set()
            assert waiting.wait(60)

    def check() -> None:
        answers.append(fence.check(asked))

    with Session(mariadb_engine) as session:
        register(session)
        session.commit()
    fence.fence_id()
    locked, waiting = threading.Event(), threading.Event()
    checker = threading.Thread(target=check)
    event.listen(mariadb_engine, "before_cursor_execute", lock_across)
    with Session(mariadb_engine) as session:
        for _ in range(20):  # the heavier transaction survives
            register(session)
        fence.write(session, asked)
        checker.start()
        assert locked.wait(60)
        waiting.set()
        session.execute(text("update users set email = 'b' where id = 1"))
        session.commit()
    checker.join(60)
    event.remove(mariadb_engine, "before_cursor_execute", lock_across)
    assert answers == [UNKNOWN]
    assert fence.check(asked) is COMMIT


def test_effects_written_before_a_refusal_are_rolled_back_with_the_session(mariadb_engine: Engine) -> None:
    """InnoDB rolls back only the statement, so the session must be rolled back, as `write` documents."""
    fence = Fence(mariadb_engine)
    late = new_transaction_id()
    fence.check(late)
    with Session(mariadb_engine) as session:
        register(session)
        with pytest.raises(TransactionRefused):
            fence.write(session, late)
        session.rollback()
        session.commit()
    assert users_count(mariadb_engine) == 0
    assert recorded(mariadb_engine) == {late: "rollback"}


COMMITTING = """create table made (id int) | alter table other add column b int | drop table other
truncate table other
rename table other to another | create index i on other (a) | drop index if exists i on other | analyze table other
lock tables users write | begin | start transaction | commit | set autocommit = 1 | /*!50000 commit */ | flush tables
optimize table other | repair table other | grant select on other to current_user | create view v as select 1
check table other
set statement max_statement_time = 10 for create table made (id int) | create or replace table other (a int)"""
FREE = """create temporary table made (id int) | select 1 | analyze select 1 | savepoint a | set @a = 1 | show tables
insert into users (email) values ('it''s; commit') | explain select 1 | set session sort_buffer_size = 262144 | do 1"""


@pytest.mark.parametrize(("texts", "commits"), [(COMMITTING, True), (FREE, False)])
def test_text_with_an_implicit_commit_is_recognized(mariadb_engine: Engine, texts: str, commits: bool) -> None:
    """The server decides: rows written before the statement are looked up after a rollback."""
    wrong = []
    for sql in [each.strip() for line in texts.splitlines() for each in line.split(" | ")]:
        with mariadb_engine.connect() as connection:
            connection.exec_driver_sql("drop view if exists v")
            connection.exec_driver_sql("drop table if exists other, another, made")
            connection.exec_driver_sql("create table other (a int)")
            connection.exec_driver_sql("delete from users")
            connection.commit()
            connection.exec_driver_sql("insert into users (email) values ('before')")
            connection.exec_driver_sql(sql)
            connection.exec_driver_sql("rollback")
            connection.invalidate()
        survived = users_count(mariadb_engine) > 0
        known = any(step.kind is StatementKind.END for step in steps(sql, "mariadb"))
        if (survived, known) != (commits, commits):
            wrong.append((sql, survived, known))
    assert wrong == []
