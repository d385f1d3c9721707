"""Records of a partition as a `LogBatch`. They are decoded when they are fetched, up to one that cannot be read."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from operator import itemgetter, methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from txmsg.errors import UnreadableMessage
from txmsg.message import ReceivedMessage
from txmsg.metaq.format.batch import SCHEMA, only
from txmsg.metaq.format.unreadable import is_time
from txmsg.metaq.kafka.record import ID, KEY, PLACE, RESERVED, TAG, TIMES, ReadRecord, own_place, queue_offset, received
from txmsg.wire.headers import pack_headers
from txmsg.wire.tags import ALL_TAGS, TagExpression

RECORD_SIZE_BYTES: Final = 200
"""The approximate size of a record beside its body."""
_FIELDS: Final = {
    "transaction_id": "id_bytes",
    "born_at": "born_at_us",
    "stored_at": "stored_at_us",
}
"""Columns whose names differ from the fields of a message."""
_ID_LENGTH: Final = 38
_PLACE_SIZE_MAX: Final = 2**31 - 1
"""The largest size of a value in Arrow. Without an end, `binary_slice` fails."""
_NO_HEADERS: Final = ReceivedMessage._field_defaults["headers"]
_MARKS: Final = np.frombuffer(b"----.", np.uint8)
_DIGITS: Final = np.array([at for at in range(36) if at not in {8, 13, 18, 23}])

_headers_of: Final[Callable[[Any], Any]] = methodcaller("headers")
_offset_of: Final[Callable[[Any], int]] = methodcaller("offset")
_timestamp_of: Final[Callable[[Any], tuple[int, int]]] = methodcaller("timestamp")
_key_of: Final[Callable[[Any], bytes | None]] = methodcaller("key")
_value_of: Final[Callable[[Any], bytes | None]] = methodcaller("value")
_second = itemgetter(1)


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive records of a queue, all of which can be read. Created by `of`."""

    topic: str
    queue: int
    base_offset: int
    end_offset: int
    size_bytes: int
    decoded: _RecordColumns | list[ReceivedMessage]

    @classmethod
    def of(cls, topic: str, queue: int, records: Sequence[ReadRecord]) -> RecordBatch:
        """Return the records before the first one that cannot be read. Needs at least one record.

        Raises UnreadableMessage if the first one cannot be read.
        """
        decoded = _columns_alike(records) or _messages_of(topic, queue, records)
        taken = records[: len(decoded)]
        return cls(topic, queue, queue_offset(taken[0]), queue_offset(taken[-1]) + 1, size_bytes_of(taken), decoded)

    @property
    def unpacked_size_bytes(self) -> int:
        return self.size_bytes  # Kafka's client has unpacked them

    @property
    def first_stored_at_us(self) -> int:
        found = self.decoded
        return int(found.stored_at_us[0]) if isinstance(found, _RecordColumns) else found[0].stored_at_us

    def __len__(self) -> int:
        return len(self.decoded)

    def messages(self, wanted: TagExpression = ALL_TAGS) -> Iterator[ReceivedMessage]:
        found = self.decoded
        messages = found.messages(self.topic, self.queue) if isinstance(found, _RecordColumns) else iter(found)
        return messages if wanted.is_all else (message for message in messages if wanted.matches(message.tag))

    def to_arrow(self, wanted: TagExpression = ALL_TAGS) -> pa.RecordBatch:
        found = self.decoded
        columns = found.for_schema() if isinstance(found, _RecordColumns) else _columns_of(found)
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ]
        return only(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), wanted)

    def _with_id(self, transaction_id: bytes, n: int) -> ReceivedMessage | None:
        return next((each for each in self.messages() if (each.id_bytes, each.n) == (transaction_id, n)), None)

    def unreadable(self) -> None:
        """Return None: all can be read."""

    def before(self, offset: int) -> RecordBatch:
        kept = [message for message in self.messages() if (message.offset or 0) < offset]
        return replace(self, end_offset=min(offset, self.end_offset), decoded=kept)


def size_bytes_of(records: Sequence[ReadRecord]) -> int:
    """Return the approximate size of records in memory."""
    return sum(map(len, records)) + RECORD_SIZE_BYTES * len(records)  # type: ignore[arg-type]


def _messages_of(topic: str, queue: int, records: Sequence[ReadRecord]) -> list[ReceivedMessage]:
    """Return the messages before the first one that cannot be read. Raises UnreadableMessage if there is none."""
    own = own_place(records[0])
    found: list[ReceivedMessage] = []
    try:
        for record in records:
            found.append(received(record, topic, queue, own))
    except UnreadableMessage:
        if not found:
            raise
    return found


# ---- columns


def _columns_of(messages: Sequence[ReceivedMessage]) -> list[Any]:
    """Return the columns in the order of SCHEMA."""
    columns = zip(*messages, strict=True) if messages else repeat((), len(ReceivedMessage._fields))
    found = dict(zip(ReceivedMessage._fields, columns, strict=True))
    found["headers"] = tuple(pack_headers(headers) or None for headers in found["headers"])
    return [found[_FIELDS.get(field.name, field.name)] for field in SCHEMA]


