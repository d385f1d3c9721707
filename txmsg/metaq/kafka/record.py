"""A message as a record of Kafka, and back. Pure.

value       the body
key         the ordering key, else the key, so that Kafka's own producers, compaction and joins see the usual one
timestamp   stored_at, in milliseconds (CreateTime)
headers     those of the table below that apply, then the message's headers under their names

txmsg-place     where the record was written: TOPIC/PARTITION/OFFSET, with the topic's name in Kafka and the offset in
                the queue; TOPIC/PARTITION from `LogProducer`, because the offset is the partition's
txmsg-id        UUID.NUMBER, as txmsg shows it
txmsg-times     born_at and stored_at in microseconds since 1970, if they are not the record's timestamp
txmsg-tag       the tag
txmsg-key       the record's key is the ordering key, and this is the message's key; empty: it has none
txmsg-header.X  a header of the message whose name X is one of these

A record whose txmsg-place does not name its own topic and partition, and then nothing or an offset, is foreign: written
by another program, which may have copied it from elsewhere with all its headers. None of the table applies to it. Its
offset is the partition's, all its headers are the message's, and its id is derived, the same whenever it is read, so
that `idempotent` recognises it. A null value is an empty body, and bytes that are not UTF-8 in keys and headers are
written as escapes (`\\xff`).
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from txmsg.errors import InvalidMessage, UnreadableMessage, shown
from txmsg.message import ReceivedMessage, parse_message_id
from txmsg.metaq.format.frame import FrameColumns
from txmsg.metaq.format.unreadable import is_time, strange_time, unreadable
from txmsg.wire.headers import unpack_headers

PLACE: Final = "txmsg-place"
ID: Final = "txmsg-id"
TIMES: Final = "txmsg-times"
TAG: Final = "txmsg-tag"
KEY: Final = "txmsg-key"
ESCAPE: Final = "txmsg-header."
RESERVED: Final = frozenset({PLACE, ID, TIMES, TAG, KEY})

_NO_HEADERS: Final = ReceivedMessage._field_defaults["headers"]
_ID_SIZE_BYTES: Final = 16
_ID_LENGTH_MAX: Final = 36 + 1 + 4
_N_MAX: Final = 2**15 - 1
_OFFSET_MAX: Final = 2**63 - 1
_OFFSET_LENGTH_MAX: Final = len(str(_OFFSET_MAX))

Headers: TypeAlias = list[tuple[str, str | bytes | None]]
"""Headers in the form of Kafka's client. Values that are read are bytes or None."""


class Record(NamedTuple):
    """A record to produce, to the partition with the queue's number."""

    value: bytes
    key: bytes | None
    timestamp_ms: int
    headers: Headers


