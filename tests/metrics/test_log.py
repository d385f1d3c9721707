"""The metrics of real MetaQ servers and tailers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.binlog.tailers import Table
from tests.metaq.logs import batch
from tests.metaq.servers import SERVER_THREAD, MetaQProcess, log_at
from tests.metaq.servers import served as served_here
from tests.metrics.scraping import Scrape, got, require_catalogued, rises, scrape
from tests.ports import own_port
from tests.restartable import Restartable
from tests.waiting import until
from txmsg.binlog.config import TailerConfig
from txmsg.binlog.figures import dead, unready
from txmsg.binlog.mirror import open_sink
from txmsg.binlog.tailer import Tailer
from txmsg.errors import CorruptLog, InvalidName, MisuseError
from txmsg.message import check_name
from txmsg.metaq.group.files import queue_file
from txmsg.metaq.interface import LogQueue
from txmsg.metaq.server.server_config import MetaQConfig
from txmsg.metrics.catalogue import NAMED_MAX, OTHER, ExportingProcess


class Served:
    """A MetaQ server with metrics."""

    def __init__(self, directory: Path) -> None:
        self.metrics = f"127.0.0.1:{own_port()}"
        self.root = directory / "log"
        self.server = MetaQProcess(self.root, "--http-listen", self.metrics, log=directory / "metaq.log")

    def await_fresh(self, sample: str, value: float, **labels: str) -> Scrape:
        """Return a scrape in which this series has this value: metrics of topics and groups are some seconds old."""

        def fresh() -> Scrape | None:
            found = scrape(self.metrics)
            is_there = found.values.get(sample, {}).get(frozenset(labels.items())) == value
            return found if is_there else None

        return until(fresh, why=f"{sample} {labels} did not become {value}")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    with served.server:
        yield served


def test_metaq_server_serves_every_catalogued_metric(served: Served) -> None:
    found = scrape(served.metrics)
    require_catalogued(found, ExportingProcess.METAQ)
    assert found.series_count >= 30
    assert got(served.metrics, "/readyz") == (200, "ok\n")
    assert got(served.metrics, "/livez") == (200, "ok\n")
    assert found.value("txmsg_log_failed") == 0
    assert found.value("txmsg_ready") == 1
    assert 0 <= found.value("txmsg_log_figures_age_seconds") < 60


def test_appends_are_counted_and_timed(served: Served) -> None:
    before = scrape(served.metrics)
    with log_at(served.server.address) as log:
        log.append([batch("t", 0, 0, 5), batch("u", 3, 0, 2)])
        with pytest.raises(MisuseError):
            log.append([batch("t", 0, 99, 1)])  # not where the queue ends
    found = rises(served.metrics, "txmsg_log_appended_messages_total", by=7, since=before)
    assert found.value("txmsg_log_appended_bytes_total") > 0
    assert found.value("txmsg_log_append_errors_total") == 1
    assert found.value("txmsg_log_append_calls_sum") == 2
    assert found.value("txmsg_log_append_seconds_count") >= 1
    assert found.value("txmsg_log_sync_seconds_count") > before.value("txmsg_log_sync_seconds_count")
    assert found.value("txmsg_log_unsynced_bytes") == 0
    found = served.await_fresh("txmsg_log_topic_messages_total", 5, messaging_destination_name="t")
    assert found.value("txmsg_log_topic_messages_total", messaging_destination_name="u") == 2
    assert found.value("txmsg_log_topics") == 2
    assert found.value("txmsg_log_bytes") > before.value("txmsg_log_bytes")
    assert found.value("txmsg_log_files") == 1


def test_scrape_does_not_read_directories_on_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    listdir = os.listdir

    def noted(path: Any) -> list[str]:
        if str(path).startswith(str(tmp_path)):
            threads.append(threading.current_thread().name)
        return listdir(path)

    address = f"127.0.0.1:{own_port()}"
    with served_here(MetaQConfig(data_dir=tmp_path, listen="127.0.0.1:0", http_listen=address)):
        monkeypatch.setattr(os, "listdir", noted)
        found = scrape(address)
        assert found.value("txmsg_log_files") == 1
        assert threads, "the files were listed"
        assert SERVER_THREAD not in threads


def test_lag_of_groups_is_reported_with_the_oldest_age(served: Served) -> None:
    with log_at(served.server.address) as log:
        log.append([batch("t", 0, 0, 5)])
        member = log.join("g", ["t"])
        labels = {"messaging_consumer_group_name": "g", "messaging_destination_name": "t"}
        member.view()
        assert member.take_queues([LogQueue("t", 0)]) == {LogQueue("t", 0): 0}
        member.store({LogQueue("t", 0): 2})
        found = served.await_fresh("txmsg_log_group_lag_messages", 3, **labels)
        assert found.value("txmsg_log_group_lag_seconds", **labels) > 0
        assert found.value("txmsg_log_groups") == 1
        assert found.value("txmsg_log_members") == 1
        member.store({LogQueue("t", 0): 5})
        found = served.await_fresh("txmsg_log_group_lag_messages", 0, **labels)
        assert found.value("txmsg_log_group_lag_seconds", **labels) == 0
        member.leave({})


def test_damaged_group_is_skipped_and_the_others_are_reported(served: Served) -> None:
    with log_at(served.server.address) as log:
        log.append([batch("t", 0, 0, 5)])
        for group in ("damaged", "whole"):
            member = log.join(group, ["t"])
            member.view()
            member.take_queues([LogQueue("t", 0)])
            member.leave({LogQueue("t", 0): 2})
        path = queue_file(served.root / "groups/damaged", LogQueue("t", 0))
        path.write_bytes(b"\xff" * path.stat().st_size)
        with pytest.raises(CorruptLog):
            log.group("damaged")
    labels = {"messaging_consumer_group_name": "whole", "messaging_destination_name": "t"}
    found = served.await_fresh("txmsg_log_group_lag_messages", 3, **labels)
    assert len(found.values["txmsg_log_group_lag_messages"]) == 1
    assert found.value("txmsg_log_groups") == 2


@pytest.mark.parametrize("what", ["topic", "consumer group"])
def test_name_of_the_summed_series_is_not_a_valid_topic_or_group(what: str) -> None:
    with pytest.raises(InvalidName):
        check_name(what, OTHER)


def test_number_of_topic_series_is_bounded(served: Served) -> None:
    count = NAMED_MAX + 20
    with log_at(served.server.address) as log:
        log.append([batch(f"t{number:04}", 0, 0, 1) for number in range(count)])
    found = served.await_fresh("txmsg_log_topics", count)
    assert len(found.values["txmsg_log_topic_messages_total"]) == NAMED_MAX + 1
    assert found.value("txmsg_log_topic_messages_total", messaging_destination_name="(other)") == 20


def test_groups_with_lag_have_series_and_the_others_are_summed_up(served: Served) -> None:
    idle, behind = NAMED_MAX + 20, "z-last"
    with log_at(served.server.address) as log:
        log.append([batch("t", 0, 0, 5)])
        for group in (*(f"g{number:04}" for number in range(idle)), behind):
            member = log.join(group, ["t"])
            member.view()
            member.take_queues([LogQueue("t", 0)])
            member.leave({LogQueue("t", 0): 2 if group == behind else 5})
    found = served.await_fresh(
        "txmsg_log_group_lag_messages", 3, messaging_consumer_group_name=behind, messaging_destination_name="t"
    )
    assert found.value("txmsg_log_group_pairs") == idle + 1
    assert len(found.values["txmsg_log_group_lag_messages"]) == NAMED_MAX + 1
    others = {"messaging_consumer_group_name": OTHER, "messaging_destination_name": OTHER}
    assert found.value("txmsg_log_group_lag_messages", **others) == 0


def test_metrics_of_a_log_require_authentication(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="every client that reaches it can read all metrics"):
        MetaQConfig(data_dir=tmp_path, http_listen="0.0.0.0:0")


def test_server_without_users_yet_is_not_ready(tmp_path: Path) -> None:
    metrics, nobody = f"127.0.0.1:{own_port()}", f"127.0.0.1:{own_port()}"
    options = ("--http-listen", metrics, "--access-from", nobody)
    with MetaQProcess(tmp_path / "log", *options, log=tmp_path / "metaq.log"):
        status, text = got(metrics, "/readyz")
    assert status == 503
    assert "no broker of --access-from has sent them" in text


def test_missing_prometheus_client_is_reported_with_its_install_command(tmp_path: Path) -> None:
    words = ["metaq", "serve", "--data-dir", str(tmp_path / "log"), "--listen", "127.0.0.1:0"]
    program = (
        "import sys; sys.modules['prometheus_client'] = None; from txmsg.ops.cli.main import main; "
        f"main({[*words, '--http-listen', '127.0.0.1:0']})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    told = "prometheus_client, which is not installed: run `pip install 'txmsg[metaq]'`\n"
    assert (done.returncode, done.stderr.endswith(told)) == (1, True), done.stderr


# ---- the tailer


class TailerProcess(Restartable):
    """`txmsg tailer run` with metrics."""

    ready = "tailing"

    def __init__(self, storage: str, directory: Path) -> None:
        super().__init__("the tailer", directory / "tailer.log")
        self.metrics = f"127.0.0.1:{own_port()}"
        self._arguments = ["--storage", storage, "--metaq", str(directory / "mirrored")]

    def arguments(self) -> list[str]:
        return ["tailer", "run", *self._arguments, "--http-listen", self.metrics]


@pytest.fixture
def tailer(notify_url: str, tmp_path: Path) -> Iterator[TailerProcess]:
    tailer = TailerProcess(notify_url, tmp_path)
    tailer.start()
    yield tailer
    assert tailer.stop() == 0, tailer.log.read_text()


def test_tailer_serves_every_catalogued_metric(tailer: TailerProcess) -> None:
    found = until(lambda: now if (now := scrape(tailer.metrics)).value("txmsg_mirror_tailing") else None)
    require_catalogued(found, ExportingProcess.TAILER)
    assert found.series_count >= 30
    assert found.value("txmsg_ready") == 1
    assert got(tailer.metrics, "/readyz") == (200, "ok\n")
    assert got(tailer.metrics, "/livez") == (200, "ok\n")


def test_mirrored_messages_and_lag_are_measured(tailer: TailerProcess, notify_url: str) -> None:
    table = Table(notify_url)
    table.topic("t")
    before = scrape(tailer.metrics)
    table.add("t", 20)
    found = rises(tailer.metrics, "txmsg_mirror_messages_total", by=20, since=before)
    assert found.value("txmsg_mirror_append_seconds_count") >= 1
    assert found.value("txmsg_mirror_stopped_queues") == 0
    until(lambda: scrape(tailer.metrics).value("txmsg_mirror_kept_bytes") > 0)
    until(lambda: scrape(tailer.metrics).value("txmsg_mirror_lag_bytes") == 0)


def test_tailer_not_started_is_not_ready_and_hanging_tailer_is_not_alive(notify_url: str, tmp_path: Path) -> None:
    tailer = Tailer(TailerConfig(storage=notify_url), lambda: open_sink(str(tmp_path / "log")))
    assert "has not begun" in unready(tailer)
    assert dead(tailer) == ""
    tailer._stop.looked_at = tailer._progress_at = time.monotonic() - 1000
    assert "nothing was heard of the tailer's thread for 1000 s" in dead(tailer)
