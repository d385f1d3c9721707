"""The output of `txmsg tables sql` creates the tables and grants a role exactly the rights that it needs."""

from __future__ import annotations

import io
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psycopg
import pymysql
import pytest
from alembic import command
from alembic.config import Config
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
from txmsg.checker.fence.identity import renew_fence_id
from txmsg.checker.tables import REVISION, changes, changes_sql, fence_identity_table, metadata
from txmsg.client.business_sql import DIALECTS
from txmsg.client.fence import Fence, purge_inbox
from txmsg.client.outbox import rows
from txmsg.errors import MisuseError, StorageError
from txmsg.message import ReceivedMessage, new_transaction_id
from txmsg.ops.cli.main import main
from txmsg.runtime.revisions import revisions

_BUSINESS = MetaData()
_ORDERS = Table("orders", _BUSINESS, Column("id", Integer, primary_key=True, autoincrement=False))
_HANDLED = Table("handled", _BUSINESS, Column("id", Integer, primary_key=True, autoincrement=False))
_ROLE = f"shop_{os.getpid()}"
_PURGER = f"purger_{os.getpid()}"
REVISIONS = revisions(changes.DIRECTORY)
_PASSWORD = "a-password-of-tests"


@dataclass(frozen=True, slots=True)
class Place:
    """A database without tables of txmsg. url: of its owner. run: executes a script, as its DBA would."""

    dialect: str
    url: URL
    run: Callable[[str], object]

    def engine(self, role: str | None = None) -> Engine:
        """Return an engine of the owner or of a role."""
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
    """Do everything that applications do with the tables, as their role."""
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
    """Execute the statements of clients on each table one by one, without brokers."""
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


def test_the_script_creates_the_same_tables_as_create_tables(place: Place) -> None:
    place.run(place.sql())
    engine = place.engine()
    made = definitions(place, engine)
    with engine.connect() as connection:
        assert len(connection.execute(select(fence_identity_table)).all()) == 1
    metadata.drop_all(engine)
    create_tables(engine)
    assert made == definitions(place, engine)
    engine.dispose()


def test_the_change_files_in_order_create_the_same_tables_as_create_tables(place: Place) -> None:
    engine = place.engine()
    for before, revision in zip([None, *REVISIONS], REVISIONS, strict=False):
        for statement in changes_sql(place.dialect, since=before, to=revision):
            place.run(statement)
        assert said_revision(place) == revision
    made = definitions(place, engine)
    metadata.drop_all(engine)
    create_tables(engine)
    assert made == definitions(place, engine)
    engine.dispose()


def said_revision(place: Place) -> str:
    found: str = json_of("tables", "check", "--database", place.url.render_as_string(hide_password=False))["revision"]
    return found


def test_the_last_change_is_the_revision_that_tables_have() -> None:
    assert REVISIONS[-1] == REVISION
    for dialect in DIALECTS:
        assert changes_sql(dialect, since=REVISION) == []


