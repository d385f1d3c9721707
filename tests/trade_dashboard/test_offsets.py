"""No message of a queue is counted twice or left out, for any checkpoint of Spark."""

from __future__ import annotations

import psycopg
import pytest

from examples.trade_dashboard import offsets
from txmsg.errors import StorageError


def test_only_the_directly_following_messages_are_counted(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        offsets.create_table(connection)
        offsets.advance(connection, "q", {0: (5, 9), 1: (0, 1)})
        offsets.advance(connection, "q", {0: (9, 12), 7: (3, 4)})
        for begin in (8, 11, 13):
            with pytest.raises(StorageError, match=f"from offset {begin} on, and was counted up to 12"):
                offsets.advance(connection, "q", {1: (1, 2), 0: (begin, 14)})
        offsets.advance(connection, "other", {0: (2, 3)})
        rows = connection.execute("select query, queue, next_offset from figures_queue order by 1, 2").fetchall()
        assert rows == [("other", 0, 3), ("q", 0, 12), ("q", 1, 1), ("q", 7, 4)]
