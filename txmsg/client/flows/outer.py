"""Sees transactions that a function is called in: its message would not wait for them.

One without `session=` knows nothing of them; one with `session=` begins a transaction of its own beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy import Connection, Engine, Pool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransactionOrigin

from txmsg.errors import MisuseError


def refuse_outer_transaction(owner: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise MisuseError in an outer transaction that can be seen: of Django, or of an argument."""
    where = _django_atomic() or next(
        (found for argument in (*args, *kwargs.values()) if (found := _begun(argument))), None
    )
    if where is not None:
        raise MisuseError(
            f"{owner} without session= is called inside {where}: its message would be delivered even if that is rolled "
            "back; call it outside, or give session= and let it commit its own transaction; for Django's there is "
            "txmsg.contrib.django"
        )


def _django_atomic() -> str | None:
    # Not imported here: a process that has not loaded Django is in none of its transactions.
    database: Any = sys.modules.get("django.db")
    settings: Any = sys.modules.get("django.conf")
    if database is None or not settings.settings.configured:
        return None
    for connection in database.connections.all(initialized_only=True):
        if is_in_atomic(connection):
            return f"transaction.atomic() of Django's database {connection.alias!r}"
    return None


def is_in_atomic(connection: Any) -> bool:
    """Return True if this connection of Django is in a block of `atomic`.

    As Django itself judges atomic(durable=True): the block that a TestCase runs its test in does not count.
    """
    blocks = connection.atomic_blocks
    return connection.in_atomic_block and not (blocks and blocks[-1]._from_testcase)


def _begun(argument: object) -> str | None:
    """Return the kind of a caller's transaction among the arguments, or None. A session that has only read began by
    itself: the function may well commit it."""
    if isinstance(argument, AsyncSession):
        argument = argument.sync_session
    if isinstance(argument, Session):
        root = argument.get_transaction()
        if root is not None and (argument.in_nested_transaction() or root.origin is SessionTransactionOrigin.BEGIN):
            return "a transaction of the session that it is given"
    elif isinstance(argument, Connection | AsyncConnection) and argument.in_nested_transaction():
        return "a savepoint of the connection that it is given"
    return None


class _Inside:
    """A transaction in which code of the user's runs now."""

    def __init__(self, owner: str, session: Session, outer: _Inside | None) -> None:
        self.owner = owner
        self.session = session
        self.outer = outer
        self.is_over = False
        """Tasks that were begun inside may run on."""

    def uses(self, pool: Pool) -> bool:
        """Return True if its connection is of this pool."""
        root = self.session.get_transaction()
        engines = [] if root is None else [connection.engine for connection, *_ in root._connections.values()]
        if self.session.bind is not None:
            engines.append(self.session.bind.engine)
        return any(engine.pool is pool for engine in engines)


_inside: Final[ContextVar[_Inside | None]] = ContextVar("txmsg_inside", default=None)


@contextmanager
def inside(owner: str, session: Session) -> Iterator[None]:
    """Mark the time in which the user's code runs in a transaction of this session."""
    outer = _inside.get()
    entered = _Inside(owner, session, outer)
    _inside.set(entered)
    try:
        yield
    finally:
        entered.is_over = True
        _inside.set(outer)  # not by a token: the block may be left in another context, as of a generator


def refuse_nested(owner: str, fence: Any) -> None:
    """Raise MisuseError inside a transaction in the database of this fence: it would begin another one beside it."""
    entered = _inside.get()
    engine = None if fence is None else fence.engine
    sync_engine = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    if not isinstance(sync_engine, Engine):
        return
    # All enclosing ones, not only the innermost: two databases may be nested in turn, and the outer one is the same as
    # ours.
    while entered is not None:
        if not entered.is_over and entered.uses(sync_engine.pool):
            raise MisuseError(
                f"{owner} is called inside {entered.owner}, in a transaction of the same database: it would commit one "
                "of its own, whatever becomes of that one. Send with that one, by app.join(session).send(...), or call "
                "it afterwards"
            )
        entered = entered.outer
