"""Late transactions, which write their fence row after a check did."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import (
    Engine,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.integration.fence.business import (
    COMMIT,
    LEVELS,
    ROLLBACK,
    UNKNOWN,
    recorded,
    register,
    users,
    users_count,
)
from txmsg.checker.fence import Fence
from txmsg.checker.tables import fence_table
from txmsg.errors import TransactionRefused
from txmsg.message import TransactionId, TransactionState, new_transaction_id


def test_a_late_transaction_is_refused_without_effects(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    assert fence.check(transaction_id) is ROLLBACK
    with Session(engine) as session:
        with pytest.raises(TransactionRefused, match=str(transaction_id)):
            fence.write(session, transaction_id)
        session.rollback()
    assert fence.check(transaction_id) is ROLLBACK
    assert users_count(engine) == 0


def test_a_late_transaction_with_an_old_snapshot_is_refused(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        session.execute(select(users)).all()
        session.execute(select(fence_table)).all()
        assert fence.check(transaction_id) is ROLLBACK
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)


def test_a_refused_session_cannot_commit_its_effects_on_postgresql(postgres_engine: Engine) -> None:
    fence = Fence(postgres_engine)
    transaction_id = new_transaction_id()
    fence.check(transaction_id)
    with Session(postgres_engine) as session:
        register(session)
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)
        session.commit()  # PostgreSQL turns it into a rollback
    assert users_count(postgres_engine) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_a_late_transaction_with_an_old_snapshot_is_refused_at_every_isolation_level(
    server: Engine, level: str
) -> None:
    fence = Fence(server)
    transaction_id = new_transaction_id()
    with Session(server.execution_options(isolation_level=level)) as session:
        session.execute(select(users)).all()  # the snapshot is from before the check
        assert fence.check(transaction_id) is ROLLBACK
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)
    assert recorded(server) == {transaction_id: "rollback"}


@pytest.mark.parametrize("level", LEVELS)
def test_a_late_transaction_waiting_for_the_row_of_a_check_is_refused_when_the_check_commits(
    server: Engine, level: str
) -> None:
    fence = Fence(server)
    transaction_id = new_transaction_id()
    refused: list[TransactionRefused] = []

    def write_late() -> None:
        with Session(server.execution_options(isolation_level=level)) as session:
            with pytest.raises(TransactionRefused) as caught:
                fence.write(session, transaction_id)
            refused.append(caught.value)

    with server.begin() as check:
        check.execute(insert(fence_table).values(transaction_id=transaction_id, outcome="rollback"))
        writing = threading.Thread(target=write_late)
        writing.start()
        _until_somebody_waits_for_a_lock(server)
    writing.join(60)
    assert len(refused) == 1


# Read more often than every 0.1 s, this table shows its former contents.
_WAITING_IN_INNODB = "select count(*), sleep(0.2) from information_schema.innodb_trx where trx_state = 'LOCK WAIT'"
_WAITING = {
    "postgresql": "select count(*), pg_sleep(0.01) from pg_stat_activity "
    "where datname = current_database() and wait_event_type = 'Lock'",
    "mariadb": _WAITING_IN_INNODB,
    "mysql": _WAITING_IN_INNODB,
}


def _until_somebody_waits_for_a_lock(engine: Engine) -> None:
    deadline_s = time.monotonic() + 60
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(text(_WAITING[engine.dialect.name])):
            assert time.monotonic() < deadline_s, "nobody waits"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_a_check_works_at_any_default_isolation_level(server: Engine, level: str) -> None:
    checks = create_engine(server.url, isolation_level=level)
    fence = Fence(checks)
    done, undone, running = (new_transaction_id() for _ in range(3))
    with Session(server) as session:
        fence.write(session, done)
        session.commit()
        assert fence.check(undone) is ROLLBACK
        fence.write(session, running)
        assert [fence.check(each) for each in (done, undone, running)] == [COMMIT, ROLLBACK, UNKNOWN]
    checks.dispose()


def test_a_fence_row_written_with_do_nothing_would_continue_silently(postgres_engine: Engine) -> None:
    """This is why `write` is a plain INSERT."""
    fence = Fence(postgres_engine)
    transaction_id = new_transaction_id()
    assert fence.check(transaction_id) is ROLLBACK
    with postgres_engine.begin() as careless:
        row = {"id": transaction_id}
        sql = "insert into txmsg_fence (transaction_id, outcome) values (:id, 'commit') on conflict do nothing"
        assert careless.execute(text(sql), row).rowcount == 0  # no error: its effects would commit
    with Session(postgres_engine) as session, pytest.raises(TransactionRefused):
        fence.write(session, transaction_id)


def test_do_nothing_under_repeatable_read_is_a_serialization_error(postgres_engine: Engine) -> None:
    """This is why a check sets READ COMMITTED explicitly."""
    fence = Fence(postgres_engine)
    transaction_id = new_transaction_id()
    with postgres_engine.connect().execution_options(isolation_level="REPEATABLE READ") as check, check.begin():
        check.execute(select(fence_table)).all()
        with Session(postgres_engine) as session:
            fence.write(session, transaction_id)
            session.commit()
        sql = "insert into txmsg_fence (transaction_id, outcome) values (:id, 'rollback') on conflict do nothing"
        with pytest.raises(DBAPIError) as caught:
            check.execute(text(sql), {"id": transaction_id})
        assert getattr(caught.value.orig, "sqlstate", None) == "40001"
    assert fence.check(transaction_id) is COMMIT


def test_an_id_is_valid_for_one_transaction_only(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        session.commit()
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)
        session.rollback()
    assert fence.check(transaction_id) is COMMIT


def test_racing_checks_and_late_transactions_never_disagree(engine: Engine, fence: Fence) -> None:
    ids = [new_transaction_id() for _ in range(40)]
    answers: dict[TransactionId, TransactionState] = {}
    committed: set[TransactionId] = set()
    start = threading.Barrier(2)

    def check_all() -> None:
        start.wait()
        for each in ids:
            answers[each] = fence.check(each)

    def run_all() -> None:
        start.wait()
        for each in ids:
            with Session(engine) as session:
                try:
                    fence.write(session, each)
                    register(session)
                    session.commit()
                except TransactionRefused:
                    session.rollback()
                else:
                    committed.add(each)

    threads = [threading.Thread(target=check_all), threading.Thread(target=run_all)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == len(ids)
    for each in ids:
        final = fence.check(each)
        assert final is (COMMIT if each in committed else ROLLBACK)
        assert answers[each] in (UNKNOWN, final)
    assert users_count(engine) == len(committed)
