"""PostgreSQL arrays in binary form, built by bytes.join. Knows no statement and no connection.

psycopg's own list dumper calls a dumper per element (about 1 us each); a batch of 1,000 halves has 9 columns, so that
alone would cost 9 ms (decision 2). Source of the layout: array_recv in PostgreSQL's arrayfuncs.c: dimensions, has-null
flag, element type; per dimension length and lower bound; per element length (-1 is NULL) and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import ClassVar

from psycopg.abc import AdaptContext
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

from txmsg.message import EPOCH_2000_US

_HEAD = Struct(">iiIii")
_EMPTY_HEAD = Struct(">iiI")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)
_INT = Struct(">ii")
_INT8 = Struct(">iq")
_SMALLINT = Struct(">ih")
_MOMENT = Struct(">iq")
_UUID_LENGTH = _LENGTH.pack(16)


class Array:
    """An array ready for the wire: `data` in binary. The subclass gives the type, by the oids of pg_type."""

    __slots__ = ("data",)
    oid: ClassVar[int]
    element_oid: ClassVar[int]

    def __init__(self, length: int, elements: bytes) -> None:
        if length:
            self.data = _HEAD.pack(1, 1, self.element_oid, length, 1) + elements
        else:
            self.data = _EMPTY_HEAD.pack(0, 0, self.element_oid)


class _ByteaArray(Array):
    oid, element_oid = 1001, 17


class _SmallintArray(Array):
    oid, element_oid = 1005, 21


class _IntArray(Array):
    oid, element_oid = 1007, 23


class _Int8Array(Array):
    oid, element_oid = 1016, 20


class _TextArray(Array):
    oid, element_oid = 1009, 25


class _MomentArray(Array):
    oid, element_oid = 1185, 1184


class _UuidArray(Array):
    oid, element_oid = 2951, 2950


class _ArrayDumper(Dumper):
    """A psycopg dumper that sends an `Array` unchanged."""

    format = Format.BINARY

    def __init__(self, cls: type[Array], context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self.oid = cls.oid

    def dump(self, obj: Array) -> Buffer | None:
        return obj.data


def register_arrays(context: AdaptContext) -> None:
    """Register the arrays of this module as parameters of `context` (a connection)."""
    for kind in Array.__subclasses__():
        context.adapters.register_dumper(kind, _ArrayDumper)


# Shared: most parameters of most batches are empty.
_NO_UUIDS = _UuidArray(0, b"")
_NO_BYTEAS = _ByteaArray(0, b"")
_NO_TEXTS = _TextArray(0, b"")
_NO_INTS = _IntArray(0, b"")
_NO_INT8S = _Int8Array(0, b"")
_NO_SMALLINTS = _SmallintArray(0, b"")
_NO_MOMENTS = _MomentArray(0, b"")


def uuid_array(ids: Sequence[bytes]) -> Array:
    """Return uuid[] from ids of 16 bytes."""
    if not ids:
        return _NO_UUIDS
    return _UuidArray(len(ids), _UUID_LENGTH + _UUID_LENGTH.join(ids))


def bytea_array(values: Sequence[bytes]) -> Array:
    """Return bytea[]."""
    if not values:
        return _NO_BYTEAS
    return _ByteaArray(len(values), _with_lengths(values))


def text_array(values: Sequence[str]) -> Array:
    """Return text[]; "" becomes NULL. An all-empty column is '{}', which unnest() fills with NULLs."""
    if not any(values):
        return _NO_TEXTS
    return _TextArray(len(values), _with_nulls([value.encode() for value in values]))


def optional_bytea_array(values: Sequence[bytes]) -> Array:
    """Return bytea[]; b"" becomes NULL. An all-empty column is '{}', which unnest() fills with NULLs."""
    if not any(values):
        return _NO_BYTEAS
    return _ByteaArray(len(values), _with_nulls(values))


def int4_array(values: Sequence[int]) -> Array:
    """Return int[]."""
    if not values:
        return _NO_INTS
    packed = {value: _INT.pack(4, value) for value in set(values)}  # queues and producers repeat: few distinct values
    return _IntArray(len(values), b"".join(map(packed.__getitem__, values)))


def optional_int4_array(values: Sequence[int]) -> Array:
    """Return int[]; 0 becomes NULL. An all-empty column is '{}', which unnest() fills with NULLs."""
    if not any(values):
        return _NO_INTS
    return _IntArray(len(values), b"".join([_INT.pack(4, value) if value else _NULL for value in values]))


def optional_int8_array(values: Sequence[int]) -> Array:
    """Return bigint[]; 0 becomes NULL. An all-empty column is '{}', which unnest() fills with NULLs."""
    if not any(values):
        return _NO_INT8S
    return _Int8Array(len(values), b"".join([_INT8.pack(8, value) if value else _NULL for value in values]))


def smallint_array(values: Sequence[int]) -> Array:
    """Return smallint[]."""
    if not values:
        return _NO_SMALLINTS
    packed = {value: _SMALLINT.pack(2, value) for value in set(values)}  # few distinct values, too
    return _SmallintArray(len(values), b"".join(map(packed.__getitem__, values)))


def moment_array(times_us: Sequence[int]) -> Array:
    """Return timestamptz[] from microseconds since 1970."""
    if not times_us:
        return _NO_MOMENTS
    return _MomentArray(len(times_us), b"".join([_MOMENT.pack(8, us - EPOCH_2000_US) for us in times_us]))


def optional_moment_array(times_us: Sequence[int]) -> Array:
    """Return timestamptz[] from microseconds since 1970; 0 becomes NULL.

    An all-empty column is '{}', which unnest() fills with NULLs.
    """
    if not any(times_us):
        return _NO_MOMENTS
    return _MomentArray(
        len(times_us), b"".join([_MOMENT.pack(8, us - EPOCH_2000_US) if us else _NULL for us in times_us])
    )


def _with_lengths(values: Sequence[bytes]) -> bytes:
    # map, zip and join run in C: a loop with a frame of Python per value is what this module avoids.
    lengths = map(_LENGTH.pack, map(len, values))
    return b"".join(chain.from_iterable(zip(lengths, values, strict=True)))


def _with_nulls(values: Sequence[bytes]) -> bytes:
    # Empty values are NULL here because unnest() fills a '{}' column with NULLs, too: both forms store the same.
    return b"".join([_LENGTH.pack(len(value)) + value if value else _NULL for value in values])
