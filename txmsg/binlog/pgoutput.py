"""Decodes pgoutput, the plugin of logical replication: bytes -> changes. Pure functions, protocol version 1,
in which a transaction is sent only after it has committed.

Source: "Logical Replication Message Formats" of the PostgreSQL manual. Numbers are big-endian, times microseconds since
2000-01-01 UTC, texts end with a zero byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from txmsg.errors import ProtocolError


class _Unchanged:
    """A large value that the update did not change, and that is not sent."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()

Value: TypeAlias = bytes | None
"""A value as the server sent it, text or binary as requested; None is NULL."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of a committed transaction; its changes follow, then Commit."""

    final_lsn: int
    committed_at_2000_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction. end_lsn: the position after it, which is the one to acknowledge."""

    commit_lsn: int
    end_lsn: int
    committed_at_2000_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a change that was itself replicated."""

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column of a relation."""

    name: str
    type_oid: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, sent before its first change and after each change of its columns."""

    id: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[ColumnType, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """A data type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_id: int
    values: list[Value]


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. old: the key, or the whole row, as far as the replica identity includes it."""

    relation_id: int
    old: list[Value] | None
    values: list[Value | _Unchanged]


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row. old: its key, or the whole row."""

    relation_id: int
    old: list[Value]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables that were emptied."""

    relation_ids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message written by pg_logical_emit_message."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message of a kind that this release does not know: skip and log it."""

    kind: str
    data: bytes


Change: TypeAlias = (
    Begin | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate | LogicalMessage | Unknown
)

_U32 = struct.Struct(">I")
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">xQQq")
_INSERT = struct.Struct(">IcH")
_HEAD = struct.Struct(">Ic")
_COUNT = struct.Struct(">H")
_COLUMN = struct.Struct(">Ii")
_TRUNCATE = struct.Struct(">IB")
_MESSAGE = struct.Struct(">BQ")

_NULL, _SAME, _TEXT, _BINARY = b"nutb"


def decode(data: bytes) -> Change:
    """Decode one message. Raises ProtocolError if it is truncated, or longer than its fields say."""
    kind = data[:1]
    reader = _READERS.get(kind)
    if reader is None:
        return Unknown(kind.decode("latin-1"), data[1:])
    try:
        change, end = reader(data, 1)
    except (struct.error, IndexError, ValueError) as exc:
        raise ProtocolError(f"a replication message {kind!r} of {len(data)} bytes cannot be read: {exc}") from exc
    if end != len(data):
        raise ProtocolError(f"a replication message {kind!r} has {len(data)} bytes, of which {end} can be explained")
    return change


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def _row(data: bytes, at: int, count: int) -> tuple[list[Value], int]:
    """Return the values of a row without omitted values. The hot path."""
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        if kind == _NULL:
            values.append(None)
            at += 1
            continue
        if kind not in (_TEXT, _BINARY):
            raise ValueError(f"a value of kind {chr(kind)!r}")
        start = at + 5
        at = start + int.from_bytes(data[at + 1 : start], "big")
        values.append(data[start:at])
    if at > len(data):
        raise ValueError("the row is cut off")
    return values, at


def _row_with_unchanged(data: bytes, at: int) -> tuple[list[Value | _Unchanged], int]:
    (count,) = _COUNT.unpack_from(data, at)
    at += 2
    values: list[Value | _Unchanged] = []
    for _ in range(count):
        if data[at] == _SAME:
            values.append(UNCHANGED)
            at += 1
        else:
            [value], at = _row(data, at, 1)
            values.append(value)
    return values, at


def _insert(data: bytes, at: int) -> tuple[Change, int]:
    relation_id, new, count = _INSERT.unpack_from(data, at)
    if new != b"N":
        raise ValueError(f"a row marked {new!r}")
    values, at = _row(data, at + 7, count)
    return Insert(relation_id, values), at


def _update(data: bytes, at: int) -> tuple[Change, int]:
    relation_id, mark = _HEAD.unpack_from(data, at)
    at += 5
    old: list[Value] | None = None
    if mark in (b"K", b"O"):
        (count,) = _COUNT.unpack_from(data, at)
        old, at = _row(data, at + 2, count)
        mark, at = data[at : at + 1], at + 1
    if mark != b"N":
        raise ValueError(f"a row marked {mark!r}")
    values, at = _row_with_unchanged(data, at)
    return Update(relation_id, old, values), at


def _delete(data: bytes, at: int) -> tuple[Change, int]:
    relation_id, mark, count = _INSERT.unpack_from(data, at)
    if mark not in (b"K", b"O"):
        raise ValueError(f"a row marked {mark!r}")
    old, at = _row(data, at + 7, count)
    return Delete(relation_id, old), at


def _relation(data: bytes, at: int) -> tuple[Change, int]:
    (relation_id,) = _U32.unpack_from(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    identity = chr(data[at])
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns: list[ColumnType] = []
    for _ in range(count):
        is_key = data[at] & 1 == 1
        column, at = _text(data, at + 1)
        type_oid, _ = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(ColumnType(column, type_oid, is_key))
    return Relation(relation_id, schema, name, identity, tuple(columns)), at


def _type(data: bytes, at: int) -> tuple[Change, int]:
    (oid,) = _U32.unpack_from(data, at)
    schema, at = _text(data, at + 4)
    name, at = _text(data, at)
    return Type(oid, schema, name), at


def _truncate(data: bytes, at: int) -> tuple[Change, int]:
    count, options = _TRUNCATE.unpack_from(data, at)
    end = at + _TRUNCATE.size + 4 * count
    ids = struct.unpack_from(f">{count}I", data, at + _TRUNCATE.size)
    return Truncate(ids, bool(options & 1), bool(options & 2)), end


def _message(data: bytes, at: int) -> tuple[Change, int]:
    flags, lsn = _MESSAGE.unpack_from(data, at)
    prefix, at = _text(data, at + _MESSAGE.size)
    (size,) = _U32.unpack_from(data, at)
    end = at + 4 + size
    if end > len(data):
        raise ValueError("the content is cut off")
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[at + 4 : end]), end


def _begin(data: bytes, at: int) -> tuple[Change, int]:
    return Begin(*_BEGIN.unpack_from(data, at)), at + _BEGIN.size


def _commit(data: bytes, at: int) -> tuple[Change, int]:
    return Commit(*_COMMIT.unpack_from(data, at)), at + _COMMIT.size


def _origin(data: bytes, at: int) -> tuple[Change, int]:
    (lsn,) = struct.unpack_from(">Q", data, at)
    name, at = _text(data, at + 8)
    return Origin(lsn, name), at


_READERS = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _message,
}
