"""Mirrors into topics of Kafka: readers of committed records see each message once and in order.

A queue ends at the offset in the last record's place header. The note that is committed in the same transaction
has the same end, and it outlives records that expire. docs/decisions/0077 has the argument.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from txmsg.binlog.mirror.rows import columns_of, traced
from txmsg.binlog.rows import RowBatch, TableRow
from txmsg.binlog.sink import REFUSALS, MessageFingerprint, OffsetRange, QueueTail, content_crc
from txmsg.errors import BrokerUnavailable, CorruptLog, InvalidMessage, ProtocolError, UnknownTopic, shown
from txmsg.message import ReceivedMessage
from txmsg.metaq.interface import DEAD_LETTERS, NOTES, RETRIES, LogQueue
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.location import parse_address, properties_file, read_properties
from txmsg.metaq.kafka.names import MIRROR, kafka_name
from txmsg.metaq.kafka.positions import Positions
from txmsg.metaq.kafka.probe import KafkaPartition, PartitionBounds, Probe
from txmsg.metaq.kafka.record import PLACE, ReadRecord, Record, place_in_own, received, records_of
from txmsg.metaq.kafka.scan import scan
from txmsg.metaq.kafka.topics import KafkaTopicAdmin
from txmsg.metaq.kafka.transactions import PartitionWrite, TransactionalWriter, TransactionNote
from txmsg.wire.headers import pack_headers

if TYPE_CHECKING:
    from txmsg.tracing import Tracing

_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.05


class KafkaSink:
    """A `Sink` over the topics of one prefix. While it is open, no other one writes to them.

    config: the file of Kafka's properties; None: that of the environment, if it names one. replication_factor,
    min_insync_replicas: of topics that it creates; None: as the cluster is set.
    """

    def __init__(
        self,
        where: str,
        config: Path | None = None,
        *,
        replication_factor: int | None = None,
        min_insync_replicas: int | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        address = parse_address(where)
        self.name = str(address)
        self._tracing = tracing
        self._clients = KafkaClients(address, read_properties(properties_file(config)), timeout_s=_TIMEOUT_S)
        self._replication_factor = -1 if replication_factor is None else replication_factor
        self._min_insync_replicas = min_insync_replicas
        admin = self._clients.admin()
        self.log_id = self._clients.identity(admin).log_id
        self._topics = KafkaTopicAdmin(self._clients, admin)
        self._probe = Probe(self._clients)
        self._positions = Positions(self._clients, admin, self._topics, self._probe)
        self._counts: dict[str, int] = {}
        """The number of partitions of Kafka's topics, as of the last look."""
        self._wanted: dict[str, int] = {}
        """The number of partitions that the requested queues need, by topic."""
        # Becoming the writer fences an earlier one, and completes or aborts its open transaction. Ends of queues are
        # read only after that, so no other writer changes what was read (decision 0077).
        self._writer = TransactionalWriter(self._clients, f"{address.prefix}{MIRROR}")

    @property
    def generation(self) -> int:
        """The generation, always 1: a topic that has to be cut is recreated, and Kafka tells the two apart."""
        return 1

    @property
    def own_topics(self) -> Sequence[str]:
        return (f"{RETRIES}*", f"{DEAD_LETTERS}*", NOTES)

    # ---- where queues end

    def tails(self, queues: Sequence[tuple[str, int]]) -> list[QueueTail | Exception]:
        try:
            return self._tails(queues)
        except UnknownTopic as exc:  # deleted meanwhile: the next look finds none
            raise BrokerUnavailable(str(exc)) from exc

    def _tails(self, queues: Sequence[tuple[str, int]]) -> list[QueueTail | Exception]:
        places = [self._place(topic, number) for topic, number in queues]
        named = zip(places, queues, strict=True)
        bounds, notes = self._looked_up(
            {place: LogQueue(*queue) for place, queue in named if isinstance(place, KafkaPartition)}
        )
        last = self._probe.last({place: kept for place, kept in bounds.items() if kept.low < kept.high})
        return [
            self._tail(topic, number, bounds.get(place), last.get(place), notes.get(place))
            if isinstance(place, KafkaPartition)
            else place
            for (topic, number), place in zip(queues, places, strict=True)
        ]

    def _looked_up(
        self, places: Mapping[KafkaPartition, LogQueue]
    ) -> tuple[dict[KafkaPartition, PartitionBounds], dict[KafkaPartition, TransactionNote]]:
        """Return the bounds of the partitions that exist, and the notes on them.

        A node may not know yet of a topic that a tailer has just created; its messages would then be written again.
        Notes are visible at once, so this waits for each partition whose note names a message. Kafka forgets the notes
        on a deleted topic a moment after the topic.
        """
        deadline = time.monotonic() + self._clients.timeout_s
        while True:
            self._counts = self._topics.all()
            there = {place: queue for place, queue in places.items() if place.number < self._counts.get(place.topic, 0)}
            of_queues = self._positions.bounds(there.values())
            bounds = {place: of_queues[queue] for place, queue in there.items() if queue in of_queues}
            notes = self._writer.notes(places.keys())
            noted = [place for place, note in notes.items() if _tells_of_a_message(note)]
            if all(place in bounds and bounds[place].high for place in noted) or time.monotonic() > deadline:
                return bounds, notes
            time.sleep(_LOOK_S)

    def _place(self, topic: str, number: int) -> KafkaPartition | Exception:
        try:
            return self._partition(topic, number)
        except REFUSALS as exc:
            return exc

    def _tail(
        self,
        topic: str,
        number: int,
        bounds: PartitionBounds | None,
        last: ReadRecord | None,
        note: TransactionNote | None,
    ) -> QueueTail | Exception:
        where = self._where(topic, number)
        try:
            noted_end, noted = (0, None) if note is None else _noted(note, where)
            if bounds is None or bounds.high == 0:
                is_lost = noted is not None
                return (
                    self._lost(topic, number, 0, noted_end) if is_lost else QueueTail(OffsetRange(0, noted_end), None)
                )
            if last is None:  # all has expired; or, if nothing has, what is there was aborted
                is_known = noted_end > 0 or bounds.low == 0
                return QueueTail(OffsetRange(0, noted_end) if is_known else None, noted)
            mark = _mark_of(last, topic, number, where)
        except REFUSALS as exc:
            return exc
        if noted_end <= mark.offset + 1:
            return QueueTail(OffsetRange(0, mark.offset + 1), mark)
        if noted is None:
            return QueueTail(OffsetRange(0, noted_end), None)
        return self._lost(topic, number, mark.offset + 1, noted_end)

    def _lost(self, topic: str, number: int, end: int, noted_end: int) -> CorruptLog:
        return CorruptLog(
            f"{self._where(topic, number)} has nothing from offset {end} on, but {noted_end - 1} was committed: Kafka "
            "has lost what is between, as by an unclean election of a leader, or a crash without copies. When all its "
            f"nodes are up, forget what was noted (`kafka-consumer-groups.sh --delete-offsets --group "
            f"{self._writer.name} --topic {self._partition(topic, number).topic}`), and start the tailer again: it "
            "takes it from the table"
        )

    def marks(self, topic: str, number: int, begin: int, end: int) -> Iterator[MessageFingerprint]:
        """Read all kept records of the queue: only called for one that differs from the table."""
        queue, where = LogQueue(topic, number), self._where(topic, number)
        bounds = self._positions.bounds([queue])
        for record in scan(self._clients, self._partition(topic, number), bounds[queue]) if bounds else ():
            mark = _mark_of(record, topic, number, where)
            if begin <= mark.offset < end:
                yield mark

    def _where(self, topic: str, number: int) -> str:
        return f"partition {number} of Kafka's topic of {topic} in {self.name}"

    # ---- writing

    def append(self, batches: Sequence[RowBatch]) -> None:
        with traced(self._tracing, batches):
            parts = [self._part(batch) for batch in batches]
            self._require([part.partition for part in parts])
            # Records and notes of all queues in one transaction: a crash leaves all of them or none, so a note is never
            # older than its records (decision 0077).
            self._writer.write(parts)

    def _part(self, batch: RowBatch) -> PartitionWrite:
        partition = self._partition(batch.topic, batch.number)
        end = batch.base_offset + len(batch.rows)
        return PartitionWrite(partition, _records(batch, partition), _note_of(end, batch.rows[-1]))

    def mark_hole(self, topic: str, number: int, begin: int, end: int) -> None:
        """Note the hole, so that it is not found again. Readers see it as a gap between offsets."""
        partition = self._partition(topic, number)
        self._require([partition])
        position = self._positions.ends([LogQueue(topic, number)]).get(LogQueue(topic, number), 0)
        self._writer.write([PartitionWrite(partition, (), _note_of(end), position)])

    def _partition(self, topic: str, number: int) -> KafkaPartition:
        partition = KafkaPartition(kafka_name(topic, self._clients.address.prefix), number)
        self._wanted[partition.topic] = max(self._wanted.get(partition.topic, 0), number + 1)
        return partition

    def _require(self, partitions: Sequence[KafkaPartition]) -> None:
        """Create missing topics and partitions: a topic gets as many partitions as it has queues."""
        lacking = {topic: self._wanted[topic] for topic, number in partitions if self._counts.get(topic, 0) <= number}
        for topic, count in lacking.items():
            self._topics.ensure(topic, count, copies=self._replication_factor, copies_in_sync=self._min_insync_replicas)
        self._writer.await_partitions(lacking)
        self._counts |= lacking

    def close(self) -> None:
        self._writer.close()
        self._probe.close()

    def delete(self, topics: Collection[str]) -> None:
        """Delete topics with all their messages and notes."""
        names = {kafka_name(topic, self._clients.address.prefix) for topic in topics}
        self._topics.delete(list(names))
        deadline = time.monotonic() + _TIMEOUT_S
        while names & self._topics.all().keys():  # the nodes learn of it one by one
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"topics {', '.join(names)} of {self.name} are still being deleted after {_TIMEOUT_S:g} s: wait, "
                    "and look with kafka-topics.sh, before the tailer is started"
                )
            time.sleep(_LOOK_S)


