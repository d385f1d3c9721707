"""Records of a partition as a `LogBatch`: messages and Arrow columns are made of them when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from txmsg.message import ReceivedMessage
from txmsg.metaq.format.batch import SCHEMA, only
from txmsg.metaq.kafka.record import ReadRecord, queue_offset, received
from txmsg.wire.headers import pack_headers
from txmsg.wire.tags import ALL_TAGS, TagExpression

RECORD_SIZE_BYTES: Final = 200
"""What a record takes beside its body, about."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of a queue that follow each other. Made by `of`."""

    topic: str
    queue: int
    records: Sequence[ReadRecord]
    base_offset: int
    end_offset: int
    size_bytes: int

    @classmethod
    def of(cls, topic: str, queue: int, records: Sequence[ReadRecord], size_bytes: int) -> RecordBatch:
        """At least one record. Raises CorruptLog when the first or last has no offset that can be read."""
        return cls(topic, queue, records, queue_offset(records[0]), queue_offset(records[-1]) + 1, size_bytes)

    @property
    def first_stored_at_us(self) -> int:
        return self.records[0].timestamp()[1] * 1000

    def __len__(self) -> int:
        return len(self.records)

    def messages(self, wanted: TagExpression = ALL_TAGS) -> Iterator[ReceivedMessage]:
        messages = (received(record, self.topic, self.queue) for record in self.records)
        return messages if wanted.is_all else (message for message in messages if wanted.matches(message.tag))

    def to_arrow(self, wanted: TagExpression = ALL_TAGS) -> pa.RecordBatch:
        columns = list(zip(*self.messages(), strict=True))
        found = dict(zip(ReceivedMessage._fields, columns, strict=True))
        packed = [pack_headers(headers) or None for headers in found["headers"]]
        values = (
            found["offset"],
            found["id_bytes"],
            found["n"],
            found["key"],
            found["tag"],
            found["ordering_key"],
            packed,
            found["body"],
            found["born_at_us"],
            found["stored_at_us"],
        )
        arrays = [pa.array(value, field.type) for value, field in zip(values, SCHEMA, strict=True)]
        return only(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), wanted)

    def with_id(self, transaction_id: bytes, n: int) -> ReceivedMessage | None:
        return next((each for each in self.messages() if (each.id_bytes, each.n) == (transaction_id, n)), None)
