"""Clients of a real Kafka."""

from __future__ import annotations

from contextlib import closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.kafka_server import Kafka, PrivateKafka, admin, create_topic
from tests.waiting import until
from txmsg.binlog.mirror.kafka_sink import KafkaSink
from txmsg.binlog.verifier.kafka_walk import KafkaTopics
from txmsg.binlog.verifier.mirror import VerifiedQueue
from txmsg.metaq import LogQueue, PullConsumer, open_log
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.names import kafka_name
from txmsg.metaq.kafka.record import received, records_of

pytestmark = pytest.mark.long


def test_produced_messages_are_consumed(kafka: Kafka, kafka_prefix: str) -> None:
    name = kafka_name("orders", kafka_prefix)
    create_topic(kafka, name, 2)
    clients = KafkaClients(parse_address(kafka.address), {}, timeout_s=30)
    producer = clients.producer()
    for record in records_of(FrameColumns([b"a", b"b"], [5000], bytes(32)), name, 1, 10):
        producer.produce(name, record.value, record.key, 1, timestamp=record.timestamp_ms, headers=record.headers)
    assert producer.flush(30) == 0
    consumer = clients.consumer("unused")
    consumer.assign([TopicPartition(name, 1, 0)])
    found = [received(record, "orders", 1) for record in consumer.consume(2, 30)]
    consumer.close()
    assert [(message.body, message.offset, message.stored_at_us) for message in found] == [
        (b"a", 10, 5000),
        (b"b", 11, 5000),
    ]


def topics_of(kafka: Kafka, prefix: str) -> set[str]:
    found = admin(kafka).list_topics(timeout=30).topics
    return {name.removeprefix(prefix) for name in found if name.startswith(prefix)}


def create_by_asking(kafka: Kafka, prefix: str, topic: str) -> None:
    """Request metadata of a topic as other clients do, and return once that has created it; fails if it does not."""
    others = Consumer(
        {"bootstrap.servers": kafka.servers, "group.id": "x", "allow.auto.create.topics": True, "log_level": 0}
    )
    others.list_topics(f"{prefix}{topic}", timeout=30)
    others.close()
    until(lambda: topic in topics_of(kafka, prefix))


def test_metadata_request_does_not_create_a_topic(private_kafka: PrivateKafka, kafka_prefix: str) -> None:
    create_by_asking(private_kafka, kafka_prefix, "asked-before")
    where, absent = f"{private_kafka.address}/{kafka_prefix}", LogQueue("absent", 0)
    with open_log(where) as log:
        assert log.queues_of("absent") == []
        log.ranges([absent])
        log.offsets_at([absent], 0)
        log.settings_of("absent")
        log.fetch({absent: 0}, wait_s=0.5)
        assert log.find("absent", "key") == []
    consumer = PullConsumer(where, "g")
    consumer.subscribe("absent")
    with consumer:
        assert consumer.poll(1.0) == []
    with closing(KafkaSink(where)) as sink:
        sink.tails([("absent", 0)])
        assert list(sink.marks("absent", absent.queue, 0, 1)) == []
    with KafkaTopics(where, None) as topics:
        topics.ends([VerifiedQueue("absent", 0)])
        topics.messages(VerifiedQueue("absent", 0))
    create_by_asking(private_kafka, kafka_prefix, "asked-after")  # Kafka answers first, and creates then
    assert topics_of(private_kafka, kafka_prefix) == {"asked-before", "asked-after"}
