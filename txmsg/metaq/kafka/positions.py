"""Converts between offsets of queues and offsets of partitions.

Both increase within a partition. They differ by transaction markers, by records of aborted transactions, and by records
deleted from the middle of the partition; for records without a queue offset they are equal. Either can be the greater
one: a mirror may begin where its table does, with a high queue offset at partition offset 0. So the partition offset of
a queue offset is found by reading single records. Starting from a known pair, the distance in queue offsets is an
estimate of the distance in partition offsets, and each read improves it. After some reads the remaining range is
bisected.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from txmsg.errors import BrokerUnavailable, OffsetOutOfRange
from txmsg.metaq.interface import LogQueue, QueueRange
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.errors import kafka_error_of
from txmsg.metaq.kafka.names import kafka_name
from txmsg.metaq.kafka.probe import KafkaPartition, PartitionBounds, Probe
from txmsg.metaq.kafka.record import queue_offset
from txmsg.metaq.kafka.topics import KafkaTopicAdmin

_LEAPS_MAX: Final = 8
"""Reads that estimate by the distance, before the rest is bisected."""
_NOWHERE: Final = -1
"""The offset that Kafka returns for a time after all messages."""
_KEPT: Final = 0
"""The least offset that is kept."""
_RUNS_MAX: Final = 16
"""Runs that are kept of a queue."""
_UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._NOENT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Codes of a node that does not have a partition, not yet, or not any more."""
_LOOK_AGAIN_S: Final = 0.1


@dataclass(slots=True)
class RecordSearch:
    """A search of a partition's first record with at least the queue offset `wanted`, or timestamp if `by_time`."""

    wanted: int
    low: int
    """All records before this offset come before the result."""
    high: int
    """The result is before this offset, or is `best`."""
    guess: int
    by_time: bool = False
    best: Message | None = None
    looks: int = 0

    @property
    def is_done(self) -> bool:
        return self.low >= self.high

    def saw(self, record: Message | None) -> None:
        """Record the first record at or after `guess`."""
        self.looks += 1
        if record is None:
            self.high = self.guess
        else:
            at, value = record.offset() or 0, record.timestamp()[1] if self.by_time else queue_offset(record)
            if value < self.wanted:
                self.low = at + 1
                self.guess = at + self.wanted - value
            else:
                self.best = record
                self.high = self.low if value == self.wanted and not self.by_time else self.guess
        # Estimates need few reads where gaps are even; bisection bounds the number of reads elsewhere. Times say
        # nothing of distances.
        if self.looks > _LEAPS_MAX or self.by_time:
            self.guess = (self.low + self.high) // 2
        self.guess = max(self.low, min(self.guess, self.high - 1))


@dataclass(slots=True)
class _RecordRun:
    """Messages of a queue with consecutive partition offsets. Reading continues at `end`."""

    begin: int
    end: int
    difference: int
    """The partition offset minus the queue offset."""


