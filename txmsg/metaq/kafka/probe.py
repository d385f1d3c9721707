"""Reads single records, of many partitions at once. Sees only committed records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from txmsg.metaq.kafka.clients import KafkaClients

_FETCH_BYTES: Final = 64 * 1024
"""Bytes of a partition fetched at once: one record is wanted. A larger one comes all the same."""
_FETCH_WAIT_MS: Final = 5
"""Milliseconds after which a server answers that there is nothing more."""
_STEP_S: Final = 0.5


class KafkaPartition(NamedTuple):
    """A partition of a Kafka topic, by the topic's name in Kafka."""

    topic: str
    number: int

    def at(self, offset: int) -> TopicPartition:
        """Return a position in it, for Kafka's client."""
        return TopicPartition(self.topic, self.number, offset)


class PartitionBounds(NamedTuple):
    """Offsets of a partition: of the first record kept, and after the last committed record."""

    low: int
    high: int


class Probe:
    """One consumer, which threads use in turn."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None

    def close(self) -> None:
        """Close the consumer. Closing twice is fine."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def first(
        self, starts: Mapping[KafkaPartition, int], ends: Mapping[KafkaPartition, int] | None = None
    ) -> dict[KafkaPartition, Message]:
        """Return for each partition the first record at or after this offset. Partitions without one are omitted.

        ends: the end of the committed records, as far as known. A node that has just become the leader may not know it
        yet and report that there is nothing; then the probe waits for it.
        """
        found: dict[KafkaPartition, Message] = {}

        def keep(partition: KafkaPartition, record: Message) -> bool:
            found[partition] = record
            return True

        self._read(starts, keep, ends or {})
        return found

    def last(self, bounds: Mapping[KafkaPartition, PartitionBounds]) -> dict[KafkaPartition, Message]:
        """Return for each partition the last record. Partitions without records are omitted.

        The last offsets are often transaction markers, so each further attempt goes back twice as far.
        """
        found: dict[KafkaPartition, Message] = {}

        def keep(partition: KafkaPartition, record: Message) -> bool:
            found[partition] = record
            return False

        back = 2
        left = dict(bounds)
        ends = {each: kept.high for each, kept in bounds.items()}
        while left:
            self._read({each: max(low, high - back) for each, (low, high) in left.items()}, keep, ends)
            left = {each: kept for each, kept in left.items() if each not in found and kept.high - back > kept.low}
            back *= 4
        return found

    def _read(
        self,
        starts: Mapping[KafkaPartition, int],
        on_record: Callable[[KafkaPartition, Message], bool],
        ends: Mapping[KafkaPartition, int],
    ) -> None:
        """Yield records from these offsets on, until all partitions are at their ends or are done."""
        if not starts:
            return
        doing = f"reading topic {next(iter(starts)).topic}"
        with self._lock, self._clients.translated(doing):
            if self._consumer is None:
                self._consumer = self._clients.consumer(
                    "txmsg-probe",
                    enable_partition_eof=True,
                    client_rack="",  # the leaders only: a nearby copy may not have the last records yet
                    fetch_wait_max_ms=_FETCH_WAIT_MS,
                    max_partition_fetch_bytes=_FETCH_BYTES,
                )
            consumer = self._consumer
            consumer.assign([partition.at(offset) for partition, offset in starts.items()])
            left = set(starts)
            deadline = time.monotonic() + self._clients.timeout_s
            try:
                while left:
                    record = consumer.poll(_STEP_S)
                    if record is None:
                        if time.monotonic() > deadline:
                            raise self._clients.error(KafkaError(KafkaError._TIMED_OUT), doing)
                        continue
                    partition = KafkaPartition(record.topic() or "", record.partition() or 0)
                    if (error := record.error()) is not None:
                        if error.code() == KafkaError._PARTITION_EOF:
                            is_end = (record.offset() or 0) >= ends.get(partition, 0)
                        elif error.code() == KafkaError._AUTO_OFFSET_RESET and partition not in ends:
                            is_end = True
                        else:
                            raise self._clients.error(error, doing)
                        if is_end:
                            left.discard(partition)
                    elif partition in left and on_record(partition, record):
                        left.discard(partition)
            finally:
                consumer.unassign()
