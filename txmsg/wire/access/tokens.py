"""Tokens: how one is made, what is stored of it, and what a server looks at.

A token is txmsg_ID_SECRET in base32: 80 bits by which it is found, and 256 random bits. Only the SHA-256 of the
secret is stored. No slow hash, because nobody guesses 256 bits; and no salt, because no two are alike.
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
    """What a server needs of a token that it was given."""

    id: str
    secret_sha256: bytes


def new_token() -> NewToken:
    """Another one."""
    id_, secret = base32(secrets.token_bytes(_ID_SIZE_BYTES)), base32(secrets.token_bytes(_SECRET_SIZE_BYTES))
    return NewToken(id_, _hash(secret), f"{_PREFIX}_{id_}_{secret}")


def is_token(text: str) -> bool:
    """Whether it is of the form of one."""
    return _TOKEN.fullmatch(text) is not None


def read_token(text: str) -> ReadToken | None:
    """Its parts; None if it is not of the form of a token."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else ReadToken(found[1], _hash(found[2]))


def base32(data: bytes) -> str:
    """Text of these bytes that nobody mistypes: lower-case letters and digits without 0 and 1."""
    return b32encode(data).decode("ascii").rstrip("=").lower()


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()
