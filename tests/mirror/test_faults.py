"""After any fault of tailer, log or database, the log equals the table, or a clear error says why not."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest

from tests.integration.cli_harness import json_of, said
from tests.metaq.servers import MetaQProcess
from tests.mirror.checks import WAIT_S_MAX, require_equal
from tests.mirror.conftest import QUEUES, NewTailer
from tests.mirror.load import Load
from tests.mirror.rows import make_queues, payload_of, store, written
from tests.mirror.tailer_process import TailerProcess
from tests.mirror.test_each_log import EachLog
from tests.small_disk import fill, read_only, small_disk
from tests.waiting import until
from txmsg.binlog.verifier.compare import verify
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.errors import CorruptLog, OffsetsMissing, TxmsgError
from txmsg.metaq.format.frame import hole
from txmsg.metaq.location import open_log
from txmsg.metaq.store.log import Append, Log
from txmsg.metaq.store.reader import LogReader

MIB = 1024 * 1024


@pytest.fixture
def log(where: Path) -> Path:
    return where


class TestDirectory(EachLog):
    pass


def test_dropped_slot_and_emptied_log_are_recovered_from_the_table(
    url: str, log: Path, load: Load, tailer: TailerProcess
) -> None:
    load.write(20)
    tailer.start()
    require_equal(url, log, load.count)
    tailer.stop()

    load.write(20)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
        )
    load.write(20)
    tailer.start()
    require_equal(url, log, load.count)
    tailer.stop()

    load.write(20)
    shutil.rmtree(log)
    tailer.start()
    load.write(20)
    require_equal(url, log, load.count)
    tailer.kill()

    shutil.rmtree(log)
    log.mkdir()
    tailer.start()
    require_equal(url, log, load.count)


def _bytes_of(log: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(log.glob("commitlog/*"))}


def test_log_ahead_of_or_different_from_its_table_is_not_written_until_it_is_forked(
    url: str, log: Path, load: Load, tailer: TailerProcess
) -> None:
    """As after restoring a backup: the last messages are gone, and then there are others."""
    load.write(60)
    tailer.start()
    require_equal(url, log, load.count)
    tailer.stop()
    before, end = _bytes_of(log), load.ends[1]
    with psycopg.connect(url) as connection:
        connection.execute(
            "delete from txmsg.message where queue_offset >= %s and queue = "
            "(select q.id from txmsg.queue q where q.number = 1)",
            (end - 3,),
        )

    def stopped() -> str:
        said_before = len(tailer.said)
        tailer.start()
        tailer.stop()
        [error] = [line for line in tailer.said[said_before:].splitlines() if "is no longer mirrored" in line]
        return error

    error = stopped()
    assert f"topic trade queue 1: from offset {end - 3} on" in error
    assert "txmsg tailer fork" in error

    others = [written("trade", 1, offset)._replace(body=b"another") for offset in range(end - 3, end + 5)]
    store(url, others)
    assert f"topic trade queue 1: from offset {end - 3} on" in stopped()
    assert _bytes_of(log) == before, "something was written over"

    said("tailer", "fork", "--storage", url, "--metaq", str(log), "--yes")
    load.ends[1] = end + 5
    tailer.start()
    load.write(20)
    require_equal(url, log, load.count)
    assert json_of("tailer", "status", "--storage", url)["generation"] == 2


def test_only_one_of_two_tailers_works_and_the_other_takes_over(
    url: str, log: Path, load: Load, tailer: TailerProcess, new_tailer: NewTailer
) -> None:
    other = new_tailer(name="other")
    tailer.start()
    other.launch()
    other.await_state("standing by")
    with load.going_on():
        seen = load.count
        until(lambda: load.count > seen + 100)
        tailer.kill()
        other.await_state("tailing")
        tailer.launch()
        tailer.await_state("standing by")
    require_equal(url, log, load.count)
    other.stop()
    tailer.await_state("tailing")
    load.write(10)
    require_equal(url, log, load.count)


def test_foreign_rows_are_skipped_with_an_error_log_and_100_mb_transaction_needs_little_memory(
    url: str, log: Path, load: Load, tailer: TailerProcess
) -> None:
    tailer.start()
    with psycopg.connect(url) as connection:
        connection.execute("create table public.foreign_one (id int primary key, text text)")
        connection.execute("alter publication txmsg_metaq add table public.foreign_one")
    with psycopg.connect(url) as connection:
        connection.execute("insert into public.foreign_one select n, 'x' from generate_series(1, 1000) n")
    load.write(30)
    require_equal(url, log, load.count)
    [line] = [line for line in tailer.said.splitlines() if "public.foreign_one" in line]
    assert "ERROR" in line

    before_mib = tailer.rss_max_mib()
    with psycopg.connect(url) as connection:
        connection.execute(
            "insert into txmsg.message (segment, queue, queue_offset, transaction_id, n, body, born_at) "
            "select 1, q.id, %s + n, gen_random_uuid(), 0, convert_to(repeat(md5(n::text), 1024), 'UTF8'), now() "
            "from txmsg.queue q, generate_series(0, 3199) n where q.number = 0",
            (load.ends[0],),
        )
    require_equal(url, log, load.count + 3200)
    grown_mib = tailer.rss_max_mib() - before_mib
    assert grown_mib < 64, f"the tailer needed {grown_mib:.0f} MiB more for 100 MiB"


def test_tailer_continues_after_a_crash_of_postgres(tmp_path: Path, new_tailer: NewTailer) -> None:
    with EmbeddedPostgres(tmp_path / "pg") as server:
        url = server.create_database("notify")
        migrate.upgrade(url)
        make_queues(url, "trade", QUEUES)
        load = Load(url, "trade", QUEUES, seed=7)
        tailer = new_tailer(storage=url)
        tailer.start()
        pid = tailer.pid
        with load.going_on():
            until(lambda: load.count > 100)
            server.restart(crash=True)
            seen = load.count
            until(lambda: load.count > seen + 100)
        require_equal(url, tmp_path / "log", load.count)
        assert tailer.is_running
        assert tailer.pid == pid
        tailer.stop()


def test_full_or_read_only_disk_is_reported_and_no_message_is_lost(url: str, load: Load, new_tailer: NewTailer) -> None:
    with small_disk(32 * MIB) as disk:
        log = disk / "log"
        tailer = new_tailer(into=log)
        tailer.start()
        load.write(20)
        require_equal(url, log, load.count)
        ballast = fill(disk, leave=MIB // 4)
        with load.going_on():
            until(lambda: "No space left on device" in tailer.said)
        assert tailer.is_running
        ballast.unlink()
        require_equal(url, log, load.count)
        tailer.stop()

        load.write(20)
        with read_only(disk):
            assert "Read-only file system" in tailer.refused()
        tailer.start()
        require_equal(url, log, load.count)
        tailer.kill()


def test_tailer_that_finds_its_messages_already_appended_continues_at_the_end_of_the_log(
    url: str, log: Path, load: Load, new_tailer: NewTailer, tmp_path: Path
) -> None:
    """At a server: a tailer was paused, lost its turn, and continues with the messages that it had read."""
    with MetaQProcess(log, log=tmp_path / "server.log") as server:
        tailer = new_tailer(into=server.address)
        load.write(20)
        tailer.start()
        require_equal(url, log, load.count)
        tailer.pause()
        messages = [written("trade", 0, load.ends[0] + place) for place in range(3)]
        store(url, messages)
        load.ends[0] += 3
        with open_log(server.address) as other:
            other.append([Append("trade", 0, payload_of(messages), messages[0].offset)])
        tailer.resume()
        until(lambda: "something else has appended to the log" in tailer.said)
        load.write(20)
        require_equal(url, log, load.count)
        tailer.stop()


def test_repeatedly_killed_metaq_server_gets_every_message_once(
    url: str, log: Path, load: Load, new_tailer: NewTailer, tmp_path: Path
) -> None:
    with MetaQProcess(log, log=tmp_path / "server.log") as server:
        tailer = new_tailer(into=server.address)
        tailer.start()
        with load.going_on():
            for with_tailer in (False, True):
                seen = load.count
                until(lambda: load.count > seen + 150)  # noqa: B023 - called at once
                server.kill()
                if with_tailer:
                    tailer.kill()
                    tailer.launch()  # it waits for the server
                server.start()
            tailer.await_state("tailing")
        require_equal(url, log, load.count)
        assert tailer.is_running
        tailer.stop()
        assert server.stop() == 0


def _damage(log: Path, body: bytes) -> None:
    """Flip a bit of a message in the commit log."""
    [path] = log.glob("commitlog/*.log")
    data = bytearray(path.read_bytes())
    place = data.index(body)
    data[place] ^= 1
    path.write_bytes(data)


def _served(log: Path, queue: int) -> tuple[int, TxmsgError | None]:
    """Read a queue from its begin; return the offset reached, and the error that stopped it."""
    reader = LogReader(log).queue("trade", queue)
    offset, end = reader.range()
    try:
        while offset < end:
            offset = reader.fetch(offset)[-1].end_offset
    except TxmsgError as exc:
        return offset, exc
    return offset, None


def test_damaged_frame_is_not_served_and_is_restored_from_the_table(
    url: str, log: Path, load: Load, tailer: TailerProcess
) -> None:
    load.write(60)
    tailer.start()
    require_equal(url, log, load.count)
    tailer.stop()
    damaged = max((written("trade", 0, offset) for offset in range(20, load.ends[0])), key=lambda each: len(each.body))
    _damage(log, damaged.body)

    offset, error = _served(log, 0)
    assert offset <= damaged.offset
    assert isinstance(error, CorruptLog)
    assert _served(log, 1) == (load.ends[1], None), "another queue is not read any more"
    assert not verify(url, log).is_equal
    assert "is damaged: 1 problems" in said("metaq", "check", str(log), status=1)

    assert "taken out" in said("metaq", "check", str(log), "--repair")
    _, error = _served(log, 0)
    assert isinstance(error, OffsetsMissing)
    tailer.start()  # the log is intact again, except for the marked holes
    load.write(10)
    report = verify(url, log, wait_s=WAIT_S_MAX)
    assert set(report.differing) == {"hole"}
    tailer.stop()

    assert "give --repair, too" in said("metaq", "check", str(log), "--storage", url, status=2)
    told = said("metaq", "check", str(log), "--repair", "--storage", url)
    assert f"queue 0: offsets {offset} to " in told
    assert "are in their place again, from the table" in told
    assert require_equal(url, log, load.count).in_holes == 0
    assert _served(log, 0) == (load.ends[0], None)

    with Log(log) as writer:  # a mark as small as marks are, where messages were
        writer.truncate("trade", 0, offset)
        writer.append([Append("trade", 0, hole(load.ends[0], 1), offset)])
    told = said("metaq", "check", str(log), "--repair", "--storage", url)
    assert f"no room for what is missing; `txmsg tailer run` takes offsets {offset} to {load.ends[0] - 1}" in told
    tailer.start()
    assert require_equal(url, log, load.count).in_holes == 0
    assert json_of("tailer", "status", "--storage", url)["generation"] == 1
