"""Copies records of Kafka with all their headers, as programs do that split, join or re-key topics."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.kafka_server import Kafka
from tests.metaq.logs import append, bodies
from txmsg.metaq import LogAccess
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.kafka.kafka_log import KafkaLog
from txmsg.metaq.kafka.names import kafka_name
from txmsg.metaq.kafka.record import records_of

_ANSWER_S_MAX = 60.0


def copy_records(kafka: Kafka, source: TopicPartition, target: TopicPartition) -> int:
    """Append all committed records of a partition to another one; return their number."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.servers,
            "group.id": "copies",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 0})
    count = 0
    with closing(consumer):
        consumer.assign([TopicPartition(source.topic, source.partition, 0)])
        while True:
            record = consumer.poll(_ANSWER_S_MAX)
            assert record is not None
            if (error := record.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                break
            producer.produce(
                target.topic,
                record.value(),
                record.key(),
                target.partition,
                timestamp=record.timestamp()[1],
                headers=record.headers(),
            )
            count += 1
    assert producer.flush(_ANSWER_S_MAX) == 0
    return count


def append_with_copies(
    log: LogAccess, topic: str, queue: int, count: int, *, at_us: int = 1, tags: list[str] | None = None
) -> int:
    """Append like `append` of a log, but copy the second half of untagged messages, with headers, from elsewhere."""
    assert isinstance(log, KafkaLog)
    own = count if tags is not None or count == 1 else count // 2
    offset = append(log, topic, queue, own, at_us=at_us, tags=tags)
    columns = FrameColumns(bodies(topic, queue, offset, count - own), [at_us])
    producer = Producer({"bootstrap.servers": ",".join(log.address.servers), "log_level": 0})
    for record in records_of(columns, "elsewhere", queue, 0):
        producer.produce(
            kafka_name(topic, log.address.prefix),
            record.value,
            record.key,
            queue,
            timestamp=record.timestamp_ms,
            headers=record.headers,
        )
    assert producer.flush(_ANSWER_S_MAX) == 0
    return offset + count - own
