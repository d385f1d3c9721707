"""Defaults of command options: variables and the settings file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from txmsg.broker.config import BrokerConfig
from txmsg.ops.cli.main import main
from txmsg.settings.catalogue import settings_of
from txmsg.settings.sources import from_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "txmsg.toml"
    monkeypatch.setenv("TXMSG_CONFIG", str(path))
    return path


def said(*words: str) -> str:
    return CliRunner().invoke(main, words).output


def test_an_option_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_DEAD_LETTER_LIST_LIMIT", "0")
    assert "0 is not in the range 1<=x<=10000" in said("dead-letter", "list")
    assert "no answer from a broker at localhost:1" in said(
        "dead-letter", "list", "--limit", "1", "--broker", "localhost:1"
    )


def test_the_file_sets_options_of_one_command_and_of_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('[cli]\nbroker = "localhost:1"\n[cli.group.list]\nlimit = 0\n[cli.metaq.tail]\nlimit = -1\n')
    assert "no answer from a broker at localhost:1, as the file of settings says (" in said("topic", "list")
    assert "no answer from a broker at localhost:2 (" in said("topic", "list", "--broker", "localhost:2")
    monkeypatch.setenv("TXMSG_BROKERS", "localhost:3,localhost:4")
    assert "no answer from a broker at localhost:3,localhost:4, as TXMSG_BROKERS says (" in said("topic", "list")
    assert "0 is not in the range 1<=x<=10000" in said("group", "list")
    assert "-1 is not in the range" in said("metaq", "tail", "t", "--log", "/nowhere")
    monkeypatch.setenv("TXMSG_GROUP_LIST_LIMIT", "-5")
    assert "-5 is not in the range" in said("group", "list"), "a variable goes before the file"


def test_a_misspelt_option_in_the_file_is_named(file: Path) -> None:
    file.write_text("[cli.group.list]\nlmit = 5\n")
    assert (
        f"{file}: [cli.group.list] has 'lmit', which is not an option of `txmsg group list`: choose from limit,"
        in said("group", "list")
    )
    assert "Usage: main topic list" in said("topic", "list", "--help")


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    assert f"the settings cannot be read from {file}" in said("group", "list")
    file.write_text("cli = 5\n")
    assert "cli is not a table: write [cli]" in said("group", "list")


def test_settings_of_servers_and_options_of_commands_share_a_file(file: Path) -> None:
    file.write_text("[cli]\nlimit = 5\n[broker]\ntopic_queues = 3\n")
    assert from_file(file, list(settings_of(BrokerConfig, "broker")))["topic_queues"].value == 3
