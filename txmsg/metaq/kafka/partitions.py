"""The partitions that topics of Kafka have, and those that they lack: makes them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewPartitions, NewTopic

from txmsg.errors import BrokerUnavailable
from txmsg.message import BODY_SIZE_BYTES_MAX
from txmsg.metaq.kafka.clients import Clients
from txmsg.metaq.kafka.errors import kafka_error_of

_LOOK_S: Final = 0.05
_RECORD_SIZE_BYTES_MAX: Final = 2 * BODY_SIZE_BYTES_MAX
"""A body, headers and keys, with room for a raised limit of bodies."""
_AT_ONCE_MAX: Final = 1000
"""Partitions made by one request: Kafka refuses some thousands."""


class Partitions:
    """How many partitions each topic has, as it was looked at last. One thread uses it.

    replication_factor, min_insync_replicas: of topics that it makes; None: as the cluster is set.
    """

    def __init__(
        self, clients: Clients, *, replication_factor: int | None = None, min_insync_replicas: int | None = None
    ) -> None:
        self._clients = clients
        self._admin = clients.admin()
        self._replication_factor = replication_factor
        self._min_insync_replicas = min_insync_replicas
        self._counts: dict[str, int] = {}

    def look(self) -> None:
        """Looks which topics there are."""
        with self._clients.translated("looking which topics there are"):
            topics = self._admin.list_topics(timeout=self._clients.timeout_s).topics
        self._counts = {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def count(self, topic: str) -> int:
        """How many partitions a topic has; 0: there is no such topic."""
        return self._counts.get(topic, 0)

    def require(self, wanted: Mapping[str, int]) -> None:
        """Makes topics that are missing, and has others get so many partitions; they never get fewer.

        Raises MisuseError for what the cluster refuses, as a replication factor larger than it has nodes, and
        PermissionDenied.
        """
        lacking = {topic: count for topic, count in wanted.items() if self.count(topic) < count}
        if not lacking:
            return
        config = {"max.message.bytes": str(_RECORD_SIZE_BYTES_MAX)}
        if self._min_insync_replicas is not None:
            config["min.insync.replicas"] = str(self._min_insync_replicas)
        copies = -1 if self._replication_factor is None else self._replication_factor
        timeout_s = self._clients.timeout_s
        for topic, count in lacking.items():
            if not self.count(topic):
                first = min(count, _AT_ONCE_MAX)
                new = NewTopic(topic, first, copies, config=config)
                self._await(f"creating topic {topic}", self._admin.create_topics([new], operation_timeout=timeout_s))
                self._counts[topic] = first
            while self.count(topic) < count:
                more = min(count, self.count(topic) + _AT_ONCE_MAX)
                self._await(
                    f"adding partitions to topic {topic}",
                    self._admin.create_partitions([NewPartitions(topic, more)], operation_timeout=timeout_s),
                )
                self._counts[topic] = more

    def delete(self, topics: Collection[str]) -> None:
        """Deletes topics with all that they hold; those that are not there are none of its business."""
        if topics:
            futures = self._admin.delete_topics(list(topics), operation_timeout=self._clients.timeout_s)
            self._await("deleting topics", futures)
        deadline = time.monotonic() + self._clients.timeout_s
        self.look()
        while any(map(self.count, topics)):  # the nodes learn of it one by one
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"topics {', '.join(topics)} of {self._clients.address} are being deleted, which takes longer than "
                    f"{self._clients.timeout_s:g} s: try again"
                )
            time.sleep(_LOOK_S)
            self.look()

    def _await(self, doing: str, futures: Mapping[str, Future[Any]]) -> None:
        for future in futures.values():
            try:
                future.result(self._clients.timeout_s)
            except KafkaException as exc:
                error = kafka_error_of(exc)
                # By another process, or by an earlier try whose answer was lost.
                if error.code() not in _DONE:
                    raise self._clients.error(error, doing) from exc
            except TimeoutError as exc:
                raise BrokerUnavailable(f"no answer from {self._clients.address} while {doing}") from exc


_DONE: Final = (KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.UNKNOWN_TOPIC_OR_PART)