class ReadRecord(Protocol):
    """A record that was read: the part of `confluent_kafka.Message` that is used."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> Any: ...


# ---- writing


def records_of(columns: FrameColumns, topic: str, number: int, first_offset: int | None = None) -> Iterator[Record]:
    """Return messages as records for this topic of Kafka and this partition, in order.

    first_offset: their first queue offset; None: the partition's offsets apply.
    """
    own = _place(topic, number)
    place_header = (PLACE, own)
    count = len(columns.body)
    stored_at_us = columns.stored_at_us
    if len(stored_at_us) == 1:
        stored_at_us = [stored_at_us[0]] * count
    born_at_us = columns.born_at_us or stored_at_us
    ids = columns.transaction_id or bytes(_ID_SIZE_BYTES * count)
    digits = ids.hex().encode()
    nothing = [""] * count
    rows = zip(
        columns.body,
        stored_at_us,
        born_at_us,
        columns.n or [0] * count,
        columns.key or nothing,
        columns.tag or nothing,
        columns.ordering_key or nothing,
        columns.headers or [b""] * count,
        strict=True,
    )
    for row, (body, stored, born, n, key, tag, ordering_key, packed) in enumerate(rows):
        if first_offset is not None:
            place_header = (PLACE, b"%b/%d" % (own, first_offset + row))
        # As message_id writes it, which takes three times as long by way of a UUID.
        at = 2 * _ID_SIZE_BYTES * row
        parts = digits[at : at + 8], digits[at + 8 : at + 12], digits[at + 12 : at + 16], digits[at + 16 : at + 20]
        id_header = (ID, b"%b-%b-%b-%b-%b.%d" % (*parts, digits[at + 20 : at + 32], n))
        headers: Headers = [place_header, id_header]
        timestamp_ms = stored // 1000
        if born != stored or stored % 1000:
            headers.append((TIMES, b"%d %d" % (born, stored)))
        if tag:
            headers.append((TAG, tag.encode()))
        if ordering_key:
            headers.append((KEY, key.encode()))
        if packed:
            headers += (
                (ESCAPE + name if name in RESERVED or name.startswith(ESCAPE) else name, value.encode())
                for name, value in unpack_headers(packed).items()
            )
        record_key = ordering_key or key
        yield Record(body, record_key.encode() if record_key else None, timestamp_ms, headers)


# ---- reading


def received(  # noqa: PLR0912 - one branch per header; a call for each would take longer than what it does
    record: ReadRecord, topic: str, queue: int, own: bytes | None = None
) -> ReceivedMessage:
    """Return the message of a record.

    Raises UnreadableMessage for a txmsg header that cannot be parsed, unless the record is foreign, and for a time that
    is not one.

    own: `own_place` of the record, if it is known.
    """
    partition_offset = offset = record.offset() or 0
    stored_at_us = born_at_us = record.timestamp()[1] * 1000
    key = ordering_key = tag = None
    record_key = record.key()
    if record_key:
        key = record_key.decode(errors="backslashreplace")
    id_bytes = b""
    n = 0
    headers: dict[str, str] | None = None
    if own is None:
        own = own_place(record)
    is_own = False
    found = record.headers() or ()
    try:
        for name, value in found:
            data = value or b""
            if name == PLACE:
                if not is_own and data != own:
                    where, _, digits = data.rpartition(b"/")
                    if where != own or not _is_offset(digits):
                        break
                    offset = int(digits)
                is_own = True
            elif name == ID:
                id_bytes, n = parsed_id(data)
            elif name == TIMES:
                born, stored = data.split()
                born_at_us, stored_at_us = int(born), int(stored)
            elif name == TAG:
                tag = data.decode() or None
            elif name == KEY:
                ordering_key, key = key, data.decode() or None
            else:
                headers = {} if headers is None else headers
                headers[name.removeprefix(ESCAPE)] = data.decode(errors="backslashreplace")
    except (ValueError, InvalidMessage) as exc:
        if place_in_own(record) is not None:
            why = f"header {name} is {shown(value)}, which txmsg does not write: look for who writes into its topics"
            raise _unreadable(record, topic, queue, why) from exc
    if not is_own:
        return _received_foreign(record, topic, queue)
    if not (is_time(stored_at_us) and is_time(born_at_us)):
        raise _unreadable(record, topic, queue, strange_time(born_at_us if is_time(stored_at_us) else stored_at_us))
    if not id_bytes:
        id_bytes = id_of_foreign(topic, queue, partition_offset, record.timestamp()[1])
    values = (
        topic,
        record.value() or b"",
        key,
        tag,
        _NO_HEADERS if headers is None else headers,
        queue,
        offset,
        1,
        id_bytes,
        n,
        born_at_us,
        stored_at_us,
        ordering_key,
        0,
        None,
    )
    # Not ReceivedMessage(...): its __new__ is a Python function, which adds a tenth to the time of this one.
    return tuple.__new__(ReceivedMessage, values)


def _received_foreign(record: ReadRecord, topic: str, queue: int) -> ReceivedMessage:
    """Return the message of a foreign record. All headers are the message's, also those that txmsg wrote elsewhere."""
    offset, timestamp_ms = record.offset() or 0, record.timestamp()[1]
    if not is_time(timestamp_ms * 1000):
        raise _unreadable(record, topic, queue, strange_time(timestamp_ms, "ms"))
    return ReceivedMessage(
        topic,
        record.value() or b"",
        (record.key() or b"").decode(errors="backslashreplace") or None,
        headers={name: (value or b"").decode(errors="backslashreplace") for name, value in record.headers() or ()},
        queue=queue,
        offset=offset,
        attempt=1,
        id_bytes=id_of_foreign(topic, queue, offset, timestamp_ms),
        born_at_us=timestamp_ms * 1000,
        stored_at_us=timestamp_ms * 1000,
    )


def _unreadable(record: ReadRecord, topic: str, queue: int, why: str) -> UnreadableMessage:
    where = f"the record at offset {record.offset()} of partition {queue} of Kafka's topic {record.topic()}"
    return unreadable(topic, queue, queue_offset(record), f"of {where}, {why}")


def queue_offset(record: ReadRecord) -> int:
    """Return the queue offset of a record."""
    place = place_in_own(record)
    return int(place[1:]) if place else record.offset() or 0


def _is_offset(digits: bytes) -> bool:
    return len(digits) <= _OFFSET_LENGTH_MAX and digits.isdigit() and int(digits) <= _OFFSET_MAX


def own_place(record: ReadRecord) -> bytes:
    """Return the begin of txmsg-place in a record that was written where it is."""
    return _place(record.topic() or "", record.partition() or 0)


def _place(topic: str, number: int) -> bytes:
    return f"{topic}/{number}".encode()


def place_in_own(record: ReadRecord) -> bytes | None:
    """Return the part of txmsg-place after the record's own topic and partition: /OFFSET, or nothing.

    None: it is foreign.
    """
    place = next((value or b"" for name, value in record.headers() or () if name == PLACE), b"")
    own = own_place(record)
    if place == own:
        return b""
    where, _, digits = place.rpartition(b"/")
    return b"/" + digits if where == own and _is_offset(digits) else None


def parsed_id(data: bytes) -> tuple[bytes, int]:
    """Return the transaction id (16 bytes) and n. Raises ValueError or InvalidMessage."""
    if data[36:37] == b"." and data[37:].isdigit() and len(data) <= _ID_LENGTH_MAX:
        return unhexlify(data[:36].replace(b"-", b"")), int(data[37:])
    transaction_id, n = parse_message_id(data.decode())  # whose error names the problem
    if n > _N_MAX:
        raise ValueError(f"number {n} of a message is above {_N_MAX}")
    return transaction_id.bytes, n


def id_of_foreign(topic: str, queue: int, partition_offset: int, timestamp_ms: int) -> bytes:
    """Return the transaction id for a record without one: the same whenever it is read. A UUID of version 8."""
    place = f"{topic}/{queue}/{partition_offset}/{timestamp_ms}".encode()
    digest = bytearray(blake2b(place, digest_size=_ID_SIZE_BYTES).digest())
    digest[6] = 0x80 | digest[6] & 0x0F
    digest[8] = 0x80 | digest[8] & 0x3F
    return bytes(digest)
