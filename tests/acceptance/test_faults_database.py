"""The Notify database fails at any moment: refused connections, a cut at a commit, or silence."""

from __future__ import annotations

import random
import re
import threading
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from tests.acceptance.neighbour import neighbour
from tests.acceptance.served import served
from tests.conftest import StartBroker
from tests.errors_page import is_documented
from tests.postgres_proxy import CUT_AFTER, CUT_BEFORE, FORWARD, HOLD, PostgresProxy, Request, Verdict
from tests.waiting import until
from txmsg.broker.config import BrokerConfig
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable, OutcomeUnknown, TxmsgError
from txmsg.message import Message

BATCH = "write_batch"
CUTS = 40
_WHO_FAILED = re.compile(r"^\S+ \S+ \w+ +(txmsg\.broker\S+): ([^:\n]+): ", re.MULTILINE)
"""Log lines of a broker: the module, and the text before the error."""


@pytest.fixture
def proxy(notify_url: str) -> Iterator[PostgresProxy]:
    with PostgresProxy(notify_url) as proxy:
        yield proxy


def stored(notify_url: str) -> tuple[int, int, list[tuple[int]]]:
    """Return the numbers of messages, of distinct transactions among them, and of queues with a gap."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        counts = connection.execute("select count(*), count(distinct transaction_id) from txmsg.message").fetchone()
        gaps = connection.execute(
            "select queue from txmsg.message group by queue having max(queue_offset) <> count(*) - 1"
        ).fetchall()
    assert counts is not None
    return counts[0], counts[1], gaps


def test_a_cut_reply_to_a_batch_commit_loses_and_duplicates_nothing(
    start_broker: StartBroker, proxy: PostgresProxy, notify_url: str
) -> None:
    chance = random.Random(7)
    cuts = {CUT_AFTER: 0, CUT_BEFORE: 0}

    def judge(request: Request) -> Verdict:
        if BATCH in request.sql and sum(cuts.values()) < CUTS and chance.random() < 0.3:
            verdict = chance.choice([CUT_AFTER, CUT_BEFORE])
            cuts[verdict] += 1
            return verdict
        return FORWARD

    broker = start_broker(storage=proxy.url)
    with neighbour(broker.address) as good:
        good.goes_on()
        proxy.on_request = judge
        while sum(cuts.values()) < CUTS:
            good.goes_on(5)
        good.goes_on()
    assert min(cuts.values()) > CUTS // 5
    assert good.errors == []
    assert len(good.received) == len(set(good.received)) == len(good.committed)
    assert stored(notify_url) == (len(good.committed), len(good.committed), [])


def test_calls_name_the_unavailable_database_and_succeed_when_it_is_back(
    start_broker: StartBroker, proxy: PostgresProxy
) -> None:
    broker = start_broker(storage=proxy.url)
    with neighbour(broker.address, timeout_s=12) as good:
        good.goes_on()
        proxy.refuse()
        proxy.cut_all()
        until(lambda: any("the Notify database is away" in str(error) for error in good.errors))
        assert [error for error in good.errors if not is_documented(error)] == []
        proxy.accept()
        good.goes_on()
    log = broker.log.read_text()
    assert "Traceback" not in log
    said = Counter(_WHO_FAILED.findall(log))
    assert ("txmsg.broker.delivery.state", "delivery stops until this broker has joined again") in said
    assert max(said.values()) <= 2, f"a line or two for each part, not one for each attempt: {said}"


def test_a_silent_database_is_named_and_replaced_by_a_new_connection(proxy: PostgresProxy) -> None:
    config = BrokerConfig(storage=proxy.url, listen="127.0.0.1:0", request_timeout_s=1.5, lock_timeout_s=0.5)
    with served(config) as address, neighbour(address, timeout_s=3) as good:
        good.goes_on()
        proxy.on_request = lambda request: HOLD
        until(lambda: any("database" in str(error) for error in good.errors))
        assert {type(error) for error in good.errors} <= {BrokerUnavailable, OutcomeUnknown}
        assert [error for error in good.errors if not is_documented(error)] == []
        # Held requests stay held: only new connections get an answer.
        proxy.on_request = lambda request: FORWARD
        good.goes_on()


@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_the_broker_stops_cleanly_while_the_database_is_unavailable(
    start_broker: StartBroker, proxy: PostgresProxy, silent: bool
) -> None:
    broker = start_broker(storage=proxy.url)
    failed: list[TxmsgError] = []

    def send(producer: Producer) -> None:
        try:
            producer.send(Message("orders", b"2"))
        except TxmsgError as exc:
            failed.append(exc)

    with Producer(broker.address, group="shop", timeout_s=60) as patient:
        patient.send(Message("orders", b"1"))
    with Producer(broker.address, group="shop", timeout_s=5) as producer:
        if silent:
            proxy.on_request = lambda request: HOLD
        else:
            proxy.refuse()
            proxy.cut_all()
        sending = threading.Thread(target=send, args=(producer,))
        sending.start()
        assert broker.stop() == 0, broker.log.read_text()
        sending.join()
    assert len(failed) == 1
    assert "Traceback" not in broker.log.read_text()
