"""Every session of txmsg sets the parameters that it relies on, whatever database, role and environment set before."""

from __future__ import annotations

import ast
import os
import queue
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection, sql
from sqlalchemy import create_engine, func, text
from sqlalchemy.orm import Session

import txmsg
from tests import hostile
from tests.binlog.tailers import Table, tailing
from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer, StartBroker
from tests.errors_page import is_documented
from tests.integration.cli_harness import json_of, said
from tests.integration.client_harness import WAIT_S
from tests.integration.test_half_command import (  # on the database of this module's `notify_url`
    test_half_list_shows_held_back_messages_and_the_blocking_transaction,
    test_half_show_prints_headers_and_body,
)
from tests.waiting import until
from txmsg.binlog import database as tailer_database
from txmsg.binlog.verifier.compare import verify
from txmsg.broker import migrate
from txmsg.broker.store.connect import connect_listener, connect_writer, open_pool, upkeep_session
from txmsg.checker.fence import Fence
from txmsg.checker.listener import CheckMessageListener
from txmsg.checker.tables import create_tables, inbox_table
from txmsg.client import Consumer, Producer
from txmsg.client.fence import purge_inbox
from txmsg.errors import StorageError
from txmsg.message import Message, ReceivedMessage, TransactionState, new_transaction_id
from txmsg.runtime.child import ChildFailed
from txmsg.runtime.postgres import FORM, PINNED, connect

__all__ = [
    "test_half_list_shows_held_back_messages_and_the_blocking_transaction",
    "test_half_show_prints_headers_and_body",
]

_TEXT = "Müller, 错误 🎈"
_CONNECTS = {
    *("psycopg.connect", "psycopg.Connection.connect", "psycopg.AsyncConnection.connect"),
    *("Connection.connect", "AsyncConnection.connect", "_Connection.connect"),
    *("AsyncConnectionPool", "ConnectionPool"),
}


