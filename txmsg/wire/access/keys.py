"""Access keys: the credential of clients that sign their calls instead of showing a token, such as RocketMQ's.

Verifying a signature needs the secret itself, not its hash. So the secret is stored encrypted, by a key in a file that
the database does not have: the command that makes access keys encrypts, and gateways decrypt. Brokers store what they
cannot read.
"""

from __future__ import annotations

import binascii
import os
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from txmsg.errors import MisuseError, shown
from txmsg.wire.access.tokens import base32

__all__ = [
    "KEY_ID",
    "NEW_KEY_ID",
    "SEALED_SIZE_BYTES_MAX",
    "AccessKey",
    "KeyFile",
    "NewAccessKey",
    "known_access_key",
    "new_access_key",
]

KEY_ID: Final = r"[A-Za-z0-9._@+=-]{1,64}"
"""Pattern of ids, including those of other systems. Secrets can match it, too."""
NEW_KEY_ID: Final = r"[a-z2-7]{16}"
"""Pattern of ids that are made here; no secret that is made here matches it."""
_SECRET: Final = re.compile(r"[!-~]{8,128}")
"""Pattern of a secret that was made elsewhere: printable ASCII without blanks."""
SEALED_SIZE_BYTES_MAX: Final = 256
"""Size of an encrypted secret in bytes, at most."""
_ID_SIZE_BYTES: Final = 10
_SECRET_SIZE_BYTES: Final = 32
_FILE_KEY_SIZE_BYTES: Final = 32
_NONCE_SIZE_BYTES: Final = 12


class NewAccessKey(NamedTuple):
    """An access key that was just made: id and secret are given to a client."""

    id: str
    secret: str

    def __repr__(self) -> str:
        return f"NewAccessKey(id={self.id!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """The stored part of an access key."""

    id: str
    user: str
    sealed_secret: bytes = field(repr=False)


def new_access_key() -> NewAccessKey:
    """Return a new access key: an id of 80 random bits, and a secret of 256."""
    return NewAccessKey(base32(secrets.token_bytes(_ID_SIZE_BYTES)), base32(secrets.token_bytes(_SECRET_SIZE_BYTES)))


def known_access_key(key_id: str, secret: str) -> NewAccessKey:
    """Return an access key that clients already use. Raises MisuseError, whose text does not contain the secret."""
    if re.fullmatch(KEY_ID, key_id) is None:
        raise MisuseError(
            f"access key {shown(key_id)} cannot be kept: it has 1 to 64 of the characters A-Z a-z 0-9 . _ @ + = -; "
            "make another one with `txmsg user access-key create`"
        )
    # The error does not contain the secret, only its length: it goes into the terminal and perhaps a log.
    if _SECRET.fullmatch(secret) is None:
        raise MisuseError(
            f"the secret of access key {key_id}, of {len(secret)} characters, cannot be kept: it has 8 to 128 "
            "printable characters of ASCII, and no blanks; make another one with `txmsg user access-key create`"
        )
    return NewAccessKey(key_id, secret)


class KeyFile:
    """A file with a key in base64 on each line: the first encrypts secrets, each decrypts. # begins a comment.

    To rotate: put a new first line into the files of all gateways, and restart them; make new access keys; remove the
    old line when the old access keys are revoked.
    """

    def __init__(self, path: Path) -> None:
        """Read the keys. Raises MisuseError for a file that cannot be used."""
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as exc:
            raise MisuseError("access keys need the package cryptography: pip install 'txmsg[crypto]'") from exc
        self._path = path
        self._ciphers = [AESGCM(key) for key in _keys_in(path)]
        self._invalid_tag = InvalidTag

    def __repr__(self) -> str:
        return f"KeyFile({str(self._path)!r})"

    @staticmethod
    def make(path: Path) -> None:
        """Create a file with one key, readable only by its owner. Raises MisuseError if the file exists."""
        key = b64encode(secrets.token_bytes(_FILE_KEY_SIZE_BYTES)).decode("ascii")
        try:
            # O_EXCL: an existing key must not be overwritten, because every secret encrypted by it would be lost.
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(f"# Encrypts the secrets of access keys: for gateways, and who makes access keys.\n{key}\n")
        except OSError as exc:
            raise MisuseError(f"{path} cannot be made: {exc}; give a name that is not taken") from exc

    def seal(self, key: NewAccessKey, user: str) -> bytes:
        """Return the secret, encrypted. It is bound to this id and user: copied to another one it cannot be
        decrypted."""
        # Random for each secret: AES-GCM with one nonce twice under one key breaks the encryption of both.
        nonce = secrets.token_bytes(_NONCE_SIZE_BYTES)
        sealed: bytes = nonce + self._ciphers[0].encrypt(nonce, key.secret.encode("ascii"), _owner(key.id, user))
        return sealed

    def open(self, key: AccessKey) -> bytes | None:
        """Return the secret; None if it was encrypted by a key that is not in this file, or belongs to another id or
        user."""
        nonce, sealed = key.sealed_secret[:_NONCE_SIZE_BYTES], key.sealed_secret[_NONCE_SIZE_BYTES:]
        # All keys are tried, newest first: during a rotation the gateways' files have both, and a sealed secret does
        # not say which key has encrypted it.
        for cipher in self._ciphers:
            try:
                secret: bytes = cipher.decrypt(nonce, sealed, _owner(key.id, key.user))
            except (self._invalid_tag, ValueError):  # ValueError: too short for a nonce
                continue
            return secret
        return None


def _keys_in(path: Path) -> Sequence[bytes]:
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="ascii").splitlines()]
        keys = [b64decode(line, validate=True) for line in lines if line]
    except (OSError, UnicodeDecodeError, binascii.Error) as exc:
        raise MisuseError(f"--access-key-file {path} cannot be read: {exc}; {_HOW}") from exc
    if not keys or any(len(key) != _FILE_KEY_SIZE_BYTES for key in keys):
        raise MisuseError(
            f"--access-key-file {path} does not have {_FILE_KEY_SIZE_BYTES} bytes in base64 on each line: {_HOW}"
        )
    return keys


_HOW: Final = "`txmsg user access-key file FILE` makes one"


def _owner(key_id: str, user: str) -> bytes:
    return f"{key_id} {user}".encode()
