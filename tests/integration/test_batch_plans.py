"""The pages that a batch reads do not depend on earlier writes, open snapshots or statistics.

Counted in buffers, not in time: what a batch reads is the same on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from psycopg import AsyncConnection

from tests.batch_calls import apply_batch
from tests.integration.batch_harness import Notify
from txmsg.broker.store.arrays import (
    bytea_array,
    int4_array,
    moment_array,
    smallint_array,
    text_array,
    uuid_array,
)
from txmsg.broker.store.batch import WriteBatch
from txmsg.broker.store.connect import connect_writer
from txmsg.message.columns import Columns

_BATCH = 200
_DEAD = 100_000
_ROWS_MAX = 4096

_GIVEN = (
    *("half_id", "half_n", "half_queue", "half_producer", "half_body", "half_born_at", "half_ordering_key"),
    *("commit", "rollback", "end_group", "plain_id", "plain_n", "plain_queue", "plain_body", "plain_born_at"),
)
_CALL = f"""
explain (analyze, buffers, costs off, timing off, summary off, format json)
select * from {apply_batch(**dict.fromkeys(_GIVEN, "%b"))}
""".encode()


_NOTHING = Columns()


async def _buffers(
    connection: AsyncConnection[Any],
    *,
    half: Columns = _NOTHING,
    commit: Sequence[bytes] = (),
    rollback: Sequence[bytes] = (),
    group: str = "",
    plain: Columns = _NOTHING,
) -> int:
    """Apply a batch and return the number of pages that it read, cached or not."""
    cursor = connection.cursor()
    await cursor.execute(
        _CALL,
        (
            uuid_array(half.transaction_id),
            smallint_array(half.n),
            int4_array(half.queue),
            int4_array(half.producer),
            bytea_array(half.body),
            moment_array(half.born_at_us),
            text_array(half.ordering_key),
            uuid_array(commit),
            uuid_array(rollback),
            text_array([group] * len([*commit, *rollback])),
            uuid_array(plain.transaction_id),
            smallint_array(plain.n),
            int4_array(plain.queue),
            bytea_array(plain.body),
            moment_array(plain.born_at_us),
        ),
    )
    row = await cursor.fetchone()
    assert row is not None
    explained = row[0] if isinstance(row[0], list) else json.loads(row[0])
    plan = explained[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def _measured(db: Notify) -> dict[str, int]:
    """Return pages per batch of each kind, in a session without earlier batches."""
    async with await connect_writer(db.url, lock_timeout_s=60, transaction_timeout_s=120) as connection:
        counted: dict[str, int] = {}
        for _ in range(2):  # the first also reads the catalogue
            half, plain = db.columns(_BATCH), db.columns(_BATCH)
            counted = {
                "halves": await _buffers(connection, half=half),
                "commits": await _buffers(connection, commit=half.transaction_id),
                "plain messages": await _buffers(connection, plain=plain),
            }
            half = db.columns(_BATCH)
            await _buffers(connection, half=half)
            counted["commits of a group"] = await _buffers(connection, commit=half.transaction_id, group="shop")
            half = db.columns(_BATCH)
            half.queue = [db.queues[row // 2 % 4] for row in range(_BATCH)]
            half.ordering_key = [f"{key}" for key in [uuid4() for _ in range(_BATCH // 2)] for _ in range(2)]
            counted |= {
                "ordered halves": await _buffers(connection, half=half),
                "commits that are held back": await _buffers(connection, commit=half.transaction_id[1::2]),
                "rollbacks that free others": await _buffers(connection, rollback=half.transaction_id[0::2]),
            }
        return counted


async def test_batches_read_no_more_pages_with_dead_rows_and_stale_statistics(
    db: Notify,
) -> None:
    await db.connection.execute("alter table txmsg.half_message set (autovacuum_enabled = off)")
    first = await _measured(db)
    async with await AsyncConnection.connect(db.url) as reader:
        await reader.execute("set transaction isolation level repeatable read")
        await reader.execute("select count(*) from txmsg.message")  # rows deleted from now on cannot be vacuumed
        await db.connection.execute("analyze txmsg.half_message")  # the statistics say that it is empty
        for _ in range(_DEAD // _ROWS_MAX + 1):
            half = db.columns(_ROWS_MAX)
            half.ordering_key[::4] = [f"{uuid4()}" for _ in half.transaction_id[::4]]
            await db.apply(WriteBatch(half=half))
            await db.apply(WriteBatch(commit=half.transaction_id))
        await db.connection.execute("vacuum txmsg.half_message")
        await db.connection.execute("analyze txmsg.half_message")
        (size,) = await db.rows(
            "select reltuples, pg_relation_size(oid) / 8192 from pg_class where oid = 'txmsg.half_message'::regclass"
        )
        then = await _measured(db)
    assert size[0] == 0, "the statistics know better, so this shows nothing"
    assert size[1] > _DEAD / 100, "the dead rows are gone, so this shows nothing"
    for kind, pages in first.items():
        # Indexes have grown a level, which PostgreSQL 15 reads again for each id. More dead rows do not add to that:
        # 20,000, 60,000 and 120,000 cost its halves 3,620, 4,025 and 4,027 pages. A join reads a hundred times as many.
        assert then[kind] <= 2 * pages, f"{kind}: {pages} pages in the beginning, {then[kind]} now"
