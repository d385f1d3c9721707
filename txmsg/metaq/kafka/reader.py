"""Reads many queues continuously, with one Kafka consumer that prefetches while its records are handled."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message

from txmsg.errors import OffsetOutOfRange, TxmsgError, UnreadableMessage
from txmsg.metaq.interface import Fetched, LogQueue
from txmsg.metaq.kafka.batch import RECORD_SIZE_BYTES, RecordBatch, size_bytes_of
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.positions import Positions, out_of_range
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_TAKEN_COUNT: Final = 4_000
"""Records that are taken from the client at once."""
_LANE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a queue that no caller fetches: more makes its partition pause."""
_FORGET_S: Final = 30.0
"""Seconds after which a queue that no caller fetches is not read any more."""
_STEP_S: Final = 0.1
"""Seconds of a wait between two checks that the log is still open."""

_STALL_S: Final = 10.0
"""Seconds after which a wait is checked for a stall: librdkafka may fetch no more after nodes have come and gone."""
_IDLE_MAX: Final = 4
"""Readers that are kept for the next fetch: each has connections and records that it has fetched ahead."""

_BACKOFF_MS: Final = 10
"""Milliseconds after which the client, having fetched enough ahead, checks for room. Its own default is a second."""
_error_of: Final[Callable[[Any], KafkaError | None]] = methodcaller("error")
_number_of: Final[Callable[[Any], int]] = methodcaller("partition")
_topic_of: Final[Callable[[Any], str]] = methodcaller("topic")


def _place_of(record: Message) -> KafkaPartition:
    return KafkaPartition(record.topic() or "", record.partition() or 0)


@dataclass(slots=True)
class _PartitionBuffer:
    """A partition that is being read. `records` have arrived and were not returned yet."""

    queue: LogQueue
    offset: int
    """The queue offset at which the caller continues."""
    at: int
    """The partition offset of the record that comes next."""
    wanted_at: float
    records: list[Message] = field(default_factory=list)
    size_bytes: int = 0
    is_paused: bool = False
    error: TxmsgError | None = None


