"""Values <-> bytes of the protocol, and how large a request and a reply may be."""

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
"""A message that was lost with so many consumers is a suspect: it is delivered and handled alone.

Not from the first time on: a consumer that is killed loses all that it has, which would be handled one by one.
"""

_ID_SIZE_BYTES = 16


def slices_of_ids(data: bytes) -> list[bytes]:
    """`data` cut into ids of 16 bytes. Raises ProtocolError when it does not divide."""
    if len(data) % _ID_SIZE_BYTES:
        raise ProtocolError(f"{len(data)} bytes of ids are not a multiple of {_ID_SIZE_BYTES}")
    return [data[at : at + _ID_SIZE_BYTES] for at in range(0, len(data), _ID_SIZE_BYTES)]


def ids_of_bytes(data: bytes) -> list[UUID]:
    """The ids in a bytes field."""
    return [UUID(bytes=piece) for piece in slices_of_ids(data)]


def bytes_of_ids(ids: Iterable[UUID]) -> bytes:
    """The inverse of `ids_of_bytes`."""
    return b"".join(each.bytes for each in ids)
