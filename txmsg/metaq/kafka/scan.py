"""Reads all records of a partition once."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import KafkaError, Message

from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.probe import KafkaPartition, PartitionBounds

_MESSAGES_MAX = 1000
_POLL_S = 0.2


def scan(clients: KafkaClients, partition: KafkaPartition, bounds: PartitionBounds) -> Iterator[Message]:
    """Return the committed records of a partition within these bounds, in order. Raises BrokerUnavailable."""
    consumer = clients.consumer("txmsg-scan", enable_partition_eof=True)
    doing = f"reading partition {partition.number} of topic {partition.topic}"
    at, end = bounds
    try:
        with clients.translated(doing):
            consumer.assign([partition.at(at)])
            deadline = time.monotonic() + clients.timeout_s
            while at < end:
                messages = consumer.consume(_MESSAGES_MAX, _POLL_S)
                if messages:
                    deadline = time.monotonic() + clients.timeout_s
                elif time.monotonic() > deadline:
                    raise clients.error(KafkaError(KafkaError._TIMED_OUT), doing)
                for message in messages:
                    error = message.error()
                    if error is None:
                        at = (message.offset() or 0) + 1
                        yield message
                    elif error.code() == KafkaError._PARTITION_EOF:  # its offset is that of the next record
                        at = max(at, message.offset() or 0)
                    else:
                        raise clients.error(error, doing)
    finally:
        consumer.close()
