"""A service killed at every step of a transaction: its effects and messages exist once, by plain SQL."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import psycopg
import pytest

from tests.acceptance.user_project import ROOT
from tests.broker_process import BrokerProcess
from tests.integration.chain.databases import BusinessDatabase
from tests.integration.chain.service import STEPS
from tests.integration.client_harness import WAIT_S
from tests.waiting import until
from txmsg import Message, Producer
from txmsg.metaq import LogProducer, open_log
from txmsg.testing.log_progress import progress_of_log
from txmsg.testing.progress import progress_of

ORDERS: Final = 3
_SENT: Final = """
select t.name, m.key, count(*), count(distinct (m.transaction_id, m.n))
  from txmsg.message m join txmsg.queue q on q.id = m.queue join txmsg.topic t on t.id = q.topic_id
 where t.name in ('order.paid', 'order.thanked')
 group by t.name, m.key order by t.name, m.key
"""


class World:
    """The two databases and the service between them.

    log: where the service reads orders, if not from the broker.
    """

    def __init__(
        self,
        broker: BrokerProcess,
        notify_url: str,
        business: BusinessDatabase,
        directory: Path,
        *,
        log: Path | None = None,
    ) -> None:
        self._orders = log
        self._broker = broker
        self._notify_url = notify_url
        self.business = business
        self._log = directory / "service.log"

    @contextmanager
    def service(self, kind: str, step: str, plant: str = "none") -> Iterator[subprocess.Popen[bytes]]:
        url = self.business.async_url if kind == "async" else self.business.url
        command = [sys.executable, "-m", "tests.integration.chain.service", kind, url]
        with self._log.open("ab") as log:
            orders = () if self._orders is None else (str(self._orders),)
            process = subprocess.Popen([*command, self._broker.address, step, plant, *orders], cwd=ROOT, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def notify(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self._notify_url, autocommit=True, connect_timeout=10) as connection:
            return connection.execute(sql.encode()).fetchall()

    def place_orders(self) -> None:
        orders = [Message("order.placed", f'{{"order_id":{id}}}'.encode(), key=str(id)) for id in range(ORDERS)]
        if self._orders is not None:
            with open_log(self._orders, append=True) as log:
                LogProducer(log, queues=1).send_many(orders)
            return
        with Producer(self._broker.address, group="orders") as producer:
            producer.send_many(orders)

    def is_done(self) -> bool:
        """Return True if all orders are acknowledged or dead and nothing is undecided."""
        return self._are_handled() and self.notify("select count(*) from txmsg.half_message") == [(0,)]

    def _are_handled(self) -> bool:
        if self._orders is None:
            with psycopg.connect(self._notify_url, autocommit=True, connect_timeout=10) as connection:
                placed = progress_of(connection, [("payment", "order.placed")])
        else:
            with open_log(self._orders) as log:
                placed = progress_of_log(log, "payment", ["order.placed"])
        return not any(each.waiting or each.late for each in placed)

    def wrong(self) -> list[tuple[str, object]]:
        """Return the effects and messages that do not exist exactly once."""
        wanted: dict[str, object] = {
            "paid": [(id, 7) for id in range(ORDERS)],
            "sent": [(topic, str(id), 1, 1) for topic in ("order.paid", "order.thanked") for id in range(ORDERS)],
            "recorded": [(ORDERS,)],
            "fenced": [(ORDERS,)],
        }
        found: dict[str, object] = {
            "paid": self.business.paid(),
            "sent": self.notify(_SENT),
            "recorded": self.business.execute("select count(*) from txmsg_inbox"),
            "fenced": self.business.execute("select count(*) from txmsg_fence where outcome = 'commit'"),
        }
        return [(name, found[name]) for name in wanted if found[name] != wanted[name]]


@pytest.fixture
def world(
    broker: BrokerProcess, notify_url: str, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> World:
    return World(broker, notify_url, BusinessDatabase(database, request, tmp_path), tmp_path)


@pytest.fixture
def world_of_log(
    broker: BrokerProcess, notify_url: str, database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> World:
    return World(broker, notify_url, BusinessDatabase(database, request, tmp_path), tmp_path, log=tmp_path / "log")


def killed_and_started_again(world: World, kind: str, step: str, plant: str = "none") -> None:
    """Let the service die once; another process then completes the work."""
    world.place_orders()
    with world.service(kind, step, plant) as dying:
        assert dying.wait(WAIT_S) == -signal.SIGKILL
    with world.service(kind, "never", plant):
        until(world.is_done)


@pytest.mark.parametrize(
    "database", ["postgresql", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("sqlite", "mariadb"))]
)
@pytest.mark.parametrize("kind", ["def", "async"])
def test_kills_at_every_step_leave_effects_and_messages_once(world: World, kind: str) -> None:
    world.place_orders()
    for step in STEPS:
        with world.service(kind, step) as dying:
            assert dying.wait(WAIT_S) == -signal.SIGKILL, step
    with world.service(kind, "never"):
        until(world.is_done)
    assert world.wrong() == []


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize("kind", ["def", "async"])
def test_kills_at_every_step_of_log_handlers_leave_effects_and_messages_once(world_of_log: World, kind: str) -> None:
    """The step "told" is between the commit and the commit of the log offset."""
    test_kills_at_every_step_leave_effects_and_messages_once(world_of_log, kind)


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("database", ["postgresql", "sqlite", "mariadb"])
@pytest.mark.parametrize("kind", ["def", "async"])
def test_a_kill_at_any_step_leaves_effects_and_messages_once(world: World, kind: str, step: str) -> None:
    killed_and_started_again(world, kind, step)
    assert world.wrong() == []


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_process_paused_during_redelivery_changes_nothing(world: World) -> None:
    world.place_orders()
    with world.service("def", "stopped") as first:
        until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_STOPPED)
        with world.service("def", "never"):
            until(lambda: world.business.execute(_WAITS_FOR_THE_INBOX) != [])  # redelivered
            first.send_signal(signal.SIGCONT)
            until(world.is_done)
    assert world.wrong() == []


_WAITS_FOR_THE_INBOX: Final = """
select 1 from pg_stat_activity
 where datname = current_database() and wait_event_type = 'Lock' and query like '%INSERT INTO txmsg_inbox%'
"""


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(
    ("plant", "step", "found"),
    [("inbox", "inside", ["paid", "sent", "fenced"]), ("effects", "half", ["paid"]), ("effects", "inside", ["paid"])],
)
def test_a_planted_second_transaction_is_found(world: World, plant: str, step: str, found: list[str]) -> None:
    killed_and_started_again(world, "def", step, plant)
    assert [name for name, _ in world.wrong()] == found


@pytest.mark.parametrize("database", ["postgresql"])
def test_a_planted_second_transaction_of_a_log_handler_is_found(world_of_log: World) -> None:
    test_a_planted_second_transaction_is_found(world_of_log, "effects", "inside", ["paid"])
