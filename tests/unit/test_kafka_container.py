"""The Kafka of `--kafka=testcontainers`, as far as it can be tested without Docker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka_server import kafka_in_container


def test_the_container_has_the_settings_that_tests_need(monkeypatch: pytest.MonkeyPatch) -> None:
    from testcontainers.community.kafka import KafkaContainer
    from testcontainers.core import container

    life: list[str] = []
    env: dict[str, object] = {}

    def start(this: Any) -> Any:
        this.configure()
        env.update(this.env)
        life.append("started")
        return this

    monkeypatch.setattr(container, "DockerClient", lambda **_: None)
    monkeypatch.setattr(KafkaContainer, "start", start)
    monkeypatch.setattr(KafkaContainer, "stop", lambda this: life.append(f"stopped {this.image}"))
    monkeypatch.setattr(KafkaContainer, "get_container_host_ip", lambda _: "localhost")
    monkeypatch.setattr(KafkaContainer, "get_exposed_port", lambda this, port: 7 if port == this.port else 0)
    with kafka_in_container() as kafka:
        assert (kafka.servers, kafka.address) == ("localhost:7", "kafka://localhost:7")
        assert life == ["started"]
    assert life == ["started", "stopped confluentinc/cp-kafka:8.2.0"]
    assert env["KAFKA_PROCESS_ROLES"] == "broker,controller", "without ZooKeeper, which Kafka 4 does not have"
    assert env["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == "1", "else no mirror begins on one node"
    assert env["KAFKA_LOG_RETENTION_MS"] == "-1", "else what tests have stored long ago is deleted"
    assert env["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "true", "as it is in Kafka"
