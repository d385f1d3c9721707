"""Alerts of real brokers, by `txmsg alert`: planted causes fire once and resolve, also if a broker is killed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.alerts.receiving import Webhook, receiving
from tests.conftest import StartBroker
from tests.integration.cli_harness import json_of, said, store_half
from tests.waiting import until


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with receiving() as found:
        yield found


class TwoBrokers:
    """A broker and, once started, a second one, with one receiver on one database."""

    def __init__(self, url: str, file: Path, start: StartBroker) -> None:
        self.url = url
        config = file.with_name("txmsg.toml")
        # The disk of the machine that runs the tests may be nearly full.
        config.write_text('[broker.alerts]\ninterval_s = 1\nkeep_firing_s = 0\noff = "TxmsgDiskNearlyFull"\n')
        self._start = partial(start, "--config", str(config), "--alerts", str(file))
        self.here = self.asked = self._start()

    def start_there(self) -> None:
        """Start the second broker and send all requests to it from now on."""
        self.asked = self._start()

    def alert(self, *args: str) -> Any:
        return json_of("alert", *args, "--broker", self.asked.address)

    def states(self) -> list[tuple[str, str]]:
        return [(each["rule"], each["state"]) for each in self.alert("list")["alerts"]]

    def later(self) -> None:
        """Let ten minutes pass for all pending alerts."""
        with psycopg.connect(self.url, connect_timeout=10) as connection:
            connection.execute("update txmsg.alert set since = since - interval '10 minutes' where state = 'pending'")
            connection.execute("update txmsg.alert_notification set next_try_at = now()")

    def park(self) -> str:
        """Create a parked transaction."""
        transaction_id = store_half(self.here)
        with psycopg.connect(self.url, connect_timeout=10) as connection:
            connection.execute("update txmsg.half_message set parked_reason = 'planted', next_check_at = null")
        return transaction_id


@pytest.fixture
def brokers(notify_url: str, start_broker: StartBroker, webhook: Webhook, tmp_path: Path) -> TwoBrokers:
    file = tmp_path / "alerts.toml"
    file.write_text(f'[receivers.oncall]\nwebhook = "{webhook.url}"\n')
    return TwoBrokers(notify_url, file, start_broker)


def test_two_brokers_notify_once_of_a_fault_and_once_of_its_repair(brokers: TwoBrokers, webhook: Webhook) -> None:
    transaction_id = brokers.park()
    brokers.here.restart()  # figures that were read before are kept for seconds
    brokers.start_there()
    assert json_of("alert", "test", "--broker", brokers.here.address)["receivers"] == {"oncall": None}
    assert webhook.told() == [("firing", "TxmsgTest")]
    webhook.received.clear()

    until(lambda: brokers.states() == [("TxmsgTransactionsParked", "pending")])
    brokers.later()
    until(lambda: webhook.told() == [("firing", "TxmsgTransactionsParked")])
    [alert] = brokers.alert("list")["alerts"]
    assert (alert["state"], alert["value"], alert["severity"]) == ("firing", 1.0, "warning")

    said("half", "rollback", transaction_id, "--yes", "--broker", brokers.here.address)
    until(lambda: len(webhook.received) > 1)
    assert webhook.told() == [("firing", "TxmsgTransactionsParked"), ("resolved", "TxmsgTransactionsParked")]
    [over] = brokers.alert("history")["alerts"]
    assert (over["rule"], over["state"]) == ("TxmsgTransactionsParked", "resolved")
    quiet = {"name": "oncall", "kind": "webhook", "waiting": 0, "attempts": 0, "last_error": None}
    until(lambda: brokers.alert("list") == {"alerts": [], "silences": [], "receivers": [quiet]})
    for broker in (brokers.here, brokers.asked):
        assert "T0KEN" not in broker.log.read_text()


def test_notification_of_a_broker_killed_while_sending_is_sent_by_the_other(
    brokers: TwoBrokers, webhook: Webhook
) -> None:
    brokers.park()
    until(lambda: brokers.states() == [("TxmsgTransactionsParked", "pending")])
    webhook.go_on.clear()
    brokers.later()
    assert webhook.asked.acquire(timeout=120)  # and gets no answer
    brokers.here.kill()
    brokers.start_there()
    webhook.go_on.set()
    brokers.later()
    until(lambda: webhook.told() == [("firing", "TxmsgTransactionsParked")] * 2)
    assert brokers.states() == [("TxmsgTransactionsParked", "firing")]


def test_silence_suppresses_notifications_until_it_is_ended(brokers: TwoBrokers, webhook: Webhook) -> None:
    silence = brokers.alert("silence", "rule=TxmsgTransactions*", "--for", "2h", "--reason", "maintenance")
    brokers.park()
    until(lambda: brokers.states() == [("TxmsgTransactionsParked", "pending")])
    brokers.later()
    until(lambda: brokers.states() == [("TxmsgTransactionsParked", "firing")])
    [alert] = brokers.alert("list")["alerts"]
    assert (alert["silences"], alert["notified_at"]) == ([silence["id"]], None)
    assert webhook.received == []
    assert "silenced" in said("alert", "list", "--broker", brokers.here.address)
    brokers.alert("unsilence", str(silence["id"]))
    until(lambda: webhook.told() == [("firing", "TxmsgTransactionsParked")])
    told = said("alert", "unsilence", str(silence["id"]), "--broker", brokers.here.address, status=1)
    assert f"there is no active silence {silence['id']}" in told
