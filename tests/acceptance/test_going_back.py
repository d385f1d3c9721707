"""Real servers that return to an earlier state under running brokers: a restored copy, a standby without the tail."""

from __future__ import annotations

import queue
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.acceptance.standby import Pair, pair
from tests.broker_process import running_broker
from tests.integration.client_harness import collecting, different, half_count
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres
from txmsg.client import Producer
from txmsg.message import Message, MessageId, ReceivedMessage, TransactionState

TOPICS = ("orders", "quotes")
COUNT = 6


class Commits:
    """A listener that answers COMMIT."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


class Service:
    """A producer and a group that reads all its messages, running while the database goes back."""

    def __init__(self, producer: Producer, got: dict[str, queue.Queue[ReceivedMessage]]) -> None:
        self._producer = producer
        self._got = got

    def sends_and_gets(self) -> None:
        """Check that everything acknowledged from now on is delivered; a third of it is left to checks. Older messages
        are ignored.
        """
        for topic in TOPICS:
            wanted: set[MessageId] = set()
            for each in range(COUNT):
                if each % 3 == 0:
                    wanted.add(self._producer.send(Message(topic, b"plain")))
                    continue
                half = self._producer.half([Message(topic, b"half")])
                if each % 3 == 1:
                    self._producer.end(half, TransactionState.COMMIT)
                wanted.add(MessageId(f"{half.transaction_id}.0"))
            while wanted:
                wanted -= different(self._got[topic], 1)


@contextmanager
def service(url: str, log: Path) -> Iterator[Service]:
    options = ("--first-check-s", "1", "--check-interval-s", "1", "--topic-queues", "2")
    with (
        running_broker(url, *options, log=log) as broker,
        Producer(broker.address, group="shop", timeout_s=100, check_listener=Commits()) as producer,
        collecting(broker.address, TOPICS[0], group="mailer") as orders,
        collecting(broker.address, TOPICS[1], group="mailer") as quotes,
    ):
        yield Service(producer, dict(zip(TOPICS, (orders, quotes), strict=True)))


def assert_whole(url: str) -> None:
    """Check that no message is in a missing queue and that no half is left."""
    assert half_count(url) == 0
    with psycopg.connect(url, connect_timeout=10) as connection:
        lost = "select count(*) from txmsg.message m where not exists (select from txmsg.queue q where q.id = m.queue)"
        assert connection.execute(lost).fetchone() == (0,)


@pytest.mark.long
def test_an_earlier_state_can_be_restored_as_the_data_directory(memory_dir: Path, tmp_path: Path) -> None:
    with TemporaryDirectory(dir=memory_dir) as directory, EmbeddedPostgres(Path(directory) / "data") as server:
        url = server.create_database("notify")
        migrate.upgrade(url)
        with service(url, tmp_path / "broker.log") as shop:
            server.kill()  # as a crash: what is copied has to be recovered
            cluster, kept = server.data_dir / "cluster", server.data_dir / "kept"
            subprocess.run(["cp", "-a", cluster, kept], check=True, timeout=60)  # with its owner
            server.start()
            shop.sends_and_gets()
            server.kill()
            shutil.rmtree(cluster)
            kept.rename(cluster)
            server.start()
            shop.sends_and_gets()
        assert_whole(url)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Pair]:
    with pair(tmp_path) as found:
        found.name_standbys("")
        yield found


@pytest.mark.long
@pytest.mark.parametrize("lost", ["all", "the last"])
def test_a_standby_that_lacks_the_last_writes_can_be_promoted(servers: Pair, tmp_path: Path, lost: str) -> None:
    with service(servers.url, tmp_path / "broker.log") as shop:
        if lost == "the last":
            shop.sends_and_gets()
            servers.await_replay()
        with servers.standby_stands_still():
            shop.sends_and_gets()
            servers.kill_primary()
        servers.promote()
        shop.sends_and_gets()
    assert_whole(servers.url)