class KafkaReader:
    """Reads queues with one consumer. Not to be shared: `KafkaReaders` lends each one to one thread at a time."""

    def __init__(self, clients: KafkaClients, positions: Positions, closed: threading.Event) -> None:
        self._clients = clients
        self._positions = positions
        self._closed = closed
        self._open_consumer()

    def _open_consumer(self) -> None:
        self._consumer: Consumer = self._clients.consumer(
            "txmsg-reader",
            enable_partition_eof=True,
            fetch_queue_backoff_ms=_BACKOFF_MS,
        )
        self._lanes: dict[LogQueue, _PartitionBuffer] = {}
        self._by_place: dict[KafkaPartition, _PartitionBuffer] = {}
        self._came_at = time.monotonic()  # anything of any partition

    def close(self) -> None:
        self._consumer.close()

    def fits(self, wanted: Mapping[LogQueue, int]) -> int:
        """Return how many of these queues it could continue without repositioning."""
        return sum(
            (lane := self._lanes.get(queue)) is not None and lane.offset == offset for queue, offset in wanted.items()
        )

    def fetch(self, wanted: Mapping[LogQueue, int], size_bytes_max: int, wait_s: float) -> list[Fetched]:
        """Fetch as `LogAccess.fetch` does."""
        moved, errors = self._go_to(wanted)
        if sum(lane.size_bytes for queue in wanted if (lane := self._lanes.get(queue)) is not None) < size_bytes_max:
            self._sort_records(0)
        found = self._given(wanted, size_bytes_max, errors)
        if not found and (wait_s <= 0 or moved):
            self._catch_up([queue for queue in wanted if queue in self._lanes])
            found = self._given(wanted, size_bytes_max, errors)
        deadline = time.monotonic() + wait_s
        while not found and (left_s := deadline - time.monotonic()) > 0 and not self._closed.is_set():
            self._sort_records(min(left_s, _STEP_S))
            found = self._given(wanted, size_bytes_max, errors)
        if not found:
            self._look_for_a_stall()
        return found

    def _look_for_a_stall(self) -> None:
        """Restart with another consumer if nothing has arrived for long although more is committed."""
        now = time.monotonic()
        # Asked seldom: it costs a request, and librdkafka reports nothing when it stops fetching.
        if now < self._came_at + _STALL_S or not self._lanes:
            return
        self._came_at = now
        behind = {queue: lane.at for queue, lane in self._lanes.items()}
        try:
            ends = self._positions.ends(list(behind))
        except TxmsgError:
            return  # no node answers: nothing can be read either, and the next check is soon
        stalled = [queue for queue, end in ends.items() if behind[queue] < end]
        if stalled:
            _log.warning(
                "kafka.reader_stalled",
                "topic %(topic)s queue %(queue)d gave nothing for %(seconds).0f s, though it has more: reconnecting",
                topic=stalled[0].topic,
                queue=stalled[0].queue,
                seconds=_STALL_S,
            )
            self._consumer.close()
            self._open_consumer()

    def _go_to(self, wanted: Mapping[LogQueue, int]) -> tuple[bool, dict[LogQueue, TxmsgError]]:
        """Read these queues from these offsets on. Returns True if some were repositioned."""
        now = time.monotonic()
        errors: dict[LogQueue, TxmsgError] = {}
        new: dict[LogQueue, int] = {}
        for queue, offset in wanted.items():
            lane = self._lanes.get(queue)
            if lane is not None and lane.offset == offset and lane.error is None:
                lane.wanted_at = now
            else:
                new[queue] = offset
        if now - min((lane.wanted_at for lane in self._lanes.values()), default=now) > _FORGET_S:
            self._drop([queue for queue, lane in self._lanes.items() if now - lane.wanted_at > _FORGET_S])
        if not new:
            return False, errors
        self._drop([queue for queue in new if queue in self._lanes])
        places = self._positions.find_positions(new)
        lanes: list[tuple[KafkaPartition, _PartitionBuffer]] = []
        for queue, place in places.items():
            if isinstance(place, OffsetOutOfRange):
                errors[queue] = place
            else:
                lanes.append((self._positions.partition_of(queue), _PartitionBuffer(queue, new[queue], place, now)))
        if lanes:
            starts = [partition.at(lane.at) for partition, lane in lanes]
            with self._clients.translated("reading a topic"):
                self._consumer.incremental_assign(starts)
            for partition, lane in lanes:
                self._lanes[lane.queue] = self._by_place[partition] = lane
        return bool(lanes), errors

    def _drop(self, queues: Sequence[LogQueue]) -> None:
        if not queues:
            return
        partitions = [self._positions.partition_of(queue) for queue in queues]
        paused = [partition.at(0) for partition in partitions if self._by_place[partition].is_paused]
        for queue, partition in zip(queues, partitions, strict=True):
            del self._lanes[queue]
            del self._by_place[partition]
        with self._clients.translated("reading a topic"):
            if paused:
                self._consumer.resume(paused)  # or it would still be paused when it is assigned again
            self._consumer.incremental_unassign([partition.at(0) for partition in partitions])

    # ---- what comes

    def _sort_records(self, wait_s: float) -> None:
        """Sort the records that have arrived, after waiting for the first one."""
        with self._clients.translated("reading a topic"):
            records: list[Message] = []
            if wait_s > 0:
                first = self._consumer.poll(wait_s)
                if first is None:
                    return
                records.append(first)
            records += self._consumer.consume(_TAKEN_COUNT, 0)
        if records:
            self._came_at = time.monotonic()
        told = list(filter(_error_of, records))
        if told:
            records = [record for record in records if record.error() is None]
        has_topics = len({partition.topic for partition in self._by_place}) > 1
        # By number first: with one topic, as is usual, the name of no record is asked for.
        for _, run in groupby(records, _number_of):
            for _, of_topic in groupby(run, _topic_of) if has_topics else ((None, run),):
                self._add(list(of_topic))
        for error in told:  # after the records: the end of a partition comes behind them
            self._note(error)

    def _add(self, records: list[Message]) -> None:
        """Add records of one partition."""
        lane = self._by_place.get(_place_of(records[0]))
        if lane is None:
            return  # of a partition that was dropped
        # Records before the position may still arrive after a repositioning.
        if (records[0].offset() or 0) < lane.at:
            records = [record for record in records if (record.offset() or 0) >= lane.at]
        if records:
            lane.at = (records[-1].offset() or 0) + 1
            lane.records += records
            lane.size_bytes += size_bytes_of(records)
            # A queue that is not fetched must not fill the memory: its partition pauses, and the others continue.
            if lane.size_bytes > _LANE_BYTES_MAX and not lane.is_paused:
                self._consumer.pause([_place_of(records[0]).at(0)])
                lane.is_paused = True

    def _note(self, told: Message) -> None:
        """Handle what the client reported for a partition instead of a record."""
        error = told.error()
        assert error is not None
        lane = self._by_place.get(_place_of(told))
        if lane is None:
            if error.code() not in {KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET}:
                raise self._clients.error(error, "reading")
        elif error.code() == KafkaError._PARTITION_EOF:
            lane.at = max(lane.at, told.offset() or 0)
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
            self._positions.forget_queue(lane.queue)
            kept = self._positions.ranges([lane.queue])[lane.queue]
            lane.error = out_of_range(lane.queue, lane.offset, kept)
        else:
            lane.error = self._clients.error(error, f"reading topic {lane.queue.topic!r}")

    def _catch_up(self, queues: Iterable[LogQueue]) -> None:
        """Wait for a record of one of these queues, unless all committed ones have arrived."""
        ends = self._positions.ends(list(queues))
        deadline = time.monotonic() + self._clients.timeout_s
        while not self._closed.is_set():
            lanes = [(self._lanes[queue], end) for queue, end in ends.items() if queue in self._lanes]
            if any(lane.records or lane.error for lane, _ in lanes) or all(lane.at >= end for lane, end in lanes):
                return
            if time.monotonic() > deadline:
                queue = next(lane.queue for lane, end in lanes if lane.at < end)
                raise self._clients.error(KafkaError(KafkaError._TIMED_OUT), f"reading topic {queue.topic!r}")
            self._sort_records(_STEP_S)

    # ---- what is given

    def _given(
        self, wanted: Iterable[LogQueue], size_bytes_max: int, errors: Mapping[LogQueue, TxmsgError]
    ) -> list[Fetched]:
        found: list[Fetched] = []
        left_bytes = size_bytes_max
        for queue in wanted:
            if found and left_bytes <= 0:
                break
            if (error := errors.get(queue)) is not None:
                found.append(Fetched(queue, error=error))
            elif (lane := self._lanes.get(queue)) is not None and (lane.records or lane.error):
                fetched = self._fetched(lane, left_bytes)
                left_bytes -= fetched.size_bytes
                found.append(fetched)
        return found

    def _fetched(self, lane: _PartitionBuffer, size_bytes_max: int) -> Fetched:
        if not lane.records:
            return Fetched(lane.queue, error=lane.error)
        records = lane.records
        if lane.size_bytes > size_bytes_max:
            sizes = list(accumulate(map(len, records)))
            count = bisect_left(
                range(len(sizes)), size_bytes_max, key=lambda place: sizes[place] + RECORD_SIZE_BYTES * (place + 1)
            )
            records = records[: max(1, count)]
        try:
            batch = RecordBatch.of(*lane.queue, records)
        except UnreadableMessage as exc:
            lane.error = exc
            return Fetched(lane.queue, error=exc)
        records = records[: len(batch)]
        lane.records = lane.records[len(batch) :]
        lane.size_bytes -= batch.size_bytes
        lane.offset = batch.end_offset
        first, end = records[0].offset() or 0, (records[-1].offset() or 0) + 1
        if end - first == batch.end_offset - batch.base_offset:
            self._positions.note(lane.queue, batch.base_offset, first, count=end - first)
        else:
            self._positions.note(lane.queue, batch.end_offset, end)
        if lane.is_paused and not lane.records:
            self._consumer.resume([self._positions.partition_of(lane.queue).at(0)])
            lane.is_paused = False
        return Fetched(lane.queue, (batch,))


