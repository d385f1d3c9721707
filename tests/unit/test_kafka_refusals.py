"""Operations without support in Kafka are refused before a call to Kafka, with the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from txmsg.errors import MisuseError
from txmsg.message import Message
from txmsg.metaq import LogAccess, LogProducer, open_log
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.groups import KafkaGroups
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.store.topics import Flush, Permission, TopicSettings


@pytest.fixture
def log() -> Iterator[LogAccess]:
    """A log without a server: a call to it would raise another error."""
    with open_log("kafka://127.0.0.1:9", timeout_s=1) as access:
        yield access


def test_a_delayed_message_is_refused(log: LogAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "settings_of", lambda _: TopicSettings())
    with pytest.raises(MisuseError, match=r"topic 'trade' is delayed, .* send it when it is due, or by a broker"):
        LogProducer(log).send(Message("trade", b"", deliver_after=timedelta(minutes=1)))


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        (TopicSettings(), r"min\.insync\.replicas"),
        (TopicSettings(flush=Flush.TIMED, write_queues=2), "partitions of Kafka only grow"),
        (TopicSettings(flush=Flush.TIMED, write_queues=2, read_queues=4), "partitions of Kafka only grow"),
        (TopicSettings(flush=Flush.TIMED, permission=Permission.READ), r"kafka-acls\.sh"),
    ],
)
def test_settings_that_kafka_does_not_support_are_refused(
    log: LogAccess, settings: TopicSettings, way_out: str
) -> None:
    with pytest.raises(MisuseError, match=way_out):
        log.set_topic("trade", settings)


def test_the_group_of_a_mirror_cannot_be_used_by_consumers(log: LogAccess) -> None:
    calls: list[Callable[[], object]] = [
        lambda: log.join("txmsg-mirror", ["trade"]),
        lambda: log.seek("txmsg-mirror", {}),
        lambda: log.delete_group("txmsg-mirror"),
    ]
    for call in calls:
        with pytest.raises(MisuseError, match="where a mirror notes how far it is: choose another name"):
            call()


@pytest.mark.parametrize("change", [{"stopped": True}, {"concurrency": 2}, {"rate_per_s": 10.0}])
def test_group_settings_are_refused_with_the_alternative_in_the_application(
    log: LogAccess, change: dict[str, Any]
) -> None:
    with pytest.raises(MisuseError, match=r"app\.pause\('g'\) in each process.* concurrency= and rate="):
        log.alter_group("g", **change)


def test_the_group_of_a_mirror_is_not_listed() -> None:
    listed = SimpleNamespace(
        errors=[],
        valid=[SimpleNamespace(group_id=f"shop.{name}") for name in ("txmsg-mirror", "audit", "audit%%asked")],
    )
    future: Future[object] = Future()
    future.set_result(listed)
    clients = KafkaClients(parse_address("kafka://127.0.0.1:9/shop."), {}, timeout_s=1)
    admin: Any = SimpleNamespace(list_consumer_groups=lambda **_: future)
    nothing: Any = None
    assert KafkaGroups(clients, admin, nothing, nothing).groups() == ["audit"]
