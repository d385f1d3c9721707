"""The tables of the fence, and which fence it is."""

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

from tests.integration.cli_harness import said
from tests.integration.fence.business import COMMIT, ROLLBACK, UNKNOWN, recorded
from txmsg.checker.fence import Fence
from txmsg.errors import MisuseError, StorageError, TransactionRefused
from txmsg.message import new_transaction_id
from txmsg.tables import create_tables, fence_identity_table, fence_table, metadata


def test_the_fence_id_is_kept_and_differs_between_databases(engine: Engine, fence: Fence, tmp_path: Path) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    other_fence = Fence(other)
    create_tables(other)
    assert Fence(engine).fence_id() == fence.fence_id() != other_fence.fence_id()
    other.dispose()


def test_the_fence_id_is_made_on_first_use_of_tables_that_migrations_created(engine: Engine) -> None:
    metadata.create_all(engine)
    assert Fence(engine).fence_id() == Fence(engine).fence_id()
    with engine.connect() as connection:
        assert len(connection.execute(select(fence_identity_table)).all()) == 1


def test_absent_tables_are_named_with_the_remedy(engine: Engine) -> None:
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


def test_an_outcome_that_is_none_is_refused_by_the_database(engine: Engine, fence: Fence) -> None:
    with engine.begin() as connection, pytest.raises(DBAPIError):
        connection.execute(insert(fence_table).values(transaction_id=new_transaction_id(), outcome="maybe"))


@pytest.mark.parametrize("driver", ["mysql+pymysql", "mariadb+pymysql"])
@pytest.mark.parametrize("column", ["char(32)", "uuid"])
def test_ids_are_found_in_a_column_that_another_version_of_mariadb_or_sqlalchemy_made(
    mariadb_engine: Engine, column: str, driver: str
) -> None:
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


def test_a_copy_with_an_id_of_its_own_concludes_nothing_for_a_client_that_knows_the_old_one(
    engine: Engine, fence: Fence
) -> None:
    old_id = fence.fence_id()
    done, absent = new_transaction_id(), new_transaction_id()
    with Session(engine) as session:
        fence.write(session, done)
        session.commit()
    new_id = Fence(engine).renew_fence_id()
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
