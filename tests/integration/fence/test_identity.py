"""The tables of the fence and its identity."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from uuid import UUID

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

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import said
from tests.integration.fence.business import COMMIT, ROLLBACK, UNKNOWN, recorded
from txmsg import AsyncProducer, FenceCheckListener, Producer
from txmsg.checker.fence import Fence
from txmsg.checker.fence.engines import on_engine
from txmsg.checker.fence.identity import renew_fence_id
from txmsg.checker.tables import create_tables, fence_identity_table, fence_table, inbox_table, metadata
from txmsg.errors import MisuseError, StorageError, TransactionRefused
from txmsg.message import new_transaction_id


def test_the_fence_id_is_persistent_and_differs_between_databases(engine: Engine, fence: Fence, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    other_fence = Fence(other)
    create_tables(other)
    assert Fence(engine).fence_id() == fence.fence_id() != other_fence.fence_id()
    other.dispose()


def test_the_fence_id_is_created_on_first_use_of_migrated_tables(engine: Engine) -> None:
    metadata.create_all(engine)
    assert Fence(engine).fence_id() == Fence(engine).fence_id()
    with engine.connect() as connection:
        assert len(connection.execute(select(fence_identity_table)).all()) == 1


def test_missing_tables_are_named_with_the_remedy(engine: Engine) -> None:
    with pytest.raises(StorageError, match=r"create_tables\(engine\)"):
        Fence(engine).fence_id()


def test_several_processes_may_create_the_tables_at_once(engine: Engine) -> None:
    ids: list[UUID] = []

    def create() -> None:
        fence = Fence(engine)
        create_tables(engine)
        ids.append(fence.fence_id())

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(ids) == 4
    assert len(set(ids)) == 1


def test_create_tables_does_not_wait_for_writers_of_existing_tables(postgres_engine: Engine) -> None:
    impatient = create_engine(postgres_engine.url, connect_args={"options": "-c lock_timeout=2s"})
    with postgres_engine.begin() as connection:
        connection.execute(insert(inbox_table).values(group_name="g", message_id="m", generation=0))
        create_tables(impatient)
    impatient.dispose()


@pytest.mark.parametrize("isolation_level", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_tables_are_created_at_any_isolation_level(business_url: str, isolation_level: str) -> None:
    engine = create_engine(business_url, isolation_level=isolation_level)
    create_tables(engine)
    create_tables(engine)
    assert Fence(engine).fence_id()
    engine.dispose()


def test_a_started_producer_answers_checks_only_for_its_announced_fence(
    broker: BrokerProcess, engine: Engine, fence: Fence
) -> None:
    """Its URL leads to a copy with another fence id: the copy does not know the original's transactions."""
    listener = FenceCheckListener(engine)
    with Producer(broker.address, group="g", check_listener=listener):
        on_engine(engine, renew_fence_id)
        assert isinstance(listener.fence, Fence)
        assert listener.fence.check(new_transaction_id()) is UNKNOWN


async def test_a_started_async_producer_answers_checks_only_for_its_announced_fence(
    broker: BrokerProcess, engine: Engine, fence: Fence
) -> None:
    listener = FenceCheckListener(engine)
    async with AsyncProducer(broker.address, group="g", check_listener=listener):
        on_engine(engine, renew_fence_id)
        assert isinstance(listener.fence, Fence)
        assert listener.fence.check(new_transaction_id()) is UNKNOWN


def test_an_invalid_outcome_is_refused_by_the_database(engine: Engine, fence: Fence) -> None:
    with engine.begin() as connection, pytest.raises(DBAPIError):
        connection.execute(insert(fence_table).values(transaction_id=new_transaction_id(), outcome="maybe"))


@pytest.mark.parametrize("driver", ["mysql+pymysql", "mariadb+pymysql"])
@pytest.mark.parametrize("column", ["char(32)", "uuid"])
def test_ids_are_found_in_columns_of_other_mariadb_and_sqlalchemy_versions(
    mariadb_engine: Engine, column: str, driver: str
) -> None:
    if mariadb_engine.dialect.name == "mysql" and (column == "uuid" or driver == "mariadb+pymysql"):
        pytest.skip("MySQL has no type uuid, and is no MariaDB")
    engine = create_engine(mariadb_engine.url.set(drivername=driver))
    fence = Fence(engine)
    with engine.begin() as connection:
        connection.execute(text(f"alter table txmsg_fence modify transaction_id {column} not null"))
    done, undone = new_transaction_id(), new_transaction_id()
    with Session(engine) as session:
        fence.write(session, done)
        session.commit()
        assert [fence.check(each) for each in (done, undone)] == [COMMIT, ROLLBACK]
        with pytest.raises(TransactionRefused):
            fence.write(session, undone)
    assert recorded(engine) == {done: "commit", undone: "rollback"}
    engine.dispose()


def test_a_copy_with_a_new_fence_id_does_not_answer_for_the_old_id(engine: Engine, fence: Fence) -> None:
    old_id = fence.fence_id()
    done, absent = new_transaction_id(), new_transaction_id()
    with Session(engine) as session:
        fence.write(session, done)
        session.commit()
    new_id = on_engine(engine, renew_fence_id)
    assert old_id != new_id == Fence(engine).fence_id()
    assert [fence.check(each) for each in (done, absent)] == [COMMIT, UNKNOWN]
    assert set(recorded(engine)) == {done}
    with Session(engine) as session, pytest.raises(MisuseError, match=str(old_id)):
        fence.write(session, absent)
    assert Fence(engine).check(absent) is ROLLBACK


def test_the_command_shows_and_renews_the_id(postgres_engine: Engine) -> None:
    fence = Fence(postgres_engine)

    def command(*words: str) -> str:
        return said("fence", *words, "--database", postgres_engine.url.render_as_string(hide_password=False))

    old = fence.fence_id()
    assert command("id") == f"{old}\n"
    assert json.loads(command("renew-id", "--yes", "--json"))["old"] == str(old)
    new = Fence(postgres_engine).fence_id()
    assert new != old
    assert command("id") == f"{new}\n"


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg_async"])
def test_the_command_accepts_an_async_url(postgres_engine: Engine, driver: str) -> None:
    url = postgres_engine.url.set(drivername=driver).render_as_string(hide_password=False)
    old = Fence(postgres_engine).fence_id()
    assert said("fence", "id", "--database", url) == f"{old}\n"
    assert json.loads(said("fence", "renew-id", "--yes", "--json", "--database", url))["old"] == str(old)
    assert Fence(postgres_engine).fence_id() != old
