"""The clients of a real Kafka."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from tests.kafka_server import Kafka, create_topic
from txmsg.metaq.format.frame import Columns
from txmsg.metaq.kafka.clients import Clients
from txmsg.metaq.kafka.location import parse_address
from txmsg.metaq.kafka.names import kafka_name
from txmsg.metaq.kafka.record import received, records_of

pytestmark = pytest.mark.long


def test_what_is_produced_is_consumed(kafka: Kafka, kafka_prefix: str) -> None:
    name = kafka_name("orders", kafka_prefix)
    create_topic(kafka, name, 2)
    clients = Clients(parse_address(kafka.address), {}, timeout_s=30)
    producer = clients.producer()
    for record in records_of(Columns([b"a", b"b"], [5000], bytes(32)), 10):
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
