"""The Notify database as seen by a subscriber or an operator, with SQL of its own, shared with no product code."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from psycopg import AsyncConnection

from tests.model.model import Stored

SESSIONS_END_S_MAX = 120.0


class Tables:
    """Reads the tables over one connection without disturbances. Each method is one statement: one snapshot."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: AsyncConnection[Any]

    @classmethod
    async def open(cls, url: str) -> Self:
        tables = cls(url)
        await tables.connect()
        return tables

    async def connect(self) -> None:
        """Open the connection again, after `close`."""
        self._connection = await AsyncConnection.connect(
            self._url, autocommit=True, prepare_threshold=1, application_name="model"
        )

    async def close(self) -> None:
        await self._connection.close()

    async def queues(self, topics: Sequence[str]) -> list[int]:
        """Return the ids of existing queues of these topics."""
        found = await self._rows(
            "select q.id from txmsg.queue q join txmsg.topic t on t.id = q.topic_id where t.name = any(%s) order by 1",
            list(topics),
        )
        return [row[0] for row in found]

    async def messages(
        self, queues: Mapping[int, int], bodies: Mapping[tuple[UUID, int], bytes], numbers: Mapping[UUID, int]
    ) -> list[Stored]:
        """Return the messages of each queue from an offset on. Messages that were not sent in this form belong to
        transaction 0.
        """
        found = await self._rows(
            "select m.queue, m.queue_offset, m.segment, m.transaction_id, m.n, m.xmin::text, m.body "
            "from unnest(%s::int[], %s::bigint[]) as q(id, position) "
            "join lateral (select m.*, m.xmin from txmsg.message m "
            "where m.queue = q.id and m.queue_offset >= q.position) m on true "
            "order by m.queue, m.queue_offset, m.segment",
            list(queues),
            list(queues.values()),
        )
        return [
            Stored(queue, offset, segment, numbers[each] if bodies.get((each, n)) == body else 0, n, batch)
            for queue, offset, segment, each, n, batch, body in found
        ]

    async def rolled_back(self, ids: Sequence[UUID]) -> list[tuple[UUID, int]]:
        """Return which of these are remembered as rolled back, and in which segment."""
        return await self._rows(
            "select transaction_id, segment from txmsg.rolled_back where transaction_id = any(%s)", list(ids)
        )

    async def undecided(self, ids: Sequence[UUID]) -> list[UUID]:
        found = await self._rows(
            "select distinct transaction_id from txmsg.half_message where transaction_id = any(%s)", list(ids)
        )
        return [row[0] for row in found]

    async def alive_again(self) -> list[UUID]:
        """Return undecided halves whose outcome is remembered: there must be none at any moment."""
        found = await self._rows(
            "with memory as (select max(id) - 1 as since from txmsg.segment where state <> 'ahead'), "
            "half as materialized (select distinct transaction_id as id from txmsg.half_message "
            "where not decided) "
            "select h.id from half h, memory where exists (select from txmsg.message m "
            "where m.transaction_id = h.id and m.segment >= memory.since) or exists (select from txmsg.rolled_back r "
            "where r.transaction_id = h.id and r.segment >= memory.since)"
        )
        return [row[0] for row in found]

    async def segment(self) -> int:
        """Return the number of the open segment."""
        found = await self._rows("select id from txmsg.segment where state = 'open'")
        return int(found[0][0])

    async def batches_under_way(self) -> int:
        """Return the number of calls that the server still executes, including those of dead brokers."""
        found = await self._rows(
            "select count(*) from pg_stat_activity where datname = current_database() and state = 'active' "
            "and pid <> pg_backend_pid() and application_name like 'txmsg %'"
        )
        return int(found[0][0])

    async def deadlocks(self) -> int:
        """Return the number of deadlocks. Waits for all other sessions to end, as only ended ones are counted."""
        async with asyncio.timeout(SESSIONS_END_S_MAX):
            while await self._rows(  # noqa: ASYNC110 - the server has no event for it
                "select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            ):
                await asyncio.sleep(0.002)
        found = await self._rows("select deadlocks from pg_stat_database where datname = current_database()")
        return int(found[0][0])

    async def add_topic(self, name: str, queues: int) -> None:
        """Create a topic that no broker of the history knows."""
        await self._connection.execute(
            "with topic as (insert into txmsg.topic (name, queue_count, ordered_queues) "
            "values (%s, %s, %s) returning id) "
            "insert into txmsg.queue (topic_id, number) select id, generate_series(0, %s) from topic",
            (name, queues, queues, queues - 1),
        )

    async def make_due(self) -> None:
        """Make all checks due, as if their time had passed."""
        await self._connection.execute(
            "update txmsg.half_message set next_check_at = now() where n = 0 and not decided"
        )

    async def drop_closed_segments(self) -> None:
        """Drop closed segments, as retention would: planning over many segments is slow."""
        for (segment,) in await self._rows("delete from txmsg.segment where state = 'closed' returning id"):
            for table in ("message", "rolled_back"):
                await self._connection.execute(f"drop table txmsg.{table}_{segment}".encode())

    async def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        cursor = await self._connection.execute(statement.encode(), values or None)
        return await cursor.fetchall()
