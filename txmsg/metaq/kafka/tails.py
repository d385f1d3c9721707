"""Finds the last record of each of many partitions, as readers get it: in a few requests, wherever it is.

A partition need not end with a record: markers of transactions, and what was aborted, come behind it. So reading
begins where it is thought to be, and if nothing is found, further back each time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec

from txmsg.errors import BrokerUnavailable
from txmsg.metaq.kafka.clients import Clients
from txmsg.metaq.kafka.transactions import Partition

_NO_GROUP: Final = "txmsg"
"""Of consumers that store nothing: librdkafka wants a name."""
_BACK: Final = 16
_BACK_FACTOR: Final = 16
_MESSAGES_MAX: Final = 1000
_POLL_S: Final = 0.2


class Bounds(NamedTuple):
    """Offsets of a partition: the first one that is kept, and the one after the last that is decided."""

    begin: int
    end: int


def bounds_of(clients: Clients, partitions: Collection[Partition]) -> dict[Partition, Bounds]:
    """What is kept of each, as their leaders tell."""
    if not partitions:
        return {}
    admin = clients.admin()

    def asked(spec: OffsetSpec) -> dict[Partition, int]:
        futures = admin.list_offsets(
            {TopicPartition(*partition): spec for partition in partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=clients.timeout_s,
        )
        return {Partition(at.topic, at.partition): future.result().offset for at, future in futures.items()}

    with clients.translated("looking where partitions end"):
        begins = asked(OffsetSpec.earliest())
        ends = asked(OffsetSpec.latest())
    return {partition: Bounds(min(begins[partition], end), end) for partition, end in ends.items()}


def last_records(
    clients: Clients, bounds: Mapping[Partition, Bounds], hints: Mapping[Partition, int]
) -> dict[Partition, Message]:
    """The last record of each partition; one that has none is left out. hints: offsets that it is thought to be at."""
    found: dict[Partition, Message] = {}
    back = _BACK
    starts = {
        partition: hint if begin <= (hint := hints.get(partition, -1)) < end else max(begin, end - back)
        for partition, (begin, end) in bounds.items()
        if begin < end
    }
    consumer = clients.consumer(_NO_GROUP, enable_partition_eof=True) if starts else None
    try:
        while starts and consumer is not None:
            with clients.translated("reading the last record of each partition"):
                found |= _read(clients, consumer, starts, bounds)
            back *= _BACK_FACTOR
            starts = {
                partition: max(bounds[partition].begin, bounds[partition].end - back)
                for partition, start in starts.items()
                if partition not in found and start > bounds[partition].begin
            }
    finally:
        if consumer is not None:
            consumer.close()
    return found


def records_of_partition(clients: Clients, partition: Partition) -> Iterator[Message]:
    """All records of a partition that are kept and decided now, in their order."""
    begin, end = bounds_of(clients, [partition])[partition]
    consumer = clients.consumer(_NO_GROUP, enable_partition_eof=True)
    try:
        with clients.translated(f"reading partition {partition.number} of topic {partition.topic}"):
            consumer.assign([TopicPartition(*partition, begin)])
            while begin < end:
                for message in _consumed(clients, consumer, [partition]):
                    begin = max(begin, (message.offset() or 0) + (message.error() is None))
                    if message.error() is None:
                        yield message
    finally:
        consumer.close()


def _read(
    clients: Clients, consumer: Consumer, starts: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]
) -> dict[Partition, Message]:
    """The last record of each partition from there on."""
    consumer.assign([TopicPartition(*partition, start) for partition, start in starts.items()])
    found: dict[Partition, Message] = {}
    left = set(starts)
    while left:
        for message in _consumed(clients, consumer, left):
            partition = Partition(message.topic() or "", message.partition() or 0)
            offset = message.offset() or 0
            if message.error() is None:
                found[partition] = message
                offset += 1
            if offset >= bounds[partition].end:
                left.discard(partition)
    return found


def _consumed(clients: Clients, consumer: Consumer, left: Collection[Partition]) -> list[Message]:
    """What has come: records, and ends of partitions, whose offset is what comes next. At least one of them."""
    deadline = time.monotonic() + clients.timeout_s
    while not (messages := consumer.consume(_MESSAGES_MAX, _POLL_S)):
        if time.monotonic() > deadline:
            topic, number = min(left)
            raise BrokerUnavailable(
                f"no answer from {clients.address} for {clients.timeout_s:g} s, as from the leader of partition "
                f"{number} of topic {topic}"
            )
    for message in messages:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise clients.error(error, f"reading partition {message.partition()} of topic {message.topic()}")
    return messages
