"""The pytest plugin in a user's project: its cost, its isolation, and its output when a test fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.user_project import UserProject
from tests.conftest import PostgresServer

pytestmark = pytest.mark.timeout(300)  # a run of pytest within a test of pytest

_WITHOUT = """
import sys

HEAVY = {"psycopg", "sqlalchemy", "google.protobuf"}
if sys.version_info < (3, 14):  # whose pdb loads it, and pytest that
    HEAVY.add("asyncio")


def test_a_run_that_asks_for_no_fixture_loads_nothing(request):
    assert request.config.pluginmanager.has_plugin("txmsg")
    assert "txmsg.testing.plugin" in sys.modules
    assert not HEAVY & sys.modules.keys()
"""

_ISOLATED = """
import asyncio
import os

import pytest

from txmsg import AsyncProducer, Message, ReceivedMessage, TransactionState
from txmsg.wire.ports import not_given
from txmsg.testing import Broker, Clock, MakeConsumer, MakeProducer, ProcessDied, dies_after_commit, lost_reply

GOT: set[str] = set()


class Commits:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


@pytest.mark.parametrize("n", range(4))
def test_each_test_has_a_broker_that_holds_nothing(
    n: int, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer, txmsg_broker: Broker, txmsg_address: str
) -> None:
    assert txmsg_broker.address == txmsg_address
    assert int(txmsg_address.partition(":")[2]) in not_given()
    assert txmsg_broker.messages("t") == []
    consumer, got = txmsg_consumer("same"), []
    consumer.subscribe("t")(got.append)
    consumer.start()
    txmsg_producer("same").send(Message("t", b"%d" % n, key="k", tag="a", headers={"h": "v"}, ordering_key="o"))
    txmsg_broker.wait_until_idle("same")
    assert [message.body for message in got] == [b"%d" % n]
    assert [message._replace(attempt=1) for message in got] == txmsg_broker.messages("t")


def test_faults_of_asyncio(txmsg_broker: Broker, txmsg_clock: Clock) -> None:
    async def run() -> None:
        async with AsyncProducer(txmsg_broker.address, group="async", check_listener=Commits()) as producer:
            with lost_reply(producer, "send", count=2):
                await producer.send(Message("plain", b""))
            with dies_after_commit(producer):
                half = await producer.half([Message("halves", b"")])
                with pytest.raises(ProcessDied):
                    await producer.end(half, TransactionState.COMMIT)
            assert not txmsg_broker.messages("halves")
            txmsg_clock.advance(minutes=1)
            while not txmsg_broker.messages("halves"):
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert len(txmsg_broker.messages("plain")) == 1
"""

_FAILING = """
import pytest

from txmsg import Message, ReceivedMessage, TransactionState
from txmsg.testing import broker_away, dies_after_commit, handler_fails, lost_reply


class Unsure:
    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


@pytest.fixture
def producer(txmsg_producer):
    return txmsg_producer("shop", Unsure())


@pytest.fixture
def consumer(txmsg_consumer):
    consumer = txmsg_consumer("mailer")
    consumer.subscribe("orders")(lambda message: None)
    return consumer.start()


def test_retry(producer, consumer, txmsg_broker):
    with handler_fails(consumer, "orders", times=10, error=ValueError("no stamps")):
        producer.send(Message("orders", b"", key="k1"))
        txmsg_broker.delivered("mailer", "orders")


def test_undecided(producer, consumer, txmsg_broker):
    producer.half([Message("orders", b"")])
    producer.send(Message("orders", b""))
    txmsg_broker.wait_until_idle("mailer", timeout_s=5)


def test_misspelt_group(producer, consumer, txmsg_broker):
    producer.send(Message("orders", b""))
    txmsg_broker.wait_until_idle("mailer", timeout_s=60)
    txmsg_broker.wait_until_idle("mialer", timeout_s=0.1)


def test_misspelt_topic(producer, txmsg_broker):
    producer.send(Message("orders", b""))
    txmsg_broker.delivered("mailer", "oders", timeout_s=0.1)


def test_nobody_there(producer, txmsg_broker):
    producer.send(Message("orders", b""))
    txmsg_broker.delivered("mailer", "orders", timeout_s=0.1)


def test_dead(producer, consumer, txmsg_broker):
    with handler_fails(consumer, "orders", times=17, error=ValueError("no stamps")):
        producer.send(Message("orders", b""))
        txmsg_broker.wait_until_idle("mailer", timeout_s=60, jump=True)


