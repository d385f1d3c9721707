"""The tailer: the log equals the table, offset for offset, after any interruption."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.binlog.tailers import WITHIN_S, Running, Table, await_equal, logged, tailing
from tests.integration.cli_harness import said
from tests.metaq.servers import served
from tests.waiting import until
from txmsg.binlog import reading
from txmsg.binlog.mirror import open_sink
from txmsg.binlog.mirror.log_sink import LogSink
from txmsg.binlog.replication import ReplicationStream
from txmsg.binlog.rows import RowBatch
from txmsg.binlog.tailer import TailerState
from txmsg.errors import NotLeader, OutcomeUnknown, StorageError, TxmsgError, Unauthenticated
from txmsg.metaq.location import open_log
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metaq.store.log import Log
from txmsg.metaq.store.reader import LogReader


def test_existing_and_new_messages_are_mirrored_and_mirroring_resumes(table: Table, tmp_path: Path) -> None:
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


def test_lost_slot_and_emptied_log_are_recovered_from_the_table(table: Table, tmp_path: Path) -> None:
    table.add("t", 30)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    table.drop_slot()
    table.add("t", 20)
    table.rotate()
    table.add("t", 20)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    shutil.rmtree(tmp_path)
    with tailing(table.url, tmp_path) as running:
        assert logged(tmp_path, "t") == table.contents("t"), "it was said to be ready too soon"
        assert running.tailer.progress.refilled == 70


def test_standby_tailer_takes_over_when_the_first_dies(table: Table, tmp_path: Path) -> None:
    table.add("t", 10)
    first, second = Running(table.url, tmp_path), Running(table.url, tmp_path)
    first.start()
    second.start(ready=False)
    second.await_state(TailerState.STANDING_BY)
    table.add("t", 10)
    await_equal(table, tmp_path, "t")
    first.stop()
    second.await_state(TailerState.TAILING)
    table.add("t", 10)
    await_equal(table, tmp_path, "t")
    until(lambda: second.tailer.progress.messages == 10)  # counted when they are on disk
    second.stop()


def test_one_log_has_one_writer_among_tailers_of_two_mirrors(table: Table, tmp_path: Path) -> None:
    with tailing(table.url, tmp_path):
        other = Running(table.url, tmp_path, mirror="other")
        other.start(ready=False)
        other.await_state(TailerState.STANDING_BY)
    other.await_state(TailerState.TAILING)
    other.stop()


def test_topics_are_chosen_by_patterns_without_in_memory_topics(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("trade.eu", "trade.us", "trade_eu", "user"):
        table.topic(topic)
        table.add(topic, 3)
    table.topic("trade.memory", durability="memory")
    with tailing(table.url, tmp_path, topics=("trade.*", "u?er"), exclude=("*.us",)):
        for topic in ("trade.eu", "user"):
            table.add(topic, 2)
            await_equal(table, tmp_path, topic)
        table.add("trade.us", 1)
        table.topic("trade.new")
        table.add("trade.new", 1)
        await_equal(table, tmp_path, "trade.new")
    assert LogReader(tmp_path).topics().keys() == {"trade.eu", "trade.new", "user"}
    assert "topic trade.memory is in memory, and not in PostgreSQL's log: it is not mirrored" in caplog.text
    with tailing(table.url, tmp_path, topics=("*",)):
        for topic in ("trade.eu", "trade.us", "trade_eu", "user", "t"):  # exclude is unchanged
            if topic != "trade.us":
                await_equal(table, tmp_path, topic)
    assert "trade.us" not in LogReader(tmp_path).topics()


def test_topics_with_reserved_names_of_a_log_are_skipped_and_do_not_stop_others(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = ("%RETRY%g", "%DLQ%g", "%APPENDS%")
    for topic in ("trade", *own):
        table.topic(topic)
        table.add(topic, 2)
    with served(MetaQConfig(data_dir=tmp_path / "log", listen="127.0.0.1:0")) as address:
        for _ in range(2):
            with tailing(table.url, tmp_path, sink=lambda: open_sink(address)):
                for topic in (*own, "trade"):
                    table.add(topic, 1)
                await_equal(table, tmp_path / "log", "trade")
    assert "trade" in LogReader(tmp_path / "log").topics()
    for topic in own:
        assert f"topic {topic} is named as a log names its own: it is not mirrored" in caplog.text
    [(kept,)] = table.query("select count(*) from txmsg.mirror m, txmsg.mirrored_queues(m.include, m.exclude)")
    assert kept == 3, "retention waits for what is not mirrored"


# ---- acknowledgements


def test_nothing_is_acknowledged_before_it_is_on_disk(table: Table, tmp_path: Path) -> None:
    on_disk, waits = threading.Event(), threading.Event()

    class Slow(LogSink):
        def append(self, batches: Sequence[RowBatch]) -> None:
            waits.set()
            assert on_disk.wait(WITHIN_S)
            super().append(batches)

    def confirmed() -> bool:
        [(is_past,)] = table.query(
            "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where database = current_database()",
            end,
        )
        return bool(is_past)

    with tailing(table.url, tmp_path, sink=lambda: Slow(open_log(tmp_path, append=True), "slow")):
        try:
            table.add("t", 3)
            [(end,)] = table.query("select pg_current_wal_lsn()::text")
            assert waits.wait(WITHIN_S)
            table.query("create table other as select generate_series(0, 1000)")
            heard = time.monotonic() + 2 * ReplicationStream.STATUS_S
            until(lambda: time.monotonic() > heard)  # it would have been reported by then
            assert not confirmed()
        finally:
            on_disk.set()
        await_equal(table, tmp_path, "t")
        until(confirmed)


def test_slot_advances_while_only_other_tables_are_written(table: Table, tmp_path: Path) -> None:
    with tailing(table.url, tmp_path):
        table.query("create table other as select generate_series(0, 10000)")
        [(end,)] = table.query("select pg_current_wal_lsn()::text")
        until(
            lambda: bool(
                table.query(
                    "select 1 from pg_replication_slots "
                    "where database = current_database() and confirmed_flush_lsn >= %s::pg_lsn",
                    end,
                )
            )
        )


def test_large_transaction_is_appended_in_chunks_with_bounded_memory_and_resumed(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size_bytes_max = 256 * 1024
    monkeypatch.setattr(reading, "SIZE_BYTES_MAX", size_bytes_max)
    sizes: list[int] = []

    class Failing(LogSink):
        def append(self, batches: Sequence[RowBatch]) -> None:
            if len(sizes) == 1:
                sizes.append(0)
                raise StorageError("the disk is full")
            super().append(batches)
            sizes.append(sum(len(row[5]) for batch in batches for row in batch.rows))

    with tailing(table.url, tmp_path, sink=lambda: Failing(open_log(tmp_path, append=True), "failing")):
        table.add("t", 50, body=b"x" * 50_000)
        await_equal(table, tmp_path, "t")
    assert sum(sizes) == sum(len(row[6]) for row in table.contents("t"))
    assert len(sizes) > 3, "it was one piece"
    assert max(sizes) < 3 * size_bytes_max  # plus one message and one read


def test_rows_read_from_the_table_are_appended_in_chunks(table: Table, tmp_path: Path) -> None:
    sizes: list[int] = []

    class Counting(LogSink):
        def append(self, batches: Sequence[RowBatch]) -> None:
            super().append(batches)
            sizes.append(sum(len(batch.rows) for batch in batches))

    table.add("t", 50, body=b"x" * 10_000)
    with tailing(
        table.url,
        tmp_path,
        sink=lambda: Counting(open_log(tmp_path, append=True), "counting"),
        refill_size_bytes=100_000,
    ):
        await_equal(table, tmp_path, "t")
    assert sum(sizes) == 50
    assert max(sizes) <= 10


# ---- temporary faults


def test_tailer_continues_after_the_database_ends_its_sessions(table: Table, tmp_path: Path) -> None:
    with tailing(table.url, tmp_path):
        for name in ("txmsg tailer", "txmsg tailer %"):
            table.query(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name like %s and datname = current_database()",
                name,
            )
            table.add("t", 3)
            await_equal(table, tmp_path, "t")


def test_messages_missed_by_replication_are_read_from_the_table(table: Table, tmp_path: Path) -> None:
    with tailing(table.url, tmp_path):
        table.add("t", 5)
        await_equal(table, tmp_path, "t")
    for number in (0, 1):
        table.add("t", 5, number=number)
    table.query("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", table.free_slot())
    table.add("t", 5)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")  # its next message shows the gap
        await_equal(table, tmp_path, "t", 1)  # no further change: the check of the table reveals it


def test_invalidated_slot_is_recreated_and_missed_messages_come_from_the_table(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table.add("t", 5)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
    table.add("t", 5)

    def is_lost() -> bool:
        table.query("select pg_switch_wal()")
        table.query("checkpoint")
        return table.query("select wal_status from pg_replication_slots where database = current_database()") == [
            ("lost",)
        ]

    try:
        table.query("alter system set max_slot_wal_keep_size = '1MB'")
        table.query("select pg_reload_conf()")
        until(is_lost)
    finally:
        table.query("alter system reset max_slot_wal_keep_size")
        table.query("select pg_reload_conf()")
    table.add("t", 5)
    with tailing(table.url, tmp_path):
        table.add("t", 5)
        await_equal(table, tmp_path, "t")
    assert "is lost: the server has thrown away what it needed" in caplog.text


def test_slot_creation_blocked_by_an_old_transaction_names_it(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("txmsg.binlog.slot._MAKE_S_MAX", 1)
    with psycopg.connect(table.url, application_name="a report") as old:
        old.execute("select pg_current_xact_id()")
        running = Running(table.url, tmp_path)
        running.start(ready=False)
        until(lambda: f"in process {old.info.backend_pid} (user" in caplog.text)
        assert ", a report, since " in caplog.text
    running.await_state(TailerState.TAILING)
    running.stop()


def test_slot_reader_without_the_lock_is_terminated(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server side of a tailer on a disconnected machine."""
    with tailing(table.url, tmp_path):
        pass
    monkeypatch.setattr("txmsg.binlog.run._HOLDER_WAIT_S", 0.5)
    left_over = ReplicationStream(table.url, slot=table.free_slot(), publication="txmsg_metaq")
    with tailing(table.url, tmp_path):
        table.add("t", 3)
        await_equal(table, tmp_path, "t")
    left_over.close()


