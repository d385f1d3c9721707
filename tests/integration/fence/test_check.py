"""Checks of transactions in each of their states, and their side effects."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import (
    Engine,
    create_engine,
    event,
    text,
)
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from tests.integration.fence.business import (
    COMMIT,
    CONNECTION_ID,
    ROLLBACK,
    UNKNOWN,
    kill,
    message,
    recorded,
    register,
    users_count,
)
from txmsg.checker.fence import Fence, FenceCheckListener
from txmsg.checker.fence import check as check_steps
from txmsg.checker.listener import CheckMessageListener
from txmsg.message import TransactionId, TransactionState, new_transaction_id

# ---- the check of a transaction in each of its states


def test_a_check_on_a_broken_pooled_connection_is_answered_on_another(server: Engine) -> None:
    fence = Fence(server)
    fence.fence_id()
    with server.connect() as pooled:
        connection_id = pooled.scalar(CONNECTION_ID[server.dialect.name])
    others = create_engine(server.url)
    kill(others, connection_id)
    _until_gone(others, connection_id)
    assert fence.check(new_transaction_id()) is ROLLBACK
    others.dispose()


def test_a_committed_transaction_is_answered_commit_every_time(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        register(session)
        session.commit()
    assert [fence.check(transaction_id) for _ in range(3)] == [COMMIT] * 3


def test_a_rolled_back_transaction_is_answered_rollback_every_time(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        register(session)
        session.rollback()
    assert [fence.check(transaction_id) for _ in range(3)] == [ROLLBACK] * 3
    assert recorded(engine) == {transaction_id: "rollback"}


def test_a_running_transaction_is_unknown_and_may_still_commit(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        register(session)
        assert fence.check(transaction_id) is UNKNOWN  # and does not wait for its end
        session.commit()
    assert fence.check(transaction_id) is COMMIT
    assert users_count(engine) == 1


def test_a_running_transaction_that_then_rolls_back_is_answered_rollback(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        assert fence.check(transaction_id) is UNKNOWN
        session.rollback()
    assert fence.check(transaction_id) is ROLLBACK


def test_a_transaction_that_commits_while_the_check_waits_for_it_is_answered_commit(
    engine: Engine, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _check_during(engine, fence, monkeypatch, commit=True) == [COMMIT]


def test_a_transaction_that_rolls_back_while_the_check_waits_for_it_is_answered_rollback(
    engine: Engine, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _check_during(engine, fence, monkeypatch, commit=False) == [ROLLBACK]


def _check_during(
    engine: Engine, fence: Fence, monkeypatch: pytest.MonkeyPatch, *, commit: bool
) -> list[TransactionState]:
    """End a transaction when a check, having seen no row, is about to insert its rollback row."""
    inserting = threading.Event()
    original = check_steps._insert_rollback

    def insert_rollback(*args: object) -> bool:
        inserting.set()
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(check_steps, "_insert_rollback", insert_rollback)
    transaction_id = new_transaction_id()
    answers: list[TransactionState] = []

    def ask() -> None:
        answer = UNKNOWN
        while answer is UNKNOWN:  # on a slow machine the lock timeout may come first
            answer = fence.check(transaction_id)
        answers.append(answer)

    with Session(engine) as session:
        fence.write(session, transaction_id)
        asking = threading.Thread(target=ask)
        asking.start()
        assert inserting.wait(60)
        if commit:
            session.commit()
        else:
            session.rollback()
    asking.join(60)
    return answers


def test_a_transaction_whose_connection_was_killed_is_answered_rollback(server: Engine) -> None:
    fence = Fence(server)
    transaction_id = new_transaction_id()
    with Session(server) as session:
        fence.write(session, transaction_id)
        register(session)
        connection_id = session.scalar(CONNECTION_ID[server.dialect.name])
        assert fence.check(transaction_id) is UNKNOWN
        kill(server, connection_id)
        assert _settled(fence, transaction_id) is ROLLBACK
        with pytest.raises(OperationalError):
            session.commit()
    assert users_count(server) == 0


def _settled(fence: Fence, transaction_id: TransactionId) -> TransactionState:
    deadline_s = time.monotonic() + 60
    while (state := fence.check(transaction_id)) is UNKNOWN:
        assert time.monotonic() < deadline_s, "the transaction is running for ever"
    return state


def _until_gone(engine: Engine, connection_id: int) -> None:
    if engine.dialect.name == "postgresql":
        return  # pg_terminate_backend waited for it
    there = text("select count(*), sleep(0.01) from information_schema.processlist where id = :id")
    deadline_s = time.monotonic() + 60
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while connection.scalar(there, {"id": connection_id}):
            assert time.monotonic() < deadline_s, "the connection does not end"


# ---- side effects of a check


def test_a_check_leaves_no_setting_on_the_pooled_connection(engine: Engine, fence: Fence) -> None:
    one = create_engine(engine.url, pool_size=1, max_overflow=0)
    lock_wait = {
        "postgresql": "select current_setting('lock_timeout') || current_setting('synchronous_commit')",
        "sqlite": "pragma busy_timeout",
        "mysql": "select @@innodb_lock_wait_timeout",
        "mariadb": "select @@innodb_lock_wait_timeout",
    }[engine.dialect.name]

    def setting() -> tuple[object, str]:
        with one.connect() as connection:
            return connection.exec_driver_sql(lock_wait).scalar_one(), connection.get_isolation_level()

    before = setting()
    running = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, running)
        assert Fence(one).check(running) is UNKNOWN
    assert setting() == before
    assert Fence(one).check(running) is ROLLBACK
    assert setting() == before
    one.dispose()


def test_a_rollback_row_is_flushed_before_the_answer_even_with_synchronous_commit_off(postgres_engine: Engine) -> None:
    fence = Fence(postgres_engine)
    seen: list[object] = []

    @event.listens_for(postgres_engine, "connect")
    def asynchronous(dbapi_connection: object, _record: object) -> None:
        cursor = dbapi_connection.cursor()  # type: ignore[attr-defined]
        cursor.execute("set synchronous_commit = off")
        cursor.close()
        dbapi_connection.commit()  # type: ignore[attr-defined]

    @event.listens_for(postgres_engine, "after_cursor_execute")
    def look(connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO txmsg_fence"):
            cursor.execute("show synchronous_commit")  # type: ignore[attr-defined]
            seen.append(cursor.fetchone()[0])  # type: ignore[attr-defined]

    postgres_engine.dispose()
    fence.check(new_transaction_id())
    assert seen == ["on"]


def test_a_check_on_a_read_only_server_raises_instead_of_answering(postgres_engine: Engine) -> None:
    replica = create_engine(postgres_engine.url, connect_args={"options": "-c default_transaction_read_only=on"})
    with pytest.raises(DBAPIError, match="read-only"):
        Fence(replica).check(new_transaction_id())
    replica.dispose()


# ---- the listener


def test_the_listener_answers_from_the_fence(engine: Engine, fence: Fence) -> None:
    listener = FenceCheckListener(engine)
    assert isinstance(listener, CheckMessageListener)
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        assert listener.check(message(transaction_id)) is UNKNOWN
        session.commit()
    assert listener.check(message(transaction_id)) is COMMIT
