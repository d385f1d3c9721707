"""Sees transactions that a function without `session=` is called in: its message would not wait for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransactionOrigin

from txmsg.errors import MisuseError


def refuse_outer_transaction(owner: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raises MisuseError in an outer transaction that can be seen: of Django, or of an argument."""
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
    database: Any = sys.modules.get("django.db")
    settings: Any = sys.modules.get("django.conf")
    if database is None or not settings.settings.configured:
        return None
    for connection in database.connections.all(initialized_only=True):
        # As Django itself judges atomic(durable=True): the block that a TestCase runs its test in does not count.
        if connection.in_atomic_block and not (
            connection.atomic_blocks and connection.atomic_blocks[-1]._from_testcase
        ):
            return f"transaction.atomic() of Django's database {connection.alias!r}"
    return None


def _begun(argument: object) -> str | None:
    """A session that has only read, for example, began by itself: the function may well commit it."""
    if isinstance(argument, AsyncSession):
        argument = argument.sync_session
    if isinstance(argument, Session):
        root = argument.get_transaction()
        if root is not None and (argument.in_nested_transaction() or root.origin is SessionTransactionOrigin.BEGIN):
            return "a transaction of the session that it is given"
    elif isinstance(argument, Connection | AsyncConnection) and argument.in_nested_transaction():
        return "a savepoint of the connection that it is given"
    return None
