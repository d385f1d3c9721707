"""A mirror in Kafka of an erasable topic holds ciphertext, which readers decrypt while its keys exist."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import said
from tests.kafka_server import PrivateKafka
from tests.mirror.checks import require_equal
from tests.mirror.tailer_process import TailerProcess
from txmsg.binlog.verifier.kafka_walk import KafkaTopics
from txmsg.binlog.verifier.mirror import VerifiedQueue
from txmsg.client import BodyKeys, Producer
from txmsg.client.app import Txmsg
from txmsg.message import Message, ReceivedMessage
from txmsg.message.erasable import ERASED_HEADER, SEALED_HEADER
from txmsg.metaq import open_log, to_arrow
from txmsg.metaq.interface import LogQueue

pytestmark = pytest.mark.long

SECRET = b'{"name": "ann"}'
WAIT_S = 60.0


def values(where: str) -> list[bytes | None]:
    """Return the values that a plain Kafka client reads. Fails for a record not marked as encrypted."""
    with KafkaTopics(where, None) as topics:
        records = list(topics.messages(VerifiedQueue("t", 0))[1])
    for record in records:
        assert SEALED_HEADER in dict(record.headers() or ())
    return [record.value() for record in records]


def files_with(kafka: PrivateKafka, text: bytes) -> list[Path]:
    """Return the partition segments that contain the bytes."""
    found = [path for node in kafka.nodes for path in (node.directory / "data").rglob("*.log")]
    return [path for path in found if text in path.read_bytes()]


def test_an_erased_body_is_unreadable_in_kafka_and_the_others_are_decrypted(
    *, broker: BrokerProcess, notify_url: str, private_kafka: PrivateKafka, kafka_prefix: str, tmp_path: Path
) -> None:
    where, at = f"{private_kafka.address}/{kafka_prefix}", ("--broker", broker.address)
    said("topic", "create", "t", "--queues", "1", "--erasable", "90d", *at)
    said("topic", "create", "u", "--queues", "1", *at)
    with TailerProcess(notify_url, where, said=tmp_path / "said") as tailer:
        tailer.start()
        with Producer(broker.address, group="clinic") as producer:
            kept = producer.send(Message("t", SECRET, headers={"h": "1"}))
            gone = producer.send(Message("t", SECRET))
            producer.send(Message("u", b"in the clear"))
            require_equal(notify_url, where, 3)
            mirrored = values(where)
            said("message", "erase", "--topic", "t", gone, "--yes", *at)
            producer.send(Message("t", SECRET))
        require_equal(notify_url, where, 4)
        tailer.stop()
    said("tailer", "drop", "--storage", notify_url, "--yes")
    assert len(mirrored) == 2
    assert values(where)[:2] == mirrored, "the record of what was erased stays"
    assert files_with(private_kafka, b"in the clear"), "Kafka's files are looked for elsewhere"
    assert files_with(private_kafka, SECRET) == []

    keys = BodyKeys(broker.address)
    with open_log(where) as log:
        [found] = log.fetch({LogQueue("t", 0): 0}, wait_s=WAIT_S)
        stored = to_arrow(found.batches)
    assert keys.decrypt_arrow("t", stored)["body"].to_pylist() == [SECRET, b"", SECRET]

    got: queue.Queue[ReceivedMessage] = queue.Queue()
    app = Txmsg(log=where, group="ward", encryption=keys)
    app.subscribe("t", source="log")(got.put)
    with app:
        handled = [got.get(timeout=WAIT_S) for _ in range(3)]
    assert [message.id for message in handled[:2]] == [kept, gone]
    assert [(message.body, message.headers) for message in handled] == [
        (SECRET, {"h": "1"}),
        (b"", {ERASED_HEADER: "1"}),
        (SECRET, {}),
    ]
