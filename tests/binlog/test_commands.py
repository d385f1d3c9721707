"""`txmsg tailer`: creates a mirror, shows its state, forks a diverged log, and drops the mirror."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.binlog.tailers import WITHIN_S, Table, await_equal, logged, tailing
from tests.integration.cli_harness import json_of, said
from tests.metaq.consumers import stored
from tests.waiting import until
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Log
from txmsg.metaq.store.reader import LogReader

T0, T1 = LogQueue("t", 0), LogQueue("t", 1)


def test_mirror_is_created_shown_and_dropped(table: Table, tmp_path: Path) -> None:
    storage = ("--storage", table.url)
    assert "there is no mirror metaq" in said("tailer", "status", *storage, status=1)
    made = json_of("tailer", "create", *storage, "--topics", "t*", "--exclude", "test", "--name", "metaq")
    assert made == {"mirror": "metaq", "is_new": True}
    assert json_of("tailer", "create", *storage)["is_new"] is False
    table.add("t", 7)
    shown = json_of("tailer", "status", *storage)
    assert (shown["topics"], shown["exclude"], shown["log"]) == ("t*", "test", None)
    assert (shown["waiting"], shown["slot_state"], shown["slot_is_read"]) == (7, "reserved", False)
    assert shown["behind_s"] > 0
    json_of("tailer", "create", *storage, "--exclude", "")
    emptied = json_of("tailer", "status", *storage)
    assert (emptied["topics"], emptied["exclude"]) == ("t*", None)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
        until(lambda: json_of("tailer", "status", *storage)["waiting"] == 0)
        shown = json_of("tailer", "status", *storage)
        assert (shown["log"], shown["generation"], shown["slot_is_read"]) == (str(tmp_path), 1, True)
        assert shown["queues"][0] == {"topic": "t", "queue": 0, "next_offset": 7, "end": 7, "stopped": None}
        assert "is being written by a tailer: stop it first" in said("tailer", "drop", *storage, "--yes", status=1)
    assert "Mirrored to" in said("tailer", "status", *storage, "--by-queue")
    table.drop_slot()
    said("tailer", "status", *storage, status=1)
    assert json_of("tailer", "drop", *storage, "--yes")["dropped"]
    assert not json_of("tailer", "drop", *storage, "--yes")["dropped"]
    assert not table.slots()
    assert not table.query("select 1 from pg_publication")


def test_drop_waits_for_a_tailer_that_is_ending(table: Table) -> None:
    """The server keeps its session for a moment."""
    storage = ("--storage", table.url)
    json_of("tailer", "create", *storage)
    table.await_no_tailer()
    with psycopg.connect(table.url, autocommit=True) as ending, ThreadPoolExecutor(1) as beside:
        ending.execute("select pg_advisory_lock(7707, hashtext('metaq'))")
        dropping = beside.submit(json_of, "tailer", "drop", *storage, "--yes")
        until(lambda: table.is_tried_for() or dropping.done())
        ending.close()
        assert dropping.result(WITHIN_S)["dropped"]


@pytest.mark.parametrize("grown", [0, 3, 20])
def test_diverged_log_continues_under_a_new_generation(table: Table, tmp_path: Path, grown: int) -> None:
    table.add("t", 30)
    table.add("t", 4, number=1)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
        await_equal(table, tmp_path, "t", 1)
    fork = ("tailer", "fork", "--storage", table.url, "--metaq", str(tmp_path))
    assert "have not diverged; the log stays at generation 1" in said(*fork)
    table.query("delete from txmsg.message where queue = %s and queue_offset >= 20", table.id_of("t"))
    if grown:
        table.add("t", grown)
    with tailing(table.url, tmp_path) as running:
        assert running.tailer.progress.stopped == 1
    with open_log(tmp_path) as access:
        for group, offsets in (("ahead", {T0: 28, T1: 3}), ("behind", {T0: 4})):
            member = access.join(group, ["t"])
            member.take_queues(offsets)
            member.leave(offsets)
    before = logged(tmp_path, "t")
    asked = said(*fork, answer="n\n", status=1)
    assert "Aborted" in asked
    assert logged(tmp_path, "t") == before
    told = said(*fork, "--yes")
    assert f"queue 0: from offset 20 on, 10 messages of the log give way to {grown} of the table" in told
    assert "continues under generation 2" in told
    assert "group ahead was further, and is set back" in told
    assert "group behind" not in told
    assert stored(tmp_path, "ahead") == {T0: 20, T1: 3}
    assert stored(tmp_path, "behind") == {T0: 4}
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
        table.add("t", 2)
        await_equal(table, tmp_path, "t")
        await_equal(table, tmp_path, "t", 1)
    with Log(tmp_path) as log:
        assert log.identity.generation == 2


def test_log_starting_after_the_end_of_the_table_restarts_where_the_table_starts(table: Table, tmp_path: Path) -> None:
    """The log has kept only the newest messages, and the backup is older than these."""
    table.add("t", 15)
    table.rotate()
    table.rotate()
    table.add("t", 5)
    table.drop_segment(1)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    assert LogReader(tmp_path).queue("t", 0).range() == (15, 20)
    table.query("delete from txmsg.message")
    table.query("update txmsg.segment_base set base = 5 where queue = %s", table.id_of("t"))
    table.add("t", 4)
    said("tailer", "fork", "--storage", table.url, "--metaq", str(tmp_path), "--yes")
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    assert LogReader(tmp_path).queue("t", 0).range() == (5, 9)
