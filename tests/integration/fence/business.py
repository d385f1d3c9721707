"""Business databases for tests of the fence, with one table, users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.integration.client_harness import WAIT_S
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import fence_table
from txmsg.client import Producer, transactional_message
from txmsg.message import Message, ReceivedMessage, TransactionId, TransactionState

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN

LEVELS: Final = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

users = Table("users", MetaData(), Column("id", Integer, primary_key=True), Column("email", String(80)))


def create_users(url: str, *, wal: bool = False) -> None:
    engine = create_engine(url)
    if wal:  # a property of the file
        with engine.connect() as connection:
            connection.exec_driver_sql("pragma journal_mode = wal")
    users.metadata.create_all(engine)
    engine.dispose()


def register(session: Session) -> None:
    session.execute(insert(users).values(email="a@example.org"))


def users_count(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(select(func.count()).select_from(users)) or 0)


def recorded(engine: Engine) -> dict[UUID, str]:
    with engine.connect() as connection:
        return {row.transaction_id: row.outcome for row in connection.execute(select(fence_table))}


CONNECTION_ID: Final = {
    "postgresql": text("select pg_backend_pid()"),
    "mariadb": text("select connection_id()"),
    "mysql": text("select connection_id()"),
}


_UNKNOWN_THREAD = 1094


def kill(engine: Engine, connection_id: int) -> None:
    """End a connection of the server, if it exists; PostgreSQL ends its transaction at once, MariaDB soon."""
    with engine.connect() as connection:
        kill_by(connection, connection_id)


def kill_by(connection: Connection, connection_id: int) -> None:
    """End a connection of the server over another connection."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("select pg_terminate_backend(:id, 60000)"), {"id": connection_id})
        return
    try:
        connection.execute(text(f"kill {connection_id:d}"))
    except OperationalError as exc:
        if exc.orig is None or exc.orig.args[0] != _UNKNOWN_THREAD:
            raise


def message(transaction_id: TransactionId) -> ReceivedMessage:
    """Return the message of a check."""
    return ReceivedMessage("user.registered", b"", id_bytes=transaction_id.bytes)


def place_by_both_flows(
    address: str, listener: FenceCheckListener, sessions: Callable[[], Session], order: Callable[[int], object]
) -> None:
    """Add orders 1 and 2 with a message for topic order each: by a decorated function and by a late transaction."""
    with Producer(address, group="g", timeout_s=WAIT_S, check_listener=listener) as producer:

        @transactional_message(producer, topic="order", session=sessions)
        def place(session: Session, number: int) -> None:
            session.add(order(number))

        place(1)
        with sessions() as session, producer.transaction(session) as tx:
            session.add(order(2))
            tx.send(Message("order", b"2"))
