"""`txmsg config`: settings as shown to operators, and servers that read them from files and variables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of, txmsg
from txmsg.ops.cli.main import main


def run(*args: str, **environment: str) -> str:
    result = CliRunner().invoke(main, ["config", *args], env=environment)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "txmsg.toml"
    found.write_text('[broker]\ntopic_queues = 7\nretention_s = "14d"\n[metaq]\nlisten = "127.0.0.1:0"\n')
    return found


def test_explain_shows_all_that_the_catalogue_has_of_a_setting() -> None:
    found = json.loads(run("explain", "broker.retention_s", "--json"))["broker.retention_s"]
    assert found["default"] == "7d"
    assert found["bounds"] == "above 0s and below 18250d"
    assert found["option"] == "--retention"
    assert found["variable"] == "TXMSG_BROKER_RETENTION_S"
    assert found["in_the_file"] == "[broker] retention_s"
    assert "go for good" in found["may_delete"]
    assert "TXMSG_BROKER_RETENTION_S" in run("explain", "broker.retention_s")


def test_explain_lists_a_scope_or_a_section_of_it() -> None:
    assert "metaq.log.flush_s" in run("explain", "metaq")
    assert list(json.loads(run("explain", "broker.scheduler", "--json"))) == [
        "broker.scheduler.interval_s",
        "broker.scheduler.sweep_s",
        "broker.scheduler.rows_max",
        "broker.scheduler.size_bytes_max",
    ]


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    assert "did you mean broker.retention_s?" in txmsg("config", "explain", "broker.retntion_s", status=1)


def test_check_shows_each_value_and_its_source(file: Path) -> None:
    shown = json.loads(run("check", "broker", "--config", str(file), "--json", TXMSG_BROKER_TOPIC_QUEUES="9"))
    assert shown == {
        "broker.topic_queues": {"value": "9", "source": "TXMSG_BROKER_TOPIC_QUEUES"},
        "broker.retention_s": {"value": "14d", "source": f"{file} line 3"},
    }
    assert "all settings of tailer have their defaults" in run("check", "tailer", "--config", str(file))
    assert json.loads(run("check", "metaq", "--all", "--json"))["metaq.listen"]["source"] == "default"


def test_check_hides_passwords() -> None:
    shown = run("check", "broker", TXMSG_STORAGE="postgresql://notify:geheim@db/notify")
    assert "geheim" not in shown
    assert "notify:***@db" in shown


def test_a_broker_reads_settings_from_file_and_environment(notify_url: str, file: Path, tmp_path: Path) -> None:
    environment = {"TXMSG_CONFIG": str(file), "TXMSG_BROKER_TOPIC_AUTO_CREATE": "no"}
    with BrokerProcess(notify_url, log=tmp_path / "broker.log", environment=environment) as broker:
        json_of("topic", "create", "t", "--broker", broker.address)
        assert json_of("topic", "show", "t", "--broker", broker.address)["queues"] == 7


def test_a_server_does_not_start_with_an_invalid_file(file: Path) -> None:
    file.write_text("[metaq]\ndata_dir = '/log'\nlisten = 7\n")
    [line] = txmsg("metaq", "serve", "--config", str(file), status=1).splitlines()
    assert line.endswith("txmsg.toml line 3 gives no value for metaq.listen: the value 7 is not a text on one line")


def test_a_missing_required_setting_is_named_with_all_its_sources() -> None:
    told = " ".join(txmsg("metaq", "serve", status=2).split())
    assert "metaq.data_dir is missing: give --data-dir, the variable TXMSG_METAQ_DATA_DIR, or data_dir under" in told
