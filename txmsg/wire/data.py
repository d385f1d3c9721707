"""Bytes that follow a message and are not copied: a message `{ HEAD head = 1; bytes data = 2; }` of a .proto file.

The bytes on the wire are those of that message in Protobuf; but neither side has Protobuf touch the data.
"""

from __future__ import annotations

from collections.abc import Sequence

from txmsg.errors import ProtocolError
from txmsg.wire.frames import Buffer
from txmsg.wire.method import packed

_HEAD_TAG = 1 << 3 | 2
_DATA_TAG = 2 << 3 | 2


def pieces_of(message: object, data: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Return the bytes of a message, in pieces. data: the pieces of its field `data`."""
    head = packed(message)
    size_bytes = sum(map(len, data))
    return (head, bytes([_DATA_TAG]) + _varint_of(size_bytes), *data) if size_bytes else (head,)


def split(message: Buffer) -> tuple[bytes, memoryview]:
    """Return the message without its data, and a view of the data; the inverse of `pieces_of`. Raises ProtocolError."""
    view = memoryview(message)
    if not view:
        return b"", view
    try:
        # Stricter than Protobuf, which allows fields in any order: the data can be found without parsing only if the
        # head comes first.
        if view[0] != _HEAD_TAG:
            raise ProtocolError(f"a message of {len(view)} bytes does not begin with its head")
        size_bytes, at = _varint_at(view, 1)
        end = at + size_bytes
        if end == len(view):
            return bytes(view), view[end:]
        if view[end] != _DATA_TAG:
            raise ProtocolError(f"a message of {len(view)} bytes has something else than data behind its head")
        size_bytes, at = _varint_at(view, end + 1)
    except IndexError as exc:
        raise ProtocolError(f"a message of {len(view)} bytes is cut off in its head") from exc
    # Compared exactly: bytes behind the data would be silently lost, and with them perhaps a field of a newer release.
    if size_bytes != len(view) - at:
        raise ProtocolError(f"a message has {len(view) - at} bytes of data, and says {size_bytes}")
    return bytes(view[:end]), view[at:]


def _varint_of(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _varint_at(view: memoryview, at: int) -> tuple[int, int]:
    """Return a number, and the position after it."""
    number = shift = 0
    while (byte := view[at]) & 0x80 and shift < 63:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1
