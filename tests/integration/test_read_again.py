"""Servers reread their file at SIGHUP: live settings apply, others are named, a mistake changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.conftest import StartBroker
from tests.integration.cli_harness import json_of, said
from tests.metaq.logs import batch
from tests.metaq.servers import MetaQProcess, log_at
from tests.mirror.tailer_process import TailerProcess
from tests.restartable import Restartable
from tests.waiting import until
from txmsg.metaq.interface import LogQueue


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "txmsg.toml"


def said_after(process: Restartable, file: Path, text: str, *expected: str) -> None:
    """Rewrite the file and return when the process has logged all of this."""
    before = len(process.log.read_text())
    file.write_text(text)
    os.kill(process.pid, signal.SIGHUP)
    until(lambda: all(each in process.log.read_text()[before:] for each in expected), why=process.log.read_text())


def test_a_broker_rereads_its_file_and_run_time_settings_take_precedence(start_broker: StartBroker, file: Path) -> None:
    file.write_text("[broker]\ntopic_queues = 3\nretention_s = '1d'\n")
    broker = start_broker("--config", str(file))
    json_of("config", "set", "broker.retention_s", "2d", "--yes", "--broker", broker.address)

    said_after(
        broker,
        file,
        "[broker]\ntopic_queues = 5\nretention_s = '3d'\nconnections_max = 10\n",
        "broker.topic_queues is given as 5 now",
        "broker.connections_max has changed: restart this process",
    )

    used = json_of("config", "show", "broker", "--broker", broker.address)["used"]
    assert used["broker.topic_queues"] == {"value": "5", "source": f"{file} line 2"}
    assert used["broker.retention_s"]["value"] == "2d"
    assert json_of("topic", "create", "five", "--broker", broker.address)["queues"] == 5

    said_after(broker, file, "[broker]\ntopic_queues = 0\n", "cannot be applied, the former ones stay", "line 2")
    used = json_of("config", "show", "broker", "--broker", broker.address)["used"]
    assert used["broker.topic_queues"]["value"] == "5"

    said_after(broker, file, "", "broker.topic_queues is given as 4 now")


def test_a_metaq_server_rereads_its_retention(tmp_path: Path, file: Path) -> None:
    small = "[metaq.log]\nfile_size_bytes_max = '4KiB'\ncheckpoint_s = '50ms'\nflush_s = '50ms'\n"
    file.write_text(small)
    with MetaQProcess(tmp_path / "log", "--config", str(file), log=tmp_path / "metaq.log") as server:
        with log_at(server.address) as log:
            for n in range(20):
                log.append([batch("t", 0, n * 10, 10)])
            assert log.ranges([LogQueue("t", 0)])[LogQueue("t", 0)].begin == 0
            said_after(
                server,
                file,
                f"{small}retention_size_bytes = '4KiB'\n[metaq]\nlog_level = 'debug'\nconnections_max = 9\n",
                "metaq.log.retention_size_bytes is given as 4KiB now",
                "metaq.log_level is given as debug now",
                "metaq.connections_max has changed: restart this process",
            )
            until(lambda: log.ranges([LogQueue("t", 0)])[LogQueue("t", 0)].begin > 0)
        said_after(server, file, "[metaq]\nlog_leve = 'info'\n", "did you mean metaq.log_level?")


@pytest.mark.long
def test_a_tailer_rereads_its_pace(notify_url: str, tmp_path: Path, file: Path) -> None:
    def seen_at() -> str:
        seen: str = json_of("tailer", "status", "--storage", notify_url)["seen_at"]
        return seen

    file.write_text("[tailer]\nposition_s = '1h'\n")
    with TailerProcess(notify_url, tmp_path / "log", "--config", str(file), said=tmp_path / "said") as tailer:
        tailer.start()
        begun_at = seen_at()
        said_after(tailer, file, "[tailer]\nposition_s = '50ms'\n", "tailer.position_s is given as 50ms now")
        until(lambda: seen_at() > begun_at)
        said_after(tailer, file, "[tailer]\nposition_s = '50ms'\n", "nothing of them changes here")
        tailer.stop()
    said("tailer", "drop", "--storage", notify_url, "--yes")
