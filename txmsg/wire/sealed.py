"""Packed headers of messages of erasable topics, whose bodies brokers have encrypted."""

from __future__ import annotations

from typing import Final

from txmsg.message.erasable import DAMAGED_HEADER, ERASED_HEADER, SEALED_HEADER, unseal
from txmsg.wire.headers import pack_headers, unpack_headers

SEALED: Final = pack_headers({SEALED_HEADER: "aes-256-gcm"})
"""Bytes that a broker appends to the packed headers of a message whose body it encrypts."""
_ERASED: Final = pack_headers({ERASED_HEADER: "1"})
_DAMAGED: Final = pack_headers({DAMAGED_HEADER: "1"})


def is_sealed(headers: bytes | None) -> bool:
    """Return True if a broker has encrypted the body of the message with these packed headers."""
    # The end alone is no proof: the text of a header may end like that.
    return headers == SEALED or (
        headers is not None and headers.endswith(SEALED) and SEALED_HEADER in unpack_headers(headers)
    )


def unsealed(headers: bytes, body: bytes, key: bytes | None) -> tuple[bytes, bytes]:
    """Return headers and body as they were sent; without a key an empty body, and a header that says why."""
    # Cut off as bytes, without parsing: appended Protobuf maps merge, so the broker could add a header without
    # unpacking those of the sender.
    sent = headers.removesuffix(SEALED)
    return (sent + _ERASED, b"") if not key else (sent, unseal(key, body))


def damaged(headers: bytes) -> bytes:
    """Return the headers of a message whose body cannot be decrypted with its key."""
    return headers.removesuffix(SEALED) + _DAMAGED
