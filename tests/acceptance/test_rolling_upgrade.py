"""An upgrade to the next release without a pause: first the database, under load, then one broker after the other.

The next release is a copy of this one with another version and a revision that only adds. Brokers and clients of both
are real processes. What they recorded, the business database and the Notify database are compared at the end.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

import txmsg
from tests.acceptance.audit import Audit
from tests.acceptance.releases import NOW, Release, next_release
from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.integration.client_harness import collecting
from tests.ports import own_port
from tests.restartable import Restartable
from tests.waiting import until
from txmsg.broker import migrate
from txmsg.checker.tables import create_tables
from txmsg.client import AsyncProducer, Producer
from txmsg.errors import OutcomeConflict
from txmsg.message import Message, ReceivedMessage, TransactionState

COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
CLIENT = Path(__file__).with_name("shop_client.py")
OPTIONS = ("--first-check-s", "1", "--check-interval-s", "2")
LONG_ONES = 5
PROGRESS = 20
WAIT_S = 120.0
CROSSINGS = 10
NEXT_VERSION, NEXT_REVISION = "99.0.0", "9999"

pytestmark = pytest.mark.timeout(600)


class Client(Restartable):
    """A process of shop_client.py and its records so far."""

    module = CLIENT.stem
    ready = '{"did": "started"'

    def __init__(self, release: Release, name: str, brokers: str, business_url: str, log: Path) -> None:
        # A directory of its own for the program: it is no part of a release.
        path = f"{release.path}:{CLIENT.parent}"
        super().__init__(name, log, environment={**release.environment, "PYTHONPATH": path})
        self._arguments = [name, brokers, business_url]
        self._records: list[dict[str, Any]] = []

    def arguments(self) -> list[str]:
        return self._arguments

    def on_line(self, line: str) -> None:
        self._records.append(json.loads(line))

    def records(self, did: str) -> list[dict[str, Any]]:
        return [record for record in list(self._records) if record["did"] == did]

    def wait(self) -> int:
        """Wait for the exit status."""
        return self.child.wait(WAIT_S)


class Crowd:
    """All clients of both releases."""

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients

    def goes_on(self) -> None:
        """Return when each client has committed and received so many further orders; fails if not in time."""
        wanted = [
            (client, did, len(client.records(did)) + PROGRESS)
            for client in self.clients
            for did in ("commit", "received")
        ]
        until(lambda: all(len(client.records(did)) >= count for client, did, count in wanted), within_s=WAIT_S)

    def orders(self, did: str) -> list[str]:
        return [record["order"] for client in self.clients for record in client.records(did)]


@contextmanager
def crowd(releases: dict[str, Release], brokers: str, business_url: str, tmp_path: Path) -> Iterator[Crowd]:
    clients = [
        Client(release, name, brokers, business_url, tmp_path / f"{name}.log") for name, release in releases.items()
    ]
    try:
        for client in clients:
            client.launch()
        yield Crowd(clients)
        assert [client.wait() for client in clients] == [0] * len(clients)
    finally:
        for client in clients:
            client.kill()


@pytest.fixture
def following(tmp_path: Path) -> Release:
    """The next release."""
    return next_release(tmp_path / "next", version=NEXT_VERSION, revision=NEXT_REVISION)


@pytest.fixture
def business_url(postgres: PostgresServer, database_url: str) -> Iterator[str]:
    """The business database of the shop, with its fence."""
    import sqlalchemy

    name = f"{database_url.rpartition('/')[2].partition('?')[0]}_shop"
    url = postgres.create_database(name).replace("postgresql:", "postgresql+psycopg:", 1)
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("create table orders (id text primary key)"))
    create_tables(engine)
    engine.dispose()
    yield url
    postgres.drop_database(name)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_a_rolling_upgrade_of_brokers_loses_and_duplicates_nothing(
    following: Release, database_url: str, business_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    assert following.run("--version") == f"txmsg {NEXT_VERSION}\n"
    NOW.run("db", "upgrade", "--storage", database_url)
    assert migrate.current(database_url) == migrate.REVISIONS[-1]
    addresses = [f"127.0.0.1:{own_port()}" for _ in range(4)]
    old, late, *new = (
        BrokerProcess(
            database_url,
            *OPTIONS,
            log=tmp_path / f"broker-{number}.log",
            address=address,
            environment=release.environment,
        )
        for number, (release, address) in enumerate(zip((NOW, NOW, following, following), addresses, strict=True))
    )
    audit = Audit(addresses, "orders")
    try:
        old.start()
        with crowd({"now": NOW, "next": following}, ",".join(addresses), business_url, tmp_path) as clients, audit:
            clients.goes_on()
            assert {client.name: client.records("started")[0]["release"] for client in clients.clients} == {
                "now": txmsg.__version__,
                "next": NEXT_VERSION,
            }
            until(lambda: len(clients.orders("opened")) == 2 * LONG_ONES)

            following.run("db", "upgrade", "--storage", database_url)
            assert migrate.current(database_url) == NEXT_REVISION
            clients.goes_on()  # the old broker alone, on the upgraded database
            late.start()  # an old broker may still be started
            asyncio.run(send_to(old.address, "made-by-the-old"))

            for broker in new:
                broker.start()
            clients.goes_on()
            asyncio.run(decide_across(old.address, new[0].address, database_url))
            asyncio.run(decide_across(new[1].address, old.address, database_url))

            assert late.end(signal.SIGTERM) == 0
            status = old.end(how)
            assert status == (0 if how is signal.SIGTERM else -signal.SIGKILL)
            clients.goes_on()
            use_from_the_next(following, new[0].address)
            assert migrate.current(database_url) == NEXT_REVISION
            assert [found.fix for found in migrate.check(database_url) if found.name in {"revision", "schema"}] == [
                "",
                "",
            ]

            for client in clients.clients:
                client.child.write_line("finish")
            until(lambda: halves(database_url, "shop") == [], within_s=WAIT_S)
            committed = orders_in(business_url)
            until(lambda: committed <= set(clients.orders("received")), within_s=WAIT_S)
            until(lambda: log_of(database_url, "orders").keys() == positions(audit), within_s=WAIT_S)
            for client in clients.clients:
                client.child.write_line("stop")
    finally:
        for broker in (old, late, *new):
            broker.kill()
    check_records(clients, committed)
    check_log(clients, committed, database_url)
    check_deliveries(audit, database_url, old, late, how)


def check_records(clients: Crowd, committed: set[str]) -> None:
    """Check that the records cover the test and agree with the business database."""
    said = set(clients.orders("commit"))
    # A client killed in a commit could not record it; none was killed.
    assert said == committed
    assert not committed & set(clients.orders("rollback"))
    long_ones = {order for order in committed if "-long-" in order}
    assert len(long_ones) == 2 * LONG_ONES, "transactions that an old broker stored and a new one decided"
    untold = [each for client in clients.clients for each in client.records("commit") if not each["told"]]
    assert untold, "transactions that a check-back decided"


def check_log(clients: Crowd, committed: set[str], database_url: str) -> None:
    """Check I1: each committed order once, nothing else; and I4: dense offsets in the order of commits."""
    log = log_of(database_url, "orders")
    assert Counter(body for _, body in log.values()) == Counter(committed)
    ends = Counter(queue for queue, _ in log)
    assert log.keys() == {(queue, offset) for queue, end in ends.items() for offset in range(end)}
    place = {body: position for position, (_, body) in log.items()}
    for client in clients.clients:
        by_task: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for each in client.records("commit"):
            if each["told"] and each["task"] is not None:
                queue, offset = place[each["order"]]
                by_task[each["task"], queue].append(offset)
        assert by_task
        assert all(offsets == sorted(offsets) for offsets in by_task.values()), client.name
    crossed = Counter(body.split()[0] for _, body in log_of(database_url, "crossing").values())
    assert crossed == {"commit": 2 * CROSSINGS}


def check_deliveries(
    audit: Audit, database_url: str, old: BrokerProcess, late: BrokerProcess, how: signal.Signals
) -> None:
    """Check I3, and one deliverer per queue at a time: epochs rise, and each belongs to one broker."""
    log = log_of(database_url, "orders")
    wrong = [each for each in audit.arrivals if log[each.queue_id, each.offset][0] != UUID(bytes=each.transaction_id)]
    assert wrong == []
    assert audit.stale == []
    for queue_id, brokers in audit.brokers().items():
        assert all(len(each) == 1 for each in brokers.values()), f"queue {queue_id}: {brokers}"
        first, *_, last = brokers.values()
        assert first == {old.address}
        assert not last & {old.address, late.address}
    if how is signal.SIGTERM:
        assert audit.again == []
    else:  # SIGKILL loses the acknowledgements of a quarter of a second: those of the broker that was killed
        by_old = {(each.queue_id, each.offset) for each in audit.arrivals if each.broker == old.address}
        assert {(each.queue_id, each.offset) for each in audit.again} <= by_old


async def send_to(broker: str, topic: str) -> None:
    async with AsyncProducer(broker, group="now") as producer:
        await producer.send(Message(topic, b"plain"))


def use_from_the_next(following: Release, broker: str) -> None:
    """Use a topic that the old broker created on the upgraded database in the next release."""
    assert "made-by-the-old" in following.run("topic", "show", "made-by-the-old", "--broker", broker)
    with collecting(broker, "made-by-the-old", group="late") as got:
        with Producer(broker, group="now") as producer:
            for n in range(5):
                producer.send(Message("made-by-the-old", b"%d" % n, ordering_key="key"))
        bodies = [got.get(timeout=WAIT_S).body for _ in range(6)]
    bodies.remove(b"plain")
    assert bodies == [b"%d" % n for n in range(5)]


async def decide_across(storing: str, deciding: str, database_url: str) -> None:
    """Decide transactions by a broker of one release whose halves the other stored, by outcomes and by check-backs."""

    class Knows:
        def check(self, message: ReceivedMessage) -> TransactionState:
            return COMMIT if message.body.startswith(b"commit") else ROLLBACK

    async with (
        AsyncProducer(storing, group="crossing") as here,
        AsyncProducer(deciding, group="crossing", check_listener=Knows()) as there,
    ):
        for n in range(CROSSINGS):
            outcome, other = (COMMIT, ROLLBACK) if n % 2 else (ROLLBACK, COMMIT)
            half = await here.half([Message("crossing", f"{outcome.value} {n} by the client".encode())])
            await there.end(half, outcome)
            await here.end(half, outcome)
            with pytest.raises(OutcomeConflict):
                await here.end(half, other)
        for n in range(CROSSINGS):
            outcome = COMMIT if n % 2 else ROLLBACK
            await here.half([Message("crossing", f"{outcome.value} {n} by a check".encode())])
        await asyncio.to_thread(until, lambda: halves(database_url, "crossing") == [])


def orders_in(business_url: str) -> set[str]:
    return {order for (order,) in rows(business_url.replace("+psycopg", "", 1), "select id from orders")}


def halves(url: str, group: str) -> list[tuple[Any, ...]]:
    """Return the undecided halves of a producer group."""
    statement = (
        "select h.* from txmsg.half_message h join txmsg.producer p on p.id = h.producer where group_name = '{}'"
    )
    return rows(url, statement.format(group))


def log_of(url: str, topic: str) -> dict[tuple[int, int], tuple[UUID, str]]:
    """Return transaction and body by queue and offset."""
    statement = f"""
        select m.queue, m.queue_offset, m.transaction_id, m.body
          from txmsg.message m join txmsg.queue q on q.id = m.queue join txmsg.topic t on t.id = q.topic_id
         where t.name = '{topic}'
    """
    return {(queue, offset): (each, body.decode()) for queue, offset, each, body in rows(url, statement)}


def positions(audit: Audit) -> set[tuple[int, int]]:
    return {(each.queue_id, each.offset) for each in list(audit.arrivals)}


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, connect_timeout=10) as connection:
        return connection.execute(statement.encode()).fetchall()
