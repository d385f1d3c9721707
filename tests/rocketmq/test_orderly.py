"""RocketMQ's own clients in an orderly group, with an SQL filter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of, said
from tests.rocketmq.gateway import running_gateway
from tests.rocketmq.programs import JAVA, PYTHON, Language, each
from txmsg import Message, Producer

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("language", each(PYTHON, JAVA))
def test_orderly_consumer_retries_locally_gives_up_in_order_and_filters(
    language: Language, broker: BrokerProcess, tmp_path: Path
) -> None:
    where = ("--broker", broker.address)
    said("topic", "create", "bookings", "--type", "fifo", *where)
    said("group", "create", "ledger", "--orderly", "on", *where)
    said("group", "alter", "ledger", "--retries", "1", *where)
    with Producer(broker.address, group="shop") as producer:
        for body, account in (("bad", "7"), ("of another account", "8"), ("next", "7"), ("last", "7")):
            producer.send(Message("bookings", body.encode(), headers={"account": account}, ordering_key="k"))
    with running_gateway(broker.address, log=tmp_path / "gateway.log") as gateway:
        words = (gateway.address, "bookings", "ledger", "account = 7 AND TAGS IS NULL")
        handled = [line["body"] for line in language.play("orderly", *words, home=tmp_path)]
    assert handled == ["bad", "bad", "next", "last"]
    [dead] = json_of("dead-letter", "list", "--group", "ledger", *where)["dead_letters"]
    assert dead["last_error"].startswith("the consumer gave it up")
