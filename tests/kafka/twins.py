"""The same messages in a MetaQ log and in Kafka, where they were written as the mirror writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer

from tests.kafka_server import Kafka, create_topic
from txmsg.metaq import Log, LogQueue
from txmsg.metaq.format.frame import FrameColumns, encode
from txmsg.metaq.kafka.names import kafka_name
from txmsg.metaq.kafka.record import records_of
from txmsg.metaq.store.log import Append
from txmsg.wire.headers import pack_headers

STORED_AT_US = 1_777_629_600_000_250
_ANSWER_S_MAX = 60.0


class Twins:
    """A directory and a prefix of Kafka with the same topics."""

    def __init__(self, directory: Path, kafka: Kafka, prefix: str) -> None:
        self.directory = directory
        self.address = f"{kafka.address}/{prefix}"
        self._kafka = kafka
        self._prefix = prefix
        self._ends: dict[LogQueue, int] = {}
        config = {"bootstrap.servers": kafka.servers, "transactional.id": f"{prefix}mirror"}
        self._producer = Producer(config)
        self._producer.init_transactions(_ANSWER_S_MAX)

    def create(self, topic: str, queues: int) -> None:
        """Create a topic in Kafka; a directory needs none."""
        create_topic(self._kafka, kafka_name(topic, self._prefix), queues)

    def append(self, counts: Mapping[LogQueue, int]) -> None:
        """Append so many messages to each queue. In Kafka in two transactions, with an aborted one before."""
        self._transaction({queue: _columns(queue, 0, 1) for queue in counts}, aborted=True)
        for half in (0, 1):
            made = {
                queue: _columns(queue, self._ends.get(queue, 0), (count + half) // 2) for queue, count in counts.items()
            }
            made = {queue: columns for queue, columns in made.items() if columns.body}
            self._transaction(made)
            with Log(self.directory) as log:
                log.append([Append(queue.topic, queue.queue, encode(columns)) for queue, columns in made.items()])
            for queue, columns in made.items():
                self._ends[queue] = self._ends.get(queue, 0) + len(columns.body)

    def _transaction(self, made: Mapping[LogQueue, FrameColumns], *, aborted: bool = False) -> None:
        producer = self._producer
        producer.begin_transaction()
        for queue, columns in made.items():
            name = kafka_name(queue.topic, self._prefix)
            for record in records_of(columns, name, queue.queue, self._ends.get(queue, 0)):
                producer.produce(
                    name,
                    record.value,
                    record.key,
                    queue.queue,
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                )
        if aborted:
            producer.flush(_ANSWER_S_MAX)  # else they would not be created
            producer.abort_transaction(_ANSWER_S_MAX)
        else:
            producer.commit_transaction(_ANSWER_S_MAX)


def _columns(queue: LogQueue, first: int, count: int) -> FrameColumns:
    """Return messages a minute apart, some with a key, some with a tag, some with headers."""
    offsets = range(first, first + count)
    return FrameColumns(
        body=[f"{queue.topic}/{queue.queue}/{offset}".encode() for offset in offsets],
        stored_at_us=[STORED_AT_US + offset * 60_000_000 for offset in offsets],
        born_at_us=[STORED_AT_US + offset * 60_000_000 - 3_000 for offset in offsets],
        transaction_id=b"".join(offset.to_bytes(16, "big") for offset in offsets),
        n=[0] * count,
        key=["" if offset % 3 else f"key-{offset}" for offset in offsets],
        tag=["" if offset % 2 else "paid" for offset in offsets],
        ordering_key=["" if offset % 4 else f"order-{offset}" for offset in offsets],
        headers=[b"" if offset % 5 else pack_headers({"trace": str(offset), "txmsg-id": "mine"}) for offset in offsets],
    )
