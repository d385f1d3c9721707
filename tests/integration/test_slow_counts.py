"""Slow queries of operators: delivery continues meanwhile, and the operator is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for

import psycopg

from tests.broker_process import BrokerProcess
from tests.integration.client_harness import WAIT_S, collecting
from txmsg.administration.ask import Nothing
from txmsg.administration.halves import AdminService
from txmsg.client import Producer
from txmsg.errors import BrokerUnavailable
from txmsg.message import Message
from txmsg.ops.cli.connections import ask_broker

AT_ONCE = 12
"""More than the broker has connections."""


def test_slow_counts_are_cancelled_and_do_not_delay_delivery(broker: BrokerProcess, notify_url: str) -> None:
    with collecting(broker.address, "t") as got, Producer(broker.address, group="shop") as producer:
        producer.send(Message("t", b"before"))
        assert got.get(timeout=WAIT_S).body == b"before"
        with psycopg.connect(notify_url, connect_timeout=10) as other, ThreadPoolExecutor(AT_ONCE) as threads:
            other.execute("lock table txmsg.dead_letter in access exclusive mode")
            asked = [threads.submit(ask_broker, broker.address, AdminService.stats, Nothing()) for _ in range(AT_ONCE)]
            sent = 0
            while wait_for(asked, timeout=0.2).not_done:
                producer.send(Message("t", b"%d" % sent))
                assert got.get(timeout=WAIT_S).body == b"%d" % sent
                sent += 1
            for each in asked:
                assert isinstance(each.exception(), BrokerUnavailable), "it is told, in time"
            other.rollback()
        producer.send(Message("t", b"after"))
        assert got.get(timeout=WAIT_S).body == b"after"
        assert ask_broker(broker.address, AdminService.stats, Nothing()).groups
    assert "delivery stops" not in broker.log.read_text()