def test_mirroring_into_a_remote_log_resumes(table: Table, tmp_path: Path) -> None:
    with served(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0")) as address:
        for _ in range(2):
            table.add("t", 5)
            with tailing(table.url, tmp_path, sink=lambda: open_sink(address)):
                await_equal(table, tmp_path, "t")
                table.add("t", 5)
                await_equal(table, tmp_path, "t")


def test_log_with_a_later_generation_elsewhere_is_not_written(table: Table, tmp_path: Path) -> None:
    left, promoted = tmp_path / "left", tmp_path / "promoted"
    table.add("t", 5)
    with tailing(table.url, left):
        await_equal(table, left, "t")
    shutil.copytree(left, promoted)
    with Log(promoted) as log:
        log.fork([])  # begins a generation, as a promotion does
    table.add("t", 5)
    with tailing(table.url, promoted):
        await_equal(table, promoted, "t")

    error = Running(table.url, left).failed()
    assert isinstance(error, NotLeader)
    assert f"the log {left} has generation 1" in str(error)
    assert f"generation 2 of it at {promoted}" in str(error)
    fork = ("tailer", "fork", "--storage", table.url, "--metaq", str(left), "--yes")
    assert "has written to generation 2 of it" in said(*fork, status=1)
    assert len(logged(left, "t")) == 5

    with tailing(table.url, tmp_path / "another"):  # of the first generation, too
        await_equal(table, tmp_path / "another", "t")
    with tailing(table.url, promoted):
        await_equal(table, promoted, "t")
    said("tailer", "drop", "--storage", table.url, "--yes")
    with tailing(table.url, left):
        await_equal(table, left, "t")


class Killed(BaseException):
    """An exception that passes through all of a tailer, as SIGKILL does."""


class Killing(LogSink):
    """A log whose tailer is killed after its first append."""

    def append(self, batches: Sequence[RowBatch]) -> None:
        super().append(batches)
        raise Killed


def test_later_generation_is_recorded_before_the_first_append(table: Table, tmp_path: Path) -> None:
    left, promoted = tmp_path / "left", tmp_path / "promoted"
    table.add("t", 5)
    with tailing(table.url, left):
        await_equal(table, left, "t")
    shutil.copytree(left, promoted)
    with Log(promoted) as log:
        log.fork([])  # begins a generation, as a promotion does
    table.drop_slot()
    table.add("t", 5)
    killed = Running(table.url, promoted, sink=lambda: Killing(open_log(promoted, append=True), str(promoted))).failed()
    assert isinstance(killed, Killed)
    assert len(logged(promoted, "t")) == 10
    assert isinstance(Running(table.url, left).failed(), NotLeader)
    assert len(logged(left, "t")) == 5


class Refusing(LogSink):
    """A log that refuses the tailer's token or loses its answer while `error` is set."""

    error: ClassVar[TxmsgError | None] = None

    def append(self, batches: Sequence[RowBatch]) -> None:
        if self.error is not None:
            raise self.error
        super().append(batches)


@pytest.mark.parametrize(
    "error",
    [Unauthenticated("the token is not valid here"), OutcomeUnknown("it was cut off")],
    ids=lambda each: type(each).__name__,
)
def test_tailer_continues_after_its_token_is_valid_again_and_after_a_lost_reply(
    table: Table, tmp_path: Path, error: TxmsgError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing() -> LogSink:
        return Refusing(open_log(tmp_path, append=True), str(tmp_path))

    table.add("t", 5)
    with tailing(table.url, tmp_path, sink=refusing):
        await_equal(table, tmp_path, "t")
        monkeypatch.setattr(Refusing, "error", error)
        table.add("t", 5)
        until(lambda: caplog.text.count(f"{error}; trying again") > 1)
        monkeypatch.setattr(Refusing, "error", None)
        await_equal(table, tmp_path, "t")


def test_unauthorized_tailer_fails_at_start(table: Table, tmp_path: Path) -> None:
    def refused() -> LogSink:
        raise Unauthenticated("the token is not valid here")

    assert isinstance(Running(table.url, tmp_path, sink=refused).failed(), Unauthenticated)


def test_changes_of_other_tables_in_the_publication_are_skipped_with_a_warning(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tailing(table.url, tmp_path) as running:
        table.query("create table other (id int primary key)")
        table.query("alter publication txmsg_metaq add table other")
        table.query("insert into other select generate_series(0, 9)")
        table.add("t", 3)
        await_equal(table, tmp_path, "t")
        assert running.tailer.progress.foreign == 10
    assert caplog.text.count("Insert of public.other) that are not messages: they are skipped") == 1


def test_a_deleted_topic_does_not_stop_the_others(table: Table, tmp_path: Path) -> None:
    [queue] = table.topic("gone")
    table.add("gone", 3)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "gone")
    table.add("gone", 3)
    for statement in (
        "delete from txmsg.message where queue = %s",
        "delete from txmsg.segment_base where queue = %s",
        "with q as (delete from txmsg.queue where id = %s returning topic_id) "
        "delete from txmsg.topic t using q where t.id = q.topic_id",
    ):
        table.query(statement, queue)
    table.add("t", 3)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")


def test_a_publication_that_would_miss_rows_is_refused(table: Table, tmp_path: Path) -> None:
    with tailing(table.url, tmp_path):
        pass
    table.query("alter publication txmsg_metaq set (publish = 'update')")
    running = Running(table.url, tmp_path)
    with pytest.raises(StorageError, match="does not publish all rows"):
        running.start()


def test_recreated_publication_does_not_stop_mirroring(table: Table, tmp_path: Path) -> None:
    """PostgreSQL before 18 fails at each attempt to decode a change from before the publication."""
    with tailing(table.url, tmp_path):
        table.add("t", 3)
        await_equal(table, tmp_path, "t")
    table.query("drop publication txmsg_metaq")
    table.add("t", 3)
    with tailing(table.url, tmp_path):
        await_equal(table, tmp_path, "t")
        table.query("drop publication txmsg_metaq")
        table.add("t", 3)
        await_equal(table, tmp_path, "t")


def test_role_without_replication_privilege_gets_a_helpful_error(table: Table, tmp_path: Path) -> None:
    role = f"poor_{os.getpid()}"
    table.query(f"create role {role} login")
    try:
        table.query(f"grant usage on schema txmsg to {role}")
        table.query(f"grant all on all tables in schema txmsg to {role}")
        running = Running(make_conninfo(table.url, user=role), tmp_path)
        with pytest.raises(StorageError, match=r"may not do this: .*alter role \.\.\. replication"):
            running.start()
    finally:
        table.query(f"drop owned by {role}")
        table.query(f"drop role {role}")
