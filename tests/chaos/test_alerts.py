"""The real Prometheus on a cluster under faults: lasting faults fire alerts, which resolve after repair.

The rules are the generated ones, with times divided by SHORTER.
"""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from tests import prometheus
from tests.acceptance.neighbour import TOPIC, neighbour
from tests.conftest import StartBroker
from tests.integration.cli_harness import said
from tests.metrics.test_log import TailerProcess
from tests.metrics.test_rules import RULES
from tests.ports import own_port
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.message import Message, ReceivedMessage, TransactionState

SHORTER = 12
"""A minute is 5 s: longer than a cluster needs to recover from a fault that should not alert."""
LASTING = {
    "TxmsgProcessDown",
    "TxmsgBrokerDied",
    "TxmsgGroupBehind",
    "TxmsgDeadLetters",
    "TxmsgTransactionsParked",
}
_FIRED = 'count by (alertname) (max_over_time(ALERTS{alertstate="firing"}[1h]))'
_WITHIN_S = 300.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600}

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not prometheus.is_installed(), reason=prometheus.HOW_TO_INSTALL),
]


def shorter(rules: str) -> str:
    """Return the same rules with shorter `for` times and lag thresholds."""

    def of_for(found: re.Match[str]) -> str:
        return f"for: {int(found[1]) * _UNITS_S[found[2]] // SHORTER}s"

    def of_lag(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) // SHORTER}"

    changed, count = re.subn(r"\bfor: (\d+)([smh])$", of_for, rules, flags=re.MULTILINE)
    assert count == rules.count("- alert:")
    changed, count = re.subn(r"(_(?:lag|oldest)_seconds(?:\{[^}]*\})?\) > )(\d+)", of_lag, changed)
    assert count == rules.count("_lag_seconds") + rules.count("_oldest_seconds")
    return changed


class UnknownOutcome:
    """Never knows the outcome of a transaction."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN


def refuse_poison(message: ReceivedMessage) -> None:
    """Fail messages of the group that gets a dead letter."""
    if message.body == b"poison":
        raise ValueError("poison")


def mailer(address: str) -> Consumer:
    consumer = Consumer(address, group="mailer")
    consumer.subscribe(TOPIC)(refuse_poison)
    return consumer


def cut_sessions(url: str) -> None:
    """End all sessions of the database: of brokers and of the mirror."""
    with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )


def fired(scraper: prometheus.Prometheus) -> set[str]:
    """Return all alerts that have ever fired."""
    return {found["metric"]["alertname"] for found in scraper.api("query", query=_FIRED)["result"]}


def firing(scraper: prometheus.Prometheus) -> set[str]:
    return {name for name, state in scraper.alerts().items() if state == "firing"}


@pytest.mark.timeout(900)  # two minutes, on a quiet machine
def test_alerts_fire_for_lasting_faults_and_resolve_after_repair(
    start_broker: StartBroker, notify_url: str, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(shorter(RULES.read_text()))
    scraped = [f"127.0.0.1:{own_port()}" for _ in range(2)]
    first, second = [start_broker("--http-listen", address) for address in scraped]
    brokers = f"{first.address},{second.address}"
    tailer = TailerProcess(notify_url, tmp_path)
    tailer.start()
    try:
        with (
            neighbour(brokers) as clients,
            prometheus.running([*scraped, tailer.metrics], rules, tmp_path) as scraper,
        ):
            clients.goes_on()
            until(lambda: set(scraper.targets().values()) == {"up"})

            # What passes by itself.
            second.pause()
            until(lambda: scraper.alerts().get("TxmsgProcessDown") == "pending")
            second.resume()
            cut_sessions(notify_url)
            clients.goes_on(200)
            until(lambda: scraper.alerts() == {}, within_s=_WITHIN_S)
            assert fired(scraper) == set()

            # Lasting faults: a dead letter, a transaction without an answer, a group and a broker that do not run.
            with mailer(brokers):
                until(lambda: "mailer" in said("group", "list", "--broker", first.address))
                said("group", "alter", "mailer", "--retries", "0", "--broker", first.address)
                with Producer(brokers, group="poisoner") as producer:
                    producer.send(Message(TOPIC, b"poison"))
                until(lambda: scraper.values("max(txmsg_group_dead_letters)") == [1])
            with Producer(brokers, group="unsure", check_listener=UnknownOutcome()) as producer:
                half = producer.half([Message(TOPIC, b"undecided")])
                once = ("--checks-max", "1", "--check-interval-s", "1s")
                said("group", "alter", "unsure", *once, "--broker", first.address)
                producer.end(half, TransactionState.UNKNOWN)
                until(lambda: scraper.values('max(txmsg_halves{state="parked"})') == [1], within_s=_WITHIN_S)
            second.kill()
            for alert in sorted(LASTING):
                until(lambda alert=alert: alert in firing(scraper), within_s=_WITHIN_S, why=f"{alert} does not fire")  # type: ignore[misc]
            cut_sessions(notify_url)
            clients.goes_on(200)
            assert fired(scraper) == LASTING

            second.start()
            said("half", "rollback", str(half.transaction_id), "--yes", "--broker", first.address)
            said("dead-letter", "purge", "--group", "mailer", "--yes", "--broker", first.address)
            with mailer(brokers):
                until(lambda: scraper.alerts() == {}, within_s=_WITHIN_S)
            assert fired(scraper) == LASTING
            assert clients.errors == []
    finally:
        tailer.kill()
