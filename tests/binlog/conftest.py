"""A Notify database for the tailer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.binlog.tailers import Table
from tests.waiting import until


@pytest.fixture
def table(notify_url: str) -> Iterator[Table]:
    """A Notify database with topic t of two queues. Drops leftover slots, which would prevent dropping it."""
    table = Table(notify_url)
    table.topic("t", 2)
    yield table
    until(lambda: not table.query(f"select 1 {_OF_HERE} and active"), why="a tailer still reads its slot")
    table.query(f"select pg_drop_replication_slot(slot_name) {_OF_HERE}")


_OF_HERE = "from pg_replication_slots where database = current_database()"
