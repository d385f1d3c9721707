"""The progress of groups in the queues of Kafka's topics, and requested seeks.

A group stores for each partition the offset of the next record, so that Kafka's tools show its progress. The commit's
metadata contains the same as a queue offset, and the id of the last completed seek: "1200 5f3a". In an emptied
partition queue offsets are unknown: the metadata then has no queue offset, and it is looked up with the next record
that arrives.

Kafka lets only the members of a group store offsets for it. So a seek is stored as a request in a second group, which
never has members: GROUP%%asked. A request is open until the group itself has stored its id. The second group also
stores, without an id, where a group begins in topics that were new to it; this applies as long as the group has stored
nothing.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Protocol

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from txmsg.errors import OffsetOutOfRange, TxmsgError
from txmsg.metaq.interface import LogQueue, QueueRange
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.membership import PartitionProgress, commits_of
from txmsg.metaq.kafka.names import kafka_name, topic_of
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.metaq.kafka.topics import KafkaTopicAdmin
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

ASKED: Final = "%%asked"
"""The suffix of the group that stores a group's requests. No group's name has two `%`."""
_OTHERS_MEMBERS: Final = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}
)
_READERS_MAX: Final = 8
"""Readers kept for groups whose offsets are read repeatedly, as members do of their own."""


class Stored(NamedTuple):
    """A group's progress in a queue: the next offset to be handled, and the last completed seek."""

    offset: int
    asked: str = ""


class Places(Protocol):
    """The interface to the log that this module needs: the positions of queues in Kafka's partitions."""

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        """Return the queue offsets that are kept."""
        ...

    def find_positions(self, wanted: Mapping[LogQueue, int]) -> dict[LogQueue, int | OffsetOutOfRange]:
        """Return the partition offsets at which reading from these queue offsets begins; without missing queues."""
        ...

    def queue_offsets(self, committed: Mapping[LogQueue, TopicPartition]) -> dict[LogQueue, int]:
        """Return the queue offsets of these positions."""
        ...

    def unknown(self, wanted: Mapping[LogQueue, int]) -> set[LogQueue]:
        """Return the queues whose partition is empty, and whose offset may come from the partition."""
        ...


