"""Decodes rows of the message table from binary replication and COPY: bytes -> tuples. Pure; the hot path.

The publication names the columns (COLUMNS), so both ways they come in one order, and their widths are known: two reads
of fixed bytes and five values of any length are all there is to a row.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from txmsg.binlog.pgoutput import Relation
from txmsg.errors import ProtocolError, StorageError
from txmsg.message import Offset, QueueId, QueueNumber

COLUMNS: Final = {
    "segment": 23,
    "queue": 23,
    "queue_offset": 20,
    "transaction_id": 2950,
    "n": 21,
    "key": 25,
    "tag": 25,
    "headers": 17,
    "body": 17,
    "born_at": 1184,
    "stored_at": 1184,
    "ordering_key": 25,
}
"""The mirrored columns by name, with the oid of their type. In the order of the table, which pgoutput keeps."""


class TableRow(NamedTuple):
    """A message. Texts are in UTF-8; b"" stands for NULL. _2000_us: microseconds since 2000, as in `EPOCH_2000_US`."""

    transaction_id: bytes
    n: int
    key: bytes
    tag: bytes
    headers: bytes
    body: bytes
    born_at_2000_us: int
    stored_at_2000_us: int
    ordering_key: bytes


Placed: TypeAlias = tuple[QueueId, Offset, TableRow]
"""A message with its queue and offset. A plain tuple, because it is unpacked at once."""


class RowBatch(NamedTuple):
    """Messages of one queue with consecutive offsets, to be appended to the log."""

    topic: str
    number: QueueNumber
    base_offset: int
    rows: Sequence[TableRow]


# Message w (kind, three numbers of 8 bytes) with an Insert in it (kind, relation, "N", number of columns), then the
# columns of fixed width, each after its kind and length.
_INSERT = struct.Struct(">25x x 4x c H 5x 4x 5x i 5x q 5x 16s 5x h")
_INSERT_TIMES = struct.Struct(">5x q 5x q")
_COPY = struct.Struct(">H 4x 4x 4x i 4x q 4x 16s 4x h")
_COPY_TIMES = struct.Struct(">4x q 4x q")
_LENGTH = struct.Struct(">i")
_LENGTH_AFTER_KIND = struct.Struct(">xi")
_NULL: Final = ord("n")
_COUNT: Final = len(COLUMNS)
# Without a frame of Python per row, as Row._make would take: 100,000 rows a second are made.
_row = partial(tuple.__new__, TableRow)


def check_relation(relation: Relation) -> None:
    """Raise StorageError for a table whose rows these functions would misread."""
    found = {column.name: column.type_oid for column in relation.columns}
    if list(found.items()) != list(COLUMNS.items()):
        raise StorageError(
            f"the publication sends columns {', '.join(found)} of {relation.schema}.{relation.name} instead of "
            f"{', '.join(COLUMNS)}: run `txmsg tailer drop` and `txmsg tailer create`: nothing that is mirrored is "
            "lost"
        )


def inserted_row(data: bytes) -> Placed:
    """Decode a row in a replication message w. Raises ProtocolError for any other bytes."""
    try:
        new, count, queue_id, offset, transaction_id, n = _INSERT.unpack_from(data)
        at = 92
        values = []
        for _ in range(4):
            if data[at] == _NULL:
                values.append(b"")
                at += 1
            else:
                start = at + 5
                at = start + _LENGTH_AFTER_KIND.unpack_from(data, at)[0]
                values.append(data[start:at])
        born_at_2000_us, stored_at_2000_us = _INSERT_TIMES.unpack_from(data, at)
        if data[at + 26] == _NULL:
            ordering_key, size = b"", at + 27
        else:
            ordering_key, size = data[at + 31 :], at + 31 + _LENGTH_AFTER_KIND.unpack_from(data, at + 26)[0]
    except (struct.error, IndexError) as exc:
        raise ProtocolError(f"a row of {len(data)} bytes in the replication stream cannot be read: {exc}") from exc
    if new != b"N" or count != _COUNT or size != len(data):
        raise ProtocolError(
            f"a row of {len(data)} bytes in the replication stream is not of {_COUNT} binary columns, or is cut off"
        )
    key, tag, headers, body = values
    return (
        queue_id,
        offset,
        _row((transaction_id, n, key, tag, headers, body, born_at_2000_us, stored_at_2000_us, ordering_key)),
    )


def copied_row(data: bytes) -> Placed:
    """Decode a row of COPY ... TO STDOUT (FORMAT binary), without the header of the stream. Raises ProtocolError."""
    try:
        count, queue_id, offset, transaction_id, n = _COPY.unpack_from(data)
        at = _COPY.size
        values = []
        for _ in range(4):
            (length,) = _LENGTH.unpack_from(data, at)
            at += 4
            if length < 0:
                values.append(b"")
            else:
                values.append(data[at : at + length])
                at += length
        born_at_2000_us, stored_at_2000_us = _COPY_TIMES.unpack_from(data, at)
        (length,) = _LENGTH.unpack_from(data, at + 24)
    except struct.error as exc:
        raise ProtocolError(f"a copied row of {len(data)} bytes cannot be read: {exc}") from exc
    ordering_key = data[at + 28 :]
    if count != _COUNT or len(ordering_key) != max(0, length):
        raise ProtocolError(f"a copied row of {len(data)} bytes is not of {_COUNT} columns, or is cut off")
    key, tag, headers, body = values
    return (
        queue_id,
        offset,
        _row((transaction_id, n, key, tag, headers, body, born_at_2000_us, stored_at_2000_us, ordering_key)),
    )
