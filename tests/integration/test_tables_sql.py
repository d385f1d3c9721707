"""What `txmsg tables sql` prints makes the tables, and gives a role all that txmsg needs, and nothing else."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pymysql
import pytest
from click.testing import CliRunner
from pymysql.constants import CLIENT
from sqlalchemy import URL, Column, Engine, Integer, MetaData, Table, create_engine, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.business import POOL_OF_ONE
from tests.integration.cli_harness import json_of, said
from txmsg import (
    FenceCheckListener,
    Outbox,
    Producer,
    TransactionState,
    create_tables,
    idempotent,
    transactional_message,
)
from txmsg.cli.main import main
from txmsg.client.outbox import rows
from txmsg.fence import Fence, purge_inbox
from txmsg.message import ReceivedMessage, new_transaction_id
from txmsg.tables import fence_identity_table, metadata

_BUSINESS = MetaData()
_ORDERS = Table("orders", _BUSINESS, Column("id", Integer, primary_key=True, autoincrement=False))
_HANDLED = Table("handled", _BUSINESS, Column("id", Integer, primary_key=True, autoincrement=False))
_ROLE = f"shop_{os.getpid()}"
_PURGER = f"purger_{os.getpid()}"
_PASSWORD = "a-password-of-tests"


@dataclass(frozen=True, slots=True)
class Place:
    """A database that has no tables of txmsg yet. url: of its owner. run: a script, as its DBA would."""

    dialect: str
    url: URL
    run: Callable[[str], object]

    def engine(self, role: str | None = None) -> Engine:
        """As the owner, or as a role."""
        url = self.url if role is None or self.dialect == "sqlite" else self.url.set(username=role, password=_PASSWORD)
        return create_engine(url, **POOL_OF_ONE)

    def sql(self) -> str:
        roles = () if self.dialect == "sqlite" else ("--role", _ROLE, "--purge-role", _PURGER)
        return said("tables", "sql", "--dialect", self.dialect, *roles)


@pytest.fixture
def postgresql(database_url: str) -> Iterator[Place]:
    with psycopg.connect(database_url, autocommit=True, connect_timeout=10) as connection:
        for role in (_ROLE, _PURGER):
            connection.execute(f"create role {role} login password '{_PASSWORD}'")
        engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
        yield Place("postgresql", engine.url, connection.execute)
        for role in (_ROLE, _PURGER):
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")


@pytest.fixture
def mysql(mariadb_url: str) -> Iterator[Place]:
    engine = create_engine(mariadb_url)
    options = engine.dialect.create_connect_args(engine.url)[1]
    options["client_flag"] = CLIENT.MULTI_STATEMENTS
    with closing(pymysql.connect(**options, autocommit=True)) as connection, connection.cursor() as cursor:

        def run(script: str) -> None:
            cursor.execute(script)
            while cursor.nextset():
                pass

        for role in (_ROLE, _PURGER):
            run(f"create user {role} identified by '{_PASSWORD}'")
        yield Place("mysql", engine.url, run)
        for role in (_ROLE, _PURGER):
            run(f"drop user {role}")


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Place]:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
        yield Place("sqlite", engine.url, connection.executescript)


@pytest.fixture(params=["postgresql", "mysql", "sqlite"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def business_tables(place: Place) -> None:
    engine = place.engine()
    _BUSINESS.create_all(engine)
    engine.dispose()
    if place.dialect != "sqlite":
        for table in _BUSINESS.tables:
            place.run(f"grant select, insert on {table} to {_ROLE}")


def use(place: Place, broker: BrokerProcess) -> None:
    """All that applications do with the tables, as their role."""
    engine = place.engine(_ROLE)
    create_tables(engine)  # as an application does when it starts: there is nothing to create
    sessions = sessionmaker(engine)
    listener = FenceCheckListener(engine)
    assert isinstance(listener.fence, Fence)
    try:
        with Producer(broker.address, group="shop", check_listener=listener) as producer:
            order(producer, sessions, 1, wait_s=60)
        assert listener.fence.check(new_transaction_id()) is TransactionState.ROLLBACK
        with Producer("127.0.0.1:1", group="shop", check_listener=listener) as away:
            order(away, sessions, 2, wait_s=0.01)
        with Producer(broker.address, group="shop", check_listener=listener) as there:
            assert there.relay_outbox() == 1
        listener.fence._run(rows.note_refused, [(0, "its topic is unknown")])
        for generation in (0, 0, 1):
            handle(sessions, generation)
        with Session(engine) as session:
            assert session.scalars(select(_ORDERS.c.id).order_by(_ORDERS.c.id)).all() == [1, 2]
            assert session.scalars(select(_HANDLED.c.id).order_by(_HANDLED.c.id)).all() == [0, 1]
    finally:
        engine.dispose()


def use_each_statement(place: Place) -> None:
    """The same without brokers: what clients do with each table, one after the other."""
    engine = place.engine(_ROLE)
    sessions, fence, holder = sessionmaker(engine), Fence(engine), uuid4()
    try:
        with sessions.begin() as session:
            fence.write(session, new_transaction_id())
        assert fence.check(new_transaction_id()) is TransactionState.ROLLBACK
        with sessions.begin() as session:
            rows.write(session, "shop", new_transaction_id(), None, "packed")
        assert fence._run(rows.seize_turn, "shop", holder)
        assert fence._run(rows.take_turn, "shop", holder)
        assert fence._run(rows.count, "shop", holder) == (1, 0)
        [row] = fence._run(rows.page, "shop", 0, False)
        fence._run(rows.note_refused, [(row.seq, "its topic is unknown")])
        assert fence._run(rows.finish, fence.fence_id(), {row.seq: new_transaction_id()})
        fence._run(rows.leave_turn, "shop", holder)
        for generation in (0, 0, 1):
            handle(sessions, generation)
    finally:
        engine.dispose()


def order(producer: Producer, sessions: sessionmaker[Session], number: int, *, wait_s: float) -> None:
    @transactional_message(producer, topic="order.placed", session=sessions, when_away=Outbox(wait_s=wait_s))
    def place_order(session: Session, number: int) -> None:
        session.execute(insert(_ORDERS).values(id=number))

    place_order(number)


_MESSAGE = ReceivedMessage("order.placed", b"{}", id_bytes=new_transaction_id().bytes)


def handle(sessions: sessionmaker[Session], generation: int) -> None:
    @idempotent(sessions, group="mailer")
    def mail(session: Session, message: ReceivedMessage) -> None:
        session.execute(insert(_HANDLED).values(id=message.generation))

    mail(_MESSAGE._replace(generation=generation))


def test_the_script_makes_what_create_tables_makes(place: Place) -> None:
    place.run(place.sql())
    engine = place.engine()
    made = definitions(place, engine)
    with engine.connect() as connection:
        assert len(connection.execute(select(fence_identity_table)).all()) == 1
    metadata.drop_all(engine)
    create_tables(engine)
    assert made == definitions(place, engine)
    engine.dispose()


def definitions(place: Place, engine: Engine) -> object:
    """The tables, as the database describes them."""
    names = sorted(inspect(engine).get_table_names())
    with engine.connect() as connection:
        match place.dialect:
            case "mysql":
                created = [connection.execute(text(f"show create table {name}")).one()[1] for name in names]
                return [re.sub(r" AUTO_INCREMENT=\d+", "", each) for each in created]
            case "sqlite":
                found = connection.execute(text("select sql from sqlite_master where sql is not null order by name"))
                return found.scalars().all()
            case _:
                at = inspect(connection)
                columns = {
                    name: [{**each, "type": str(each["type"])} for each in at.get_columns(name)] for name in names
                }
                others = (at.get_pk_constraint, at.get_indexes, at.get_check_constraints, at.get_table_comment)
                return columns, {name: [other(name) for other in others] for name in names}


def test_a_second_run_keeps_the_tables_and_the_fence_id(place: Place) -> None:
    if place.dialect == "mysql":
        pytest.skip("MySQL has no IF NOT EXISTS for an index: the script is run once")
    engine = place.engine()
    place.run(place.sql())
    before = Fence(engine).fence_id()
    place.run(place.sql())
    assert Fence(engine).fence_id() == before
    engine.dispose()


def test_two_databases_get_two_fence_ids_from_one_script(sqlite: Place, tmp_path: Path) -> None:
    script = sqlite.sql()
    ids = set()
    for name in ("a.db", "b.db"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.executescript(script)
        engine = create_engine(f"sqlite:///{tmp_path / name}")
        ids.add(Fence(engine).fence_id())
        engine.dispose()
    assert len(ids) == 2


def test_a_role_with_these_rights_sends_is_asked_relays_handles_and_purges(place: Place, broker: BrokerProcess) -> None:
    place.run(place.sql())
    business_tables(place)
    use(place, broker)
    owner, purger = place.engine(), place.engine(_PURGER)
    with owner.begin() as connection:
        connection.execute(text("update txmsg_fence set created_at = '2020-01-01 00:00:00'"))
        connection.execute(text("update txmsg_inbox set handled_at = '2020-01-01 00:00:00'"))
    assert Fence(purger).purge(3600.0, lambda _: []) == 4  # two orders, a check, and what was relayed
    assert purge_inbox(purger) == 1
    owner.dispose()
    purger.dispose()


def test_a_role_that_lacks_one_of_them_is_refused(postgresql: Place) -> None:
    script = postgresql.sql()
    postgresql.run(script)
    business_tables(postgresql)
    granted = re.findall(rf'^GRANT ([\w, ]+) ON (SEQUENCE )?(\w+) TO "{_ROLE}";$', script, re.MULTILINE)
    assert len(granted) == 6
    empty = "truncate txmsg_outbox, txmsg_inbox, txmsg_outbox_turn, handled"
    for rights, kind, name in granted:
        for right in rights.split(", "):
            postgresql.run(f"revoke {right} on {kind}{name} from {_ROLE}")
            with pytest.raises(DBAPIError, match=f"permission denied for (table|sequence) {name}"):
                use_each_statement(postgresql)
            postgresql.run(f"grant {right} on {kind}{name} to {_ROLE}")
            postgresql.run(empty)
    use_each_statement(postgresql)


def test_without_a_role_the_rights_are_comments() -> None:
    script = said("tables", "sql", "--dialect", "postgresql")
    rights = [line for line in script.splitlines() if "GRANT" in line]
    assert len(rights) == 8
    assert all(line.startswith("-- GRANT ") and line.endswith(" TO ROLE;") for line in rights)


def test_a_program_gets_the_statements_one_by_one() -> None:
    found = json_of("tables", "sql", "--dialect", "postgresql", "--role", "shop", "--purge-role", "night")
    script = said("tables", "sql", "--dialect", "postgresql", "--role", "shop", "--purge-role", "night")
    assert [len(found[name]) for name in ("rights", "purge_rights")] == [6, 2]
    assert re.sub(r"^-- .*\n|\n", "", script, flags=re.MULTILINE) == re.sub(
        r"\n", "", "".join(f"{each};" for name in ("tables", "rights", "purge_rights") for each in found[name])
    )


def test_names_of_roles_are_quoted_and_sqlite_has_none() -> None:
    assert 'TO "o""x";' in said("tables", "sql", "--dialect", "postgresql", "--role", 'o"x')
    assert "TO 'o''x'@'10.%';" in said("tables", "sql", "--dialect", "mysql", "--role", "o'x@10.%")
    for words in (["sqlite", "--role", "shop"], ["mysql", "--role", "a\nb"], ["mysql", "--purge-role", ""]):
        result = CliRunner().invoke(main, ["tables", "sql", "--dialect", *words])
        assert result.exit_code == 2
        assert "--role" in result.stderr or "--purge-role" in result.stderr
