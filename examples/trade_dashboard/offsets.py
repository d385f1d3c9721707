"""Progress of each query in each queue, in the database of the figures: no message twice or left out.

Spark's checkpoint says so, too. But Spark does not wait until it is on disk: after a power cut it may be older
than the figures, and a batch of the same number may have other messages. Here that is seen, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from txmsg.errors import StorageError

Span = tuple[int, int]
"""Offsets of a queue: begin, and end (exclusive)."""


def create_table(connection: psycopg.Connection[Any]) -> None:
    """Create the table if it is missing."""
    connection.execute(
        "create table if not exists figures_queue "
        "(query text, queue int, next_offset bigint not null, primary key (query, queue))"
    )


def advance(connection: psycopg.Connection[Any], query: str, spans: Mapping[int, Span]) -> None:
    """Record in the caller's transaction that this query has counted these messages in it.

    Raises StorageError when they are not the ones that follow those counted before. A queue may begin anywhere.
    """
    rows = connection.execute(
        "select queue, next_offset from figures_queue where query = %s and queue = any(%s)", (query, list(spans))
    )
    for queue, next_offset in rows.fetchall():
        begin, _ = spans[queue]
        if begin != next_offset:
            raise StorageError(
                f"queue {queue} is to be counted from offset {begin} on, and was counted up to {next_offset}: the "
                "checkpoint and the figures are not of one time. Clear the tables of the figures and "
                "txmsg_spark_query, and count anew with another --checkpoint"
            )
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into figures_queue values (%s, %s, %s) "
            "on conflict (query, queue) do update set next_offset = excluded.next_offset",
            [(query, queue, end) for queue, (_, end) in spans.items()],
        )
