"""Topics of Kafka with unreadable records among readable ones."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import Producer

from tests.kafka_server import Kafka
from tests.metaq.unreadable import AT_MS, UNREADABLE
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.kafka.record import records_of

_ANSWER_S_MAX = 60.0


def produce_with_unreadable(kafka: Kafka, name: str, queue: int, count: int, unreadable: Mapping[int, str]) -> None:
    """Append so many records to a partition of a Kafka topic, with bodies b"0", b"1", ...

    unreadable: offsets of those that cannot be read, and kinds of UNREADABLE.
    """
    producer = Producer({"bootstrap.servers": kafka.servers, "log_level": 0})
    columns = FrameColumns([b"%d" % at for at in range(count)], [AT_MS * 1000])
    for at, record in enumerate(records_of(columns, name, queue)):
        headers, timestamp_ms = record.headers, record.timestamp_ms
        if at in unreadable:
            strange = UNREADABLE[unreadable[at]]
            headers, timestamp_ms = strange.headers(headers), strange.timestamp_ms
        producer.produce(name, record.value, record.key, queue, timestamp=timestamp_ms, headers=headers)
    assert producer.flush(_ANSWER_S_MAX) == 0
