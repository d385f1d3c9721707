"""Several brokers on one Notify database, as processes: shared queues, takeovers, hand-overs, maintenance."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.acceptance.neighbour import neighbour
from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import txmsg
from tests.postgres_proxy import PostgresProxy
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.message import Message, ReceivedMessage

WAIT_S = 60.0
QUEUES = 6


class Database:
    """The assignment of queues to brokers in the Notify database."""

    def __init__(self, url: str) -> None:
        self._url = url

    def owners(self) -> dict[str | None, int]:
        with psycopg.connect(self._url, autocommit=True, connect_timeout=10) as connection:
            rows = connection.execute("select broker_id, count(*) from txmsg.queue_lease group by broker_id").fetchall()
        return dict(rows)

    def spread_is(self, **counts: int) -> None:
        """Return when the queues are spread like this."""
        until(lambda: self.owners() == counts)


@pytest.fixture
def database(notify_url: str) -> Database:
    return Database(notify_url)


@pytest.fixture
def brokers(start_broker: StartBroker) -> list[BrokerProcess]:
    """Two brokers, a and b."""
    return [start_broker("--id", each, "--topic-queues", str(QUEUES)) for each in "ab"]


@contextmanager
def consuming(address: str) -> Iterator[queue.Queue[bytes]]:
    """Yield the bodies received by a consumer that knows one broker, with repeats."""
    got: queue.Queue[bytes] = queue.Queue()
    consumer = Consumer(address, group="g")

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        got.put(message.body)

    consumer.start()
    try:
        yield got
    finally:
        consumer.close()


def send(producer: Producer, start: int, count: int = 60) -> list[bytes]:
    bodies = [b"%d" % n for n in range(start, start + count)]
    for body in bodies:
        producer.send(Message("t", body))
    return bodies


def take(got: queue.Queue[bytes], count: int) -> list[bytes]:
    return [got.get(timeout=WAIT_S) for _ in range(count)]


def test_brokers_share_the_queues_and_clients_of_one_reach_all(
    start_broker: StartBroker, brokers: list[BrokerProcess], database: Database
) -> None:
    first, second = brokers
    with Producer(first.address, group="p") as producer, consuming(first.address) as got:
        sent = send(producer, 0)
        assert sorted(take(got, len(sent))) == sorted(sent)
        database.spread_is(a=3, b=3)
        third = start_broker("--id", "c", "--topic-queues", str(QUEUES))
        database.spread_is(a=2, b=2, c=2)
        sent = send(producer, 100)
        assert sorted(take(got, len(sent))) == sorted(sent), "a client finds a broker that came later"
        first.stop()
        database.spread_is(b=3, c=3)
        sent = send(producer, 200)
        assert sorted(take(got, len(sent))) == sorted(sent), "and does without the one it was given"
        second.stop()
        database.spread_is(c=6)
        sent = send(producer, 300)
        assert sorted(take(got, len(sent))) == sorted(sent)
        third.stop()


def test_a_planned_stop_hands_queues_over_without_a_redelivery(
    brokers: list[BrokerProcess], database: Database
) -> None:
    first, second = brokers
    with Producer(first.address, group="p") as producer, consuming(first.address) as got:
        sent = send(producer, 0)
        take(got, len(sent))
        database.spread_is(a=3, b=3)
        going = threading.Event()
        sent = []

        def keep_sending() -> None:
            n = 1000
            while not going.is_set():
                sent.extend(send(producer, n, 10))
                n += 10

        sender = threading.Thread(target=keep_sending)
        sender.start()
        try:
            taken = take(got, 200)
            second.stop()
            database.spread_is(a=6)
            taken += take(got, 200)
        finally:
            going.set()
            sender.join(WAIT_S)
        taken += take(got, len(sent) - len(taken))
        assert sorted(taken) == sorted(sent)
        assert got.empty(), "nothing came twice"


def test_queues_of_a_killed_broker_move_to_the_other_and_nothing_is_lost(
    brokers: list[BrokerProcess], database: Database
) -> None:
    first, second = brokers
    with neighbour(first.address) as good:
        good.goes_on()
        database.spread_is(a=3, b=3)
        second.kill()
        database.spread_is(a=6)
        good.goes_on()
        second.start()
        database.spread_is(a=3, b=3)
        good.goes_on()
    assert good.errors == []


def test_a_broker_paused_beyond_its_lease_discards_its_former_deliveries(
    brokers: list[BrokerProcess], database: Database, notify_url: str
) -> None:
    first, second = brokers
    with neighbour(first.address) as good:
        good.goes_on()
        database.spread_is(a=3, b=3)
        second.pause()
        try:
            database.spread_is(a=6)
            with psycopg.connect(notify_url, connect_timeout=10) as connection:
                epochs: dict[int, int] = dict(
                    connection.execute("select queue_id, epoch from txmsg.queue_lease").fetchall()
                )
            good.goes_on()
        finally:
            second.resume()
        database.spread_is(a=3, b=3)
        good.goes_on()
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        rows = connection.execute("select queue_id, epoch from txmsg.cursor").fetchall()
    assert rows
    assert all(epoch >= epochs[queue_id] for queue_id, epoch in rows)
    log = second.log.read_text()
    assert "delivery stops until this broker has joined again" in log, log


def test_a_broker_cut_off_from_the_database_loses_its_queues_and_regains_them(
    start_broker: StartBroker, notify_url: str, database: Database
) -> None:
    with PostgresProxy(notify_url) as proxy:
        first = start_broker("--id", "a", "--topic-queues", str(QUEUES))
        start_broker("--id", "b", "--topic-queues", str(QUEUES), storage=proxy.url)
        with neighbour(first.address) as good:
            good.goes_on()
            database.spread_is(a=3, b=3)
            proxy.refuse()
            proxy.cut_all()
            database.spread_is(a=6)
            good.goes_on()
            proxy.accept()
            database.spread_is(a=3, b=3)
            good.goes_on()


def test_a_drained_broker_hands_over_all_queues_and_works_again_when_resumed(
    brokers: list[BrokerProcess], database: Database
) -> None:
    first, second = brokers
    with neighbour(first.address) as good:
        good.goes_on()
        database.spread_is(a=3, b=3)
        assert "delivers nothing" in txmsg("cluster", "drain", "a", "--broker", second.address)
        assert database.owners() == {"b": 6}
        good.goes_on()
        assert "no other broker is active" in txmsg("cluster", "drain", "b", "--broker", second.address, status=1)
        found = json.loads(txmsg("cluster", "show", "--by-queue", "--json", "--broker", first.address))
        assert [(broker["id"], broker["state"], broker["queues"]) for broker in found["brokers"]] == [
            ("a", "draining", 0),
            ("b", "active", 6),
        ]
        assert Counter(lease["broker"] for lease in found["leases"]) == {"b": 6}
        txmsg("cluster", "resume", "a", "--broker", second.address)
        database.spread_is(a=3, b=3)
        good.goes_on()
        shown = txmsg("cluster", "show", "--broker", second.address)
        assert first.address in shown
        assert second.address in shown
        assert "no broker 'zz' is alive" in txmsg("cluster", "resume", "zz", "--broker", second.address, status=1)
    assert good.errors == []