class KafkaReaders:
    """The readers of a log: a fetch gets the reader that can continue without repositioning, if there is one."""

    def __init__(self, clients: KafkaClients, positions: Positions) -> None:
        self._clients = clients
        self._positions = positions
        self._lock = threading.Lock()
        self._idle: list[KafkaReader] = []
        """Idle readers; the one used last is the last."""
        self._closed = threading.Event()

    def close(self) -> None:
        """Close all readers. Waiting fetches return soon. Closing twice is fine."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def fetch(self, wanted: Mapping[LogQueue, int], size_bytes_max: int, wait_s: float) -> list[Fetched]:
        """Fetch as `LogAccess.fetch` does."""
        reader = self._taken(wanted)
        try:
            return reader.fetch(wanted, size_bytes_max, wait_s)
        finally:
            self._give_back(reader)

    def _taken(self, wanted: Mapping[LogQueue, int]) -> KafkaReader:
        with self._lock:
            best = max(self._idle, key=lambda reader: reader.fits(wanted), default=None)
            if best is not None and (best.fits(wanted) or len(self._idle) >= _IDLE_MAX):
                self._idle.remove(best)
                return best
        return KafkaReader(self._clients, self._positions, self._closed)

    def _give_back(self, reader: KafkaReader) -> None:
        with self._lock:
            if self._closed.is_set():
                surplus = [reader]
            else:
                self._idle.append(reader)
                surplus, self._idle = self._idle[:-_IDLE_MAX], self._idle[-_IDLE_MAX:]
        for each in surplus:
            each.close()
