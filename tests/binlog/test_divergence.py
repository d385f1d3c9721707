"""If log and table disagree, nothing is overwritten and everything is reported: holes are marked, queues stop."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.binlog.tailers import Running, Table, await_equal, logged, tailing
from tests.waiting import until
from txmsg.errors import OffsetsMissing
from txmsg.metaq.store.reader import LogReader


def test_segment_dropped_before_it_was_mirrored_is_a_counted_and_reported_hole(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table.add("t", 10)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    before = logged(tmp_path, "t")
    table.drop_slot()
    table.add("t", 5)
    table.add("t", 7, number=1)
    table.rotate()
    table.rotate()
    table.add("t", 5)
    table.add("t", 2, number=1)
    table.drop_segment(1)
    with tailing(table.url, tmp_path) as running:
        table.add("t", 5)
        found = [*before, *table.contents("t")]
        running.await_log(lambda: logged(tmp_path, "t") == found)
        assert running.tailer.progress.missing == 5
        await_equal(table, tmp_path, "t", 1)
    with pytest.raises(OffsetsMissing, match="offsets 10 to 14 of topic t queue 0 are missing"):
        LogReader(tmp_path).queue("t", 0).fetch(10)
    assert "topic t queue 0: offsets 10 to 14 (5 messages) were dropped from the table before they" in caplog.text
    with tailing(table.url, tmp_path):
        table.add("t", 1)
        running.await_log(lambda: len(logged(tmp_path, "t")) == 21)


@pytest.mark.parametrize("grown", [0, 3, 20])
def test_restored_older_table_stops_its_queue_at_the_first_differing_offset(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture, grown: int
) -> None:
    """The table is as after restoring a backup; `grown`: number of messages that it has received since."""
    table.add("t", 30)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    before = logged(tmp_path, "t")
    table.query("delete from txmsg.message where queue = %s and queue_offset >= 20", table.id_of("t"))
    if grown:
        table.add("t", grown)
    with tailing(table.url, tmp_path) as running:
        table.add("t", 3, number=1)
        await_equal(table, tmp_path, "t", 1)
        assert running.tailer.progress.stopped == 1
    assert "topic t queue 0: from offset 20 on, the log" in caplog.text
    assert "txmsg tailer fork" in caplog.text
    assert logged(tmp_path, "t") == before, "something was overwritten"


@pytest.mark.parametrize("grown", [0, 3, 25])
def test_table_restored_to_older_state_during_mirroring_stops_its_queue(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture, grown: int
) -> None:
    """The table is emptied as by TRUNCATE. Offsets assigned a second time are not mistaken for existing messages."""
    with tailing(table.url, tmp_path) as running:
        table.add("t", 20)
        table.add("t", 5, number=1)
        for number in (0, 1):
            await_equal(table, tmp_path, "t", number)
        before = logged(tmp_path, "t")
        table.query("delete from txmsg.message where queue = %s", table.id_of("t"))
        if grown:
            table.add("t", grown)
        until(lambda: running.tailer.progress.stopped == 1)
        table.add("t", 3, number=1)
        await_equal(table, tmp_path, "t", 1)
    assert "topic t queue 0: from offset 0 on, the log" in caplog.text
    assert logged(tmp_path, "t")[:20] == before, "something was overwritten"


def test_tailer_waits_for_a_message_whose_commit_waits_for_its_standby(table: Table, tmp_path: Path) -> None:
    """Replication has delivered it and it is in the log, but the table does not show it yet."""
    with tailing(table.url, tmp_path):
        table.add("t", 5)
        await_equal(table, tmp_path, "t")
    [last] = table.query(
        "delete from txmsg.message where queue = %s and queue_offset = 4 returning row_to_json(message)::text",
        table.id_of("t"),
    )
    with psycopg.connect(table.url) as waiting:  # a batch: it holds the lock of its queue until the row can be seen
        waiting.execute("select pg_advisory_xact_lock(7702, %s %% 1024)", (table.id_of("t"),))
        waiting.execute(
            "insert into txmsg.message select * from json_populate_record(null::txmsg.message, %s::json)", last
        )
        running = Running(table.url, tmp_path)
        running.start(ready=False)
        table.await_waiting_for_lock()
        waiting.commit()
        running.await_tailing()
    table.add("t", 5)
    await_equal(table, tmp_path, "t")
    running.stop()
