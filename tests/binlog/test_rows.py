"""Rows of messages from replication and COPY are read as by the general decoder, or refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmsg.binlog.pgoutput import ColumnType, Insert, Relation, decode
from txmsg.binlog.rows import COLUMNS, check_relation, copied_row, inserted_row
from txmsg.errors import ProtocolError, StorageError

_HEAD = b"w" + bytes(24)
_optional = st.none() | st.binary(min_size=1, max_size=40)
ROWS = st.tuples(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**15 - 1),
    _optional,
    _optional,
    _optional,
    st.binary(max_size=300),
    st.integers(-(2**62), 2**62),
    st.integers(-(2**62), 2**62),
    _optional,
)


def _values(row: tuple[object, ...]) -> list[bytes | None]:
    formats = dict(zip(range(12), "iiq h    qq ", strict=True))
    return [
        struct.pack(f">{formats[place]}", value) if isinstance(value, int) else value  # type: ignore[misc]
        for place, value in enumerate(row)
    ]


def _insert(row: tuple[object, ...]) -> bytes:
    columns = [b"n" if v is None else b"b" + struct.pack(">i", len(v)) + v for v in _values(row)]
    return _HEAD + b"I" + struct.pack(">IcH", 7, b"N", 12) + b"".join(columns)


def _copy(row: tuple[object, ...]) -> bytes:
    columns = [struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in _values(row)]
    return struct.pack(">H", 12) + b"".join(columns)


@given(ROWS)
def test_row_from_replication_equals_row_from_copy(row: tuple[object, ...]) -> None:
    _, queue, offset, transaction_id, n, key, tag, headers, body, born_at, stored_at, ordering_key = row
    content = (transaction_id, n, key or b"", tag or b"", headers or b"", body, born_at, stored_at, ordering_key or b"")
    data = _insert(row)
    change = decode(data[25:])
    assert isinstance(change, Insert)
    assert change.values == _values(row), "the test's own row is not one of pgoutput's"
    assert inserted_row(data) == copied_row(_copy(row)) == (queue, offset, content)


@given(ROWS, st.data())
def test_truncated_or_too_long_row_is_refused(row: tuple[object, ...], data: st.DataObject) -> None:
    for made, read in ((_insert(row), inserted_row), (_copy(row), copied_row)):
        cut = data.draw(st.integers(0, len(made) - 1))
        for wrong in (made[:cut], made + b"\0"):
            with pytest.raises(ProtocolError, match=r"a (copied )?row of \d+ bytes"):
                read(wrong)


def test_table_with_other_columns_is_refused() -> None:
    columns = tuple(ColumnType(name, oid, False) for name, oid in COLUMNS.items())
    check_relation(Relation(7, "txmsg", "message", "d", columns))
    for wrong in (columns[::-1], columns[:-1], (*columns[:-1], ColumnType("ordering_key", 17, False))):
        with pytest.raises(StorageError, match="run `txmsg tailer drop`"):
            check_relation(Relation(7, "txmsg", "message", "d", wrong))
