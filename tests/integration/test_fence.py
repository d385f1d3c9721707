"""The fence on real databases: PostgreSQL and SQLite, and MySQL or MariaDB when TXMSG_TEST_MYSQL holds a URL for one.

A business transaction runs on a connection of its own; "late" means that it writes its fence row after a check did.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from txmsg.checker import fence as fence_module
from txmsg.checker.fence import Fence, FenceCheckListener, fence_identity_table, fence_metadata, fence_table
from txmsg.checker.listener import CheckMessageListener
from txmsg.errors import MisuseError, StorageError, TransactionRefused
from txmsg.message import ReceivedMessage, TransactionId, TransactionState, message_id, new_transaction_id

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN

users = Table("users", MetaData(), Column("id", Integer, primary_key=True), Column("email", String(80)))

MYSQL_URL = os.environ.get("TXMSG_TEST_MYSQL")
BACKENDS = ["postgresql", "sqlite", *(["mysql"] if MYSQL_URL else [])]


@pytest.fixture
def postgres_url(database_url: str) -> str:
    return database_url.replace("postgresql://", "postgresql+psycopg://", 1)


def _url(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if backend == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    if backend == "mysql":
        assert MYSQL_URL is not None
        return MYSQL_URL
    return f"sqlite:///{tmp_path / 'business.db'}"


@pytest.fixture(params=BACKENDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """The business database, with the table users and nothing of the fence."""
    engine = create_engine(_url(request.param, request, tmp_path))
    fence_metadata.drop_all(engine)
    users.metadata.drop_all(engine)
    users.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def fence(engine: Engine) -> Fence:
    fence = Fence(engine)
    fence.create_tables()
    return fence


@pytest.fixture
def postgres_engine(postgres_url: str) -> Iterator[Engine]:
    engine = create_engine(postgres_url)
    users.metadata.create_all(engine)
    yield engine
    engine.dispose()


def register(session: Session) -> None:
    session.execute(insert(users).values(email="a@example.org"))


def users_count(engine: Engine) -> int:
    with engine.connect() as connection:
        return len(connection.execute(select(users)).all())


def recorded(engine: Engine) -> dict[UUID, str]:
    with engine.connect() as connection:
        return {row.transaction_id: row.outcome for row in connection.execute(select(fence_table))}


# ---- the check of a transaction in each of its states


def test_a_committed_transaction_is_answered_commit_again_and_again(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        register(session)
        session.commit()
    assert [fence.check(transaction_id) for _ in range(3)] == [COMMIT] * 3


def test_a_rolled_back_transaction_is_answered_rollback_again_and_again(engine: Engine, fence: Fence) -> None:
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
        began_s = time.monotonic()
        assert fence.check(transaction_id) is UNKNOWN
        assert time.monotonic() - began_s < 3
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
    answers = _check_during(engine, fence, monkeypatch, commit=True)
    assert answers == [COMMIT]


def test_a_transaction_that_rolls_back_while_the_check_waits_for_it_is_answered_rollback(
    engine: Engine, fence: Fence, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = _check_during(engine, fence, monkeypatch, commit=False)
    assert answers == [ROLLBACK]


def _check_during(
    engine: Engine, fence: Fence, monkeypatch: pytest.MonkeyPatch, *, commit: bool
) -> list[TransactionState]:
    """Ends a transaction once a check is about to insert its rollback row, having seen nothing before."""
    inserting = threading.Event()
    original = fence_module._insert_rollback

    def insert_rollback(*args: object) -> bool:
        inserting.set()
        return original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(fence_module, "_insert_rollback", insert_rollback)
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
        assert inserting.wait(10)
        if commit:
            session.commit()
        else:
            session.rollback()
    asking.join(30)
    return answers


def test_a_transaction_whose_connection_was_killed_is_answered_rollback(postgres_engine: Engine) -> None:
    fence = Fence(postgres_engine)
    fence.create_tables()
    transaction_id = new_transaction_id()
    with Session(postgres_engine) as session:
        fence.write(session, transaction_id)
        register(session)
        pid = session.scalar(text("select pg_backend_pid()"))
        assert fence.check(transaction_id) is UNKNOWN
        with postgres_engine.connect() as other:
            assert other.scalar(text("select pg_terminate_backend(:pid, 10000)"), {"pid": pid})
        assert fence.check(transaction_id) is ROLLBACK
        with pytest.raises(OperationalError):
            session.commit()
    assert users_count(postgres_engine) == 0


# ---- late transactions


def test_a_late_transaction_is_refused_and_leaves_nothing(engine: Engine, fence: Fence) -> None:
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
    fence.create_tables()
    transaction_id = new_transaction_id()
    fence.check(transaction_id)
    with Session(postgres_engine) as session:
        register(session)
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)
        session.commit()  # PostgreSQL makes a rollback of it
    assert users_count(postgres_engine) == 0


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_late_transaction_with_an_old_snapshot_is_refused_at_every_isolation_level(
    postgres_engine: Engine, level: str
) -> None:
    fence = Fence(postgres_engine)
    fence.create_tables()
    transaction_id = new_transaction_id()
    with Session(postgres_engine.execution_options(isolation_level=level)) as session:
        session.execute(select(users)).all()  # the snapshot is from before the check
        assert fence.check(transaction_id) is ROLLBACK
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)
    assert recorded(postgres_engine) == {transaction_id: "rollback"}


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_late_transaction_that_waits_for_the_row_of_a_check_is_refused_when_that_commits(
    postgres_engine: Engine, level: str
) -> None:
    fence = Fence(postgres_engine)
    fence.create_tables()
    transaction_id = new_transaction_id()
    refused: list[TransactionRefused] = []

    def write_late() -> None:
        with Session(postgres_engine.execution_options(isolation_level=level)) as session:
            with pytest.raises(TransactionRefused) as caught:
                fence.write(session, transaction_id)
            refused.append(caught.value)

    with postgres_engine.begin() as check:
        check.execute(insert(fence_table).values(transaction_id=transaction_id, outcome="rollback"))
        writing = threading.Thread(target=write_late)
        writing.start()
        _until_somebody_waits_for_a_lock(postgres_engine)
    writing.join(10)
    assert len(refused) == 1


def _until_somebody_waits_for_a_lock(engine: Engine) -> None:
    waiting = text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    deadline_s = time.monotonic() + 10
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(waiting):
            assert time.monotonic() < deadline_s, "nobody waits"
            connection.execute(text("select pg_sleep(0.01)"))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
def test_the_check_works_whatever_isolation_the_engine_has_by_default(postgres_url: str, level: str) -> None:
    business = create_engine(postgres_url)
    checks = create_engine(postgres_url, isolation_level=level)
    fence = Fence(checks)
    fence.create_tables()
    done, undone, running = (new_transaction_id() for _ in range(3))
    with Session(business) as session:
        fence.write(session, done)
        session.commit()
        assert fence.check(undone) is ROLLBACK
        fence.write(session, running)
        assert [fence.check(each) for each in (done, undone, running)] == [COMMIT, ROLLBACK, UNKNOWN]
    business.dispose()
    checks.dispose()


def test_the_trap_a_business_row_written_with_do_nothing_would_go_on_silently(postgres_engine: Engine) -> None:
    """Why `write` is a plain INSERT."""
    fence = Fence(postgres_engine)
    fence.create_tables()
    transaction_id = new_transaction_id()
    assert fence.check(transaction_id) is ROLLBACK
    with postgres_engine.begin() as careless:
        row = {"id": transaction_id}
        sql = "insert into txmsg_fence (transaction_id, outcome) values (:id, 'commit') on conflict do nothing"
        assert careless.execute(text(sql), row).rowcount == 0  # no error: its effects would commit
    with Session(postgres_engine) as session, pytest.raises(TransactionRefused):
        fence.write(session, transaction_id)


def test_the_trap_do_nothing_under_repeatable_read_is_a_serialization_error(postgres_engine: Engine) -> None:
    """Why a check sets READ COMMITTED explicitly."""
    fence = Fence(postgres_engine)
    fence.create_tables()
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


def test_an_id_is_good_for_one_transaction_only(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        session.commit()
        with pytest.raises(TransactionRefused):
            fence.write(session, transaction_id)
        session.rollback()
    assert fence.check(transaction_id) is COMMIT


def test_checks_and_late_transactions_that_race_never_disagree(engine: Engine, fence: Fence) -> None:
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


# ---- misuse


def test_a_fence_row_inside_a_savepoint_is_refused(engine: Engine, fence: Fence) -> None:
    with Session(engine) as session, session.begin(), session.begin_nested():
        with pytest.raises(MisuseError, match="savepoint"):
            fence.write(session, new_transaction_id())


def test_savepoints_after_the_fence_row_are_fine(engine: Engine, fence: Fence) -> None:
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        fence.write(session, transaction_id)
        with session.begin_nested() as savepoint:
            register(session)
            savepoint.rollback()
        session.commit()
    assert (fence.check(transaction_id), users_count(engine)) == (COMMIT, 0)


def test_a_session_inside_somebody_elses_savepoint_or_transaction_is_refused(engine: Engine, fence: Fence) -> None:
    with engine.connect() as connection, connection.begin():
        with Session(connection) as session, pytest.raises(MisuseError, match="began outside"):
            fence.write(session, new_transaction_id())
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            with pytest.raises(MisuseError, match="savepoint"):
                fence.write(session, new_transaction_id())


def test_a_session_in_autocommit_is_refused(engine: Engine, fence: Fence) -> None:
    autocommit_engine = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    for autocommit in (autocommit_engine, engine.execution_options(isolation_level="AUTOCOMMIT")):
        with Session(autocommit) as session, pytest.raises(MisuseError, match="AUTOCOMMIT"):
            fence.write(session, new_transaction_id())
    assert recorded(engine) == {}
    autocommit_engine.dispose()


def test_a_session_of_another_database_is_refused(fence: Fence, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    Fence(other).create_tables()
    with Session(other) as session, pytest.raises(MisuseError, match="not that of fence"):
        fence.write(session, new_transaction_id())
    other.dispose()


def test_engines_whose_checks_would_join_the_business_transaction_are_refused() -> None:
    for engine in (create_engine("sqlite://"), create_engine("sqlite:///x.db", poolclass=StaticPool)):
        with pytest.raises(MisuseError, match="one connection"):
            Fence(engine)


def test_the_sync_methods_of_an_async_fence_and_the_reverse_name_the_right_one(engine: Engine, tmp_path: Path) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'a.db'}")
    with pytest.raises(MisuseError, match="_async"):
        Fence(async_engine).check(new_transaction_id())
    with pytest.raises(MisuseError, match="without _async"):
        asyncio.run(Fence(engine).check_async(new_transaction_id()))


# ---- identity and tables


def test_the_fence_id_is_kept_and_differs_between_databases(engine: Engine, fence: Fence, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    other_fence = Fence(other)
    other_fence.create_tables()
    fence.create_tables()
    assert Fence(engine).fence_id() == fence.fence_id() != other_fence.fence_id()
    other.dispose()


def test_the_fence_id_is_made_on_first_use_of_tables_that_migrations_created(engine: Engine) -> None:
    fence_metadata.create_all(engine)
    assert Fence(engine).fence_id() == Fence(engine).fence_id()
    with engine.connect() as connection:
        assert len(connection.execute(select(fence_identity_table)).all()) == 1


def test_absent_tables_are_named_with_the_remedy(engine: Engine) -> None:
    with pytest.raises(StorageError, match=r"create_tables\(\)"):
        Fence(engine).fence_id()


def test_several_processes_may_create_the_tables_at_once(engine: Engine) -> None:
    ids: list[UUID] = []

    def create() -> None:
        fence = Fence(engine)
        fence.create_tables()
        ids.append(fence.fence_id())

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ids) == 4
    assert len(set(ids)) == 1


def test_an_outcome_that_is_none_is_refused_by_the_database(engine: Engine, fence: Fence) -> None:
    with engine.begin() as connection, pytest.raises(DBAPIError):
        connection.execute(insert(fence_table).values(transaction_id=new_transaction_id(), outcome="maybe"))


# ---- what a check leaves behind


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


def test_a_rollback_row_is_on_disk_before_it_is_told_even_with_synchronous_commit_off(postgres_engine: Engine) -> None:
    fence = Fence(postgres_engine)
    fence.create_tables()
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


def test_a_check_on_a_read_only_server_raises_instead_of_answering(postgres_url: str, postgres_engine: Engine) -> None:
    Fence(postgres_engine).create_tables()
    replica = create_engine(postgres_url, connect_args={"options": "-c default_transaction_read_only=on"})
    with pytest.raises(DBAPIError, match="read-only"):
        Fence(replica).check(new_transaction_id())
    replica.dispose()


# ---- purge


def age(engine: Engine, *ids: TransactionId) -> None:
    with engine.begin() as connection:
        old = datetime(2020, 1, 1, tzinfo=UTC)
        connection.execute(update(fence_table).where(fence_table.c.transaction_id.in_(ids)).values(created_at=old))


def test_purge_deletes_old_rows_that_no_broker_holds(engine: Engine, fence: Fence) -> None:
    old, old_and_held, young = (new_transaction_id() for _ in range(3))
    for each in (old, old_and_held, young):
        fence.check(each)
    age(engine, old, old_and_held)
    asked: list[TransactionId] = []

    def held(ids: list[TransactionId]) -> Collection[TransactionId]:
        asked.extend(ids)
        return {old_and_held}

    assert fence.purge(3600, held) == 1
    assert sorted(asked) == sorted([old, old_and_held])
    assert set(recorded(engine)) == {old_and_held, young}
    assert fence.purge(3600, held) == 0


def test_a_row_of_now_is_young_by_the_databases_clock(engine: Engine, fence: Fence) -> None:
    fence.check(new_transaction_id())
    assert fence.purge(600, lambda ids: []) == 0


def test_purge_gets_past_a_thousand_held_rows(engine: Engine, fence: Fence) -> None:
    ids = sorted(new_transaction_id() for _ in range(2500))
    with engine.begin() as connection:
        connection.execute(insert(fence_table), [{"transaction_id": each, "outcome": "commit"} for each in ids])
        connection.execute(update(fence_table).values(created_at=datetime(2020, 1, 1, tzinfo=UTC)))
    held = set(ids[:1200])
    assert fence.purge(600, held.intersection) == 1300
    assert set(recorded(engine)) == held


def test_a_purge_of_young_rows_is_refused(fence: Fence) -> None:
    with pytest.raises(MisuseError, match="600"):
        fence.purge(599, lambda ids: [])


# ---- the listener


def message(transaction_id: TransactionId) -> ReceivedMessage:
    now = datetime.now(UTC)
    return ReceivedMessage(
        id=message_id(transaction_id, 0),
        transaction_id=transaction_id,
        topic="user.registered",
        body=b"",
        born_at=now,
        stored_at=now,
    )


def test_the_listener_answers_from_the_fence(engine: Engine, fence: Fence) -> None:
    listener = FenceCheckListener(engine)
    assert isinstance(listener, CheckMessageListener)
    transaction_id = new_transaction_id()
    with Session(engine) as session:
        listener.fence.write(session, transaction_id)
        assert listener.check(message(transaction_id)) is UNKNOWN
        session.commit()
    assert listener.check(message(transaction_id)) is COMMIT


# ---- the same with an AsyncEngine


@pytest.fixture(params=["postgresql", "sqlite"])
def async_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return _url(request.param, request, tmp_path).replace("sqlite:", "sqlite+aiosqlite:")


async def _states_of_a_transaction(engine: AsyncEngine) -> None:
    listener = FenceCheckListener(engine)
    fence = listener.fence
    await fence.create_tables_async()
    done, undone, late = (new_transaction_id() for _ in range(3))
    async with AsyncSession(engine) as session:
        await fence.write_async(session, done)
        assert await fence.check_async(done) is UNKNOWN
        await session.commit()
        await fence.write_async(session, undone)
        await session.rollback()
        assert [await fence.check_async(each) for each in (done, undone, late)] == [COMMIT, ROLLBACK, ROLLBACK]
        with pytest.raises(TransactionRefused):
            await fence.write_async(session, late)
        await session.rollback()
        async with session.begin(), session.begin_nested():
            with pytest.raises(MisuseError, match="savepoint"):
                await fence.write_async(session, new_transaction_id())
    answer = listener.check(message(done))
    assert not isinstance(answer, TransactionState)
    assert await answer is COMMIT


async def _purge(engine: AsyncEngine) -> None:
    fence = Fence(engine)
    await fence.create_tables_async()
    old, held_by_a_broker = new_transaction_id(), new_transaction_id()
    await fence.check_async(old)
    await fence.check_async(held_by_a_broker)
    async with engine.begin() as connection:
        await connection.execute(update(fence_table).values(created_at=datetime(2020, 1, 1, tzinfo=UTC)))

    async def held(ids: list[TransactionId]) -> Collection[TransactionId]:
        return [held_by_a_broker]

    assert await fence.purge_async(600, held) == 1
    assert await fence.check_async(held_by_a_broker) is ROLLBACK


async def _cancelled_check(engine: AsyncEngine) -> None:
    fence = Fence(engine)
    await fence.create_tables_async()
    transaction_id = new_transaction_id()
    async with AsyncSession(engine) as session:
        await fence.write_async(session, transaction_id)
        check = asyncio.create_task(fence.check_async(transaction_id))
        done, _ = await asyncio.wait([check], timeout=0.05)
        assert not done
        check.cancel()
        await asyncio.gather(check, return_exceptions=True)
        await session.commit()
    assert await fence.check_async(transaction_id) is COMMIT


@pytest.mark.parametrize("scenario", [_states_of_a_transaction, _purge, _cancelled_check])
def test_the_async_fence_behaves_as_the_sync_one(async_url: str, scenario: object) -> None:
    async def run() -> None:
        engine = create_async_engine(async_url)
        try:
            await scenario(engine)  # type: ignore[operator]
        finally:
            await engine.dispose()

    asyncio.run(run())
