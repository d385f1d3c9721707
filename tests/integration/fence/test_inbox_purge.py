"""Old inbox rows are deleted in steps so that handlers can write, on each database with each driver."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Connection, Engine, event, insert, select
from sqlalchemy.ext.asyncio import create_async_engine

from txmsg.checker.tables import create_tables, inbox_table
from txmsg.client.fence import purge_inbox


def fill(connection: Connection) -> None:
    """Insert 2,500 old rows and a new one."""
    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    old = [{"group_name": "g", "message_id": str(n), "generation": n % 2, "handled_at": long_ago} for n in range(2500)]
    connection.execute(insert(inbox_table), old)
    connection.execute(insert(inbox_table), {"group_name": "g", "message_id": "new", "generation": 0})


def rows_left(connection: Connection) -> list[str]:
    return list(connection.scalars(select(inbox_table.c.message_id)))


def test_the_inbox_is_purged_in_transactions_of_a_thousand_rows(engine: Engine) -> None:
    create_tables(engine)
    with engine.begin() as connection:
        fill(connection)
    commits: list[Connection] = []
    event.listen(engine, "commit", commits.append)
    assert purge_inbox(engine) == 2500
    assert len(commits) == 3
    with engine.connect() as connection:
        assert rows_left(connection) == ["new"]


async def test_the_inbox_is_purged_in_async_transactions_of_a_thousand_rows(async_url: str) -> None:
    engine = create_async_engine(async_url)
    await create_tables(engine)
    async with engine.begin() as connection:
        await connection.run_sync(fill)
    commits: list[Connection] = []
    event.listen(engine.sync_engine, "commit", commits.append)
    assert await purge_inbox(engine) == 2500
    assert len(commits) == 3
    async with engine.connect() as connection:
        assert await connection.run_sync(rows_left) == ["new"]
    await engine.dispose()