def be_hostile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile.make_hostile(url)
    for name, value in hostile.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def notify_url(notify_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Notify database and an environment with hostile settings."""
    be_hostile(notify_url, monkeypatch)
    return notify_url


async def test_each_kind_of_session_sets_the_parameters_it_relies_on(notify_url: str) -> None:
    async def show(connection: AsyncConnection[Any]) -> dict[str, str]:
        names = hostile.settings_of(connection)
        return {name: (await (await connection.execute(f"show {name}")).fetchall())[0][0] for name in names}

    def show_now(connection: psycopg.Connection[Any]) -> dict[str, str]:
        return {name: connection.execute(f"show {name}").fetchall()[0][0] for name in hostile.settings_of(connection)}

    async with (
        await connect_writer(notify_url, lock_timeout_s=1, transaction_timeout_s=2) as writer,
        await connect_listener(notify_url) as listener,
        upkeep_session(notify_url) as upkeep,
        open_pool(notify_url) as pool,
        pool.connection() as pooled,
    ):
        settings = {
            "writer": await show(writer),
            "listener": await show(listener),
            "upkeep": await show(upkeep),
            "pool": await show(pooled),
        }
    with (
        connect(notify_url, autocommit=False) as plain,
        connect(notify_url, replication="database") as replication,
        closing(tailer_database.connect(notify_url)) as tailer,
    ):
        known = set(hostile.settings_of(plain))
        settings |= {"plain": show_now(plain), "replication": show_now(replication), "tailer": show_now(tailer)}
    assert known == set(hostile.SETTINGS) & known == set(PINNED) & known, "the hostile sets all that is pinned"
    own = {
        "writer": {"lock_timeout": "1s", "statement_timeout": "2s", "transaction_timeout": "2s"},
        "upkeep": {"idle_session_timeout": "30s"},
        "pool": {"idle_in_transaction_session_timeout": "5s"},
        "tailer": {"lock_timeout": "30s", "statement_timeout": "5min", "idle_session_timeout": "1min"},
    }
    for kind, found_settings in settings.items():
        expected = {**PINNED, **own.get(kind, {})}
        assert found_settings == {name: value for name, value in expected.items() if name in known}, kind


def test_no_other_module_connects_to_postgresql() -> None:
    """A session without its own settings would go unnoticed until a database has unusual ones."""
    root = Path(txmsg.__file__).parent
    connecting = set()
    for path in root.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "psycopg" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _CONNECTS:
                connecting.add(str(path.relative_to(root)))
    # Demos are applications, and connect to their own databases.
    connecting = {name for name in connecting if not name.startswith("ops/demo/")}
    assert connecting == {"runtime/postgres.py", "broker/store/connect.py"}


class Commits(CheckMessageListener):
    """A listener that answers COMMIT."""

    def __init__(self) -> None:
        self.asked: list[ReceivedMessage] = []

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.append(message)
        return TransactionState.COMMIT


def test_everything_works_under_hostile_settings_from_upgrade_to_mirror(
    database_url: str, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    be_hostile(database_url, monkeypatch)
    assert migrate.upgrade(database_url) == migrate.REVISIONS[-1]
    # Tests run without fsync; all other findings are good.
    assert {each.name for each in migrate.check(database_url) if not each.ok} <= {"fsync"}
    broker = start_broker("--first-check-s", "0", "--check-interval-s", "1", storage=database_url)
    where = ("--broker", broker.address)
    handled: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="collector")

    @consumer.subscribe("orders")
    def handle(message: ReceivedMessage) -> None:
        if message.body == b"poison" or (message.body == b"again" and message.attempt == 1):
            raise ValueError(_TEXT)
        handled.put(message)

    listener = Commits()
    with Producer(broker.address, group="shop", check_listener=listener, timeout_s=WAIT_S) as producer, consumer:
        producer.send(Message("orders", b"first"))
        assert handled.get(timeout=WAIT_S).body == b"first"
        said("group", "alter", "collector", "--retries", "1", "--retry-delays", "100ms", *where)
        producer.half([Message("orders", b"checked", key=_TEXT, headers={"trace": _TEXT})])
        producer.send(Message("orders", b"again", ordering_key=_TEXT))
        producer.send(Message("orders", b"later", deliver_after=timedelta(seconds=0.1)))
        poison = producer.send(Message("orders", b"poison"))
        got: dict[bytes, ReceivedMessage] = {}
        while set(got) != {b"checked", b"again", b"later"}:
            message = handled.get(timeout=WAIT_S)
            got[message.body] = message
        assert (got[b"checked"].key, got[b"checked"].headers, got[b"again"].ordering_key) == (
            (_TEXT, {"trace": _TEXT}, _TEXT)
        )
        assert {each.key for each in listener.asked} == {_TEXT}
        until(lambda: bool(json_of("dead-letter", "list", "--group", "collector", *where)["dead_letters"]))
    (letter,) = json_of("dead-letter", "show", poison, *where)["dead_letters"]
    assert all(_TEXT in failure["error"] for failure in letter["failures"])
    (found,) = json_of("message", "find", "--key", _TEXT, *where)["messages"]
    assert (found["id"], found["key"]) == (got[b"checked"].id, _TEXT)
    until(lambda: json_of("group", "lag", "collector", *where)["waiting"] == 0)
    table, log = Table(database_url), tmp_path / "log"
    with tailing(database_url, log):
        assert verify(database_url, log, wait_s=WAIT_S).is_equal
    table.await_no_tailer()
    with connect(database_url) as connection:
        connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")


def test_fence_and_inbox_work_with_hostile_settings_of_the_user_engine(
    database_url: str,
) -> None:
    forms = " ".join(f"-c {name}={hostile.SETTINGS[name].replace(' ', '')}" for name in FORM)
    url = database_url.replace("postgresql:", "postgresql+psycopg:", 1)
    engine = create_engine(url, connect_args={"options": forms})
    fence = Fence(engine)
    create_tables(engine)
    done, undone = new_transaction_id(), new_transaction_id()
    with Session(engine) as session:
        fence.write(session, done)
        session.commit()
    assert [fence.check(each) for each in (done, undone)] == [TransactionState.COMMIT, TransactionState.ROLLBACK]
    with engine.begin() as connection:
        assert connection.scalar(text("show DateStyle")) == "German, DMY"
        connection.execute(text("update txmsg_fence set created_at = now() - interval '1 h'"))
        row = {"group_name": "g", "message_id": "0", "generation": 0}
        handled_at = func.now() - func.make_interval(0, 0, 0, 30)
        connection.execute(inbox_table.insert().values(**row, handled_at=handled_at))
    assert (fence.purge(600.0, lambda _: []), purge_inbox(engine)) == (2, 1)
    engine.dispose()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_with_another_encoding_is_refused_with_a_remedy(
    encoding: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    name = f"encoding_{encoding.lower()}_{os.getpid()}"
    with connect(postgres.url("postgres")) as connection:
        create = "create database {} template template0 encoding {} locale 'C' locale_provider libc"
        connection.execute(sql.SQL(create).format(sql.Identifier(name), encoding))
    try:
        refused_everywhere(postgres.url(name), encoding, tmp_path / "broker.log")
    finally:
        postgres.drop_database(name)


def refused_everywhere(url: str, encoding: str, log: Path) -> None:
    told = f"has encoding {encoding}: txmsg needs UTF8"
    with pytest.raises(StorageError, match=told):
        migrate.upgrade(url)
    with pytest.raises(StorageError, match=told) as refused:
        migrate.require(url)
    assert is_documented(refused.value)
    with pytest.raises(StorageError, match=told):
        tailer_database.connect(url)
    assert "createdb --encoding UTF8" in {each.name: each for each in migrate.check(url)}["encoding"].fix
    with pytest.raises(ChildFailed, match=told):
        BrokerProcess(url, log=log).start()
    assert "Traceback" not in log.read_text()
