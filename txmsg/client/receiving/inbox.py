"""The inbox: a handler's effects exactly once, though its message comes at least once.

One row per handled message, written in the transaction of the effects, in the consumer's own database. A message whose
row is already there is skipped, unless it comes on request and the row is of an earlier one. Knows no network.

No statement looks for rows: under SERIALIZABLE a read keeps a page of the index, or a range, and transactions of other
messages, which write there, would fail.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, overload

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import Session

from txmsg.checker.connections.engines import AsyncConnect, AsyncConnectedBy, Connect, connected_by, is_function
from txmsg.checker.fence.driver import is_absent_table
from txmsg.checker.fence.engines import read_committed
from txmsg.checker.fence.own_rows import own_connection
from txmsg.checker.fence.own_statement import OwnStatement
from txmsg.checker.tables import inbox_table
from txmsg.client.flows.guard import SessionGuard
from txmsg.consumer.failures import RetryAfter
from txmsg.consumer.subscriptions import GroupHandler
from txmsg.errors import MisuseError, StorageError, shown
from txmsg.message import ReceivedMessage, check_name
from txmsg.runtime.durations import Seconds, in_seconds
from txmsg.runtime.logs import EventLog
from txmsg.runtime.user_function import name_of

_log = EventLog(__name__)

H = TypeVar("H", bound=Callable[..., Any])
PURGE_AGE_S = 14 * 24 * 3600.0
_PURGE_STEP: Final = 1000
"""Rows that one transaction deletes."""
_KEY: Final = tuple(inbox_table.primary_key)

_ROW: Final = (*_KEY, inbox_table.c.generation)

_OWN_ROW = select(inbox_table.c.generation).where(*(column == bindparam(column.name) for column in _ROW))
"""Read after an error alone, see `SessionGuard`."""


_VALUES: Final[Mapping[str, Any]] = {column.name: bindparam(column.name) for column in _ROW}
_INSERT: Final = OwnStatement(insert(inbox_table).values(_VALUES).inline())


def _upsert(make: Callable[[Table], Any]) -> Any:
    statement = make(inbox_table).values(_VALUES).inline()
    later = statement.excluded.generation
    return statement.on_conflict_do_update(
        index_elements=list(_KEY),
        set_={"generation": later, "handled_at": func.now()},
        where=inbox_table.c.generation < later,
    )


_UPSERTS: Final = {"postgresql": _upsert(postgresql.insert), "sqlite": _upsert(sqlite.insert)}
_RAISE_BY_UPSERT: Final = {name: OwnStatement(statement) for name, statement in _UPSERTS.items()}
_RECORD_LIST: Final = {name: statement.returning(inbox_table.c.message_id) for name, statement in _UPSERTS.items()}
"""Returns the rows that are new, or of a later request than those there."""
_RAISE = (
    update(inbox_table)
    .where(*(column == bindparam(f"of_{column.name}") for column in _KEY))
    .where(inbox_table.c.generation < bindparam("later"))
    .values(generation=bindparam("later"), handled_at=func.now())
    .execution_options(preserve_rowcount=True)
)
"""Of MySQL, whose upsert does not tell whether it has changed the row."""


def record(session: Session, guard: SessionGuard, row: dict[str, object]) -> bool:
    """Write the row, and have the guard watch that it stays. Returns False if the message was handled before."""
    own = own_connection(session, inbox_table)
    try:
        is_new = _write(own, row)
    except (ProgrammingError, OperationalError) as exc:
        _refuse_absent_table(own.engine, exc)
        raise
    guard.own_row = lambda connection: connection.execute(_OWN_ROW, row).first() is not None
    return is_new


def record_list(session: Session, guard: SessionGuard, rows: Mapping[str, dict[str, object]]) -> Collection[str]:
    """Write the rows of a list as `record`, by message id. Returns the ids of those that were not handled before."""
    own = own_connection(session, inbox_table)
    in_order = [rows[message_id] for message_id in sorted(rows)]  # two lists that share some wait, and do not deadlock
    try:
        statement = _RECORD_LIST.get(own.dialect.name)
        if statement is None:
            new = {str(row["message_id"]) for row in in_order if _write(own, row)}
        else:
            new = set(own.execute(statement, in_order).scalars())
    except (ProgrammingError, OperationalError) as exc:
        _refuse_absent_table(own.engine, exc)
        raise
    if new:
        first = rows[min(new)]
        guard.own_row = lambda connection: connection.execute(_OWN_ROW, first).first() is not None
    return new


def _write(connection: Connection, row: dict[str, object]) -> bool:
    # Only messages that came on request may raise a row. For all others a plain INSERT is enough, and a duplicate is
    # its error.
    is_asked_for = row["generation"] != 0
    upsert = _RAISE_BY_UPSERT.get(connection.dialect.name) if is_asked_for else None
    if upsert is not None:
        return bool(upsert.execute(connection, row, None))
    try:
        _INSERT.execute(connection, row, None)
        return True
    except IntegrityError:  # the key is the table's only constraint that this row can break
        if not is_asked_for:
            return False
    which = {f"of_{column.name}": row[column.name] for column in _KEY}
    return bool(connection.execute(_RAISE, which | {"later": row["generation"]}).rowcount)


def _refuse_absent_table(engine: Engine, error: DBAPIError) -> None:
    """Raise StorageError if the reason for `error` is that the table is absent."""
    if is_absent_table(error, inbox_table.name):
        raise StorageError(
            f"table {inbox_table.name} is absent from {engine.url}: call txmsg.create_tables(engine), or add "
            "txmsg.checker.tables.metadata to your migrations"
        ) from error


class ListAttempt:
    """One transaction in which a list is handled, and how far it came."""

    def __init__(self) -> None:
        self.has_begun = False
        """True once the handler was called: an earlier failure concerns no single message."""

    def fails_for_each(self, error: Exception) -> bool:
        """Return True if the messages would also fail one by one."""
        if not self.has_begun or isinstance(error, RetryAfter | StorageError):
            return True
        return isinstance(error, DBAPIError) and error.connection_invalidated


class HandledBefore(Exception):
    """Ends the transaction of a message that is recorded already."""


class InboxHandler(GroupHandler, Generic[H]):
    """The common part of handlers `(session, message)`. The consumer's `subscribe` gives them their group."""

    given = 1

    def __init__(self, handler: H, factory: Callable[[], Any], group: str | None) -> None:
        self.handler = handler
        self.factory = factory
        self.group = None if group is None else check_name("consumer group", group)
        self.owner = name_of(handler)
        self.__name__ = getattr(handler, "__name__", type(handler).__name__)
        self.__doc__ = handler.__doc__

    @abstractmethod
    def __call__(self, message: ReceivedMessage) -> Any:
        """Handle a message, or skip it."""

    def row_of(self, message: ReceivedMessage) -> dict[str, object]:
        """Return the row that records a message. Raises MisuseError without a group."""
        if self.group is None:
            raise MisuseError(
                f"{self.owner} does not know its consumer group: put @consumer.subscribe(...) above @idempotent(...), "
                "or give @idempotent(..., group=...)"
            )
        return {"group_name": self.group, "message_id": message.id, "generation": message.generation}

    def rows_of(self, messages: Sequence[ReceivedMessage]) -> dict[str, dict[str, object]]:
        """Return the rows of a list, by message id: of a message that came twice, the row of the latest request."""
        rows: dict[str, dict[str, object]] = {}
        for message in sorted(messages, key=lambda each: each.generation):
            rows[message.id] = self.row_of(message)
        return rows

    def new_of(
        self, messages: Sequence[ReceivedMessage], rows: Mapping[str, dict[str, object]], new: Collection[str]
    ) -> list[ReceivedMessage]:
        """Return the messages that are to be handled, each once. Logs those that were handled before."""
        left = dict.fromkeys(new)
        found = []
        for message in messages:
            if message.id in left and message.generation == rows[message.id]["generation"]:
                del left[message.id]
                found.append(message)
            elif message.id not in new:
                self.skip(message)
        return found

    def skip(self, message: ReceivedMessage) -> None:
        """Log that a message was handled before."""
        _log.info(
            "inbox.skipped",
            "message %(message_id)s was handled before by group %(group)s: skipped",
            message_id=message.id,
            group=self.group,
        )


