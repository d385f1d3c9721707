"""Checks the bounds of requests before they are parsed, because parsing blocks the loop. Pure.

The bytes come from any client: 8 MiB may be 4 million empty messages, which take seconds and hundreds of megabytes to
parse.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from txmsg.rocketmq.limits import BODY_SIZE_BYTES_MAX
from txmsg.rocketmq.status import CallRefused
from txmsg.rocketmq.v2 import messaging_pb2 as pb

REQUEST_SIZE_BYTES_MAX: Final = 2 * BODY_SIZE_BYTES_MAX
"""Maximum bytes of a send: a body, its properties, and a margin, so that a body above its limit is refused by its own
code."""
SMALL_SIZE_BYTES_MAX: Final = 256 * 1024
"""Maximum bytes of any other request, and of a frame of a Telemetry stream."""
PARTS_MAX: Final = 128
"""Maximum messages or entries of a request."""
_PART_SIZE_BYTES_MIN: Final = 2
"""Bytes of a tag and a length or number: a request that is too short for too many parts is not scanned."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}

RequestT = TypeVar("RequestT", bound=Message)


def read_request(kind: type[RequestT], raw: bytes) -> RequestT:
    """Parse a request. Raises CallRefused if it is too large, has too many parts, or is not of this type."""
    size_bytes_max = REQUEST_SIZE_BYTES_MAX if kind is pb.SendMessageRequest else SMALL_SIZE_BYTES_MAX
    if len(raw) > size_bytes_max:
        raise CallRefused(pb.BAD_REQUEST, f"a request of {len(raw)} bytes: at most {size_bytes_max} are allowed")
    try:
        if len(raw) > PARTS_MAX * _PART_SIZE_BYTES_MIN:
            _check_parts(raw)
        return kind.FromString(raw)
    except (DecodeError, IndexError):
        raise CallRefused(
            pb.BAD_REQUEST, f"the request is not a {kind.__name__} of RocketMQ 5: use its clients"
        ) from None


def _check_parts(raw: bytes) -> None:
    """Raise CallRefused if a top-level field occurs too often. Stops at the first such field.

    Raises DecodeError, and IndexError for truncated fields.
    """
    seen: Counter[int] = Counter()
    place = 0
    while place < len(raw):
        tag, place = _varint(raw, place)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            size_bytes, place = _varint(raw, place)
            place += size_bytes
        elif kind == _VARINT:
            _, place = _varint(raw, place)
        elif kind in _SIZES:
            place += _SIZES[kind]
        else:
            raise DecodeError("no field of proto3")
        seen[number] += 1
        if seen[number] > PARTS_MAX or len(seen) > PARTS_MAX:
            raise CallRefused(
                pb.BAD_REQUEST, f"more than {PARTS_MAX} messages or entries in one request: make several requests"
            )


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins here, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = raw[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise DecodeError("a number of more than 64 bits")
