"""The inbox: a handler's effects exactly once, though its message comes at least once.

One row per handled message, written in the transaction of the effects, in the consumer's own database. A message whose
row is already there is skipped. Knows no network.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar, overload

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    func,
    insert,
    select,
)
from sqlalchemy import inspect as inspect_database
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from txmsg.client.guard import SessionGuard
from txmsg.errors import MisuseError, StorageError
from txmsg.message import ReceivedMessage, check_name
from txmsg.runtime.handlers import GroupHandler
from txmsg.runtime.user_function import check_takes, name_of

__all__ = [
    "AsyncIdempotentHandler",
    "IdempotentHandler",
    "create_inbox_tables",
    "idempotent",
    "inbox_metadata",
    "inbox_table",
    "purge_inbox",
]

_log = logging.getLogger(__name__)

S = TypeVar("S", bound=Session)
A = TypeVar("A", bound=AsyncSession)

PURGE_AGE_S = 14 * 24 * 3600.0

inbox_metadata = MetaData()
"""For an application that creates its tables by its own migrations."""


def _exact(size: int) -> String:
    """Text of ASCII that is compared by its bytes: MySQL would take `mailer` and `Mailer` for one."""
    return String(size).with_variant(mysql.VARCHAR(size, charset="ascii", collation="ascii_bin"), "mysql", "mariadb")


inbox_table = Table(
    "txmsg_inbox",
    inbox_metadata,
    Column("group_name", _exact(127), primary_key=True),
    Column("message_id", _exact(48), primary_key=True),
    Column(
        "generation",
        Integer,
        primary_key=True,
        autoincrement=False,
        comment="Rises with each request to handle the message again.",
    ),
    Column("handled_at", DateTime(timezone=True), server_default=func.now(), nullable=False, index=True),
    comment="Messages whose effects are in this database: a repeat is skipped.",
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)

_OWN_ROW = select(inbox_table.c.generation).where(
    *(inbox_table.c[name] == bindparam(name) for name in ("group_name", "message_id", "generation"))
)

# Not within the insert: in MySQL two inserts that read the table lock each other out.
_HANDLED_LATER = select(inbox_table.c.generation).where(
    inbox_table.c.group_name == bindparam("group_name"),
    inbox_table.c.message_id == bindparam("message_id"),
    inbox_table.c.generation > bindparam("generation"),
)
"""Whether a message was handled on request already, which comes once more as it came before: after a plain seek."""


def create_inbox_tables(bind: Engine | Connection) -> None:
    """Creates the table where it is absent. For an AsyncEngine: `await connection.run_sync(create_inbox_tables)`."""
    inbox_metadata.create_all(bind)


def purge_inbox(engine: Engine, older_than_s: float = PURGE_AGE_S) -> int:
    """Deletes rows older than this by the database's clock; how many they were.

    Keep them for longer than a message can be repeated: its retries (up to about a day) and the consumer's downtime.
    """
    with engine.begin() as connection:
        begin: Any
        if engine.dialect.name == "postgresql":  # whose sessions may be set to show times in a form no driver reads
            begin = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_s)
        else:
            begin = connection.execute(select(func.now())).scalar_one() - timedelta(seconds=older_than_s)
        old = inbox_table.c.handled_at < begin
        return connection.execute(delete(inbox_table).where(old)).rowcount


def _refuse_absent_table(engine: Engine, error: DBAPIError) -> None:
    """Raises StorageError if the reason for `error` is that the table is absent."""
    with engine.connect() as connection:  # the session's own may refuse statements after an error
        if not inspect_database(connection).has_table(inbox_table.name):
            raise StorageError(
                f"table {inbox_table.name} is absent from {engine.url}: call create_inbox_tables(engine), or add "
                "txmsg.client.inbox_metadata to your migrations"
            ) from error


def _record(session: Session, guard: SessionGuard, row: dict[str, object]) -> bool:
    """Writes the row, and has the guard watch that it stays. False: the message was handled before."""
    try:
        session.execute(insert(inbox_table), row)
        is_later = session.execute(_HANDLED_LATER, row).first() is not None
    except IntegrityError:  # the key is the table's only constraint that this row can break
        return False
    except (ProgrammingError, OperationalError) as exc:
        _refuse_absent_table(session.connection().engine, exc)
        raise
    guard.own_row = lambda connection: connection.execute(_OWN_ROW, row).first() is not None
    return not is_later


class _Inbox(GroupHandler):
    """What both kinds of handler have: a group, which the consumer's `subscribe` gives."""

    def __init__(self, handler: Callable[..., Any], factory: Callable[[], Any], group: str | None) -> None:
        self._handler = handler
        self._factory = factory
        self._group = None if group is None else check_name("consumer group", group)
        self._owner = name_of(handler)
        self.__name__ = getattr(handler, "__name__", type(handler).__name__)
        self.__doc__ = handler.__doc__

    def _row(self, message: ReceivedMessage) -> dict[str, object]:
        if self._group is None:
            raise MisuseError(
                f"{self._owner} does not know its consumer group: put @consumer.subscribe(...) above @idempotent(...), "
                "or give @idempotent(..., group=...)"
            )
        return {"group_name": self._group, "message_id": message.id, "generation": message.generation}

    def _skipped(self, message: ReceivedMessage) -> None:
        _log.info("message %s was handled before by group %s: skipped", message.id, self._group)


