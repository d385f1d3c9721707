"""Conversion of ids to and from bytes, and the maximum sizes of a request and a reply."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from txmsg.errors import ProtocolError
from txmsg.wire.headers import pack_headers, unpack_headers

__all__ = [
    "MESSAGE_SIZE_BYTES_MAX",
    "REQUEST_ITEMS_MAX",
    "REQUEST_SIZE_BYTES_MAX",
    "SUSPECT_FROM",
    "bytes_of_ids",
    "ids_of_bytes",
    "pack_headers",
    "slices_of_ids",
    "unpack_headers",
]

MESSAGE_SIZE_BYTES_MAX = 64 * 1024 * 1024
REQUEST_SIZE_BYTES_MAX = 8 * 1024 * 1024
"""Bodies, keys and headers of one request. A single message may be larger than that only up to its own limit."""
REQUEST_ITEMS_MAX = 4096
"""Messages or transactions of one request; a broker refuses more."""
SUSPECT_FROM = 2
"""A message that was lost with this many consumers is a suspect: it is delivered and handled alone.

Not after the first loss: a killed consumer loses all its messages, and each would be handled one by one.
"""

_ID_SIZE_BYTES = 16


def slices_of_ids(data: bytes) -> list[bytes]:
    """Return `data` cut into ids of 16 bytes. Raises ProtocolError if the length is not a multiple of 16."""
    if len(data) % _ID_SIZE_BYTES:
        raise ProtocolError(f"{len(data)} bytes of ids are not a multiple of {_ID_SIZE_BYTES}")
    return [data[at : at + _ID_SIZE_BYTES] for at in range(0, len(data), _ID_SIZE_BYTES)]


def ids_of_bytes(data: bytes) -> list[UUID]:
    """Return the ids in a bytes field. Raises as `slices_of_ids`."""
    return [UUID(bytes=piece) for piece in slices_of_ids(data)]


def bytes_of_ids(ids: Iterable[UUID]) -> bytes:
    """Return ids as one bytes field; the inverse of `ids_of_bytes`."""
    return b"".join(each.bytes for each in ids)
