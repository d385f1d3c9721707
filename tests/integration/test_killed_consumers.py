"""Messages that kill the process of their handler become dead letters; those of processes killed otherwise do not."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.user_project import ROOT
from tests.broker_process import BrokerProcess
from tests.integration.deadly_consumer import DEADLY
from tests.waiting import until
from txmsg.client import Producer
from txmsg.message import Message

COUNT = 60
RETRIES = 4
LIVES_MAX = 30


class World:
    """A group with so many retries, its messages, and a consumer that is restarted when it ends."""

    def __init__(self, broker: BrokerProcess, notify_url: str, directory: Path, *, kind: str, takes_s: float) -> None:
        self._url = notify_url
        self._notes = directory / "notes"
        self._notes.touch()
        self.log = directory / "log"
        self._command = [sys.executable, "-m", "tests.integration.deadly_consumer"]
        self._command += [broker.address, kind, str(self._notes), str(takes_s)]
        self._process: subprocess.Popen[bytes] | None = None
        self.lives = 0
        self.query(
            "insert into txmsg.consumer_group (name, retries_max, retry_delays_s) values ('g', %s, '{0.1}')", RETRIES
        )

    def query(self, statement: str, *args: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self._url, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement.encode(), args)
            return cursor.fetchall() if cursor.description else []

    def notes(self, what: str) -> list[tuple[str, int]]:
        """Return keys and process ids of messages begun or ended."""
        lines = [line.split() for line in self._notes.read_text().splitlines()]
        return [(key, int(pid)) for kind, key, pid in lines if kind == what]

    def dead(self) -> list[object]:
        return [key for (key,) in self.query("select key from txmsg.dead_letter")]

    def live(self) -> subprocess.Popen[bytes]:
        """Return the consumer, restarted if it has ended."""
        if self._process is None or self._process.poll() is not None:
            self.lives += 1
            assert self.lives <= LIVES_MAX, f"{self.lives - 1} processes have died; dead letters: {self.dead()}"
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(self._command, cwd=ROOT, stderr=log)
        return self._process

    def has_begun(self) -> bool:
        """Return True if the live consumer has begun a message."""
        pid = self.live().pid
        return any(each == pid for _, each in self.notes("began"))

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait(self, keys: set[str], dead: list[str]) -> None:
        """Wait until all of these messages were handled and those are dead letters."""
        until(
            lambda: self.live() and {key for key, _ in self.notes("ended")} == keys and self.dead() == dead,
            within_s=240,
            why=f"{sorted(keys - {key for key, _ in self.notes('ended')})} have not ended",
        )
        until(lambda: self.query("select * from txmsg.retry") == [])


@contextmanager
def world(broker: BrokerProcess, notify_url: str, directory: Path, *, kind: str, takes_s: float) -> Iterator[World]:
    it = World(broker, notify_url, directory, kind=kind, takes_s=takes_s)
    try:
        yield it
    finally:
        it.kill()


@pytest.mark.parametrize("kind", ["def", "async"])
def test_only_a_message_that_kills_its_process_becomes_a_dead_letter(
    broker: BrokerProcess, notify_url: str, tmp_path: Path, kind: str
) -> None:
    with world(broker, notify_url, tmp_path, kind=kind, takes_s=0.05) as it:
        keys = {str(n) for n in range(COUNT)}
        with Producer(broker.address, group="p") as producer:
            producer.send_many([Message("t", DEADLY if key == "7" else b"", key=key) for key in sorted(keys)])
        it.wait(keys - {"7"}, dead=["7"])
        assert it.query("select attempts from txmsg.dead_letter") == [(RETRIES + 1,)]


def test_only_messages_that_kill_their_process_become_dead_letters(
    broker: BrokerProcess, notify_url: str, tmp_path: Path
) -> None:
    deadly = ["10", "20", "30"]
    with world(broker, notify_url, tmp_path, kind="def", takes_s=0.05) as it:
        keys = {str(n) for n in range(COUNT)}
        with Producer(broker.address, group="p") as producer:
            producer.send_many([Message("t", DEADLY if key in deadly else b"", key=key) for key in sorted(keys)])
        until(lambda: it.live() and sorted(map(str, it.dead())) == deadly, within_s=240)
        until(lambda: {key for key, _ in it.notes("ended")} == keys - set(deadly))


@pytest.mark.long
@pytest.mark.timeout(900)  # many processes, one after the other
def test_repeated_kills_of_a_consumer_create_no_dead_letters(
    broker: BrokerProcess, notify_url: str, tmp_path: Path
) -> None:
    with world(broker, notify_url, tmp_path, kind="def", takes_s=0.4) as it:
        keys = {str(n) for n in range(COUNT)}
        with Producer(broker.address, group="p") as producer:
            producer.send_many([Message("t", b"", key=key) for key in sorted(keys)])
        for _ in range(15):
            until(it.has_begun)
            time.sleep(0.05)
            it.kill()
        it.wait(keys, dead=[])