@overload
def purge_inbox(bind: Engine | Connection | Connect, older_than_s: Seconds = PURGE_AGE_S) -> int: ...
@overload
def purge_inbox(
    bind: AsyncEngine | AsyncConnection | AsyncConnect, older_than_s: Seconds = PURGE_AGE_S
) -> Coroutine[Any, Any, int]: ...
def purge_inbox(
    bind: Engine | Connection | Connect | AsyncEngine | AsyncConnection | AsyncConnect,
    older_than_s: Seconds = PURGE_AGE_S,
) -> int | Coroutine[Any, Any, int]:
    """Delete rows older than this by the database's clock. Returns their number.

    bind: as for `create_tables`: an Engine, of which each thousand rows are deleted in a transaction, and handlers
    write in a pause as long; or a Connection, in whose transaction all are deleted; or the asynchronous kind of either:
    then await the result; or a function that opens a connection of a driver. Keep rows for longer than a message can be
    repeated: its retries (up to about a day) and the consumer's downtime.
    """
    age_s = in_seconds(older_than_s)
    if is_function(bind):
        connected = connected_by(bind)
        if isinstance(connected, AsyncConnectedBy):
            return _purge_by(connected, age_s)
        bind = connected.engine()
    match bind:
        case AsyncEngine() | AsyncConnection():
            return _purge_async(bind, age_s)
        case Engine():
            return _purge_in_steps(bind, age_s)
        case Connection():
            return _purge(bind, age_s)
        case _:
            raise MisuseError(
                f"purge_inbox was given {shown(bind)} of type {type(bind).__name__}: give the Engine or AsyncEngine of "
                "the consumer's database, or a connection of it"
            )