class Positions:
    """Finds positions in the partitions of one Kafka cluster. Threads may share it."""

    def __init__(self, clients: KafkaClients, admin: AdminClient, topics: KafkaTopicAdmin, probe: Probe) -> None:
        self._clients = clients
        self._admin = admin
        self._topics = topics
        self._probe = probe
        self._lock = threading.Lock()
        self._runs: dict[LogQueue, deque[_RecordRun]] = {}
        self._begins: dict[LogQueue, tuple[int, int]] = {}
        """Queue offsets of first records, each with the partition offset for which it was looked up."""
        self._ends: dict[LogQueue, tuple[int, int]] = {}

    def partition_of(self, queue: LogQueue) -> KafkaPartition:
        """Return the partition in which a queue is stored. Raises InvalidName."""
        return KafkaPartition(kafka_name(queue.topic, self._clients.address.prefix), queue.queue)

    def note(self, queue: LogQueue, offset: int, partition_offset: int, *, count: int = 0) -> None:
        """Record that this queue offset is at this partition offset, followed by this many messages without a gap."""
        difference = partition_offset - offset
        with self._lock:
            runs = self._runs.setdefault(queue, deque(maxlen=_RUNS_MAX))
            if runs and runs[-1].difference == difference and runs[-1].begin <= offset <= runs[-1].end:
                runs[-1].end = max(runs[-1].end, offset + count)
            else:
                runs.append(_RecordRun(offset, offset + count, difference))

    def _noted(self, queue: LogQueue, offset: int) -> int | None:
        for run in reversed(self._runs.get(queue, ())):
            if run.begin <= offset <= run.end:
                return offset + run.difference
        return None

    def forget_queue(self, queue: LogQueue) -> None:
        """Forget the positions of a queue, because its records were deleted."""
        with self._lock:
            for noted in (self._runs, self._begins, self._ends):
                noted.pop(queue, None)

    def bounds(self, queues: Collection[LogQueue]) -> dict[LogQueue, PartitionBounds]:
        """Return the bounds of partitions. Missing partitions are omitted."""
        partitions = {queue: self.partition_of(queue) for queue in queues}
        lows = self._offsets(partitions.values(), OffsetSpec.earliest())
        highs = self._offsets(partitions.values(), OffsetSpec.latest())
        return {
            queue: PartitionBounds(lows[partition], max(lows[partition], highs[partition]))
            for queue, partition in partitions.items()
            if partition in lows and partition in highs
        }

    def ends(self, queues: Collection[LogQueue]) -> dict[LogQueue, int]:
        """Return for each queue the partition offset after its last committed record. Missing partitions are
        omitted.
        """
        partitions = {queue: self.partition_of(queue) for queue in queues}
        highs = self._offsets(partitions.values(), OffsetSpec.latest())
        return {queue: highs[partition] for queue, partition in partitions.items() if partition in highs}

    def _offsets(
        self, partitions: Iterable[KafkaPartition], which: OffsetSpec, least: int = _KEPT
    ) -> dict[KafkaPartition, int]:
        """Return known offsets of these partitions, if they exist.

        least: smaller offsets are not accepted as an answer.
        """
        found: dict[KafkaPartition, int] = {}
        left = set(partitions)
        deadline = time.monotonic() + self._clients.timeout_s
        while left:
            answered, unknown = self._asked(left, which, least)
            found |= answered
            # A node that has just come back may not know yet what it has, and a new partition has no leader at first.
            counts = {topic: self._topics.partitions_of(topic) for topic in {each.topic for each in unknown}}
            left = {each for each in unknown if each.number < counts[each.topic]}
            if left and time.monotonic() > deadline:
                one = min(left)
                raise BrokerUnavailable(
                    f"{self._clients.address} has topic {one.topic}, but for {self._clients.timeout_s:g} s its nodes "
                    f"do not know partition {one.number}: look at the node that leads it"
                )
            if left:
                time.sleep(_LOOK_AGAIN_S)
        return found

    def _asked(
        self, partitions: Collection[KafkaPartition], which: OffsetSpec, least: int
    ) -> tuple[dict[KafkaPartition, int], list[KafkaPartition]]:
        """Return the offsets, and the partitions that the queried nodes do not know."""
        found: dict[KafkaPartition, int] = {}
        unknown: list[KafkaPartition] = []
        with self._clients.translated(f"asking for offsets of topic {next(iter(partitions)).topic}"):
            answers = self._admin.list_offsets(
                {partition.at(0): which for partition in partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=self._clients.timeout_s,
            )
            for place, answer in answers.items():
                partition = KafkaPartition(place.topic, place.partition)
                try:
                    offset = answer.result().offset
                except KafkaException as exc:
                    if kafka_error_of(exc).code() not in _UNKNOWN:
                        raise
                    unknown.append(partition)
                    continue
                if offset >= least:
                    found[partition] = offset
                else:  # librdkafka reports no error if a node leaves before it answers
                    unknown.append(partition)
        return found, unknown

    def ranges(self, queues: Collection[LogQueue]) -> dict[LogQueue, QueueRange]:
        """Return the queue offsets that are kept.

        For an empty partition, whose queue offsets are unknown, its partition offsets.
        """
        return {**dict.fromkeys(queues, QueueRange(0, 0)), **self._ranges(self.bounds(queues))}

    def _ranges(self, bounds: Mapping[LogQueue, PartitionBounds]) -> dict[LogQueue, QueueRange]:
        with self._lock:
            begins = {
                queue: known[1]
                for queue, (low, _) in bounds.items()
                # Remembered as long as the partition's bound is the same: to ask for it costs the read of a record.
                if (known := self._begins.get(queue)) is not None and known[0] == low
            }
            ends = {
                queue: known[1]
                for queue, (_, high) in bounds.items()
                if (known := self._ends.get(queue)) is not None and known[0] == high
            }
        filled = {queue: kept for queue, kept in bounds.items() if kept.low < kept.high}
        firsts = self.first({queue: kept.low for queue, kept in filled.items() if queue not in begins}, filled)
        lasts = self._probe.last({self.partition_of(queue): filled[queue] for queue in filled if queue not in ends})
        for queue, record in firsts.items():
            begins[queue] = queue_offset(record)
        for queue in filled:
            if (last := lasts.get(self.partition_of(queue))) is not None:
                ends[queue] = queue_offset(last) + 1
        with self._lock:
            self._begins.update({queue: (bounds[queue].low, offset) for queue, offset in begins.items()})
            self._ends.update({queue: (bounds[queue].high, offset) for queue, offset in ends.items()})
        found: dict[LogQueue, QueueRange] = {}
        for queue, (_, high) in bounds.items():
            end = ends.get(queue, high)
            found[queue] = QueueRange(min(begins.get(queue, end), end), end)
        return found

    def unknown(self, wanted: Mapping[LogQueue, int]) -> set[LogQueue]:
        """Return the queues whose partition is empty, and whose offset may come from the partition: see `ranges`."""
        with self._lock:
            asked = [queue for queue, offset in wanted.items() if self._noted(queue, offset) is None]
            ends = {queue: self._ends.get(queue) for queue in asked}
        found = self.bounds(asked) if asked else {}
        return {queue for queue, (low, high) in found.items() if low == high and (ends[queue] or (-1, 0))[0] != high}

    def first(
        self, starts: Mapping[LogQueue, int], bounds: Mapping[LogQueue, PartitionBounds] | None = None
    ) -> dict[LogQueue, Message]:
        """Return for each queue the first record at or after this partition offset, if any. bounds: if already
        known.
        """
        found = self._probe.first(
            {self.partition_of(queue): at for queue, at in starts.items()},
            {self.partition_of(queue): bounds[queue].high for queue in starts} if bounds is not None else None,
        )
        return {queue: found[partition] for queue in starts if (partition := self.partition_of(queue)) in found}

    def find_positions(self, wanted: Mapping[LogQueue, int]) -> dict[LogQueue, int | OffsetOutOfRange]:
        """Return the partition offsets at which reading from these queue offsets begins, or errors that say why it
        cannot.

        Queues without a partition are omitted. From an empty partition, the next record is read.
        """
        found: dict[LogQueue, int | OffsetOutOfRange] = {}
        with self._lock:
            for queue, offset in wanted.items():
                # A reader that continues needs no request to Kafka.
                if (noted := self._noted(queue, offset)) is not None:
                    found[queue] = noted
        bounds = self.bounds([queue for queue in wanted if queue not in found])
        kept = self._ranges(bounds)
        searches: dict[LogQueue, RecordSearch] = {}
        for queue, (low, high) in bounds.items():
            offset, (begin, end) = wanted[queue], kept[queue]
            if low == high or offset == end:
                found[queue] = high
            elif begin <= offset < end:
                searches[queue] = RecordSearch(offset, low, high, min(low + offset - begin, high - 1))
            else:
                found[queue] = out_of_range(queue, offset, kept[queue])
        for queue, record in self._searched(searches, bounds).items():
            place = bounds[queue].high if record is None else record.offset() or 0
            self.note(queue, wanted[queue], place)
            found[queue] = place
        return found

    def _searched(
        self, searches: Mapping[LogQueue, RecordSearch], bounds: Mapping[LogQueue, PartitionBounds]
    ) -> dict[LogQueue, Message | None]:
        """Return the result of each search."""
        left = dict(searches)
        while left:
            records = self.first({queue: search.guess for queue, search in left.items()}, bounds)
            for queue, search in left.items():
                search.saw(records.get(queue))
            left = {queue: search for queue, search in left.items() if not search.is_done}
        return {queue: search.best for queue, search in searches.items()}

    def at_time(self, queues: Collection[LogQueue], at_ms: int) -> dict[LogQueue, int]:
        """Return for each queue the offset of the first message with this timestamp or a later one; otherwise its end.

        Kafka answers with a position before which there is no such record. It may be a transaction marker, whose
        timestamp is the time at which it was written. From there on the search bisects, because timestamps of a queue
        increase.
        """
        bounds = self.bounds(queues)
        found = dict.fromkeys(queues, 0) | {queue: kept.end for queue, kept in self._ranges(bounds).items()}
        partitions = {queue: self.partition_of(queue) for queue in bounds}
        places = self._offsets(partitions.values(), OffsetSpec.for_timestamp(at_ms), _NOWHERE)
        searches = {
            queue: RecordSearch(at_ms, places[at], bounds[queue].high, places[at], by_time=True)
            for queue, at in partitions.items()
            if _NOWHERE < places.get(at, _NOWHERE) < bounds[queue].high
        }
        for queue, record in self._searched(searches, bounds).items():
            if record is not None:
                found[queue] = queue_offset(record)
                self.note(queue, found[queue], record.offset() or 0)
        return found

    def queue_offsets(self, committed: Mapping[LogQueue, TopicPartition]) -> dict[LogQueue, int]:
        """Return the queue offsets of the records at these positions, or else the ends of the queues."""
        records = self.first({queue: place.offset for queue, place in committed.items()})
        found = {queue: kept.end for queue, kept in self.ranges(committed.keys() - records.keys()).items()}
        return found | {queue: queue_offset(record) for queue, record in records.items()}


def out_of_range(queue: LogQueue, offset: int, kept: QueueRange) -> OffsetOutOfRange:
    """Return the error for an offset that is no longer kept."""
    there = f"it keeps {kept.begin} to {kept.end - 1}" if kept.begin < kept.end else f"it ends at {kept.end}"
    return OffsetOutOfRange(f"offset {offset} of topic {queue.topic} queue {queue.queue} is not kept: {there}", *kept)
