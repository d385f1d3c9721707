"""Commands on a log in Kafka, and their errors if it cannot be used."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.kafka_server import PASSWORD, USER, Kafka, PrivateKafka, admin
from tests.ports import own_port
from tests.waiting import until_told
from txmsg.errors import BrokerUnavailable, PermissionDenied, StorageError, Unauthenticated
from txmsg.message import Message
from txmsg.metaq import LogProducer, LogQueue, open_log
from txmsg.metaq.kafka.location import CONFIG_VARIABLE
from txmsg.ops.cli.main import main

pytestmark = pytest.mark.long


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture(autouse=True)
def no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment changed by --kafka-config after the test."""
    monkeypatch.setenv(CONFIG_VARIABLE, "")


@pytest.fixture
def where(kafka: Kafka, kafka_prefix: str) -> str:
    """A log with three messages."""
    address = f"{kafka.address}/{kafka_prefix}"
    with open_log(address) as log:
        LogProducer(log, queues=1).send_many([Message("trade", b"%d" % each, key=f"k{each}") for each in range(3)])
    return address


def test_commands_show_a_log_in_kafka(where: str) -> None:
    found = json.loads(run("metaq", "topics", "--log", where, "--json").output)
    [row] = found["queues"]
    assert (row["topic"], row["queue"], row["begin"], row["end"], found["size_bytes"]) == ("trade", 0, 0, 3, None)
    assert json.loads(run("metaq", "status", "--log", where, "--json").output)["topics"] == 1
    lines = run("metaq", "tail", "trade", "--log", where, "--from", "1", "--json").output.splitlines()
    messages = [json.loads(line) for line in lines]
    assert [(message["offset"], message["body"]) for message in messages] == [(1, "1"), (2, "2")]
    by_key = run("metaq", "find", "trade", "--log", where, "--key", "k2", "--json")
    assert json.loads(by_key.output)["messages"] == [messages[1]]
    by_id = run("metaq", "find", "trade", "--log", where, "--id", messages[0]["id"], "--json")
    assert json.loads(by_id.output)["messages"] == [messages[0]]
    told = json.loads(run("metaq", "set", "trade", "--log", where, "--retention", "2h", "--json").output)
    assert told["retention_s"] == 7200
    assert run("metaq", "tail", "none", "--log", where).exit_code == 1


def test_group_is_shown_and_its_offsets_are_moved(kafka: Kafka, kafka_prefix: str, where: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": f"{kafka_prefix}mail", "log_level": 0})
    consumer.commit(offsets=[TopicPartition(f"{kafka_prefix}trade", 0, 1)], asynchronous=False)
    consumer.close()
    to = ("--topic", "trade", "--queue", "0", "--to", "2", "--yes")
    done = run("group", "seek", "mail", *to, "--log", where)
    assert done.exit_code == 0, done.output
    [queue] = json.loads(run("group", "show", "mail", "--log", where, "--json").output)["queues"]
    assert (queue["topic"], queue["next_offset"]) == ("trade", 2)


@pytest.mark.parametrize("command", [("check",), ("dump",)])
def test_command_that_needs_files_is_refused_with_the_kafka_tool_to_use(command: Sequence[str]) -> None:
    done = run("metaq", *command, "kafka://localhost:9092")
    assert done.exit_code == 2
    assert "kafka://localhost:9092 is a log in Kafka" in done.output
    assert "kafka-dump-log.sh" in done.output


def test_settings_managed_by_kafka_are_refused(where: str) -> None:
    done = run("metaq", "set", "trade", "--log", where, "--write-queues", "2")
    assert done.exit_code == 1
    assert "kafka-acls.sh" in done.output
    assert "min.insync.replicas" in run("metaq", "set", "trade", "--log", where, "--flush", "sync").output


# ---- errors


def test_unreachable_kafka_is_reported_with_its_address() -> None:
    address = f"kafka://127.0.0.1:{own_port()}"
    with open_log(address, timeout_s=2) as log:
        told = until_told("Connection refused", log.topics)
    assert isinstance(told, BrokerUnavailable)
    assert address in str(told)


def test_unknown_host_is_named() -> None:
    with open_log("kafka://no-such-host.invalid:9092", timeout_s=2) as log, pytest.raises(BrokerUnavailable) as refused:
        log.topics()
    assert "no-such-host.invalid" in str(refused.value)


def test_an_address_without_a_port_is_refused() -> None:
    done = run("metaq", "topics", "--log", "kafka://broker-1")
    assert done.exit_code == 1
    assert "'broker-1' is not of the form HOST:PORT" in done.output


def test_missing_extra_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("txmsg.metaq.kafka.")]:
        if name != "txmsg.metaq.kafka.location":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(StorageError, match=r"pip install 'txmsg\[kafka\]'"):
        open_log("kafka://localhost:9092")


def test_unknown_property_is_named(tmp_path: Path, where: str) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("securty.protocol=SASL_SSL\n")
    done = run("metaq", "topics", "--log", where, "--kafka-config", str(file))
    assert done.exit_code == 1
    assert "securty.protocol" in done.output


def sasl(tmp_path: Path, password: str) -> Path:
    file = tmp_path / f"{password}.properties"
    file.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username={USER}\nsasl.password={password}\n"
    )
    return file


@pytest.fixture
def denied(private_kafka: PrivateKafka, where: str) -> Iterator[str]:
    """The log for a user without permission to read its topic."""
    name = where.rpartition("/")[2] + "trade"
    rule = AclBinding(
        ResourceType.TOPIC, name, ResourcePatternType.LITERAL, f"User:{USER}", "*", AclOperation.ALL,
        AclPermissionType.DENY,
    )  # fmt: skip
    client = admin(private_kafka)
    client.create_acls([rule])[rule].result(30)
    yield f"{private_kafka.sasl_address}/{where.rpartition('/')[2]}"
    pattern = AclBindingFilter(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    client.delete_acls([pattern])[pattern].result(30)


def test_log_opens_with_the_right_password_only(private_kafka: PrivateKafka, where: str, tmp_path: Path) -> None:
    address = f"{private_kafka.sasl_address}/{where.rpartition('/')[2]}"
    done = run("metaq", "topics", "--log", address, "--kafka-config", str(sasl(tmp_path, PASSWORD)), "--json")
    assert [row["topic"] for row in json.loads(done.output)["queues"]] == ["trade"]
    with open_log(address, kafka_config=sasl(tmp_path, "wrong"), timeout_s=5) as log:
        with pytest.raises(Unauthenticated) as refused:
            log.topics()
    assert address in str(refused.value)
    assert "password" in str(refused.value)


def test_denied_topic_is_named_with_the_kafka_tool_to_use(denied: str, tmp_path: Path) -> None:
    with open_log(denied, kafka_config=sasl(tmp_path, PASSWORD)) as log:
        assert log.topics() == {}
        queue = LogQueue("trade", 0)
        for refused in (
            lambda: log.ranges([queue]),
            lambda: log.queues_of("trade"),
            lambda: LogProducer(log, queues=1).send(Message("trade", b"x")),
        ):
            with pytest.raises(PermissionDenied, match=r"trade.*kafka-acls\.sh"):
                refused()
