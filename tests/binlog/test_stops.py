"""A fault in one queue stops only that queue and is reported; all others are mirrored on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.binlog.tailers import Table, await_equal, logged, tailing
from tests.integration.cli_harness import said
from tests.waiting import until
from txmsg.binlog.database import connect
from txmsg.binlog.mirror.log_sink import LogSink
from txmsg.binlog.mirrors import TailerMirror
from txmsg.binlog.rows import RowBatch
from txmsg.errors import CorruptLog, InvalidName, PermissionDenied
from txmsg.metaq.location import open_log
from txmsg.metaq.store.reader import LogReader
from txmsg.ops.cli.main import main


def deleted_and_made_again(table: Table) -> None:
    """Recreate topic `bad` by `txmsg topic delete` and `create`."""
    table.query("delete from txmsg.message where queue = %s", table.id_of("bad"))
    table.query("delete from txmsg.queue where id = %s", table.id_of("bad"))
    table.query("delete from txmsg.topic where name = 'bad'")
    table.topic("bad")
    table.add("bad", 2, body=b"again")


def set_back(table: Table) -> None:
    table.query("delete from txmsg.message where queue = %s and queue_offset >= 2", table.id_of("bad"))
    table.add("bad", 1, body=b"other")


def deleted_by_hand(table: Table) -> None:
    """Insert a message at offset 6, as if the one before it had been deleted by hand."""
    table.query(
        "with base as (select segment from txmsg.message where queue = %(q)s limit 1) insert into txmsg.message "
        "(segment, queue, queue_offset, transaction_id, n, body, born_at) "
        "select segment, %(q)s, 6, gen_random_uuid(), 0, '', now() from base".replace("%(q)s", str(table.id_of("bad")))
    )


Break = Callable[[Table], None]
BREAKS = [deleted_and_made_again, set_back, deleted_by_hand]


def stops(table: Table) -> dict[str, str]:
    """Return stopped queues with reasons, from `txmsg tailer status`; its exit status is 1 if any has stopped."""
    told = CliRunner().invoke(main, ["tailer", "status", "--storage", table.url, "--json"])
    shown = json.loads(told.stdout)
    found = {f"{queue['topic']}/{queue['queue']}": queue["stopped"] for queue in shown["queues"] if queue["stopped"]}
    assert shown["stopped_queues"] == len(found)
    assert told.exit_code == (1 if found else 0)
    return found


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "starting"])
@pytest.mark.parametrize("broken_by", BREAKS)
def test_changed_table_stops_only_its_queue(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture, broken_by: Break, is_running: bool
) -> None:
    table.topic("bad")
    table.add("bad", 5)
    table.add("t", 3)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "bad")
        await_equal(table, tmp_path, "t")
        if is_running:
            broken_by(table)
            until(lambda: bool(stops(table)))
    before = logged(tmp_path, "bad")
    assert len(before) == 5
    if not is_running:
        broken_by(table)
    with tailing(table.url, tmp_path) as running:
        table.add("t", 4)
        table.add("t", 2, number=1)
        for number in (0, 1):
            await_equal(table, tmp_path, "t", number)
        until(lambda: bool(stops(table)))
        assert running.tailer.progress.stopped == 1
    assert list(stops(table)) == ["bad/0"]
    told = CliRunner().invoke(main, ["tailer", "status", "--storage", table.url]).stdout
    assert "topic bad queue 0 has stopped: topic bad queue 0: " in told
    assert "topic bad queue 0 is no longer mirrored; other queues continue: " in caplog.text
    assert logged(tmp_path, "bad") == before, "something was overwritten"
    [(next_offset,)] = table.query("select next_offset from txmsg.mirror_queue where queue = %s", table.id_of("bad"))
    assert next_offset == {"deleted_and_made_again": 0, "set_back": 2, "deleted_by_hand": 5}[broken_by.__name__], (
        "retention would drop what is not mirrored"
    )


def test_positions_in_topics_that_were_deleted_from_the_log_are_forgotten(table: Table) -> None:
    table.topic("bad", 2)
    with closing(connect(table.url)) as session:
        mirrors = TailerMirror(session, "m")
        mirrors.settle(None, None)
        ids = [table.id_of("bad"), table.id_of("bad", 1), table.id_of("t")]
        mirrors.write(dict.fromkeys(ids, 3), log="kafka://h:1", log_id=1, generation=1)
        mirrors.forget_topics(["bad"])
        assert list(mirrors.positions()) == [table.id_of("t")]


def test_stopped_queue_continues_with_all_messages_after_a_fork(table: Table, tmp_path: Path) -> None:
    table.topic("bad")
    table.add("bad", 5)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "bad")
        deleted_and_made_again(table)
        until(lambda: bool(stops(table)))
        table.add("bad", 3)
        table.add("t", 3)
        await_equal(table, tmp_path, "t")
    told = said("tailer", "fork", "--storage", table.url, "--metaq", str(tmp_path), "--yes")
    assert "topic bad queue 0: from offset 0 on" in told
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "bad")
        assert stops(table) == {}
        table.add("bad", 3)
        await_equal(table, tmp_path, "bad")


def test_excluded_queue_is_no_longer_reported(table: Table, tmp_path: Path) -> None:
    table.topic("bad")
    table.add("bad", 5)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "bad")
        set_back(table)
        until(lambda: bool(stops(table)))
    with tailing(table.url, tmp_path, exclude=("bad",)):
        assert stops(table) == {}


def test_damaged_files_stop_only_their_queue(table: Table, tmp_path: Path) -> None:
    table.topic("bad")
    for topic in ("bad", "t"):
        table.add(topic, 5)
    with tailing(table.url, tmp_path):
        for topic in ("bad", "t"):
            await_equal(table, tmp_path, topic)
    header = LogReader(tmp_path).queue("bad", 0).fetch(0)[0].header
    [file] = (tmp_path / "commitlog").glob("*.log")
    data = bytearray(file.read_bytes())
    data[header.position + header.size_bytes - 1] ^= 0xFF
    file.write_bytes(data)
    for topic in ("bad", "t"):
        table.add(topic, 2)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
        until(lambda: bool(stops(table)))
    assert list(stops(table)) == ["bad/0"]
    assert "damaged" in stops(table)["bad/0"]


class Refusing(LogSink):
    """A log that refuses appends to topic `bad` and those sent with them."""

    error: Exception

    def append(self, batches: list[RowBatch]) -> None:  # type: ignore[override]
        if any(batch.topic == "bad" for batch in batches):
            raise self.error
        super().append(batches)


def test_queue_stopped_by_a_missing_privilege_continues_once_it_is_granted(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Denying(LogSink):
        denied = 0
        is_allowed = False

        def append(self, batches: list[RowBatch]) -> None:  # type: ignore[override]
            if not self.is_allowed and any(batch.topic == "bad" for batch in batches):
                Denying.denied += 1
                raise PermissionDenied("user tailer may not send topic:bad")
            super().append(batches)

    monkeypatch.setattr("txmsg.binlog.stops.AGAIN_S", 0.1)
    caplog.set_level(logging.INFO, "txmsg.binlog.stops")
    table.topic("bad")
    table.add("bad", 5)
    sink = Denying(open_log(tmp_path, append=True), str(tmp_path))
    with tailing(table.url, tmp_path, sink=lambda: sink) as running:
        until(lambda: bool(stops(table)))
        table.add("bad", 5)
        table.add("t", 5)
        await_equal(table, tmp_path, "t")
        denied = Denying.denied
        until(lambda: Denying.denied > denied)
        assert list(stops(table)) == ["bad/0"]
        assert caplog.text.count("is no longer mirrored") == 1, "told once, however often it is tried"
        sink.is_allowed = True
        await_equal(table, tmp_path, "bad")
        until(lambda: stops(table) == {} and running.tailer.progress.stopped == 0)
        table.add("bad", 5)
        await_equal(table, tmp_path, "bad")
    assert "topic bad queue 0 is mirrored again" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        InvalidName("topic 'bad' is not a name"),
        PermissionDenied("user tailer may not send topic:bad"),
        CorruptLog("settings of topic bad cannot be read"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_topic_refused_by_the_log_stops_alone(table: Table, tmp_path: Path, error: Exception) -> None:
    def refusing() -> Refusing:
        sink = Refusing(open_log(tmp_path, append=True), str(tmp_path))
        sink.error = error
        return sink

    table.topic("bad")
    table.add("bad", 5)
    table.add("t", 5)
    with tailing(table.url, tmp_path, sink=refusing):
        until(lambda: bool(stops(table)))
        table.add("bad", 5)
        table.add("t", 5)
        table.add("t", 5, number=1)
        for number in (0, 1):
            await_equal(table, tmp_path, "t", number)
    assert stops(table) == {"bad/0": str(error)}
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "bad")
        assert stops(table) == {}
