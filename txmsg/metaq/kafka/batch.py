"""Records of a partition as a `LogBatch`; messages and Arrow columns are created when they are requested."""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter, methodcaller
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmsg.message import ReceivedMessage
from txmsg.metaq.format.batch import SCHEMA, only
from txmsg.metaq.kafka.record import ID, KEY, PLACE, RESERVED, TAG, TIMES, ReadRecord, own_place, queue_offset, received
from txmsg.wire.headers import pack_headers
from txmsg.wire.tags import ALL_TAGS, TagExpression

RECORD_SIZE_BYTES: Final = 200
"""What a record takes beside its body, about."""
_FIELDS: Final = {
    "transaction_id": "id_bytes",
    "born_at": "born_at_us",
    "stored_at": "stored_at_us",
}
"""Where names of columns are not those of a message."""
_ID_LENGTH: Final = 38
_PLACE_SIZE_MAX: Final = 2**31 - 1
"""Of a value in Arrow. Without an end, `binary_slice` fails."""
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
    """Consecutive records of a queue. Created by `of`."""

    topic: str
    queue: int
    records: Sequence[ReadRecord]
    base_offset: int
    end_offset: int
    size_bytes: int

    @classmethod
    def of(cls, topic: str, queue: int, records: Sequence[ReadRecord], size_bytes: int) -> RecordBatch:
        """Needs at least one record. Raises CorruptLog if the offset of the first or last one cannot be read."""
        return cls(topic, queue, records, queue_offset(records[0]), queue_offset(records[-1]) + 1, size_bytes)

    @property
    def first_stored_at_us(self) -> int:
        return self.records[0].timestamp()[1] * 1000

    def __len__(self) -> int:
        return len(self.records)

    def messages(self, wanted: TagExpression = ALL_TAGS) -> Iterator[ReceivedMessage]:
        own = own_place(self.records[0])
        messages = (received(record, self.topic, self.queue, own) for record in self.records)
        return messages if wanted.is_all else (message for message in messages if wanted.matches(message.tag))

    def to_arrow(self, wanted: TagExpression = ALL_TAGS) -> pa.RecordBatch:
        columns = _columns_alike(self.records) or _columns_of(self.messages())
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, SCHEMA, strict=True)
        ]
        return only(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), wanted)

    def with_id(self, transaction_id: bytes, n: int) -> ReceivedMessage | None:
        return next((each for each in self.messages() if (each.id_bytes, each.n) == (transaction_id, n)), None)


# ---- columns, in the order of SCHEMA


def _columns_of(messages: Iterable[ReceivedMessage]) -> list[Any]:
    columns = zip(*messages, strict=True)
    found = dict(zip(ReceivedMessage._fields, columns, strict=True))
    found["headers"] = tuple(pack_headers(headers) or None for headers in found["headers"])
    return [found[_FIELDS.get(field.name, field.name)] for field in SCHEMA]


def _columns_alike(records: Sequence[ReadRecord]) -> list[Any] | None:
    """The same for records that all have the same headers, and only txmsg's; otherwise None.

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
            stored_at_us = born_at_us = np.fromiter(map(_second, map(_timestamp_of, records)), np.int64, count) * 1000
        record_keys, no_text = _texts(list(map(_key_of, records))), pa.nulls(count, pa.string())
        tags = _texts(found[TAG]) if TAG in found else no_text
        keys, ordering_keys = (_texts(found[KEY]), record_keys) if KEY in found else (record_keys, no_text)
    except ValueError:  # also ArrowInvalid: the slow way tells what it is, or reads it
        return None
    bodies = list(map(_value_of, records))
    if None in bodies:
        bodies = [body or b"" for body in bodies]
    packed = pa.nulls(count, pa.binary())
    times = [pa.array(us).cast(SCHEMA.field("born_at").type) for us in (born_at_us, stored_at_us)]
    return [offsets, ids, n, keys, tags, ordering_keys, packed, bodies, *times]


def _ids(joined: bytes, count: int) -> tuple[pa.Array, pa.Array]:
    """Transaction ids and numbers from the texts UUID.NUMBER, joined. Raises ValueError unless each number has one
    digit.
    """
    if len(joined) != _ID_LENGTH * count:
        raise ValueError("some numbers have more than one digit")
    texts = np.frombuffer(joined, np.uint8).reshape(count, _ID_LENGTH)
    n = texts[:, -1].astype(np.int16) - ord("0")
    marks = texts[:, [8, 13, 18, 23, 36]]
    if not ((marks == _MARKS).all() and ((n >= 0) & (n <= 9)).all()):
        raise ValueError("some are no ids")
    raw = unhexlify(texts[:, _DIGITS].tobytes())
    return pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(raw)]), pa.array(n)


def _offsets(places: Sequence[bytes], prefix: bytes) -> pa.Array:
    """The numbers that follow the prefix in each of them. Raises ValueError if it does not begin with the prefix."""
    found = pa.array(places, pa.binary())
    if not pc.all(pc.starts_with(found, prefix.decode())).as_py():
        raise ValueError("some are of other partitions")
    return pc.binary_slice(found, len(prefix), _PLACE_SIZE_MAX).cast(pa.string()).cast(pa.int64())


def _texts(values: Sequence[bytes | None]) -> pa.Array:
    """Texts; an empty one becomes None."""
    found = [value or None for value in values] if b"" in values else values
    return pa.array(found, pa.binary()).cast(pa.string())
