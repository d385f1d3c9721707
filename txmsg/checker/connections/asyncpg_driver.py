"""Transactions and statements of asyncpg, as in drivers_async.py, which cannot hold it: it has no synchronous kind."""

from __future__ import annotations

from functools import cache
from typing import Any, Final
from uuid import UUID


class AsyncpgDriver:
    """asyncpg, and connections of its pool."""

    dialect: Final = "postgresql"

    def id_of(self, value: UUID) -> object:
        return value

    def is_in_transaction(self, connection: Any) -> bool:
        return bool(connection.is_in_transaction())

    def transaction(self, connection: Any) -> Any:
        """Return asyncpg's own transaction, so that `connection.transaction()` inside it is a savepoint."""
        return connection.transaction()

    async def execute(self, connection: Any, sql: str, *values: object) -> int:
        tag: str = await connection.execute(_numbered(sql), *values)  # such as "INSERT 0 1"
        count = tag.rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0


@cache
def _numbered(sql: str) -> str:
    first, *others = sql.split("%s")
    return first + "".join(f"${n}{text}" for n, text in enumerate(others, 1))
