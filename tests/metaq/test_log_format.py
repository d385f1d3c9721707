"""Log lines of a server: text, or JSON and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.metaq.servers import MetaQProcess


def test_server_logs_json_if_the_environment_variable_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_LOG_FORMAT", "json")
    log, directory = tmp_path / "stderr", tmp_path / "log"
    with MetaQProcess(directory, "--http-listen", "127.0.0.1:0", log=log) as server:
        assert server.stop() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    events = [line["event"] for line in lines if line["event"] != "log.disk_nearly_full"]  # of this machine
    assert events == ["metrics.served", "server.stopping"]
    assert {line["process"] for line in lines} == {f"metaq {directory}"}


def test_server_logs_text_by_default(tmp_path: Path) -> None:
    with MetaQProcess(tmp_path / "log", log=tmp_path / "stderr") as server:
        assert server.stop() == 0
    assert "stopping: calls under way have 10 s" in (tmp_path / "stderr").read_text()