def _records(batch: RowBatch, partition: KafkaPartition) -> Iterator[Record]:
    try:
        yield from records_of(columns_of(batch.rows), *partition, batch.base_offset)
    except ProtocolError as exc:
        raise InvalidMessage(
            f"topic {batch.topic} queue {batch.number}: a message from offset {batch.base_offset} on has headers that "
            f"cannot be read: {exc}"
        ) from exc


def _mark_of(record: ReadRecord, topic: str, number: int, where: str) -> MessageFingerprint:
    if not place_in_own(record):
        raise CorruptLog(
            f"the record at offset {record.offset()} of {where} was not written by a mirror: it has no header "
            f"{PLACE} with this topic and partition and an offset. Find out who writes to it; a mirror needs topics, "
            "or a prefix, of its own"
        )
    found = received(record, topic, number)
    assert found.offset is not None
    return MessageFingerprint(found.offset, found.id_bytes, found.n, content_crc(_row_of(found)))


def _row_of(message: ReceivedMessage) -> TableRow:
    key, tag, ordering_key = ((text or "").encode() for text in (message.key, message.tag, message.ordering_key))
    return TableRow(
        message.id_bytes, message.n, key, tag, pack_headers(message.headers), message.body, 0, 0, ordering_key
    )


# ---- notes: the offset that comes next, and behind it id, n and checksum of the message before it; none: a hole


def _note_of(end: int, last: TableRow | None = None) -> str:
    return str(end) if last is None else f"{end} {last.transaction_id.hex()} {last.n} {content_crc(last)}"


def _tells_of_a_message(note: TransactionNote) -> bool:
    return len(note.text.split()) > 1


def _noted(note: TransactionNote, where: str) -> tuple[int, MessageFingerprint | None]:
    try:
        end, *message = note.text.split()
        if not message:
            return int(end), None
        transaction_id, n, crc = message
        return int(end), MessageFingerprint(int(end) - 1, bytes.fromhex(transaction_id), int(n), int(crc))
    except ValueError as exc:
        raise CorruptLog(
            f"what is noted of {where} is {shown(note.text)}, which no mirror notes: another program stores offsets "
            "for its group"
        ) from exc
