"""A log in Apache Kafka, as `LogAccess`: a topic is a Kafka topic, a queue is the partition with its number."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self

from txmsg.errors import MisuseError, OffsetOutOfRange
from txmsg.message import ReceivedMessage
from txmsg.metaq.acks import Acks
from txmsg.metaq.finding import search_id
from txmsg.metaq.format.frame import FrameKind, unpacked
from txmsg.metaq.interface import (
    DEAD_LETTERS,
    FETCH_SIZE_BYTES_MAX,
    RETRIES,
    ColumnsFor,
    Fetched,
    GroupMember,
    GroupState,
    LogGroupSettings,
    LogQueue,
    QueueRange,
    offset_after,
)
from txmsg.metaq.kafka.appender import KafkaAppender
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.groups import KafkaGroups
from txmsg.metaq.kafka.location import KafkaAddress
from txmsg.metaq.kafka.names import INTERNAL, kafka_name, topic_of
from txmsg.metaq.kafka.positions import Positions
from txmsg.metaq.kafka.probe import Probe
from txmsg.metaq.kafka.progress import GroupOffsets
from txmsg.metaq.kafka.reader import KafkaReaders
from txmsg.metaq.kafka.topics import KafkaTopicAdmin
from txmsg.metaq.store.delayed import Delayed
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.state import LogIdentity
from txmsg.metaq.store.topics import TopicSettings
from txmsg.runtime.forks import renew_in_children
from txmsg.runtime.process import check_not_patched
from txmsg.wire.start import Start

FIND_COUNT_MAX: Final = 2_000_000
"""Messages among which a key is searched: Kafka has no index, so all of them are read."""


class _ConnectedClients:
    """The Kafka clients of one process."""

    def __init__(self, log: KafkaLog, clients: KafkaClients) -> None:
        self.admin = clients.admin()
        self.probe = Probe(clients)
        self.topics = KafkaTopicAdmin(clients, self.admin)
        self.positions = Positions(clients, self.admin, self.topics, self.probe)
        self.readers = KafkaReaders(clients, self.positions)
        self.appender = KafkaAppender(clients, self.topics)
        self.offsets = GroupOffsets(clients, self.admin, self.topics, self.positions)
        self.groups = KafkaGroups(clients, self.admin, log, self.offsets)

    def close(self) -> None:
        self.groups.close()
        self.offsets.close()
        self.readers.close()
        self.probe.close()
        self.appender.close()


class KafkaLog:
    """A log in Kafka. See `LogAccess` for the contract of each method, and txmsg.metaq.kafka.appender for appends."""

    def __init__(self, address: KafkaAddress, properties: Mapping[str, str], *, timeout_s: float) -> None:
        check_not_patched()
        self.address = address
        self._clients = KafkaClients(address, properties, timeout_s=timeout_s)
        self._timeout_s = timeout_s
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._connected: _ConnectedClients | None = None
        self._is_closed = False
        self._clients = self._clients.renewed()

    def close(self) -> None:
        with self._lock:
            connected, self._connected, self._is_closed = self._connected, None, True
        if connected is not None:
            connected.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _kafka(self) -> _ConnectedClients:
        with self._lock:
            if self._is_closed:
                raise MisuseError(f"the log at {self.address} was closed: open it again with open_log")
            if self._connected is None:
                self._connected = _ConnectedClients(self, self._clients)
            return self._connected

    # ---- reading

    def identity(self) -> LogIdentity:
        return self._clients.identity(self._kafka.admin)

    def topics(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, partitions in self._kafka.topics.all().items():
            topic = None if name.startswith(INTERNAL) else topic_of(name, self.address.prefix)
            if topic is not None and not topic.startswith((RETRIES, DEAD_LETTERS)):
                found[topic] = list(range(partitions))
        return found

    def queues_of(self, topic: str) -> list[int]:
        return list(range(self._kafka.topics.partitions_of(self._name(topic))))

    def _name(self, topic: str) -> str:
        return kafka_name(topic, self.address.prefix)

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        return self._kafka.positions.ranges(queues)

    def partition_offsets(self, wanted: Mapping[LogQueue, int]) -> dict[LogQueue, int | OffsetOutOfRange]:
        """Return the partition offsets at which reading from these queue offsets begins, or errors that say why it
        cannot.

        Queues without a partition are omitted.
        """
        return self._kafka.positions.find_positions(wanted)

    def partition_begins(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        """Return the first offsets kept in their partitions. Queues without a partition are omitted."""
        return {queue: kept.low for queue, kept in self._kafka.positions.bounds(queues).items()}

    def offsets_at(self, queues: Collection[LogQueue], at_us: int) -> dict[LogQueue, int]:
        return self._kafka.positions.at_time(queues, max(0, at_us) // 1000)

    def fetch(
        self,
        wanted: Mapping[LogQueue, int],
        *,
        size_bytes_max: int = FETCH_SIZE_BYTES_MAX,
        wait_s: float = 0.0,
    ) -> list[Fetched]:
        return self._kafka.readers.fetch(wanted, size_bytes_max, wait_s)

    def find(self, topic: str, key: str, *, count_max: int = 100) -> list[ReceivedMessage]:
        """Read the whole topic. Raises MisuseError if it has more than FIND_COUNT_MAX messages."""
        kept = self.ranges([LogQueue(topic, number) for number in self.queues_of(topic)])
        # Records, not offsets of queues: a mirror's messages may be missing.
        count = sum(high - low for low, high in self._kafka.positions.bounds(kept.keys()).values())
        if count > FIND_COUNT_MAX:
            raise MisuseError(
                f"topic {topic!r} has {count} records, and Kafka has no index of keys: a search reads all of them, so "
                f"it is done among {FIND_COUNT_MAX} at most; use Spark, or a topic that Kafka compacts"
            )
        found: list[ReceivedMessage] = []
        for queue, (begin, end) in kept.items():
            offset = begin
            while offset < end and len(found) < count_max and (fetched := self.fetch({queue: offset})):
                if (error := fetched[0].error) is not None:
                    following = offset_after(error, offset)
                    if following is None:
                        raise error
                    offset = following
                for batch in fetched[0].batches:
                    found += (message for message in batch.messages() if message.key == key)
                    offset = batch.end_offset
        return found[:count_max]

    def find_id(self, topic: str, message_id: str) -> ReceivedMessage | None:
        step = search_id(self, topic, message_id, {})
        while not step.is_done:
            step = search_id(self, topic, message_id, step.following)
        return step.found

    # ---- appending

    def append(self, appends: Sequence[Append], acks: Acks | None = None) -> list[int]:
        """Append batches and return their first offsets.

        Raises MisuseError for batches with given offsets, and for holes.

        acks: it waits for all in-sync copies in any case, which satisfies Acks.NONE and Acks.MEMORY. Raises MisuseError
        for Acks.DISK, and for Acks.COPIES if a topic does not require a second copy.
        """
        batches: list[ColumnsFor] = []
        for append in appends:
            if append.base_offset is not None or append.payload.kind is not FrameKind.MESSAGES:
                raise MisuseError(
                    f"a batch for topic {append.topic!r} has an offset or marks a hole, and in Kafka offsets are the "
                    "brokers' to give: append it without"
                )
            batches.append(ColumnsFor(append.topic, append.queue, unpacked(append.payload), append.due_at_us))
        return self.append_columns(batches, acks)

    def append_columns(self, batches: Sequence[ColumnsFor], acks: Acks | None = None) -> list[int]:
        if acks is Acks.DISK:
            raise MisuseError(
                f"acks=disk of an append to {self.address}: Kafka answers before it syncs to disk, and relies on "
                "copies; ask for Acks.COPIES, or leave it out"
            )
        for batch in batches:
            if batch.due_at_us is not None:
                raise MisuseError(
                    f"a message for topic {batch.topic!r} is delayed, which Kafka does not support: send it when it "
                    "is due, or by a broker whose topic is mirrored to Kafka"
                )
        found = self._kafka.appender.append(batches, in_copies=acks is Acks.COPIES)
        return [offsets[0] for offsets in found]

    def delayed(self, limit: int = 100) -> Delayed:
        raise self._nothing_waits()

    def recall(self, topic: str, number: int) -> None:
        raise self._nothing_waits()

    @staticmethod
    def _nothing_waits() -> MisuseError:
        return MisuseError("Kafka has no delayed messages: those of a broker are listed by `txmsg message find`")

    def settings_of(self, topic: str) -> TopicSettings:
        return self._kafka.topics.settings_of(self._name(topic))

    def set_topic(self, topic: str, settings: TopicSettings) -> None:
        self._kafka.topics.set(self._name(topic), settings)

    def flush(self) -> None:
        """Do nothing: each append has already waited for all in-sync copies."""

    # ---- groups

    def join(
        self,
        group: str,
        topics: Collection[str],
        *,
        start: Start = Start.earliest(),
        strategy: str = "averaged",
        zone: str = "",
    ) -> GroupMember:
        return self._kafka.groups.join(group, topics, start=start, strategy=strategy, zone=zone)

    def groups(self) -> list[str]:
        return self._kafka.groups.groups()

    def group(self, group: str) -> GroupState:
        return self._kafka.groups.group(group)

    def seek(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        self._kafka.groups.seek(group, offsets)

    def alter_group(
        self,
        group: str,
        *,
        stopped: bool | None = None,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
    ) -> LogGroupSettings:
        raise MisuseError(
            f"group {group} is Kafka's, which stores no settings that its members could follow: stop it by "
            f"app.pause({group!r}) in each process, and give its subscriptions concurrency= and rate="
        )

    def delete_group(self, group: str) -> None:
        self._kafka.groups.delete_group(group)
