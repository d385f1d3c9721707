"""A cancellation during a commit of SQLite, on its thread, stays a cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from txmsg.client.connections.transaction_async import AsyncConnectionTransaction


async def test_a_task_cancelled_during_commit_ends_as_cancelled(tmp_path: Path) -> None:
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        async with AsyncConnectionTransaction(
            aiosqlite.connect(tmp_path / "shop.db"), None, owner="work"
        ) as connection:
            await connection.execute("CREATE TABLE t (x)")
            execute = connection.execute

            def cancelled_at_commit(sql: str, *values: Any) -> Any:
                if sql == "COMMIT":
                    asyncio.get_running_loop().call_soon(task.cancel)
                return execute(sql, *values)

            connection.execute = cancelled_at_commit

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())
    async with aiosqlite.connect(tmp_path / "shop.db") as connection:
        assert await (await connection.execute("SELECT count(*) FROM t")).fetchone() == (0,)