def test_no_occasion_to_die(producer):
    with dies_after_commit(producer):
        producer.end(producer.half([Message("orders", b"")]), TransactionState.ROLLBACK)


def test_no_occasion_to_lose(producer):
    with lost_reply(producer, "outcome"):
        producer.half([Message("orders", b"")])


def test_no_occasion_to_fail(producer, consumer, txmsg_broker):
    with handler_fails(consumer, "orders", times=3):
        pass


def test_no_occasion_to_be_away(producer):
    with broker_away(producer):
        pass


def test_no_such_handler(consumer):
    with handler_fails(consumer, "oders"):
        pass


def test_backwards(txmsg_clock):
    txmsg_clock.advance(minutes=-1)
"""

_SAID = """
group 'mailer' has not acknowledged 1 of topic 'orders' within 5.5 s
 at once): key 'k1', delivery 
topic 'orders': 1 committed, 1 acknowledged, 0 not yet handled, 0 to be retried, 0 dead, 1 undecided, 0 delayed
of producer group 'shop', 0 checks so far
the broker knows no consumer group 'mialer', for none of its consumers has asked for messages; it knows 'mailer'
the broker knows no topic 'oders', for nothing was sent to it; it knows 'orders'
the group has never asked for it: is a consumer of this group subscribed to it, and started?
group 'mailer' has 1 dead letters, 0 were expected
dead letter: key None, delivery 17 failed: ValueError: no stamps
no transaction of producer group 'shop' was committed in the block of dies_after_commit()
producer group 'shop' asked 0 times for 'outcome' in the block of lost_reply()
the handler of topic 'orders' was called 0 times in the block of handler_fails()
producer group 'shop' sent nothing in the block of broker_away()
group mailer has no handler for topic 'oders', but for 'orders': subscribe first
txmsg_clock.advance() by -60 s: it only goes forward
"""


def test_a_run_without_txmsg_fixtures_is_not_slowed(tmp_path: Path) -> None:
    # Other plugins may load anything.
    outcome = UserProject(tmp_path, {"test_it.py": _WITHOUT}).pytest("-q", "-p", "no:xdist", "-p", "no:anyio")
    assert outcome.status == 0, outcome.output


def test_xdist_processes_share_the_postgresql_of_the_plugin(tmp_path: Path) -> None:
    outcome = UserProject(tmp_path, {"test_it.py": _ISOLATED}).pytest("-q", "-n", "2", f"--basetemp={tmp_path}/temp")
    assert outcome.counts == {"passed": 5}, outcome.output
    assert len(list((tmp_path / "temp").rglob("PG_VERSION"))) >= 1
    assert [each.parent.parent.name for each in (tmp_path / "temp").rglob("cluster/PG_VERSION")] == ["txmsg-postgres"]


def test_a_failing_test_lists_unhandled_messages_and_its_traceback_ends_in_the_test(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    project = UserProject(tmp_path, {"test_it.py": _FAILING})
    options = ("--txmsg-storage", postgres.url("postgres"), "--txmsg-timeout-s", "5.5")
    outcome = project.pytest("-q", "-p", "no:randomly", *options)
    assert outcome.counts == {"failed": _FAILING.count("def test_")}, outcome.output
    assert [words for words in _SAID.strip().splitlines() if words not in outcome.output] == [], outcome.output
    assert re.findall(r"testing/(?:broker|faults)[.]py:[0-9]+: .*", outcome.output) == []


def test_an_unusable_storage_is_named(tmp_path: Path) -> None:
    project = UserProject(tmp_path, {"test_it.py": "def test_it(txmsg_broker): pass\n"})
    outcome = project.pytest("-q", "--txmsg-storage", f"postgresql://me:secret@/shop?host={tmp_path}")
    assert outcome.counts == {"error": 1}, outcome.output
    assert f"--txmsg-storage postgresql://me:***@/shop?host={tmp_path}" in outcome.output.replace("%2F", "/")
    assert "name a PostgreSQL whose role may create databases" in outcome.output


def test_without_the_broker_extra_a_fixture_names_the_package_to_install(tmp_path: Path) -> None:
    files = {
        "conftest.py": "import sys\nsys.modules['psycopg'] = None\n",
        "test_it.py": "def test_it(txmsg_broker): pass\n",
    }
    outcome = UserProject(tmp_path, files).pytest("-q")
    assert outcome.counts == {"error": 1}, outcome.output
    assert "run `pip install 'txmsg[broker]'`" in outcome.output