class GroupOffsets:
    """The offsets of all groups of one log. Threads may share it."""

    def __init__(self, clients: KafkaClients, admin: AdminClient, topics: KafkaTopicAdmin, places: Places) -> None:
        self._clients = clients
        self._admin = admin
        self._topics = topics
        self._places = places
        self._prefix = clients.address.prefix
        self._lock = threading.Lock()
        self._readers: dict[str, Consumer] = {}

    # ---- names

    def kafka_group(self, group: str) -> str:
        """Return the Kafka group of a group."""
        return self._prefix + group

    def partition_of(self, queue: LogQueue) -> KafkaPartition:
        """Return the partition of a queue."""
        return KafkaPartition(kafka_name(queue.topic, self._prefix), queue.queue)

    def queue_of(self, partition: KafkaPartition) -> LogQueue | None:
        """Return the queue of a partition; None for a partition of a topic outside this log."""
        topic = topic_of(partition.topic, self._prefix)
        return None if topic is None else LogQueue(topic, partition.number)

    # ---- as Kafka stores them

    def commits_of(self, offsets: Mapping[LogQueue, Stored]) -> dict[KafkaPartition, PartitionProgress]:
        """Return the commits to be stored in Kafka."""
        places = self._places_of({queue: at.offset for queue, at in offsets.items()})
        unknown = self._places.unknown(
            {queue: at.offset for queue, at in offsets.items() if at.offset == places[queue]}
        )
        return {
            self.partition_of(queue): PartitionProgress(
                places[queue], f"{'' if queue in unknown else at.offset} {at.asked}".rstrip()
            )
            for queue, at in offsets.items()
        }

    def _places_of(self, offsets: Mapping[LogQueue, int]) -> dict[LogQueue, int]:
        """Return the partition offsets of these queue offsets, or the nearest ones of offsets that are not kept."""
        found = self._places.find_positions(offsets)
        nearest = {
            queue: place.begin if offsets[queue] < place.begin else place.end
            for queue, place in found.items()
            if isinstance(place, OffsetOutOfRange)
        }
        if nearest:
            found |= self._places.find_positions(nearest)
        return {queue: place if isinstance(place := found.get(queue), int) else 0 for queue in offsets}

    def stored_of(self, commits: Mapping[KafkaPartition, PartitionProgress]) -> dict[LogQueue, Stored]:
        """Return the progress stored in Kafka.

        Commits of other programs have no metadata: their queue offset is looked up.
        """
        stored: dict[LogQueue, Stored] = {}
        others: dict[LogQueue, TopicPartition] = {}
        seeks: dict[LogQueue, str] = {}
        for partition, commit in commits.items():
            if (queue := self.queue_of(partition)) is not None:
                offset, _, asked = commit.note.partition(" ")
                if offset.isdigit():
                    stored[queue] = Stored(int(offset), asked)
                else:
                    others[queue] = TopicPartition(*partition, commit.offset)
                    seeks[queue] = asked if not offset else ""
        found = self._places.queue_offsets(others)
        return stored | {queue: Stored(offset, seeks[queue]) for queue, offset in found.items()}

    def stored(self, group: str) -> dict[LogQueue, Stored]:
        """Return the stored progress of a group."""
        return self._of_kafka_group(self.kafka_group(group), None)

    # ---- what groups are asked

    def asked(self, group: str, queues: Collection[LogQueue] | None = None) -> dict[LogQueue, Stored]:
        """Return the last request for each queue, whether completed or not, and where the group was to begin."""
        return self._of_kafka_group(self.kafka_group(group) + ASKED, queues)

    def request_offsets(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        """Request that the group continues there. A group without members is moved at once."""
        asked = secrets.token_hex(8)
        wishes = {queue: Stored(offset, asked) for queue, offset in offsets.items()}
        self._alter(self.kafka_group(group) + ASKED, wishes)
        self._alter(self.kafka_group(group), wishes, unless=_OTHERS_MEMBERS)

    def begin_at(self, group: str, offsets: Mapping[LogQueue, int]) -> None:
        """Set where the group begins in these queues."""
        self._alter(self.kafka_group(group) + ASKED, {queue: Stored(offset) for queue, offset in offsets.items()})

    def begun(
        self, group: str, queues: Collection[LogQueue], stored: Mapping[LogQueue, Stored]
    ) -> dict[LogQueue, Stored]:
        """Return the offsets at which a member that takes these queues continues, given the stored progress of the
        group.
        """
        begun = dict(stored)
        asked = self.asked(group, queues)
        sought = sought_in(stored, asked)
        begun.update((queue, asked[queue]) for queue in asked if queue in sought or queue not in stored)
        if new := [queue for queue in queues if queue not in begun]:
            begun.update((queue, Stored(kept.begin)) for queue, kept in self._places.ranges(new).items())
        return begun

    # ---- calls

    def _of_kafka_group(self, name: str, queues: Collection[LogQueue] | None) -> dict[LogQueue, Stored]:
        partitions = self._all() if queues is None else [self.partition_of(queue) for queue in queues]
        if not partitions:
            return {}
        asked = [TopicPartition(*partition) for partition in partitions]
        found = self._clients.of_group(
            f"reading the offsets of group {name!r}",
            lambda: self._reader(name).committed(asked, timeout=self._clients.timeout_s),
        )
        return self.stored_of(commits_of(self._clients, name, found))

    def _all(self) -> list[KafkaPartition]:
        """Return the partitions of all topics of this log."""
        counts = {name: count for name, count in self._topics.all().items() if topic_of(name, self._prefix) is not None}
        return [KafkaPartition(name, number) for name, count in counts.items() for number in range(count)]

    def _reader(self, name: str) -> Consumer:
        """Return a consumer with the name of a group, which does not join it.

        Not the administrator: librdkafka 2.16 crashes with SIGSEGV if a node that is asked for a group's offsets is no
        longer its coordinator (confluentinc/librdkafka#5040).
        """
        left: list[Consumer] = []  # not closed here: another thread may be reading by it
        with self._lock:
            reader = self._readers.pop(name, None) or self._clients.consumer(name)
            self._readers[name] = reader  # the last one, which was used last
            while len(self._readers) > _READERS_MAX:
                left.append(self._readers.pop(next(iter(self._readers))))
        return reader

    def close(self) -> None:
        """Close its consumers. It must not be used after that."""
        with self._lock:
            readers, self._readers = list(self._readers.values()), {}
        for reader in readers:
            reader.close()

    def _alter(self, name: str, offsets: Mapping[LogQueue, Stored], *, unless: Collection[int] = ()) -> None:
        """Store offsets of a group, which must not have members; store nothing if it has."""
        if not offsets:
            return
        doing = f"storing offsets of group {name!r}"
        partitions = [TopicPartition(*partition, *commit) for partition, commit in self.commits_of(offsets).items()]
        with self._clients.translated(doing):
            answers = self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name, partitions)], request_timeout=self._clients.timeout_s
            )
            done = answers[name].result()
        for each in done.topic_partitions or []:
            if each.error is not None and each.error.code() not in unless:
                raise self._clients.error(each.error, doing)

    def delete_before(self, offsets: Mapping[LogQueue, int]) -> None:
        """Delete the records before these offsets, which are no longer needed. Logs failures."""
        partitions = [
            TopicPartition(*self.partition_of(queue), place) for queue, place in self._places_of(offsets).items()
        ]
        answers = self._admin.delete_records(partitions, request_timeout=self._clients.timeout_s)
        for partition, answer in answers.items():
            try:
                with self._clients.translated(f"deleting what was dealt with in {partition.topic!r}"):
                    answer.result()
            except TxmsgError as exc:
                _log.warning("group.records_kept", "records that were dealt with are kept: %(error)s", error=exc)


def sought_in(stored: Mapping[LogQueue, Stored], asked: Mapping[LogQueue, Stored]) -> dict[LogQueue, int]:
    """Return the queues that have an open seek request."""
    return {
        queue: asked[queue].offset
        for queue, at in stored.items()
        if queue in asked and asked[queue].asked not in {"", at.asked}
    }
