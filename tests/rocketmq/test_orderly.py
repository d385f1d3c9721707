"""RocketMQ's own client for Python in an orderly group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of, said
from tests.rocketmq.gateway import running_gateway
from txmsg import Message, Producer

_PLAYED_S_MAX = 120.0


@pytest.mark.long
def test_an_orderly_consumer_retries_on_the_spot_gives_up_in_order_and_gets_what_its_filter_wants(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    where = ("--broker", broker.address)
    said("group", "create", "ledger", "--orderly", "on", *where)
    said("group", "alter", "ledger", "--retries", "1", *where)
    with Producer(broker.address, group="shop") as producer:
        for body, account in (("bad", "7"), ("of another account", "8"), ("next", "7"), ("last", "7")):
            producer.send(Message("bookings", body.encode(), headers={"account": account}, ordering_key="k"))
    with running_gateway(broker.address, log=tmp_path / "gateway.log") as gateway:
        consumer = [sys.executable, "-m", "tests.rocketmq.orderly", gateway.address, "bookings", "ledger"]
        played = subprocess.run(
            [*consumer, "account = 7 AND TAGS IS NULL"],
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=_PLAYED_S_MAX,
            check=False,
        )
    assert played.returncode == 0, f"{played.stdout}\n{played.stderr}"
    handled = [line for line in played.stdout.splitlines() if line in {"bad", "of another account", "next", "last"}]
    assert handled == ["bad", "bad", "next", "last"]
    [dead] = json_of("dead-letter", "list", "--group", "ledger", *where)["dead_letters"]
    assert dead["last_error"].startswith("the consumer gave it up")
