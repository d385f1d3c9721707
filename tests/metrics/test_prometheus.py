"""The real Prometheus on running processes: it scrapes the exported metrics and alerts on faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import prometheus
from tests.conftest import StartBroker
from tests.metaq.servers import MetaQProcess
from tests.metrics.test_log import TailerProcess
from tests.metrics.test_rules import RULES
from tests.ports import own_port
from tests.waiting import until
from txmsg.client import Producer
from txmsg.message import Message

pytestmark = pytest.mark.skipif(not prometheus.is_installed(), reason=prometheus.HOW_TO_INSTALL)

OF_THE_MACHINE = {"TxmsgBatchesSlow", "TxmsgDiskNearlyFull", "TxmsgLogSyncSlow", "TxmsgOpenFilesNear"}
"""Alerts that depend on the disk and limits of the test machine, not on the test."""


@pytest.fixture
def metaq(tmp_path: Path) -> Iterator[tuple[MetaQProcess, str]]:
    metrics = f"127.0.0.1:{own_port()}"
    with MetaQProcess(tmp_path / "log", "--http-listen", metrics, log=tmp_path / "metaq.log") as server:
        yield server, metrics


def test_prometheus_scrapes_all_brokers_and_fires_alerts_for_faults(
    start_broker: StartBroker, metaq: tuple[MetaQProcess, str], notify_url: str, tmp_path: Path
) -> None:
    of_broker = f"127.0.0.1:{own_port()}"
    broker = start_broker("--http-listen", of_broker)
    server, of_server = metaq
    tailer = TailerProcess(notify_url, tmp_path)
    tailer.start()
    addresses = [of_broker, of_server, tailer.metrics]
    with prometheus.running(addresses, RULES, tmp_path) as scraper:
        until(lambda: scraper.targets() == dict.fromkeys(addresses, "up"), why=str(scraper.targets()))
        with Producer(broker.address, group="shop") as producer:
            for _ in range(5):
                producer.send(Message("t", b"1"))
        until(lambda: scraper.values('sum(txmsg_stored_messages_total{kind="plain"})') == [5])
        until(lambda: scraper.values("sum(txmsg_mirror_messages_total)") == [5])
        until(lambda: scraper.values('txmsg_topic_messages_total{messaging_destination_name="t"}') == [5])
        assert scraper.values("count(txmsg_ready == 1)") == [3]
        assert scraper.alerts().keys() <= OF_THE_MACHINE
        tailer.kill()
        server.kill()
        until(lambda: scraper.alerts().get("TxmsgProcessDown") in {"pending", "firing"})
        until(lambda: scraper.targets()[of_server] != "up")
        assert scraper.targets()[of_broker] == "up"
        assert "TxmsgNotReady" not in scraper.alerts()