# ---- a later release


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose fence has one more column."""
    directory = tmp_path / "changes"
    shutil.copytree(changes.DIRECTORY, directory)
    (directory / "0002").mkdir()
    for dialect in DIALECTS:
        (directory / "0002" / f"{dialect}.sql").write_text(
            "-- Who has written it.\nALTER TABLE txmsg_fence ADD COLUMN writer VARCHAR(8);\n\n"
            "UPDATE txmsg_fence_identity SET revision = '0002';\n"
        )
    monkeypatch.setattr(changes, "DIRECTORY", directory)
    monkeypatch.setattr("txmsg.checker.tables.REVISION", "0002")
    monkeypatch.setattr("txmsg.ops.cli.tables.REVISION", "0002")


@pytest.fixture
def old_tables(place: Place) -> Place:
    for statement in changes_sql(place.dialect, to="0001"):
        place.run(statement)
    return place


@pytest.mark.usefixtures("next_release")
def test_old_tables_are_refused_with_the_command_that_upgrades_them(old_tables: Place) -> None:
    place, engine = old_tables, old_tables.engine()
    wanted = f"txmsg tables sql --dialect {place.dialect} --from-revision 0001"
    with pytest.raises(StorageError, match=f"have revision 0001, and this release works with 0002: .*{wanted}"):
        create_tables(engine)
    database = place.url.render_as_string(hide_password=False)
    result = CliRunner().invoke(main, ["tables", "check", "--database", database])
    assert (result.exit_code, wanted in result.stderr) == (1, True)
    place.run(said(*wanted.split()[1:]))
    create_tables(engine)
    assert said_revision(place) == "0002"
    assert "writer" in {column["name"] for column in inspect(engine).get_columns("txmsg_fence")}
    assert [len(changes_sql(place.dialect, since=since)) for since in ("0001", "0002")] == [2, 0]
    engine.dispose()


def test_newer_tables_are_used_unchanged(place: Place) -> None:
    engine = place.engine()
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("update txmsg_fence_identity set revision = '0009'"))
    create_tables(engine)
    assert said_revision(place) == "0009"
    engine.dispose()


def test_a_copy_with_a_new_fence_id_keeps_the_revision_of_its_tables(place: Place) -> None:
    engine = place.engine()
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("update txmsg_fence_identity set revision = '0009'"))
    before = Fence(engine).fence_id()
    with engine.connect() as connection:
        assert renew_fence_id(connection) != before
    assert said_revision(place) == "0009"
    engine.dispose()


def test_unknown_revisions_and_dialects_are_refused() -> None:
    result = CliRunner().invoke(main, ["tables", "sql", "--dialect", "sqlite", "--from-revision", "1"])
    assert result.exit_code == 2
    assert "have no revision '1' in this release: there are 0001" in result.stderr
    with pytest.raises(MisuseError, match="txmsg has no tables for 'oracle'"):
        changes_sql("oracle")


def test_a_database_without_tables_is_refused_with_the_command_to_create_them(sqlite: Place) -> None:
    result = CliRunner().invoke(main, ["tables", "check", "--database", str(sqlite.url)])
    assert result.exit_code == 1
    assert "has no tables of txmsg: have their owner run what `txmsg tables sql` prints" in result.stderr


# ---- Alembic


_MIGRATION = """
from alembic import op
from txmsg.checker.tables import changes_sql

revision, down_revision = "a1", None


def upgrade():
    for statement in changes_sql(op.get_context().dialect.name, to="0001"):
        op.execute(statement)
"""
_ENVIRONMENT = """
from alembic import context
from sqlalchemy import create_engine
from txmsg.checker.tables import metadata

url = context.config.get_main_option("sqlalchemy.url")
if context.is_offline_mode():
    context.configure(url=url, target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(url)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""


def alembic_of(place: Place, directory: Path, out: io.StringIO | None = None) -> Config:
    """Create an Alembic project with one migration that creates the tables."""
    (directory / "versions").mkdir(parents=True, exist_ok=True)
    (directory / "env.py").write_text(_ENVIRONMENT)
    (directory / "versions" / "a1_txmsg.py").write_text(_MIGRATION)
    config = Config(output_buffer=out)
    config.set_main_option("script_location", str(directory))
    config.set_main_option("sqlalchemy.url", place.url.render_as_string(hide_password=False).replace("%", "%%"))
    return config


def test_alembic_prints_and_runs_the_statements_that_the_command_prints(place: Place, tmp_path: Path) -> None:
    out, engine = io.StringIO(), place.engine()
    command.upgrade(alembic_of(place, tmp_path / "migrations", out), "head", sql=True)
    printed = re.sub(r"\s+", " ", out.getvalue())
    assert not inspect(engine).get_table_names(), "--sql touches no database"
    for statement in json_of("tables", "sql", "--dialect", place.dialect)["tables"]:
        assert re.sub(r"\s+", " ", statement).strip() + ";" in printed
    command.upgrade(alembic_of(place, tmp_path / "migrations"), "head")
    create_tables(engine)
    with engine.connect() as connection:
        connection.execute(text("drop table alembic_version"))
        connection.commit()
    made = definitions(place, engine)
    metadata.drop_all(engine)
    create_tables(engine)
    assert made == definitions(place, engine)
    engine.dispose()


def definitions(place: Place, engine: Engine) -> object:
    """Return the tables as described by the database."""
    names = sorted(inspect(engine).get_table_names())
    with engine.connect() as connection:
        match place.dialect:
            case "mysql":
                created = [connection.execute(text(f"show create table {name}")).one()[1] for name in names]
                return [re.sub(r" AUTO_INCREMENT=\d+", "", each) for each in created]
            case "sqlite":
                found = connection.execute(text("select sql from sqlite_master where sql is not null order by name"))
                return [re.sub(r"\s+\n", "\n", each) for each in found.scalars()]
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


def test_the_granted_rights_are_enough_to_send_check_relay_handle_and_purge(
    place: Place, broker: BrokerProcess
) -> None:
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


def test_every_granted_right_is_needed(postgresql: Place) -> None:
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


def test_a_program_can_get_the_statements_one_by_one() -> None:
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
