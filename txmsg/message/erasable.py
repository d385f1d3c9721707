"""Bodies of erasable topics, each encrypted under a key of its own, which brokers keep. Pure.

Knows neither the keys' storage nor the wire. `cryptography` is loaded with the first body.
"""

from __future__ import annotations

import hmac
import secrets
from functools import cache
from typing import Any, Final

from txmsg.errors import InvalidMessage

SEALED_HEADER: Final = "txmsg-erasable"
"""The header of a message whose body is ciphertext. Brokers add it, and remove it with the encryption."""
ERASED_HEADER: Final = "txmsg-erased"
"""The header of a message whose body is empty because its key is gone."""
DAMAGED_HEADER: Final = "txmsg-damaged"
"""The header of a message whose body is empty because the stored bytes do not decrypt with its key."""
KEY_SIZE_BYTES: Final = 32

# Not random: a repeated send is recognised by the stored bytes. Not constant: an id may be sent again with another body
# when its first outcome is forgotten, and the same nonce would tell what one body says of the other.
_NONCE_SIZE_BYTES: Final = 12


def new_keys(count: int) -> list[bytes]:
    """Return `count` random keys, one for each body."""
    # One system call for a batch's keys rather than one for each.
    together = secrets.token_bytes(count * KEY_SIZE_BYTES)
    return [together[at : at + KEY_SIZE_BYTES] for at in range(0, len(together), KEY_SIZE_BYTES)]


def seal(key: bytes, body: bytes) -> bytes:
    """Return the body encrypted with AES-256-GCM, 28 bytes longer. Equal keys and bodies give equal bytes."""
    nonce = hmac.digest(key, body, "sha256")[:_NONCE_SIZE_BYTES]
    aes_gcm, _ = _cryptography()
    sealed: bytes = nonce + aes_gcm(key).encrypt(nonce, body, None)
    return sealed


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Return the body, the inverse of `seal`. Raises InvalidMessage for bytes that were not made with this key."""
    aes_gcm, invalid_tag = _cryptography()
    try:
        body: bytes = aes_gcm(key).decrypt(sealed[:_NONCE_SIZE_BYTES], sealed[_NONCE_SIZE_BYTES:], None)
    except (invalid_tag, ValueError):  # ValueError: of bytes too few for a nonce
        raise InvalidMessage("a body cannot be decrypted with its key: the stored bytes are damaged") from None
    return body


@cache
def _cryptography() -> tuple[Any, type[Exception]]:
    """Return the cipher and its exception. Cached: importing it for each body would cost as much as decrypting."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM, InvalidTag
