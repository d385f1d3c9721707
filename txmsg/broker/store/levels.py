"""Statements on the durability of topics. `txmsg.set_level` applies it to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from txmsg.broker.store.connect import Connection
from txmsg.message import QueueId


async def replicated_queues(conn: Connection) -> frozenset[QueueId]:
    """Return the queues of all topics whose messages wait for a standby."""
    cursor = await conn.execute(
        "select q.id from txmsg.topic t join txmsg.queue q on q.topic_id = t.id where t.durability = 'replicated'"
    )
    return frozenset(queue_id for (queue_id,) in await cursor.fetchall())


async def replicated_transactions(
    conn: Connection, ids: Sequence[bytes], queues: frozenset[QueueId], segments: Sequence[int]
) -> set[bytes]:
    """Return those of these transactions that have messages in these queues.

    Looked for among undecided and delayed messages, and in these segments.
    """
    async with conn.transaction():
        await conn.execute("select set_config('enable_seqscan', 'off', true)")  # half_message looks empty to statistics
        cursor = await conn.execute(
            """
            select h.transaction_id from txmsg.half_message h
             where h.transaction_id = any(%(ids)s) and h.queue = any(%(queues)s)
            union
            select s.transaction_id from txmsg.scheduled s
             where s.transaction_id = any(%(ids)s) and s.queue = any(%(queues)s)
            union
            select m.transaction_id from txmsg.message m
             where m.segment = any(%(segments)s) and m.transaction_id = any(%(ids)s) and m.queue = any(%(queues)s)
            """,
            {"ids": [UUID(bytes=id_bytes) for id_bytes in ids], "queues": list(queues), "segments": list(segments)},
            prepare=False,
        )
        return {transaction_id.bytes for (transaction_id,) in await cursor.fetchall()}
