"""A client with two Notify databases and real brokers: shares, and the loss of one database."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from tests.conftest import StartBroker
from tests.integration.client_harness import half_count, message_count
from tests.postgres_proxy import PostgresProxy
from tests.waiting import until, until_told
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import create_tables
from txmsg.client import Consumer, Producer, transactional_message
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, TransactionRefused
from txmsg.message import Message, ReceivedMessage, TransactionState

WAIT_S = 60.0
KEYS = [f"key-{number}" for number in range(30)]
"""Enough keys that each of two databases with random ids has some."""


@contextmanager
def consuming(brokers: str, attempts: set[int] | None = None) -> Iterator[queue.Queue[str]]:
    """Yield the bodies that a consumer of both databases receives, with repeats. attempts: filled with the attempts."""
    got: queue.Queue[str] = queue.Queue()
    consumer = Consumer(brokers, group="g")

    @consumer.subscribe("t")
    def note(message: ReceivedMessage) -> None:
        if attempts is not None:
            attempts.add(message.attempt)
        got.put(message.body.decode())

    with consumer:
        yield got


def take(got: queue.Queue[str], count: int) -> list[str]:
    return [got.get(timeout=WAIT_S) for _ in range(count)]


def keys_at(notify_url: str) -> dict[str, list[str]]:
    """Return the bodies of each ordering key in a database, in order of their offsets."""
    found: dict[str, list[str]] = {}
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        rows = connection.execute(
            "select ordering_key, body from txmsg.message where ordering_key <> '' order by queue, queue_offset"
        ).fetchall()
    for key, body in rows:
        found.setdefault(key, []).append(bytes(body).decode())
    return found


def send_ordered(producer: Producer, name: str) -> list[str]:
    bodies = []
    for key in KEYS:
        producer.send(Message("t", f"{name} {key}".encode(), ordering_key=key))
        bodies.append(f"{name} {key}")
    return bodies


def test_messages_are_spread_over_two_databases_and_delivered_once(
    start_broker: StartBroker, notify_url: str, other_notify_url: str
) -> None:
    first, other = start_broker(), start_broker(storage=other_notify_url)
    first.restart()  # the epochs of its leases rise: those of the other database have nothing to do with them
    brokers = f"{first.address}; {other.address}"
    attempts: set[int] = set()
    with Producer(brokers, group="p") as producer, consuming(brokers, attempts) as got:
        sent = [f"plain {number}" for number in range(40)]
        for body in sent:
            producer.send(Message("t", body.encode()))
        for number in range(40):
            half = producer.half([Message("t", f"half {number}".encode())])
            kept = number % 2 == 0
            producer.end(half, TransactionState.COMMIT if kept else TransactionState.ROLLBACK)
            sent += [f"half {number}"] * kept
        for name in ("1", "2", "3"):
            sent += send_ordered(producer, name)
        assert sorted(take(got, len(sent))) == sorted(sent)
        assert got.empty()
    assert attempts == {1}, "none was taken for one of an ousted broker"
    assert (half_count(notify_url), half_count(other_notify_url)) == (0, 0)
    here, there = keys_at(notify_url), keys_at(other_notify_url)
    assert here.keys().isdisjoint(there.keys())
    assert here
    assert there
    assert here | there == {key: [f"{name} {key}" for name in "123"] for key in KEYS}
    plain = [
        message_count(url) - sum(map(len, keys.values()))
        for url, keys in ((notify_url, here), (other_notify_url, there))
    ]
    assert sum(plain) == 60
    assert min(plain) > 10


def test_while_one_database_is_unavailable_the_other_takes_its_share(
    start_broker: StartBroker, notify_url: str, other_notify_url: str
) -> None:
    with PostgresProxy(notify_url) as proxy:
        first, other = start_broker(storage=proxy.url), start_broker(storage=other_notify_url)
        brokers = f"{first.address}; {other.address}"
        with (
            Producer(brokers, group="p", timeout_s=60) as producer,
            Producer(brokers, group="p", timeout_s=3) as impatient,
        ):
            sent = send_ordered(producer, "before")
            for number in range(40):
                producer.send(Message("t", f"before {number}".encode()))
                sent.append(f"before {number}")
            here = keys_at(notify_url)
            assert here
            stored = message_count(notify_url)
            begun = [producer.half([Message("t", f"begun {number}".encode())]) for number in range(20)]
            sent += [f"begun {number}" for number in range(20)]
            assert half_count(notify_url) > 0
            proxy.refuse()
            proxy.cut_all()
            until(lambda: producer._core._brokers[0].are_cut_off)
            for number in range(40):
                producer.send(Message("t", f"during {number}".encode()))
                half = producer.half([Message("t", f"during too {number}".encode())])
                producer.end(half, TransactionState.COMMIT)
                sent += [f"during {number}", f"during too {number}"]
            with consuming(brokers) as got:
                came = take(got, message_count(other_notify_url))
                for key in KEYS:
                    message = Message("t", f"during {key}".encode(), ordering_key=key)
                    if key in here:
                        if key == min(here):  # each waits for its timeout_s
                            told = until_told("is away: messages of its keys", partial(impatient.send, message))
                            assert isinstance(told, BrokerUnavailable)
                    else:
                        producer.send(message)
                        sent.append(f"during {key}")
                assert message_count(notify_url) == stored
                proxy.accept()
                until(lambda: not producer._core._brokers[0].are_cut_off)
                for half in begun:
                    producer.end(half, TransactionState.COMMIT)
                sent += send_ordered(producer, "after")
                came += take(got, len(sent) - len(came))
                assert sorted(came) == sorted(sent), "nothing is lost, and nothing came twice"
                assert got.empty()
        assert keys_at(notify_url).keys() == here.keys()
        assert (half_count(notify_url), half_count(other_notify_url)) == (0, 0)


class Shop:
    """A service that takes orders in several threads: each is a transaction with a message, and a plain message."""

    def __init__(self, brokers: str, engine: Engine) -> None:
        self.engine = engine
        with self.engine.begin() as connection:
            connection.execute(text("create table orders (name text primary key)"))
        listener = FenceCheckListener(self.engine)
        create_tables(self.engine)
        self.producer = Producer(brokers, group="shop", check_listener=listener, timeout_s=4)
        self.plain: set[str] = set()
        self.unknown: set[str] = set()
        self.ending = threading.Event()

        @transactional_message(self.producer, topic="t", session=sessionmaker(self.engine))
        def order(session: Session, name: str) -> None:
            session.execute(text("insert into orders values (:name)"), {"name": name})

        self._order = order

    def work(self, thread: int) -> None:
        for number in itertools.count():
            if self.ending.is_set():
                return
            name = f"{thread}-{number}"
            # Its row tells if the order was taken: there was no broker, or on a slow machine its check came first.
            with contextlib.suppress(BrokerUnavailable, TransactionRefused):
                self._order(name=name)
            try:
                self.producer.send(Message("t", f"plain {name}".encode()))
                self.plain.add(f"plain {name}")
            except OutcomeUnknown:
                self.unknown.add(f"plain {name}")
            except BrokerUnavailable:  # it was not sent, because the machine is slow
                pass

    def orders(self) -> set[str]:
        with self.engine.connect() as connection:
            return {f'{{"name":"{name}"}}' for name in connection.execute(text("select name from orders")).scalars()}

    def goes_on(self) -> None:
        """Return when 25 further orders and 25 further plain messages were sent."""
        wanted = len(self.orders()) + 25, len(self.plain) + 25
        until(lambda: len(self.orders()) >= wanted[0] and len(self.plain) >= wanted[1])


@pytest.fixture
def shop_engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 30})
    yield engine
    engine.dispose()


def test_killing_the_brokers_of_a_database_under_load_loses_and_duplicates_nothing(
    start_broker: StartBroker, notify_url: str, other_notify_url: str, shop_engine: Engine
) -> None:
    options = ("--first-check-s", "1", "--check-interval-s", "1")
    first, other = start_broker(*options), start_broker(*options, storage=other_notify_url)
    brokers = f"{first.address}; {other.address}"
    shop = Shop(brokers, shop_engine)
    with shop.producer, consuming(brokers) as got, ThreadPoolExecutor(4) as threads:
        working = [threads.submit(shop.work, thread) for thread in range(4)]
        try:
            shop.goes_on()
            for broker in (first, other):
                broker.kill()
                shop.goes_on()
                broker.start()
                shop.goes_on()
        finally:
            shop.ending.set()
        for each in working:
            each.result(WAIT_S)
        must = shop.orders() | shop.plain
        came: Counter[str] = Counter()

        def all_came() -> bool:
            with contextlib.suppress(queue.Empty):
                while True:
                    came[got.get_nowait()] += 1
            return must <= came.keys() and half_count(notify_url) + half_count(other_notify_url) == 0

        until(all_came)
        assert came.keys() <= must | shop.unknown, "nothing came that was not taken"
        stored = message_count(notify_url) + message_count(other_notify_url)
        assert stored == len(came), "each is stored once, in one database"
