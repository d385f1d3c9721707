"""Appends messages to partitions, and reports their offsets.

A record is stored once, however often it is sent (an idempotent producer), on all in-sync copies. The records of one
call for one partition are stored in order. A call that spans partitions is not atomic: if some records could not be
stored, the error says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from txmsg.errors import MisuseError, OutcomeUnknown
from txmsg.message import QUEUES_MAX
from txmsg.metaq.interface import DEAD_LETTERS, RETRIES, ColumnsFor
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.errors import kafka_error_of
from txmsg.metaq.kafka.names import kafka_name
from txmsg.metaq.kafka.record import Record, records_of
from txmsg.metaq.kafka.topics import RECORD_SIZE_BYTES_MAX, KafkaTopicAdmin

_POLL_S: Final = 0.1
_SLACK_S: Final = 5.0
"""Seconds beyond the time in which librdkafka reports each record: after them the client itself is defective."""
_COPIES_MIN: Final = 2
"""Copies in sync that a topic must require. With fewer, a single lost machine may take the only copy."""
_NOT_YET: Final = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
_ENDED: Final = frozenset({KafkaError._FATAL, KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})
"""Errors of records whose producer cannot continue.

Its reason is reported once, to the caller that polls: it may be another call.
"""


@dataclass(slots=True)
class _RecordDelivery:
    """The delivered records of one queue. Its reports arrive in one thread at a time."""

    left: int
    offsets: list[int] = field(default_factory=list)
    error: KafkaError | None = None

    def report(self, error: KafkaError | None, record: Message) -> None:
        """Record the outcome of a record; librdkafka calls it for each one, in order."""
        self.left -= 1
        if error is None:
            offset = record.offset()
            self.offsets.append(-1 if offset is None else offset)
        else:
            self.error = self.error or error

    def places(self) -> list[int] | None:
        """Return the offsets of its records, if the offset of one is known.

        If a confirmation was lost, that of a later record covers it, but without an offset. Records of a call are
        consecutive.
        """
        # Records of one call for one partition are consecutive, so one known offset gives all.
        known = next((place for place, offset in enumerate(self.offsets) if offset >= 0), None)
        if known is None:
            return None
        return [
            offset if offset >= 0 else self.offsets[known] + place - known for place, offset in enumerate(self.offsets)
        ]

    def fail(self, error: KafkaError, count: int) -> None:
        """Count this many records as failed: they were not even sent."""
        self.left -= count
        self.error = self.error or error


class KafkaAppender:
    """Appends to the topics of a log. Threads may share it."""

    def __init__(self, clients: KafkaClients, topics: KafkaTopicAdmin) -> None:
        self._clients = clients
        self._topics = topics
        self._lock = threading.Lock()
        self._polling = threading.Lock()
        self._producer: Producer | None = None
        self._partitions: dict[str, int] = {}
        self._copied: set[str] = set()

    def append(self, batches: Sequence[ColumnsFor], *, in_copies: bool = False) -> list[list[int]]:
        """Return the offsets of the messages of each batch. Creates missing queues and their topics.

        in_copies: only into topics that require a second copy of each message; raises MisuseError for others. Raises
        OutcomeUnknown if some records may be stored and others are not.
        """
        names = [kafka_name(batch.topic, self._clients.address.prefix) for batch in batches]
        for name, batch in zip(names, batches, strict=True):
            self._require(name, batch)
            if in_copies and name not in self._copied:
                self._require_copies(name)
        producer = self._made()
        deliveries = [_RecordDelivery(len(batch.columns.body)) for batch in batches]
        for name, batch, delivery in zip(names, batches, deliveries, strict=True):
            self._produce_records(producer, name, batch, delivery)
        deadline = time.monotonic() + self._clients.timeout_s + _SLACK_S
        while any(delivery.left for delivery in deliveries):
            with self._polling:
                # One thread polls at a time, and its poll reports the records of other calls as well.
                if any(delivery.left for delivery in deliveries):  # not reported while another call polled
                    self._poll(producer)
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"Kafka's client has not reported what became of messages to {self._clients.address}"
                )
        found: list[list[int]] = []
        for name, delivery in zip(names, deliveries, strict=True):
            if delivery.error is not None:
                self._raise(producer, name, delivery.error, deliveries)
            if (places := delivery.places()) is None:
                raise OutcomeUnknown(
                    f"messages were appended to topic {name} of {self._clients.address}, but at which offsets was lost "
                    "with a connection: read the end of the queue"
                )
            found.append(places)
        return found

    def _require(self, name: str, batch: ColumnsFor) -> None:
        """Create a queue if it is missing."""
        queue = batch.queue
        if not 0 <= queue < QUEUES_MAX:
            raise MisuseError(f"queue {queue} of a topic: 0 to {QUEUES_MAX - 1} are allowed")
        if queue >= self._partitions.get(name, 0):
            if batch.topic.startswith((RETRIES, DEAD_LETTERS)):
                self._topics.ensure_of_group(name, queue + 1, is_retry=batch.topic.startswith(RETRIES))
            else:
                self._topics.ensure(name, queue + 1)
            seen = self._topics.partitions_of(name)
            self._partitions[name] = max(queue + 1, seen)  # a node may not know the new partitions yet

    def _require_copies(self, name: str) -> None:
        """Check the required copies of topics, once for each, because settings of topics rarely change."""
        copies = self._topics.copies_in_sync_of(name)
        if copies < _COPIES_MIN:
            raise MisuseError(
                f"acks=copies of an append to topic {name} of {self._clients.address}, for which {copies} copy "
                f"is enough: set its min.insync.replicas to {_COPIES_MIN} (kafka-configs.sh), or leave acks out"
            )
        self._copied.add(name)

    def _made(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = self._clients.producer(
                    linger_ms=1,
                    message_max_bytes=RECORD_SIZE_BYTES_MAX,
                    message_timeout_ms=round(self._clients.timeout_s * 1000),
                )
            return self._producer

    def _produce_records(self, producer: Producer, name: str, batch: ColumnsFor, delivery: _RecordDelivery) -> None:
        count = delivery.left
        for place, record in enumerate(records_of(batch.columns, name, batch.queue)):
            try:
                self._produce(producer, name, batch.queue, record, delivery)
            except KafkaException as exc:
                delivery.fail(kafka_error_of(exc), count - place)
                return

    def _produce(self, producer: Producer, name: str, queue: int, record: Record, delivery: _RecordDelivery) -> None:
        deadline = time.monotonic() + self._clients.timeout_s
        while True:
            try:
                producer.produce(
                    name,
                    record.value,
                    record.key,
                    queue,
                    on_delivery=delivery.report,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,
                )
            except BufferError:  # its queue is full
                with self._polling:
                    self._poll(producer)
            except KafkaException as exc:
                if kafka_error_of(exc).code() not in _NOT_YET or time.monotonic() > deadline:
                    raise
                producer.list_topics(name, timeout=self._clients.timeout_s)  # its view is older than the partition
            else:
                return

    def _poll(self, producer: Producer) -> None:
        """Raise OutcomeUnknown if the producer reports that it cannot continue; the next call creates another one."""
        try:
            producer.poll(_POLL_S)
        except KafkaException as exc:
            self._drop(producer)
            why = self._clients.error(kafka_error_of(exc), "appending to topics")
            raise OutcomeUnknown(f"{why}; which messages of this call are stored is not known") from exc

    def _drop(self, producer: Producer) -> None:
        with self._lock:
            if self._producer is producer:
                self._producer = None

    def _raise(self, producer: Producer, name: str, error: KafkaError, deliveries: Sequence[_RecordDelivery]) -> None:
        if error.code() in _ENDED:
            self._drop(producer)
        self._partitions.pop(name, None)
        self._copied.discard(name)
        stored = sum(len(delivery.offsets) for delivery in deliveries)
        found = self._clients.error(error, f"appending to topic {name}")
        if stored and not isinstance(found, OutcomeUnknown):
            raise OutcomeUnknown(f"{found}; {stored} of the messages of this call are stored")
        raise found

    def close(self) -> None:
        """Do nothing: every call has waited for its records."""
        with self._lock:
            self._producer = None
