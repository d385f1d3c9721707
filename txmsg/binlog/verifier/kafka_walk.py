"""Reads topics of Kafka by its client, as any reader of committed records does.

Imports neither the log nor the mirror. docs/how-to/kafka.md describes the records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from txmsg.binlog.verifier.mirror import NoteDifference, QueueWalk, Row, VerifiedQueue
from txmsg.errors import BrokerUnavailable, StorageError

_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.2
_MESSAGES_MAX: Final = 2000
_BACK: Final = 64
_OF_GROUPS: Final = (".txmsg-retry", ".txmsg-dlq")


class KafkaTopics:
    """A `VerifiedMirror` at kafka://HOST:PORT,...[/PREFIX]."""

    def __init__(self, where: str, config: Path | None) -> None:
        servers, _, self._prefix = where.removeprefix("kafka://").partition("/")
        self._name = where
        self._consumer = Consumer(
            {
                **_properties(config),
                "bootstrap.servers": servers,
                "group.id": "txmsg-verifier",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 3,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def topics(self) -> dict[str, list[int]]:
        try:
            found = self._consumer.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as exc:
            raise BrokerUnavailable(f"{self._name} cannot be reached: {exc}") from exc
        return {
            name.removeprefix(self._prefix): sorted(topic.partitions)
            for name, topic in found.items()
            if name.startswith(self._prefix) and not name.startswith("__") and not name.endswith(_OF_GROUPS)
        }

    def expected(self, row: Row) -> Row:
        return (*row[:6], headers_of(row[6]), *row[7:])

    def ends(self, queues: Sequence[VerifiedQueue]) -> dict[VerifiedQueue, int]:
        found = dict.fromkeys(queues, 0)
        there = self.topics() if queues else {}
        bounds = {queue: self._bounds(queue) for queue in queues if queue.number in there.get(queue.topic, ())}
        back = _BACK
        left = {queue for queue, (begin, end) in bounds.items() if begin < end}
        while left:
            starts = {queue: max(bounds[queue][0], bounds[queue][1] - back) for queue in left}
            for queue, message in self._messages(starts, bounds):
                offset = offset_of(message)
                found[queue] = (offset if offset is not None else message.offset() or 0) + 1
            left = {queue for queue, start in starts.items() if not found[queue] and start > bounds[queue][0]}
            back *= _BACK
        return found

    def begin_offset(self, queue: VerifiedQueue) -> int:
        bounds = self._bounds(queue)
        for _, message in self._messages({queue: bounds[0]}, {queue: bounds}):
            if (offset := offset_of(message)) is not None:
                return offset
        return 0

    def walk(self, queue: VerifiedQueue, begin: int, end: int, note: NoteDifference) -> QueueWalk:
        return _PartitionWalk(self, queue, end, note)

    def messages(self, queue: VerifiedQueue) -> tuple[int, Iterator[Message]]:
        """Return the first offset that Kafka keeps, and all records that are committed now."""
        if queue.number not in self.topics().get(queue.topic, ()):
            return 0, iter(())
        bounds = self._bounds(queue)
        return bounds[0], (message for _, message in self._messages({queue: bounds[0]}, {queue: bounds}))

    def _bounds(self, queue: VerifiedQueue) -> tuple[int, int]:
        try:
            begin, end = self._consumer.get_watermark_offsets(self._place(queue), timeout=_TIMEOUT_S)
        except KafkaException as exc:
            raise BrokerUnavailable(f"{self._name}: no answer where topic {queue.topic} ends: {exc}") from exc
        return begin, end

    def _place(self, queue: VerifiedQueue, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._prefix + queue.topic, queue.number, offset)

    def _messages(
        self, starts: Mapping[VerifiedQueue, int], bounds: Mapping[VerifiedQueue, tuple[int, int]]
    ) -> Iterator[tuple[VerifiedQueue, Message]]:
        """Yield the committed records of these partitions, from these offsets up to their ends."""
        self._consumer.assign([self._place(queue, start) for queue, start in starts.items()])
        left = {queue for queue, start in starts.items() if start < bounds[queue][1]}
        heard_at = time.monotonic()
        while left:
            messages = self._consumer.consume(_MESSAGES_MAX, _POLL_S)
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() > heard_at + _TIMEOUT_S:
                raise BrokerUnavailable(f"{self._name}: nothing came for {_TIMEOUT_S:g} s from {min(left)}")
            for message in messages:
                queue = VerifiedQueue((message.topic() or "").removeprefix(self._prefix), message.partition() or 0)
                error = message.error()
                if error is None:
                    yield queue, message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(queue)  # or a transaction is open there: readers get nothing behind it
                else:
                    raise StorageError(f"{self._name}: {queue} cannot be read: {error.str()}")


class _PartitionWalk:
    """One queue, by the records of its partition."""

    def __init__(self, kafka: KafkaTopics, queue: VerifiedQueue, end: int, note: NoteDifference) -> None:
        self._kafka = kafka
        self._queue = queue
        self._end = end
        self._note = note
        self._is_expired = False
        self._first: int | None = None
        self.holes: list[tuple[int, int]] = []
        self.damaged: list[tuple[int, int]] = []
        self.in_holes = 0

    def is_cut(self, offset: int) -> bool:
        return self._is_expired and (self._first is None or offset < self._first)

    def rows(self) -> Iterator[Row]:
        kept_from, messages = self._kafka.messages(self._queue)
        self._is_expired = kept_from > 0
        at: int | None = None
        for message in messages:
            offset = offset_of(message)
            place = message.offset() or 0
            if offset is None:
                why = "its header txmsg-place names no offset in this partition; the offset is the partition's"
                self._note("foreign", place, place + 1, why)
                continue
            if at is not None and offset < at:
                self._note("doubled", offset, offset + 1, f"again, or late, at offset {place} of the partition")
                continue
            self._first = offset if self._first is None else self._first
            if at is not None:
                self.in_holes += offset - at
            at = offset + 1
            if offset < self._end:
                yield row_of(message, offset)


def offset_of(message: Message) -> int | None:
    """Return the offset in its queue; None if no mirror wrote the record here."""
    text = next((value or b"" for name, value in _headers(message) if name == "txmsg-place"), b"")
    where, _, offset = text.rpartition(b"/")
    is_here = where == f"{message.topic()}/{message.partition()}".encode()
    return int(offset) if is_here and offset.isdigit() else None


def row_of(message: Message, offset: int) -> Row:
    """Return the message in a record."""
    key, ordering_key, tag = message.key() or b"", b"", b""
    transaction_id, n = b"", 0
    born_at = stored_at = message.timestamp()[1] * 1000
    own: dict[bytes, bytes] = {}
    for name, value in _headers(message):
        data = value or b""
        if name == "txmsg-id":
            text, _, number = data.partition(b".")
            transaction_id, n = bytes.fromhex(text.decode().replace("-", "")), int(number)
        elif name == "txmsg-times":
            born_at, stored_at = map(int, data.split())
        elif name == "txmsg-tag":
            tag = data
        elif name == "txmsg-key":
            key, ordering_key = data, key
        elif name != "txmsg-place":
            own[name.removeprefix("txmsg-header.").encode()] = data
    return offset, transaction_id, n, key, tag, ordering_key, own, message.value() or b"", born_at, stored_at


def _headers(message: Message) -> Sequence[tuple[str, bytes | None]]:
    found: Any = message.headers()
    return found or ()


def headers_of(packed: bytes) -> dict[bytes, bytes]:
    """Return headers in the table's form, a map of protobuf: entries of field 1, with a name (1) and a value (2)."""
    return {entry.get(1, b""): entry.get(2, b"") for entry in (dict(_fields(data)) for _, data in _fields(packed))}


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Return the fields that have a length."""
    at = 0
    while at < len(data):
        number = data[at] >> 3
        size, at = _varint(data, at + 1)
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _properties(config: Path | None) -> dict[str, str]:
    if config is None:
        return {}
    lines = (line.strip() for line in config.read_text(encoding="utf-8").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
