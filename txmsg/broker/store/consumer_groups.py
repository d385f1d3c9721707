"""Every statement on consumer groups and their settings. The caller owns the transaction."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from psycopg.rows import class_row

from txmsg.broker.store.delivery import Connection

__all__ = ["GroupRow", "create_group", "group_row", "group_rows"]

_COLUMNS = "id, name, retry_delays_s, retries_max, poisoned_key, deliver_rate_max, version"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A consumer group and its settings. None: the broker's own."""

    id: int
    name: str
    retry_delays_s: list[float] | None
    retries_max: int | None
    poisoned_key: str
    deliver_rate_max: float | None
    version: int


async def group_row(conn: Connection, name: str) -> GroupRow | None:
    """The group of this name, or None."""
    async with conn.cursor(row_factory=class_row(GroupRow)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from txmsg.consumer_group where name = %s", (name,))
        return await cursor.fetchone()


async def group_rows(conn: Connection, groups: Collection[int]) -> dict[int, GroupRow]:
    """These groups by id; one that was deleted is left out."""
    async with conn.cursor(row_factory=class_row(GroupRow)) as cursor:
        await cursor.execute(f"select {_COLUMNS} from txmsg.consumer_group where id = any(%s)", (list(groups),))
        return {row.id: row for row in await cursor.fetchall()}


async def create_group(conn: Connection, name: str) -> None:
    """Makes a consumer group; nothing happens if there is one of this name."""
    await conn.execute("insert into txmsg.consumer_group (name) values (%s) on conflict do nothing", (name,))
