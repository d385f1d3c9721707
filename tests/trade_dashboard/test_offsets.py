"""No message of a queue is counted twice, and none is left out, whatever Spark's checkpoint says."""

from __future__ import annotations

import psycopg
import pytest

from examples.trade_dashboard import offsets
from txmsg.errors import StorageError


def test_only_the_messages_that_follow_are_counted(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        offsets.create_table(connection)
        offsets.advance(connection, {0: (5, 9), 1: (0, 1)})
        offsets.advance(connection, {0: (9, 12), 7: (3, 4)})
        for begin in (8, 11, 13):
            with pytest.raises(StorageError, match=f"from offset {begin} on, and was counted up to 12"):
                offsets.advance(connection, {1: (1, 2), 0: (begin, 14)})
        rows = connection.execute("select queue, next_offset from figures_queue order by 1").fetchall()
        assert rows == [(0, 12), (1, 1), (7, 4)]
