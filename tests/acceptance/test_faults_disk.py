"""The disk of the Notify database is full: calls fail with the cause named, and succeed when there is room again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.acceptance.neighbour import neighbour
from tests.broker_process import BrokerProcess, running_broker
from tests.errors_page import is_documented
from tests.small_disk import fill, small_disk
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, TxmsgError
from txmsg.message import Message

MIB = 1024 * 1024
FULL = "No space left on device"


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of 256 MiB."""
    with small_disk(256 * MIB) as place:
        yield place


@contextmanager
def broker_on(url: str, log: Path) -> Iterator[BrokerProcess]:
    migrate.upgrade(url)
    with running_broker(url, log=log) as broker:
        yield broker


def send_until_it_fails(broker: BrokerProcess, is_full: Callable[[TxmsgError], bool]) -> None:
    """Send large messages until one fails because the disk is full."""
    errors: list[TxmsgError] = []
    with Producer(broker.address, group="filler", timeout_s=12) as producer:
        for _ in range(2000):
            try:
                producer.send(Message("large", os.urandom(MIB // 2)))
            except (BrokerUnavailable, OutcomeUnknown) as exc:
                errors.append(exc)
                if is_full(exc):
                    break
        else:
            raise AssertionError("the disk does not get full")
    assert [error for error in errors if not is_documented(error)] == []


def stored(url: str) -> int:
    """Return the number of messages of the neighbour; fails when a queue has a gap."""
    with psycopg.connect(url, connect_timeout=10) as connection:
        gaps = connection.execute(
            "select queue from txmsg.message group by queue having max(queue_offset) <> count(*) - 1"
        ).fetchall()
        row = connection.execute("select count(*) from txmsg.message where length(body) < 100").fetchone()
    assert gaps == []
    assert row is not None
    return int(row[0])


def test_a_full_table_disk_is_named_and_writes_resume_when_there_is_room(disk: Path, tmp_path: Path) -> None:
    """The WAL of PostgreSQL is on another disk: the server stays up and refuses to write."""
    with EmbeddedPostgres(tmp_path / "data") as server:
        tables = disk / "tables"
        tables.mkdir(mode=0o777)
        os.chown(tables, (tmp_path / "data" / "cluster").stat().st_uid, -1)
        with psycopg.connect(server.url("postgres"), autocommit=True, connect_timeout=10) as connection:
            connection.execute(sql.SQL("create tablespace small location {}").format(str(tables)))
            connection.execute("create database notify tablespace small")
        url = server.url("notify")
        with broker_on(url, tmp_path / "log") as broker, neighbour(broker.address, timeout_s=12) as good:
            good.goes_on()
            ballast = fill(disk, leave=12 * MIB)
            send_until_it_fails(broker, lambda error: FULL in str(error))
            ballast.unlink()
            good.goes_on()
        # Nothing acknowledged is lost, nothing duplicated; a failed call may have been executed.
        assert len(good.committed) <= stored(url) <= len(good.committed) + len(good.errors)


@pytest.mark.long  # test_postgres_restart.py shows that a crash of PostgreSQL loses nothing
def test_a_full_disk_that_stops_postgres_loses_no_accepted_message(disk: Path, tmp_path: Path) -> None:
    """All of PostgreSQL is on the disk: without room for its WAL it panics, as it must."""
    with EmbeddedPostgres(disk / "data") as server:
        url = server.create_database("notify")
        with broker_on(url, tmp_path / "log") as broker, neighbour(broker.address, timeout_s=12) as good:
            good.goes_on()
            ballast = fill(disk, leave=24 * MIB)
            send_until_it_fails(broker, lambda _: FULL in (disk / "data" / "postgres.log").read_text())
            ballast.unlink()
            server.start()  # PostgreSQL comes back by itself only if there was room for its recovery
            good.goes_on()
        assert len(good.committed) <= stored(url) <= len(good.committed) + len(good.errors)