@dataclass(frozen=True, slots=True)
class _RecordColumns:
    """The contents of records that all have the same headers, and only txmsg's. transaction_id: 16 bytes each,
    joined.
    """

    offset: NDArray[np.int64]
    transaction_id: bytes
    n: NDArray[np.int16]
    key: pa.Array
    tag: pa.Array
    ordering_key: pa.Array
    body: Sequence[bytes]
    born_at_us: NDArray[np.int64]
    stored_at_us: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.body)

    def for_schema(self) -> list[Any]:
        """Return the columns in the order of SCHEMA."""
        ids = pa.Array.from_buffers(pa.binary(16), len(self), [None, pa.py_buffer(self.transaction_id)])
        times = [pa.array(us).cast(SCHEMA.field("born_at").type) for us in (self.born_at_us, self.stored_at_us)]
        no_headers = pa.nulls(len(self), pa.binary())
        texts = (self.key, self.tag, self.ordering_key)
        return [self.offset, ids, self.n, *texts, no_headers, self.body, *times]

    def messages(self, topic: str, queue: int) -> Iterator[ReceivedMessage]:
        rows = zip(  # in the order of ReceivedMessage's fields
            repeat(topic),
            self.body,
            self.key.to_pylist(),
            self.tag.to_pylist(),
            repeat(_NO_HEADERS),
            repeat(queue),
            self.offset.tolist(),
            repeat(1),
            (self.transaction_id[at : at + 16] for at in range(0, len(self.transaction_id), 16)),
            self.n.tolist(),
            self.born_at_us.tolist(),
            self.stored_at_us.tolist(),
            self.ordering_key.to_pylist(),
            repeat(0),
            repeat(None),
        )
        return map(ReceivedMessage._make, rows)


def _columns_alike(records: Sequence[ReadRecord]) -> _RecordColumns | None:
    """Return the columns of records that all have the same headers, only txmsg's, and can be read; otherwise None.

    Nearly all records do. Then each value is extracted from all of them at once, in a third of the time.
    """
    count = len(records)
    headers = list(map(_headers_of, records))
    first = headers[0]
    names = [name for name, _ in first] if first else []
    if not RESERVED.issuperset(names) or not {ID, PLACE}.issubset(names) or len(set(names)) < len(names):
        return None
    if None in headers or set(map(len, headers)) != {len(names)}:
        return None
    # Not zip(*headers): it makes an iterator of each record, which the garbage collector looks through.
    flat = list(chain.from_iterable(chain.from_iterable(headers)))
    found: dict[str, list[Any]] = {}
    for place, name in enumerate(names):
        values = flat[2 * place + 1 :: 2 * len(names)]
        if flat[2 * place :: 2 * len(names)].count(name) != count or None in values:
            return None
        found[name] = values
    try:
        ids, n = _ids(b"".join(found[ID]), count)
        own = own_place(records[0])
        if found[PLACE].count(own) == count:
            offsets = np.fromiter(map(_offset_of, records), np.int64, count)
        else:
            offsets = _offsets(found[PLACE], own + b"/")
        if TIMES in found:
            born_at_us, stored_at_us = np.array(b" ".join(found[TIMES]).split(), np.int64).reshape(count, 2).T
        else:
            timestamp_ms = np.fromiter(map(_second, map(_timestamp_of, records)), np.int64, count)
            _require_times(timestamp_ms, 1000)
            stored_at_us = born_at_us = timestamp_ms * 1000
        _require_times(born_at_us, 1)
        _require_times(stored_at_us, 1)
        record_keys, no_text = _texts(list(map(_key_of, records))), pa.nulls(count, pa.string())
        tags = _texts(found[TAG]) if TAG in found else no_text
        keys, ordering_keys = (_texts(found[KEY]), record_keys) if KEY in found else (record_keys, no_text)
    except (ValueError, OverflowError):  # also ArrowInvalid: the slow way reads it, or reports the error
        return None
    bodies = list(map(_value_of, records))
    if None in bodies:
        bodies = [body or b"" for body in bodies]
    return _RecordColumns(offsets, ids, n, keys, tags, ordering_keys, bodies, born_at_us, stored_at_us)  # type: ignore[arg-type]


def _require_times(times: NDArray[np.int64], unit_us: int) -> None:
    if not (is_time(int(np.min(times)) * unit_us) and is_time(int(np.max(times)) * unit_us)):
        raise ValueError("some are no times")


def _ids(joined: bytes, count: int) -> tuple[bytes, NDArray[np.int16]]:
    """Return transaction ids, joined, and numbers from the texts UUID.NUMBER, joined.

    Raises ValueError unless each number has one digit.
    """
    if len(joined) != _ID_LENGTH * count:
        raise ValueError("some numbers have more than one digit")
    texts = np.frombuffer(joined, np.uint8).reshape(count, _ID_LENGTH)
    n = texts[:, -1].astype(np.int16) - ord("0")
    marks = texts[:, [8, 13, 18, 23, 36]]
    if not ((marks == _MARKS).all() and ((n >= 0) & (n <= 9)).all()):
        raise ValueError("some are no ids")
    return unhexlify(texts[:, _DIGITS].tobytes()), n


def _offsets(places: Sequence[bytes], prefix: bytes) -> NDArray[np.int64]:
    """Return the numbers that follow the prefix in each of them.

    Raises ValueError if it does not begin with the prefix.
    """
    found = pa.array(places, pa.binary())
    if not pc.all(pc.starts_with(found, prefix.decode())).as_py():
        raise ValueError("some are of other partitions")
    digits = pc.binary_slice(found, len(prefix), _PLACE_SIZE_MAX).cast(pa.string())
    if not pc.all(pc.utf8_is_decimal(digits)).as_py():  # Arrow also reads "-1" and "0x1" as numbers
        raise ValueError("some are no offsets")
    offsets: NDArray[np.int64] = digits.cast(pa.int64()).to_numpy()
    return offsets


def _texts(values: Sequence[bytes | None]) -> pa.Array:
    """Return texts; an empty one becomes None."""
    found = [value or None for value in values] if b"" in values else values
    return pa.array(found, pa.binary()).cast(pa.string())
