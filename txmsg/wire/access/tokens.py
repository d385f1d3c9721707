"""Tokens: how they are made, stored and read.

A token is txmsg_ID_SECRET in base32: 80 bits of id, and 256 random bits of secret. Only the SHA-256 of the secret is
stored. A slow hash would add nothing, because 256 bits cannot be guessed; nor would a salt, because no two secrets are
equal.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import b32encode
from typing import Final, NamedTuple

__all__ = ["ID_LENGTH", "NewToken", "ReadToken", "base32", "is_token", "new_token", "read_token"]

_PREFIX: Final = "txmsg"
_ID_SIZE_BYTES: Final = 10
_SECRET_SIZE_BYTES: Final = 32
ID_LENGTH: Final = 16
_TOKEN: Final = re.compile(r"txmsg_([a-z2-7]{16})_([a-z2-7]{52})")


class NewToken(NamedTuple):
    """A token that was just made: `text` is shown once, the rest is stored."""

    id: str
    secret_sha256: bytes
    text: str

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r})"


class ReadToken(NamedTuple):
    """The parts of a client's token that a server compares."""

    id: str
    secret_sha256: bytes


def new_token() -> NewToken:
    """Return a new token."""
    id_, secret = base32(secrets.token_bytes(_ID_SIZE_BYTES)), base32(secrets.token_bytes(_SECRET_SIZE_BYTES))
    return NewToken(id_, _hash(secret), f"{_PREFIX}_{id_}_{secret}")


def is_token(text: str) -> bool:
    """Return True if the text has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def read_token(text: str) -> ReadToken | None:
    """Return the parts of a token; None if the text does not have the form of one."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else ReadToken(found[1], _hash(found[2]))


def base32(data: bytes) -> str:
    """Return a text for these bytes that is easy to type: lower-case letters and digits without 0 and 1."""
    return b32encode(data).decode("ascii").rstrip("=").lower()


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()
