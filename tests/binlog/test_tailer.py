"""The tailer: the log is as the table, offset for offset, whatever comes between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.binlog.tailers import Running, Table, await_equal, tailing
from txmsg.binlog.tailer import State


@pytest.fixture
def table(notify_url: str) -> Iterator[Table]:
    """A Notify database with topic t of two queues. Slots that are left would keep it from being dropped."""
    table = Table(notify_url)
    table.topic("t", 2)
    yield table
    table.query(
        "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
    )


def test_what_is_there_and_what_comes_is_mirrored_and_it_goes_on_where_it_was(table: Table, tmp_path: Path) -> None:
    table.add("t", 300)
    with tailing(table.url, tmp_path) as running:
        await_equal(table, tmp_path, "t")
        table.add("t", 200)
        table.add("t", 50, number=1)
        table.rotate()
        table.add("t", 100)
        table.topic("new.while.running")
        table.add("new.while.running", 5)
        for each in ("t", "new.while.running"):
            await_equal(table, tmp_path, each)
        await_equal(table, tmp_path, "t", 1)
        assert running.tailer.progress.refilled == 300, "the stream was not what brought the rest"
    table.add("t", 40)
    with tailing(table.url, tmp_path) as running:
        await_equal(table, tmp_path, "t")
        assert running.tailer.progress.refilled == 0, "the slot had it all"
    assert len(table.contents("t")) == 640


def test_a_lost_slot_and_an_emptied_log_are_made_whole_from_the_table(table: Table, tmp_path: Path) -> None:
    table.add("t", 30)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    [slot] = table.slots()
    table.query("select pg_drop_replication_slot(%s)", slot)
    table.add("t", 20)
    table.rotate()
    table.add("t", 20)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    shutil.rmtree(tmp_path)
    with tailing(table.url, tmp_path) as running:
        await_equal(table, tmp_path, "t")
        assert running.tailer.progress.refilled == 70


def test_a_second_tailer_stands_by_and_goes_on_when_the_first_dies(table: Table, tmp_path: Path) -> None:
    table.add("t", 10)
    first, second = Running(table.url, tmp_path), Running(table.url, tmp_path)
    first.start()
    second.start(ready=False)
    second.await_state(State.STANDING_BY)
    table.add("t", 10)
    await_equal(table, tmp_path, "t")
    first.stop()
    second.await_state(State.TAILING)
    table.add("t", 10)
    await_equal(table, tmp_path, "t")
    assert second.tailer.progress.messages == 10
    second.stop()
