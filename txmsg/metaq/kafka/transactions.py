"""Writes records to partitions and stores the progress of each in one transaction: readers get all of it, or nothing.

At most one writer with a name writes at a time. A new one fences earlier ones, however long they were paused, and ends
their open transaction: it is committed if Kafka had begun to commit it, otherwise aborted. So what is read after
`TransactionalWriter` was created is changed only by this writer.

Notes are offsets of a group that has no members: partition offsets, so that Kafka's own tools show them, with a text.
This module interprets neither records nor notes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from txmsg.errors import BrokerUnavailable, InvalidMessage, LogBusy, MisuseError, OutcomeUnknown, TxmsgError
from txmsg.metaq.kafka.awaited import awaited
from txmsg.metaq.kafka.clients import KafkaClients
from txmsg.metaq.kafka.errors import kafka_error_of
from txmsg.metaq.kafka.probe import KafkaPartition
from txmsg.metaq.kafka.record import Record

T = TypeVar("T")

_MESSAGE_SIZE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The client's limit, so large that the topic's own limit of message sizes decides."""
_ABORT_S_MAX: Final = 5.0
_FULL_S: Final = 0.1
_LOOK_S: Final = 0.05
_FLUSH_S: Final = 0.1
"""Seconds of one flush.

Below 200 ms: a longer call continues after a fatal error, and calls `_on_delivery` with that error set.
"""
_SLACK_S: Final = 5.0
"""Seconds beyond a call's timeout, after which the call is abandoned."""
_NOT_FOUND: Final = "perhaps no node coordinates the transaction or the group, as while too few are there"
_NO_NOTE: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART})
"""Errors of a topic that may not exist: the writer to it gets them."""
_OF_ONE_PARTITION: Final = (InvalidMessage, MisuseError)
"""Errors that the same records cause again, with any writer."""


class TransactionNote(NamedTuple):
    """The stored progress of a partition. position: after the last record that was written with it."""

    position: int
    text: str


class PartitionWrite(NamedTuple):
    """Records to write to a partition. position: the position to store if there are no records."""

    partition: KafkaPartition
    records: Iterable[Record]
    note: str
    position: int = 0


