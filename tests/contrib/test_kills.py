"""A handler of a Django project killed at every step: each effect and message exists once, by plain SQL."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.contrib.django_project import Shop
from tests.contrib.django_service import STEPS
from tests.integration.client_harness import WAIT_S
from tests.mariadb_server import MariaDBServer
from tests.waiting import until
from txmsg import Message, Producer
from txmsg.testing.progress import progress_of

SERVICE: Final = Path(__file__).with_name("django_service.py")
ON_SQLITE, ON_POSTGRESQL = (
    pytest.mark.parametrize("world", [kind], indirect=True) for kind in ("sqlite", "postgresql")
)
_SENT: Final = """
select t.name, m.key, count(*), count(distinct (m.transaction_id, m.n))
  from txmsg.message m join txmsg.queue q on q.id = m.queue join txmsg.topic t on t.id = q.topic_id
 where t.name in ('order.paid', 'order.thanked')
 group by t.name, m.key order by t.name, m.key
"""


class World:
    """The project, its database and the broker's, and the service between them."""

    def __init__(self, shop: Shop, broker: BrokerProcess, notify_url: str, business_url: str) -> None:
        self._shop = shop
        self._broker = broker
        self._notify_url = notify_url
        self._orders = 0
        self._engine = create_engine(business_url, poolclass=NullPool)

    @contextmanager
    def service(self, step: str, plant: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self._shop.directory / "service.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(SERVICE), step, plant],
                cwd=self._shop.directory,
                env=self._shop.environment,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def killed_at(self, *steps: str, plant: str = "none") -> None:
        """Run processes that die, each at its step; a last one then finishes the work.

        There is a new order for each. At most two die: a message that was lost more often waits for its back-off.
        """
        assert len(steps) <= 2
        numbers = range(self._orders, self._orders + len(steps))
        self._orders += len(steps)
        with Producer(self._broker.address, group="orders") as producer:
            producer.send_many([Message("order.ordered", b'{"number":%d}' % number) for number in numbers])
        for step in steps:
            with self.service(step, plant) as dying:
                assert dying.wait(WAIT_S) == -signal.SIGKILL, step
        with self.service("never", plant):
            until(self.is_done)

    def notify(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self._notify_url, autocommit=True, connect_timeout=10) as connection:
            return connection.execute(sql.encode()).fetchall()

    def business(self, sql: str) -> list[tuple[object, ...]]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(sql))]

    def is_done(self) -> bool:
        """Return True if all orders are acknowledged or dead, and no transaction is pending."""
        with psycopg.connect(self._notify_url, autocommit=True, connect_timeout=10) as connection:
            [ordered] = progress_of(connection, [("service", "order.ordered")])
        return not (ordered.waiting or ordered.late) and self.notify("select count(*) from txmsg.half_message") == [
            (0,)
        ]

    def wrong(self) -> list[tuple[str, object]]:
        """Return rows and messages that do not exist exactly once."""
        numbers = range(self._orders)
        wanted: dict[str, object] = {
            "paid": [(number,) for number in numbers],
            "sent": [(topic, str(number), 1, 1) for topic in ("order.paid", "order.thanked") for number in numbers],
            "recorded": [(self._orders,)],
            "fenced": [(2 * self._orders,)],
        }
        found: dict[str, object] = {
            "paid": self.business("select order_number from shop_payment order by order_number"),
            "sent": self.notify(_SENT),
            "recorded": self.business("select count(*) from txmsg_inbox"),
            "fenced": self.business("select count(*) from txmsg_fence where outcome = 'commit'"),
        }
        return [(name, found[name]) for name in wanted if found[name] != wanted[name]]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def world(request: pytest.FixtureRequest, broker: BrokerProcess, notify_url: str, tmp_path: Path) -> Iterator[World]:
    directory = tmp_path / "project"
    if request.param == "sqlite":
        shop = Shop(directory, broker.address)
        shop.manage("migrate")
        yield World(shop, broker, notify_url, f"sqlite:///{directory / 'shop.sqlite3'}")
        return
    server: PostgresServer | MariaDBServer
    server = request.getfixturevalue("postgres" if request.param == "postgresql" else "mariadb")
    name = f"shop_{abs(hash(request.node.nodeid))}"
    url = server.create_database(name)
    shop = Shop(directory, broker.address, url)
    shop.manage("migrate")
    yield World(shop, broker, notify_url, url.replace("postgresql://", "postgresql+psycopg://"))
    server.drop_database(name)


def in_pairs(steps: Sequence[str]) -> Iterator[Sequence[str]]:
    """Group by two."""
    return (steps[at : at + 2] for at in range(0, len(steps), 2))


@ON_SQLITE
def test_worker_that_skips_committed_messages_answers_their_check_backs(world: World) -> None:
    """It sends nothing, so only the check-back starts the producer."""
    world.killed_at("committed")
    assert world.wrong() == []


@pytest.mark.long
def test_kill_at_every_step_leaves_each_effect_and_message_once(world: World) -> None:
    for steps in in_pairs(STEPS):
        world.killed_at(*steps)
    assert world.wrong() == []


@pytest.mark.long
@ON_POSTGRESQL
@pytest.mark.parametrize(
    ("plant", "step", "found"),
    [("inbox", "inside", ["paid", "sent", "fenced"]), ("effects", "half", ["paid"]), ("effects", "inside", ["paid"])],
)
def test_planted_second_transaction_is_found(world: World, plant: str, step: str, found: list[str]) -> None:
    world.killed_at(step, plant=plant)
    assert [name for name, _ in world.wrong()] == found
