"""A slow disk and a power cut: nothing is acknowledged before it is on disk, and everything acknowledged is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.standby import kill_all
from tests.broker_process import running_broker
from tests.chaos.keeper import DisturbedPostgres
from tests.disk import Disk
from tests.metaq.logs import bodies, readable
from tests.metaq.servers import MetaQProcess, log_at
from tests.metaq.test_server_faults import one
from tests.preloaded import HOW_TO_INSTALL_CC, compiler
from tests.waiting import until
from txmsg.broker import migrate
from txmsg.client import Producer
from txmsg.message import Message

FOR_EVER = float("inf")
WAIT_S = 60.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the user of PostgreSQL can enter."""
    if compiler() is None:
        pytest.skip(HOW_TO_INSTALL_CC)
    with tempfile.TemporaryDirectory(prefix="txmsg-slow-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@pytest.fixture
def server(directory: Path) -> Iterator[DisturbedPostgres]:
    Disk(directory).prepare()
    server = DisturbedPostgres(directory / "postgres")
    server.disk.make_forgetful()
    with server:
        yield server


def cut_power(server: DisturbedPostgres) -> int:
    """Cut the power and return the number of lost writes."""
    kill_all(server)
    until(lambda: not server.running)
    return server.forget_unsynced()


def is_syncing(server: DisturbedPostgres, session: str) -> bool:
    """Return True if a session waits for its commit to be on disk."""
    with psycopg.connect(server.url("postgres"), connect_timeout=10) as connection:
        waiting = connection.execute(
            "select from pg_stat_activity where application_name = %s and wait_event in ('WalSync', 'WALWrite')",
            [session],
        ).fetchone()
    return waiting is not None


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "killed"])
def test_postgresql_loses_unsynced_writes_only_in_a_power_cut(server: DisturbedPostgres, power: bool) -> None:
    url = server.url("postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table told (text text)")
        connection.execute("insert into told values ('acknowledged')")

    def insert() -> None:
        with psycopg.connect(url, autocommit=True, application_name="inserting") as connection:
            connection.execute("insert into told values ('under way')")

    with ThreadPoolExecutor(1) as pool:
        server.disk.set_delay(FOR_EVER)
        under_way = pool.submit(insert)
        until(lambda: is_syncing(server, "inserting"))
        assert server.disk.unsynced_bytes() > 0
        if power:
            assert cut_power(server) > 0
        else:
            kill_all(server)
        with pytest.raises(psycopg.OperationalError):
            under_way.result(WAIT_S)
    server.disk.set_delay(0)
    server.start()
    with psycopg.connect(url) as connection:
        told = [text for (text,) in connection.execute("select text from told")]
    assert told == (["acknowledged"] if power else ["acknowledged", "under way"])


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "goes on"])
def test_a_message_is_acknowledged_only_after_it_is_on_disk(
    server: DisturbedPostgres, tmp_path: Path, power: bool
) -> None:
    """The disk stalls for a while; then it continues, or the power is cut: the message is stored again."""
    url = server.create_database("notify")
    migrate.upgrade(url)
    with (
        running_broker(url, log=tmp_path / "broker.log") as broker,
        Producer(broker.address, group="shop", timeout_s=WAIT_S) as producer,
        ThreadPoolExecutor(1) as pool,
    ):
        producer.send(Message("orders", b"before"))
        server.disk.set_delay(FOR_EVER)
        sending = pool.submit(producer.send, Message("orders", b"meanwhile"))
        until(lambda: sending.done() or is_syncing(server, "txmsg writer"))
        assert not sending.done(), "it is acknowledged before it is on disk"
        if power:
            assert cut_power(server) > 0
            server.disk.set_delay(0)
            server.start()
        server.disk.set_delay(0)
        sending.result(WAIT_S)
        with psycopg.connect(url) as connection:
            stored = [bytes(body) for (body,) in connection.execute("select body from txmsg.message")]
    assert sorted(stored) == [b"before", b"meanwhile"]


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "goes on"])
def test_an_append_to_the_log_is_acknowledged_only_after_it_is_on_disk(directory: Path, power: bool) -> None:
    disk = Disk(directory)
    disk.prepare()
    data_dir = directory / "log"
    process = MetaQProcess(data_dir, log=directory / "log.txt", environment=disk.environment(forgets="/commitlog/"))
    with process, log_at(process.address) as log, ThreadPoolExecutor(1) as pool:
        log.append([one("t", 0, "t/0/0")])
        disk.set_delay(FOR_EVER)
        appending = pool.submit(log.append, [one("t", 0, "t/0/1")])
        until(lambda: appending.done() or disk.unsynced_bytes() > 0)
        assert not appending.done(), "it is acknowledged before it is on disk"
        if power:
            process.kill()
            assert disk.forget(data_dir) > 0
            disk.set_delay(0)
            process.start()
        disk.set_delay(0)
        assert appending.result(WAIT_S) == [1]
        assert process.stop() == 0
    assert readable(data_dir, "t", 0) == bodies("t", 0, 0, 2)
