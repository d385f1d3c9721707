"""Encryption of bodies between a producer and its consumers: brokers, databases and logs cannot read them.

Knows no network. Keys are the application's own; `cryptography` (the extra txmsg[crypto]) is loaded with the first
AesGcm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, Protocol

from txmsg.errors import InvalidMessage, MisuseError, shown
from txmsg.message import Message, ReceivedMessage

__all__ = ["AesGcm", "Encryption"]

ENCRYPTION_HEADER: Final = "txmsg-encryption"
"""The header that names the key of an encrypted body."""

_NONCE_SIZE_BYTES: Final = 12
_KEY_SIZES_BYTES: Final = (16, 24, 32)


class Encryption(Protocol):
    """The interface of `encryption=`. Both methods are called on any thread, and must not block."""

    def encrypt(self, message: Message) -> Message:
        """Return the message to send instead. A message that is already encrypted is returned unchanged."""
        ...

    def decrypt(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return the message to handle instead. A message that is not encrypted is returned unchanged.

        An exception counts as one of the handler, or of the check listener. It must not contain the body.
        """
        ...


class AesGcm:
    """Encrypts bodies with AES-GCM and keys of the application. Authenticates topic and key with the body.

    keys: 16, 24 or 32 random bytes each, by key id, which is sent as a header. current: the id of the key to encrypt
    with; to decrypt, the key that a message names is used. topics: those to encrypt; None: all. required: refuse
    messages of these topics that are not encrypted; without it they are delivered unchanged, so that you can switch a
    topic while it has messages.

    To rotate: give the new key to all consumers; then make it current at producers; remove the old one when no message
    encrypted with it is kept. Encrypt at most 2 ** 32 messages with one key: the nonce is random.
    """

    def __init__(
        self, keys: Mapping[str, bytes], *, current: str, topics: Collection[str] | None = None, required: bool = False
    ) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as exc:
            raise MisuseError("AesGcm needs the package cryptography: pip install 'txmsg[crypto]'") from exc
        if current not in keys:
            raise MisuseError(f"current={shown(current)} is not the id of one of the keys {sorted(keys)}")
        for key_id, key in keys.items():
            if not isinstance(key, bytes) or len(key) not in _KEY_SIZES_BYTES:
                raise MisuseError(f"key {key_id!r} is not 16, 24 or 32 bytes: generate one by `os.urandom(32)`")
        # A str is a collection of str, too: of its characters, none of which is a topic, so nothing would be
        # encrypted.
        if isinstance(topics, str):
            raise MisuseError(f"topics={topics!r} is one str: give a set of topics")
        self._keys = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._current = current
        self._topics = topics
        self._required = required
        self._invalid_tag = InvalidTag

    def __repr__(self) -> str:
        return f"AesGcm(keys={sorted(self._keys)}, current={self._current!r})"

    def encrypt(self, message: Message) -> Message:
        """Return the message encrypted with the current key; unchanged if encrypted, or its topic is not covered.

        Raises InvalidMessage if its header says that it is encrypted, but it cannot be decrypted.
        """
        if not self._covers(message.topic):
            return message
        if ENCRYPTION_HEADER in message.headers:
            # A header is no proof: a body in clear must not leave because of it.
            self.decrypt(ReceivedMessage(message.topic, message.body, key=message.key, headers=message.headers))
            return message
        # Random rather than counted: processes share a key, but no counter.
        nonce = os.urandom(_NONCE_SIZE_BYTES)
        context = _context(self._current, message.topic, message.key)
        body = nonce + self._keys[self._current].encrypt(nonce, message.body, context)
        return replace(message, body=body, headers={**message.headers, ENCRYPTION_HEADER: self._current})

    def decrypt(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return the message decrypted and without the header; unchanged if it is not encrypted.

        Raises InvalidMessage, which names the key id, if the key is missing or the message was changed; also for a
        message that is not encrypted if encryption is required.
        """
        key_id = message.headers.get(ENCRYPTION_HEADER)
        if key_id is None:
            if self._required and self._covers(message.topic):
                raise InvalidMessage(
                    f"message {message.id} of topic {message.topic!r} is not encrypted: encrypt where it is sent, or "
                    "read it without required=True"
                )
            return message
        key = self._keys.get(key_id)
        if key is None:
            raise _undecipherable(message, key_id, f"this process has the keys {sorted(self._keys)}: give it the key")
        nonce, sealed = message.body[:_NONCE_SIZE_BYTES], message.body[_NONCE_SIZE_BYTES:]
        try:
            body = key.decrypt(nonce, sealed, _context(key_id, message.topic, message.key))
        except (self._invalid_tag, ValueError):  # ValueError: too short for a nonce
            why = "another key has this id, or body, topic or key were changed after it was encrypted"
            raise _undecipherable(message, key_id, why) from None
        headers = {name: value for name, value in message.headers.items() if name != ENCRYPTION_HEADER}
        return message._replace(body=body, headers=headers)

    def _covers(self, topic: str) -> bool:
        return self._topics is None or topic in self._topics


def _context(key_id: str, topic: str, key: str | None) -> bytes:
    # JSON rather than joined text: no two triples may give the same bytes, or a body could be moved between messages.
    return json.dumps([key_id, topic, key]).encode()


def _undecipherable(message: ReceivedMessage, key_id: str, why: str) -> InvalidMessage:
    return InvalidMessage(
        f"the body of message {message.id} of topic {message.topic!r} cannot be decrypted with key id {shown(key_id)}: "
        f"{why}"
    )