class IdempotentHandler(_Inbox):
    """A handler `(session, message)` made into a handler `(message)`."""

    def bound(self, group: str) -> IdempotentHandler:
        """The same for this consumer group, unless a group was given before."""
        return IdempotentHandler(self._handler, self._factory, self._group or group)

    def __call__(self, message: ReceivedMessage) -> None:
        """Runs the handler in a transaction that also records the message; skips it if it is recorded."""
        row = self._row(message)
        with self._factory() as session, SessionGuard(session, owner=self._owner) as guard:
            if not _record(session, guard, row):
                self._skipped(message)
                return
            self._handler(session, message)
            guard.end_work()
            session.commit()
            guard.check_committed()


class AsyncIdempotentHandler(_Inbox):
    """A coroutine handler `(session, message)` made into a coroutine handler `(message)`."""

    def bound(self, group: str) -> AsyncIdempotentHandler:
        """The same for this consumer group, unless a group was given before."""
        return AsyncIdempotentHandler(self._handler, self._factory, self._group or group)

    async def __call__(self, message: ReceivedMessage) -> None:
        """Runs the handler in a transaction that also records the message; skips it if it is recorded."""
        row = self._row(message)
        async with self._factory() as session:
            with SessionGuard(session.sync_session, owner=self._owner) as guard:
                if not await session.run_sync(_record, guard, row):
                    self._skipped(message)
                    return
                await self._handler(session, message)
                await session.run_sync(lambda _: guard.end_work())
                await session.commit()
                guard.check_committed()


@overload
def idempotent(
    session_factory: Callable[[], S], *, group: str | None = None
) -> Callable[[Callable[[S, ReceivedMessage], None]], IdempotentHandler]: ...
@overload
def idempotent(
    session_factory: Callable[[], A], *, group: str | None = None
) -> Callable[[Callable[[A, ReceivedMessage], Awaitable[None]]], AsyncIdempotentHandler]: ...
def idempotent(
    session_factory: Callable[[], Session] | Callable[[], AsyncSession], *, group: str | None = None
) -> Callable[[Any], Any]:
    """Decorates a handler `(session, message)` so that its effects happen once per message and consumer group.

    What a person has asked to be handled again (`dead-letter redrive`, `group seek --again`) is: it has a higher
    generation than before. What comes again for any other reason is skipped.

    session_factory: a sessionmaker, or an async_sessionmaker for `async def`. The session is opened, the message is
    recorded in txmsg_inbox (see `create_inbox_tables`), the handler runs, all is committed together; a repeated
    message is skipped. Committing inside raises MisuseError. group: default that of the consumer.

        @consumer.subscribe("user.registered")
        @idempotent(SessionLocal)
        def give_red_packet(session: Session, message: ReceivedMessage) -> None: ...
    """
    if isinstance(session_factory, Session | AsyncSession):
        raise MisuseError("@idempotent was given one session: give the sessionmaker, each message opens its own")
    check_takes("@idempotent(session_factory)", session_factory)

    def decorate(handler: Callable[..., Any]) -> IdempotentHandler | AsyncIdempotentHandler:
        check_takes("the handler under @idempotent", handler, "session", "message")
        is_async = inspect.iscoroutinefunction(handler)
        if is_async != isinstance(session_factory, async_sessionmaker):
            raise MisuseError(
                f"{name_of(handler)} is {'async def' if is_async else 'def'}: @idempotent needs "
                f"{'an async_sessionmaker' if is_async else 'a sessionmaker'}"
            )
        kind = AsyncIdempotentHandler if is_async else IdempotentHandler
        return kind(handler, session_factory, group)

    return decorate
