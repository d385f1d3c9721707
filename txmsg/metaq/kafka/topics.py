"""Lists, creates, deletes and configures topics of Kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from txmsg.errors import BrokerUnavailable, MisuseError, TopicExists, UnknownTopic
from txmsg.message import BODY_SIZE_BYTES_CEILING
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.store.topics import Flush, Permission, TopicSettings
from txmsg.runtime.backoff import DELAYS_S

RECORD_SIZE_BYTES_MAX: Final = BODY_SIZE_BYTES_CEILING + 1024 * 1024
"""The largest size of a record, and of what a producer sends at once if it is one record."""
PARTITIONS_AT_ONCE_MAX: Final = 2_000
"""Partitions that are created at once: Kafka refuses 5,000 and more."""
_LOOK_S: Final = 0.05
_RETENTION: Final = "retention.ms"
_COMPRESSION: Final = "compression.type"
_COPIES_IN_SYNC: Final = "min.insync.replicas"


class KafkaTopicAdmin:
    """Administers topics, by their names in Kafka. Threads may share it."""

    def __init__(self, clients: KafkaClients, admin: AdminClient) -> None:
        self._clients = clients
        self._admin = admin

    def all(self) -> dict[str, int]:
        """Return all topics, and the number of partitions of each."""
        with self._clients.translated("listing the topics"):
            found = self._admin.list_topics(timeout=self._clients.timeout_s)
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def partitions_of(self, name: str) -> int:
        """Return the number of partitions of a topic; 0 if there is no such topic. Raises PermissionDenied."""
        doing = f"looking for topic {name}"
        try:
            with self._clients.translated(doing):
                answer = self._admin.describe_topics(TopicCollection([name]), request_timeout=self._clients.timeout_s)[
                    name
                ]
                return len(answer.result().partitions)
        except UnknownTopic:
            return 0

    def ensure_of_group(self, name: str, partitions: int, *, is_retry: bool) -> None:
        """Create a topic as `ensure` does, for retries or dead letters of a group, which must not expire before they
        are dealt with.

        Creates all queues for retries at once: clients notice new partitions late, and each one causes a rebalance.
        """
        self.ensure(name, max(partitions, len(DELAYS_S)) if is_retry else partitions, retention_ms=-1)

    def ensure(
        self,
        name: str,
        partitions: int,
        *,
        copies: int = -1,
        copies_in_sync: int | None = None,
        retention_ms: int | None = None,
    ) -> None:
        """Create a topic, or increase the number of its partitions to this.

        copies: of each partition of a new topic; -1: the brokers' default. copies_in_sync: how many must have a write
        before it is acknowledged. retention_ms: -1: unlimited.
        """
        found = self.partitions_of(name)
        if not found:
            config = {"max.message.bytes": str(RECORD_SIZE_BYTES_MAX)}
            if copies_in_sync is not None:
                config[_COPIES_IN_SYNC] = str(copies_in_sync)
            if retention_ms is not None:
                config[_RETENTION] = str(retention_ms)
            found = min(partitions, PARTITIONS_AT_ONCE_MAX)
            new = NewTopic(name, found, copies, config=config)
            try:
                with self._clients.translated(f"creating topic {name}"):
                    self._admin.create_topics([new], request_timeout=self._clients.timeout_s)[name].result()
            except TopicExists:  # created by another process this moment
                found = self._heard_of(name)
        while found < partitions:
            found = min(partitions, found + PARTITIONS_AT_ONCE_MAX)
            self._raise_partitions(name, found)

    def _heard_of(self, name: str) -> int:
        """Return the number of partitions of an existing topic, as soon as the queried node knows it."""
        deadline = time.monotonic() + self._clients.timeout_s
        while not (found := self.partitions_of(name)):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"topic {name} of {self._clients.address} is there, but for {self._clients.timeout_s:g} s its "
                    "nodes have not heard of it, or it is being deleted: look with kafka-topics.sh"
                )
            time.sleep(_LOOK_S)
        return found

    def _raise_partitions(self, name: str, partitions: int) -> None:
        try:
            with self._clients.translated(f"adding partitions to topic {name}"):
                new = NewPartitions(name, partitions)
                self._admin.create_partitions([new], request_timeout=self._clients.timeout_s)[name].result()
        except MisuseError:
            if self.partitions_of(name) < partitions:  # otherwise another process has just added them
                raise

    def delete(self, names: list[str]) -> None:
        """Delete topics. Missing ones are ignored."""
        for name, answer in self._admin.delete_topics(names, request_timeout=self._clients.timeout_s).items():
            try:
                with self._clients.translated(f"deleting topic {name}"):
                    answer.result()
            except UnknownTopic:
                pass

    # ---- settings

    def config(self, name: str) -> Mapping[str, ConfigEntry]:
        """Return the configuration of a topic. Raises UnknownTopic."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        with self._clients.translated(f"asking for the settings of topic {name}"):
            answers = self._admin.describe_configs([resource], request_timeout=self._clients.timeout_s)
            return answers[resource].result()  # type: ignore[no-any-return]

    def settings_of(self, name: str) -> TopicSettings:
        """Return the settings of a topic that txmsg supports. A missing topic has the defaults."""
        try:
            config = self.config(name)
        except UnknownTopic:
            return TopicSettings(flush=Flush.TIMED)
        compression = str(config[_COMPRESSION].value).upper()
        retention = config[_RETENTION]
        is_own = ConfigSource(retention.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG and int(str(retention.value)) > 0
        return TopicSettings(
            flush=Flush.TIMED,
            compression=Compression[compression] if compression in Compression.__members__ else Compression.NONE,
            retention_s=int(str(retention.value)) / 1000 if is_own else None,
        )

    def copies_in_sync_of(self, name: str) -> int:
        """Return how many copies must have a write before it is acknowledged.

        The topic exists; nodes may learn late of a new one.
        """
        deadline = time.monotonic() + self._clients.timeout_s
        while True:
            try:
                return int(str(self.config(name)[_COPIES_IN_SYNC].value))
            except UnknownTopic:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_S)

    def set(self, name: str, settings: TopicSettings) -> None:
        """Set compression and retention. Raises UnknownTopic, and MisuseError for settings that Kafka lacks."""
        if settings.flush is Flush.SYNC:
            raise MisuseError(
                f"topic {name} cannot be flushed before each append returns: Kafka relies on copies, so ask for more "
                "of them with min.insync.replicas (kafka-configs.sh)"
            )
        if (settings.write_queues, settings.read_queues, settings.permission) != (None, None, Permission.READ_WRITE):
            raise MisuseError(
                f"topic {name} cannot have fewer queues to write than to read, or be closed: partitions of Kafka only "
                "grow in number, and its ACLs say who reads and writes (kafka-acls.sh)"
            )
        if not self.partitions_of(name):
            raise UnknownTopic(f"topic {name} is not in Kafka: create it first, as with kafka-topics.sh")
        before = self.settings_of(name)
        changes: list[ConfigEntry] = []
        if settings.compression is not before.compression:
            value = "producer" if settings.compression is Compression.NONE else settings.compression.name.lower()
            changes.append(_set(_COMPRESSION, value))
        if settings.retention_s != before.retention_s:
            changes.append(
                ConfigEntry(_RETENTION, None, incremental_operation=AlterConfigOpType.DELETE)
                if settings.retention_s is None
                else _set(_RETENTION, str(max(1, round(settings.retention_s * 1000))))
            )
        if changes:
            resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
            with self._clients.translated(f"setting topic {name}"):
                answers = self._admin.incremental_alter_configs([resource], request_timeout=self._clients.timeout_s)
                answers[resource].result()


def _set(name: str, value: str) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