class TransactionalWriter:
    """The only writer with this name. Used by one thread; after an error other than a refused record, create a new one.

    Raises BrokerUnavailable if Kafka is down, PermissionDenied if it may not write transactions.
    """

    def __init__(self, clients: KafkaClients, name: str) -> None:
        self.name = name
        self._clients = clients
        self._is_open = False
        self._failed: KafkaError | None = None
        self._positions: dict[KafkaPartition, int] = {}
        self._notes = clients.consumer(name)
        self._producer = clients.producer(
            transactional_id=name, message_max_bytes=_MESSAGE_SIZE_BYTES_MAX, queue_buffering_max_kbytes=1024 * 1024
        )
        try:
            with clients.translated(f"becoming the writer {name}"):
                # This fences earlier writers with the name, so what is read from here on is changed only by this one.
                self._awaited("becoming the writer", self._producer.init_transactions)
                self._group = self._notes.consumer_group_metadata()
        except BaseException:
            self.close()
            raise

    def notes(self, partitions: Collection[KafkaPartition]) -> dict[KafkaPartition, TransactionNote]:
        """Return the notes of these partitions; none for those never written, or not for a long time
        (`offsets.retention.minutes`).
        """
        if not partitions:
            return {}
        asked = [TopicPartition(partition.topic, partition.number) for partition in partitions]
        with self._clients.translated("reading where the mirror is"):
            found = self._awaited(
                "reading where the mirror is", lambda timeout_s: self._notes.committed(asked, timeout=timeout_s)
            )
        for each in found:
            if each.error is not None and each.error.code() not in _NO_NOTE:
                raise self._clients.error(each.error, "reading where the mirror is")
        return {
            KafkaPartition(each.topic, each.partition): TransactionNote(each.offset, each.metadata or "")
            for each in found
            if each.error is None and each.offset >= 0
        }

    def write(self, parts: Sequence[PartitionWrite]) -> None:
        """Write everything, to as many copies as the topics require, or nothing that a reader would get.

        Raises InvalidMessage, MisuseError or PermissionDenied if a topic does not accept its records; others may be
        written all the same. LogBusy if another writer with the name was created; OutcomeUnknown, BrokerUnavailable.
        """
        self._failed = None
        self._positions = {part.partition: part.position for part in parts}
        try:
            self._producer.begin_transaction()
            self._is_open = True
            for part in parts:
                self._produce(part)
            if not self._awaited("sending records", self._flushed):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer to what was sent"))
            # The notes go into the transaction of the records: both become visible, or neither does.
            if self._failed is None:
                self._send_notes(
                    [TopicPartition(*part.partition, self._positions[part.partition], part.note) for part in parts]
                )
        except KafkaException as exc:
            raise self._error(self._cause(kafka_error_of(exc))) from exc
        except BaseException:  # of the records, which are made meanwhile: or the next transaction could not begin
            # An open transaction would block the next one, and readers of committed records behind it.
            self._abort()
            raise
        self._commit()

    def await_partitions(self, wanted: Mapping[str, int]) -> None:
        """Return when the producer knows that these topics have this many partitions, which were just created."""
        deadline = time.monotonic() + self._clients.timeout_s
        for topic, count in wanted.items():
            while True:
                with self._clients.translated(f"looking for the partitions of topic {topic}"):
                    found = self._producer.list_topics(topic, self._clients.timeout_s).topics[topic]
                if len(found.partitions) >= count:
                    break
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"topic {topic} of {self._clients.address} has {len(found.partitions)} partitions after "
                        f"{self._clients.timeout_s:g} s, not {count}: its nodes have not heard of what was made"
                    )
                time.sleep(_LOOK_S)

    def _produce(self, part: PartitionWrite) -> None:
        topic, number = part.partition
        produce = self._producer.produce
        told = None
        records = iter(part.records)
        record = next(records, None)
        while record is not None:
            value, key, timestamp_ms, headers = record
            record = next(records, None)
            if record is None:
                told = self._on_delivery  # of the last record only: a call for each costs as much as producing it
            while True:
                try:
                    produce(topic, value, key, number, on_delivery=told, timestamp=timestamp_ms, headers=headers)
                    break
                except BufferError:  # its queue is full: records must be sent first; those that cannot be are dropped
                    self._producer.poll(_FULL_S)

    def _flushed(self, timeout_s: float) -> bool:
        """Return True once everything produced was confirmed or refused, False if the time is over before."""
        deadline = time.monotonic() + timeout_s
        while self._producer.flush(_FLUSH_S):
            if time.monotonic() > deadline:
                return False
        return True

    def _send_notes(self, notes: list[TopicPartition]) -> None:
        send = self._producer.send_offsets_to_transaction
        self._awaited("noting where the mirror is", lambda timeout_s: send(notes, self._group, timeout_s))

    def _awaited(self, doing: str, call: Callable[[float], T]) -> T:
        """Return the result of a call that is passed its timeout in seconds; raise KafkaException if it takes
        longer.
        """
        clients = self._clients
        try:
            return awaited(
                partial(call, clients.timeout_s),
                f"{doing} in {clients.address}",
                timeout_s=clients.timeout_s + _SLACK_S,
                why=clients.why,
            )
        except TimeoutError as exc:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{exc}: {_NOT_FOUND}")) from exc

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        topic, number, offset = message.topic(), message.partition(), message.offset()
        if error is not None:
            self._failed = error
        elif topic is not None and number is not None and offset is not None:
            # Else the confirmation was lost, and came with that of a later record, which tells no offset.
            self._positions[KafkaPartition(topic, number)] = offset + 1

    def _commit(self) -> None:
        try:
            self._awaited("committing", self._producer.commit_transaction)
        except KafkaException as exc:
            error = kafka_error_of(exc)
            # The commit may have happened: the next writer ends it one way or the other, and reads its notes.
            if error.retriable() or error.code() == KafkaError._TIMED_OUT:
                raise OutcomeUnknown(
                    f"no answer to a commit in {self._clients.address} for {self._clients.timeout_s:g} s: "
                    f"{error.str()}; the next writer finds out"
                ) from exc
            raise self._error(error) from exc
        self._is_open = False

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return the reason why the transaction has failed, if an error says only that it has."""
        if error.code() != KafkaError._STATE or not self._is_open:
            return error
        try:
            # A call that must fail: librdkafka tells the cause of a failed transaction only to the next call.
            anywhere = [TopicPartition(*next(iter(self._positions)), 0)]
            self._send_notes(anywhere)
        except KafkaException as exc:
            return kafka_error_of(exc)
        return error

    def _error(self, error: KafkaError) -> TxmsgError:
        """Return the error to raise; the transaction is aborted if possible."""
        if self._failed is not None and error.code() == KafkaError._INCONSISTENT:  # "see the delivery reports"
            error = self._failed
        self._abort()
        found = self._clients.error(error, "writing to topics")
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED or isinstance(found, (LogBusy, *_OF_ONE_PARTITION)):
            return found
        return BrokerUnavailable(str(found))  # a topic that was deleted, a server that has lost its state: look again

    def _abort(self) -> None:
        if not self._is_open:
            return
        try:
            self._producer.abort_transaction(_ABORT_S_MAX)
        except KafkaException:
            return  # by the next writer, or by Kafka after transaction.timeout.ms
        self._is_open = False

    def close(self) -> None:
        """Abort an open transaction. Closing twice is fine."""
        self._abort()
        # Not close(), which would wait for what cannot be sent, and warns of a writer that was fenced.
        self._producer.purge()
        self._is_open = False
        self._notes.close()
