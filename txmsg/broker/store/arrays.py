"""PostgreSQL arrays in binary form, built at the speed of bytes.join. Knows no statement and no connection.

psycopg's own list dumper calls a dumper per element (about 1 us each); a batch of 1,000 halves has 9 columns, so
that alone would cost 9 ms. Source of the layout: array_recv in PostgreSQL's arrayfuncs.c: dimensions, has-null
flag, element type; per dimension length and lower bound; per element length (-1 is NULL) and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from struct import Struct, pack

from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

__all__ = [
    "Array",
    "ArrayDumper",
    "bytea_array",
    "int4_array",
    "moment_array",
    "optional_bytea_array",
    "smallint_array",
    "text_array",
    "uuid_array",
]

_BYTEA, _INT2, _INT4, _TEXT, _TIMESTAMPTZ, _UUID = 17, 21, 23, 25, 1184, 2950
_ARRAY_OIDS = {_BYTEA: 1001, _INT2: 1005, _INT4: 1007, _TEXT: 1009, _TIMESTAMPTZ: 1185, _UUID: 2951}
_HEAD = Struct(">iiIii")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)
_UUID_LENGTH = _LENGTH.pack(16)
_2000_US = 946_684_800_000_000  # PostgreSQL counts microseconds from 2000, Unix from 1970


class Array:
    """An array ready for the wire: `oid` of the array type and its binary `data`."""

    __slots__ = ("data", "oid")

    def __init__(self, element_oid: int, length: int, elements: bytes) -> None:
        self.oid = _ARRAY_OIDS[element_oid]
        if length:
            self.data = _HEAD.pack(1, 1, element_oid, length, 1) + elements
        else:
            self.data = pack(">iiI", 0, 0, element_oid)


class ArrayDumper(Dumper):
    """Teaches psycopg to send an `Array` as it is."""

    format = Format.BINARY

    def get_key(self, obj: Array, format: object) -> tuple[type, int]:
        return (Array, obj.oid)

    def upgrade(self, obj: Array, format: object) -> ArrayDumper:
        dumper = type(self)(Array)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Array) -> Buffer | None:
        return obj.data


def uuid_array(ids: Sequence[bytes]) -> Array:
    """uuid[] from ids of 16 bytes."""
    return Array(_UUID, len(ids), b"".join(chain.from_iterable(zip(repeat(_UUID_LENGTH), ids))))


def bytea_array(values: Sequence[bytes]) -> Array:
    """bytea[]."""
    return Array(_BYTEA, len(values), _with_lengths(values))


def text_array(values: Sequence[str]) -> Array:
    """text[]; "" becomes NULL. An all-empty column is '{}', which unnest() fills with NULLs."""
    if not any(values):
        return Array(_TEXT, 0, b"")
    return Array(_TEXT, len(values), _with_nulls([value.encode() for value in values]))


def optional_bytea_array(values: Sequence[bytes]) -> Array:
    """bytea[]; b"" becomes NULL. An all-empty column is '{}', which unnest() fills with NULLs."""
    if not any(values):
        return Array(_BYTEA, 0, b"")
    return Array(_BYTEA, len(values), _with_nulls(values))


def int4_array(values: Sequence[int]) -> Array:
    """int[]."""
    flat = chain.from_iterable(zip(repeat(4), values))
    return Array(_INT4, len(values), pack(f">{2 * len(values)}i", *flat))


def smallint_array(values: Sequence[int]) -> Array:
    """smallint[]."""
    flat = chain.from_iterable(zip(repeat(2), values))
    return Array(_INT2, len(values), pack(">" + "ih" * len(values), *flat))


def moment_array(times_us: Iterable[int]) -> Array:
    """timestamptz[] from microseconds since 1970."""
    shifted = [us - _2000_US for us in times_us]
    flat = chain.from_iterable(zip(repeat(8), shifted))
    return Array(_TIMESTAMPTZ, len(shifted), pack(">" + "iq" * len(shifted), *flat))


def _with_lengths(values: Sequence[bytes]) -> bytes:
    lengths = map(_LENGTH.pack, map(len, values))
    return b"".join(chain.from_iterable(zip(lengths, values, strict=True)))


def _with_nulls(values: Sequence[bytes]) -> bytes:
    return b"".join([_LENGTH.pack(len(value)) + value if value else _NULL for value in values])
