"""Messages, their ids, and what may stand in them. Knows no database, no network and no clock but its own uuid7."""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import NewType
from uuid import UUID

import uuid_utils

from txmsg.errors import InvalidMessage, InvalidName, MessageTooLarge

__all__ = [
    "BODY_SIZE_BYTES_MAX",
    "HEADERS_SIZE_BYTES_MAX",
    "KEY_SIZE_BYTES_MAX",
    "MESSAGES_PER_TRANSACTION_MAX",
    "Message",
    "MessageId",
    "ReceivedMessage",
    "TransactionId",
    "TransactionState",
    "check_name",
    "message_id",
    "new_transaction_id",
    "new_transaction_id_bytes",
    "parse_message_id",
]

TransactionId = NewType("TransactionId", UUID)
"""UUIDv7 made by the client, so that a retried half message is the same half message."""

MessageId = NewType("MessageId", str)
"""`<transaction id>.<n>`: a function of the transaction and of the message's place in it."""

BODY_SIZE_BYTES_MAX = 4 * 1024 * 1024
HEADERS_SIZE_BYTES_MAX = 64 * 1024
KEY_SIZE_BYTES_MAX = 512  # an index entry must fit a PostgreSQL btree page
MESSAGES_PER_TRANSACTION_MAX = 1000

_NAME = re.compile(r"[A-Za-z0-9%_][A-Za-z0-9._%-]{0,126}\Z")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class TransactionState(enum.Enum):
    """What became of a local transaction. UNKNOWN is an answer: the broker asks again later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


def new_transaction_id() -> TransactionId:
    """A fresh UUIDv7: unique without coordination, and rising, so that indexes stay dense."""
    return TransactionId(UUID(bytes=new_transaction_id_bytes()))


def new_transaction_id_bytes() -> bytes:
    """`new_transaction_id` in its 16 bytes, at a tenth of the cost: for the hot path."""
    return uuid_utils.uuid7().bytes


def message_id(transaction_id: UUID, n: int) -> MessageId:
    """The id of the n-th (from 0) message of a transaction. A plain send is a transaction of one."""
    return MessageId(f"{transaction_id}.{n}")


def parse_message_id(text: str) -> tuple[TransactionId, int]:
    """The inverse of `message_id`. Raises InvalidMessage for any other text."""
    head, _, tail = text.partition(".")
    try:
        return TransactionId(UUID(head)), int(tail or "0")
    except ValueError as exc:
        raise InvalidMessage(f"message id {text!r} is not of the form <uuid>.<number>") from exc


def check_name(what: str, name: object) -> str:
    """`name` if it can name a topic, group or tag; else InvalidName. `what` stands in the error."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidName(
            f"{what} {name!r} is not a valid name: use 1 to 127 of the characters A-Z a-z 0-9 . _ - %, "
            "beginning with a letter, a digit, _ or %"
        )
    return name


def _check_text(what: str, text: object, size_bytes_max: int) -> str:
    if not isinstance(text, str):
        raise InvalidMessage(f"{what} must be str, not {type(text).__name__}")
    if "\0" in text:
        raise InvalidName(f"{what} {text[:60]!r} holds a NUL character, which the database cannot store")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as exc:
        raise InvalidName(f"{what} {text[:60]!r} holds a lone surrogate, which is not valid Unicode") from exc
    if size_bytes > size_bytes_max:
        raise InvalidName(f"{what} is {size_bytes} bytes long in UTF-8: at most {size_bytes_max} are allowed")
    return text


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be sent.

    topic: first-level class; body: the payload, opaque to txmsg; key: a business id to find it by;
    tag: second-level class, for filtering; headers: text pairs for applications.
    Raises InvalidMessage, InvalidName or MessageTooLarge when made of anything that cannot be stored.
    """

    topic: str
    body: bytes
    key: str | None = None
    tag: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)

    def __post_init__(self) -> None:
        check_name("topic", self.topic)
        if not isinstance(self.body, bytes):
            raise InvalidMessage(f"body must be bytes, not {type(self.body).__name__}: encode it first")
        if len(self.body) > BODY_SIZE_BYTES_MAX:
            raise MessageTooLarge(
                f"body of {len(self.body)} bytes for topic {self.topic!r} is over the limit of "
                f"{BODY_SIZE_BYTES_MAX}: store it elsewhere and send its address"
            )
        if self.tag is not None:
            check_name("tag", self.tag)
        if self.key is not None and not _check_text("key", self.key, KEY_SIZE_BYTES_MAX):
            raise InvalidName("key is empty: give None for a message without a key")
        if self.headers:
            self._check_headers()

    def _check_headers(self) -> None:
        size_bytes = 0
        for name, value in self.headers.items():
            _check_text("header name", name, HEADERS_SIZE_BYTES_MAX)
            _check_text(f"header {name!r}", value, HEADERS_SIZE_BYTES_MAX)
            size_bytes += len(name.encode()) + len(value.encode())
        if size_bytes > HEADERS_SIZE_BYTES_MAX:
            raise MessageTooLarge(f"headers are {size_bytes} bytes long: at most {HEADERS_SIZE_BYTES_MAX} are allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message as a consumer gets it, or as a check listener is shown it (then queue and offset are None).

    attempt counts deliveries to this group from 1. born_at is the sender's clock, stored_at the database's.
    """

    id: MessageId
    transaction_id: TransactionId
    topic: str
    body: bytes
    key: str | None = None
    tag: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    queue: int | None = None
    offset: int | None = None
    attempt: int = 1
    born_at: datetime
    stored_at: datetime


def now_us() -> int:
    """Microseconds since 1970, UTC, by this machine's clock. Informative only: no decision rests on it."""
    return time.time_ns() // 1000
