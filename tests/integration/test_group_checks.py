"""`txmsg group alter --first-check-s`: check settings of a producer group, changed while brokers run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import json_of, said
from tests.waiting import until
from txmsg.client import Producer
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1.txmsg_pb2 import MessageColumns, SendRequest
from txmsg.wire.v1.txmsg_rpc import Notify


class CountingListener:
    """A listener that answers UNKNOWN and counts its checks."""

    def __init__(self) -> None:
        self.count = 0

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.count += 1
        return TransactionState.UNKNOWN


def test_check_settings_of_a_producer_group_apply_at_all_brokers_and_to_no_other_group(
    start_broker: StartBroker, notify_url: str
) -> None:
    here = start_broker("--first-check-s", "600", "--check-interval-s", "600", "--checks-max", "7")
    there = start_broker("--first-check-s", "600", "--check-interval-s", "600")
    asked, other = CountingListener(), CountingListener()
    with (
        Producer(there.address, group="shop", check_listener=asked) as shop,
        Producer(there.address, group="other", check_listener=other) as others,
    ):
        shop.half([Message("t", b"1")])
        others.half([Message("t", b"1")])
        command = ("group", "alter", "shop", "--broker", here.address)
        show = ("group", "show", "shop", "--broker", here.address)
        defaults = {"first_check_s": 600, "check_interval_s": 600, "checks_max": 7, "no_client_park_s": 86400}
        assert json_of(*show) == {"group": "shop", "checks": {"group": "shop", **defaults, "own": []}}
        set_values = {"first_check_s": 0, "check_interval_s": 0.5, "checks_max": 3, "no_client_park_s": 60}
        options = [word for name, each in set_values.items() for word in (f"--{name.replace('_', '-')}", str(each))]
        assert json_of(*command, *options) == {"group": "shop", **set_values, "own": list(set_values)}
        assert json_of(*show)["checks"] == {"group": "shop", **set_values, "own": list(set_values)}

        def parked() -> list[tuple[str, int]]:
            with psycopg.connect(notify_url, connect_timeout=10) as connection:
                return connection.execute(
                    "select p.group_name, h.checks from txmsg.half_message h "
                    "join txmsg.producer p on p.id = h.producer where h.parked_reason = 'checks used up'"
                ).fetchall()

        def answered() -> bool:
            return parked() == [("shop", 3)]

        shop.half([Message("t", b"2")])
        others.half([Message("t", b"2")])
        until(answered)
        assert (asked.count, other.count) == (3, 0)
        changed = json_of(*command, "--default-checks", "--checks-max", "9")
        assert changed == {"group": "shop", **defaults, "checks_max": 9, "own": ["checks_max"]}
        (listed,) = [
            producer_group
            for producer_group in json_of("group", "list", "--broker", here.address)["producer_groups"]
            if producer_group["group"] == "shop"
        ]
        assert listed == changed


def test_a_half_can_request_an_earlier_or_later_first_check(start_broker: StartBroker, notify_url: str) -> None:
    broker = start_broker("--first-check-s", "7200", "--check-interval-s", "600")
    with Producer(broker.address, group="shop", check_listener=CountingListener()) as shop:
        shop.half([Message("t", b"default")])
        json_of("group", "alter", "shop", "--first-check-s", "3600", "--broker", broker.address)
        shop.half([Message("t", b"group")])
        minute, hour = timedelta(minutes=1), timedelta(hours=1)
        two = [Message("t", b"first", first_check_after=minute), Message("t", b"second", first_check_after=hour)]
        half = shop.half(two)
        again = [replace(message, first_check_after=None) for message in two]
        shop.half(again, transaction_id=half.transaction_id)  # still the same message: the first one counts
        shop.half([Message("t", b"beyond", first_check_after=timedelta(hours=24))])
        shop.send(Message("t", b"plain", first_check_after=hour))
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        stored = connection.execute(
            "select convert_from(body, 'utf8'), extract(epoch from next_check_at - stored_at)::int "
            "from txmsg.half_message order by seq"
        ).fetchall()
    assert stored == [("default", 7200), ("group", 3600), ("first", 60), ("second", None), ("beyond", 86400)]


def test_a_half_with_a_first_check_delay_above_the_limit_is_refused(broker: BrokerProcess) -> None:
    columns = MessageColumns(
        topic="t", transaction_id=bytes(16), body=[b"x"], born_at_us=[0], first_check_ms=[86_400_001]
    )
    with BlockingChannel(broker.address) as channel:
        half = SendRequest(group="shop", half=True, batches=[columns])
        (error,) = channel.call(Notify.send, half, timeout_s=60).errors
        assert "first_check_after=datetime.timedelta(days=1" in error.text
        assert not channel.call(Notify.send, SendRequest(batches=[columns]), timeout_s=60).errors


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--check-interval-s", "90000"), "make no_client_park_s the longer one"),
        (("--no-client-park-s", "1"), "make no_client_park_s the longer one"),
        (("--check-interval-s", "0"), "cannot be checked with these settings"),
        (("--first-check-s", "1e12"), "give 0 to"),
    ],
)
def test_invalid_check_settings_are_refused(start_broker: StartBroker, options: tuple[str, ...], told: str) -> None:
    broker = start_broker()
    command = ("group", "alter", "shop", *options, "--broker", broker.address)
    assert "producer group 'shop' is unknown" in said(*command, status=1)
    with Producer(broker.address, group="shop", check_listener=CountingListener()) as shop:
        shop.half([Message("t", b"1")])
    assert told in said(*command, status=1)