async def _purge_by(connected: AsyncConnectedBy, age_s: float) -> int:
    return await _purge_async(await connected.engine(), age_s)


def _purge_in_steps(engine: Engine, age_s: float) -> int:
    purged = 0
    while True:
        began = time.monotonic()
        with engine.connect() as connection, read_committed(connection).begin():
            deleted = _purge(connection, age_s, rows_max=_PURGE_STEP)
        purged += deleted
        if deleted < _PURGE_STEP:
            return purged
        time.sleep(time.monotonic() - began)  # meanwhile handlers write: SQLite has one writer at a time


async def _purge_async(bind: AsyncEngine | AsyncConnection, age_s: float) -> int:
    if isinstance(bind, AsyncConnection):
        return await bind.run_sync(_purge, age_s)
    purged = 0
    while True:
        began = time.monotonic()
        async with bind.connect() as connection:
            await connection.run_sync(read_committed)
            async with connection.begin():
                deleted = await connection.run_sync(_purge, age_s, rows_max=_PURGE_STEP)
        purged += deleted
        if deleted < _PURGE_STEP:
            return purged
        await asyncio.sleep(time.monotonic() - began)


def _purge(connection: Connection, age_s: float, *, rows_max: int | None = None) -> int:
    begin: Any
    if connection.dialect.name == "postgresql":  # whose sessions may be set to show times in a form no driver reads
        begin = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, age_s)
    else:
        begin = connection.execute(select(func.now())).scalar_one() - timedelta(seconds=age_s)
    old: ColumnElement[bool] = inbox_table.c.handled_at < begin
    if rows_max is not None:
        oldest = select(*_KEY).where(old).order_by(inbox_table.c.handled_at).limit(rows_max)
        # Not as a subquery: MySQL has none with a limit within IN.
        keys = [tuple(row) for row in connection.execute(oldest)]
        old = and_(old, tuple_(*_KEY).in_(keys))  # a message that is handled again meanwhile is not old any more
    return connection.execute(delete(inbox_table).where(old)).rowcount
