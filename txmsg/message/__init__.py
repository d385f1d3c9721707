"""Messages, their ids, and the limits of their contents. Knows no database, no network and no clock but its uuid7.

columns      many messages as lists, one for each field
typed        topics with a type of payloads, and their schemas
encryption   bodies that applications encrypt
erasable     bodies that brokers encrypt, with a key each
"""

from __future__ import annotations

import enum
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, NewType, cast
from uuid import UUID

import uuid_utils

from txmsg.errors import InvalidMessage, InvalidName, MessageTooLarge, shown

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P_co = TypeVar("P_co", covariant=True, default=Any)
else:  # the default is for type checkers: `ReceivedMessage` alone has a payload of any type
    from typing import TypeVar

    P_co = TypeVar("P_co", covariant=True)

__all__ = [
    "Message",
    "MessageId",
    "ReceivedMessage",
    "TransactionId",
    "TransactionState",
    "message_id",
    "new_transaction_id",
    "parse_message_id",
]

TransactionId = NewType("TransactionId", UUID)
"""A UUIDv7 created by the client, so that a retried half message is the same half message."""

QueueId = NewType("QueueId", int)
"""A queue's key in the whole Notify database."""

QueueNumber = NewType("QueueNumber", int)
"""A queue's number in its topic, from 0."""

Offset = NewType("Offset", int)
"""A message's position in its queue: 0, 1, 2, ... in the order of commits."""

MessageId = NewType("MessageId", str)
"""`<transaction id>.<n>`: n is the number of the message in its transaction."""

BODY_SIZE_BYTES_MAX = 4 * 1024 * 1024
"""The default limit of a broker for a message's body."""
BODY_SIZE_BYTES_CEILING = 32 * 1024 * 1024
"""The highest limit that a broker can have: a message is sent in one request, of at most 64 MiB."""
NAME_SIZE_MAX = 127
"""Characters of a topic, group or tag."""
HEADERS_SIZE_BYTES_MAX = 64 * 1024
"""Names and values of a message's headers, in UTF-8."""
KEY_SIZE_BYTES_MAX = 512
"""A message's key, in UTF-8: an index entry must fit a page of PostgreSQL's btree."""
DELAY_MAX = timedelta(days=366)
"""The longest delay of a message."""
FIRST_CHECK_MAX = timedelta(days=1)
"""The longest time before the first check of a half message."""
QUEUES_MAX = 1024
"""The largest number of a topic's queues; a CHECK of the table `topic` has the same."""
MESSAGES_PER_TRANSACTION_MAX = 1000
"""The largest number of messages of one transaction, or of one `send_many`."""

ANY_TYPE: Final = "any"
"""The type of a topic that takes messages of all types."""

_NAME = re.compile(rf"[A-Za-z0-9%_][A-Za-z0-9._%-]{{0,{NAME_SIZE_MAX - 1}}}\Z")
_ODD_IN_NAME = re.compile(r"[^A-Za-z0-9._%-]")
_NOT_IN_TAG = r"|\x00-\x1f\x7f-\x9f\ud800-\udfff"
# `&&` and a lone `*` are words of tag expressions: a tag that no expression can name could not be subscribed to.
_TAG = re.compile(rf"(?!\*\Z|.*&&)[^\s{_NOT_IN_TAG}](?:[^{_NOT_IN_TAG}]{{0,{NAME_SIZE_MAX - 2}}}[^\s{_NOT_IN_TAG}])?\Z")
_ODD_IN_TAG = re.compile(f"[{_NOT_IN_TAG}]")
_ROCKETMQ_ID = re.compile(r"01[0-9A-Fa-f]{32}")
_DELAY_US_MAX = DELAY_MAX // timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)
# One object for all messages without headers: an identity check then replaces copying and checking.
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_2000_US: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, PostgreSQL's epoch. Names of times since 2000 end in `_2000_us`."""


class TransactionState(enum.Enum):
    """The outcome of a local transaction. UNKNOWN is an answer: the broker checks back later."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


os.register_at_fork(after_in_child=uuid_utils.reseed_rng)  # or children of one parent would make the same ids


def new_transaction_id() -> TransactionId:
    """Return a new UUIDv7: unique without coordination, and ascending, so that indexes stay dense."""
    return TransactionId(UUID(bytes=new_transaction_id_bytes()))


def new_transaction_id_bytes() -> bytes:
    """Return a new transaction id as its 16 bytes, at a tenth of the cost: for the hot path."""
    return uuid_utils.uuid7().bytes


def message_id(transaction_id: UUID, n: int) -> MessageId:
    """Return the id of the n-th (from 0) message of a transaction. A plain send is a transaction of one."""
    return MessageId(f"{transaction_id}.{n}")


def parse_message_id(text: str) -> tuple[TransactionId, int]:
    """Return transaction id and n, the inverse of `message_id`. Raises InvalidMessage for any other text."""
    head, _, tail = text.partition(".")
    try:
        transaction_id, n = TransactionId(UUID(head)), int(tail)
    except ValueError:
        pass
    else:  # UUID and int read more than what is written here: braces, spaces, signs, digits of other scripts
        if message_id(transaction_id, n) == text and n >= 0:
            return transaction_id, n
    raise InvalidMessage(f"message id {shown(text)} is not of the form UUID.NUMBER")


def parse_id(text: str) -> tuple[TransactionId, int | None]:
    """Return the parts of a message id, or a transaction id and None. Raises InvalidMessage for any other text.

    RocketMQ's clients write the id of a transaction as `01` and its 16 bytes.
    """
    if "." in text:
        return parse_message_id(text)
    try:
        transaction_id = TransactionId(UUID(text[2:] if _ROCKETMQ_ID.fullmatch(text) else text))
    except ValueError:
        raise InvalidMessage(
            f"id {shown(text)} is neither that of a message (UUID.NUMBER) nor of a transaction (UUID)"
        ) from None
    return transaction_id, None


def is_name(name: str) -> bool:
    """Return True if the text can name a topic or group."""
    return _NAME.match(name) is not None


def check_name(what: str, name: object) -> str:
    """Return `name` if it can name a topic or group. Raises InvalidName otherwise. `what` names it in the error."""
    if isinstance(name, str) and is_name(name):
        return name
    why = _why_not(name, _ODD_IN_NAME) or f"it begins with {str(name)[0]!r}"
    raise InvalidName(
        f"{what} {shown(name)} is not a valid name: {why}; use 1 to {NAME_SIZE_MAX} of the characters "
        "A-Z a-z 0-9 . _ - %, beginning with a letter, a digit, _ or %"
    )


def _why_not(text: object, odd: re.Pattern[str]) -> str:
    """Return the reason, common to names and tags, why the text is not valid; "" if none. odd: forbidden characters."""
    if not isinstance(text, str):
        return f"it is of type {type(text).__name__}, not str"
    if not text:
        return "it is empty"
    if len(text) > NAME_SIZE_MAX:
        return f"it has {len(text)} characters"
    found = odd.search(text)
    return f"it holds {found[0]!r}" if found else ""


def is_tag(text: str) -> bool:
    """Return True if the text can be a tag: one that a tag expression can name."""
    return _TAG.match(text) is not None


def check_tag(tag: object) -> str:
    """Return `tag` if it is a valid tag. Raises InvalidName otherwise."""
    if isinstance(tag, str) and is_tag(tag):
        return tag
    why = _why_not(tag, _ODD_IN_TAG)
    if not why and "&&" in str(tag):
        why = "it holds &&"
    elif not why:
        why = "it means all tags" if tag == "*" else "it begins or ends with a blank"
    raise InvalidName(
        f"tag {shown(tag)} is not valid: {why}; use 1 to {NAME_SIZE_MAX} characters without |, &&, control characters, "
        "and blanks at the ends"
    )


def check_body_size(body: bytes, topic: str, size_bytes_max: int) -> None:
    """Raises MessageTooLarge for a body above the limit: the broker's, or the highest that any broker can have."""
    if len(body) > size_bytes_max:
        may_rise = size_bytes_max < BODY_SIZE_BYTES_CEILING
        raise MessageTooLarge(
            f"body of {len(body)} bytes for topic {topic!r} is over the limit of {size_bytes_max}: store it elsewhere "
            "and send its address" + (", or start the brokers with a higher --body-size-max" if may_rise else "")
        )


def _check_text(what: str, text: object, error: type[InvalidMessage], *, of: str | None = None) -> str:
    """Return `text` if PostgreSQL and the wire can carry it; raise `error` otherwise. of: the header whose value it is.

    The error's words are made only when it is raised: this is called for each header of each message.
    """
    if not isinstance(text, str):
        raise InvalidMessage(
            f"{_with_name(what, of)} must be str, not {type(text).__name__} ({shown(text)}): make a text of it first"
        )
    if "\0" in text:
        raise error(
            f"{_with_name(what, of)} {shown(text)} contains a NUL character, which ends text in many programs: "
            "remove it"
        )
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise error(
            f"{_with_name(what, of)} {shown(text)} contains a lone surrogate at position {exc.start}, which is not "
            "valid Unicode: decode the text with its own encoding, without errors='surrogateescape'"
        ) from exc
    return text


def _with_name(what: str, name: str | None) -> str:
    return what if name is None else f"{what} {shown(name)}"


def _check_key(what: str, key: object) -> None:
    """Raises InvalidName or InvalidMessage for a value that cannot be a key, or an ordering key."""
    text = _check_text(what, key, InvalidName)
    size_bytes = len(text.encode())
    if not size_bytes:
        raise InvalidName(f"{what} is empty: give None for a message without one")
    if size_bytes > KEY_SIZE_BYTES_MAX:
        raise InvalidName(
            f"{what} {shown(text)} is {size_bytes} bytes long in UTF-8: at most {KEY_SIZE_BYTES_MAX} are allowed; "
            "shorten it, or use a digest"
        )


def type_of_message(*, is_half: bool, ordering_key: str, is_delayed: bool) -> str:
    """Return the type of one message: a half message is of type transaction, even with a key or a delay."""
    if is_half:
        return "transaction"
    if is_delayed:
        return "delay"
    return "fifo" if ordering_key else "normal"


def check_delay(topic: str, delay_us: int) -> None:
    """Raises InvalidMessage for a delay above DELAY_MAX."""
    if delay_us > _DELAY_US_MAX:
        raise InvalidMessage(
            f"a message for topic {topic!r} would be due in {delay_us / 86400000000:.1f} days: at most "
            f"{DELAY_MAX.days} are allowed; send it later"
        )


@dataclass(frozen=True, slots=True)
class Message:
    """A message to be sent.

    topic: the name under which it is sent; body: the payload, opaque to txmsg; key: a business id to find it by;
    tag: any text, by which consumers select messages of a topic; headers: text pairs for applications, which are
    copied.

    ordering_key: messages of one topic and ordering key are delivered one at a time, in the order in which they were
    stored (in a transaction: in which its half messages were stored). An undecided transaction holds back the later
    messages of its keys.

    deliver_at (a datetime with time zone) or deliver_after: the message is not delivered before, at most 366 days
    ahead. deliver_after counts from when a broker stores it; in a transaction that is when the half message is stored,
    so a message that is due by the time of the commit is delivered then. Both are measured by the clock of the
    brokers' database, not by the sender's. Not together with an ordering key.

    first_check_after: for a long local transaction, the time after storing the half message at which it is first
    checked, at most a day; None: the default of its producer group or the broker. In a transaction with several
    messages, that of the first one counts; without a transaction it has no effect.

    Raises InvalidMessage, InvalidName or MessageTooLarge for values that cannot be stored. A body may be as large as
    the largest possible limit of a broker (32 MiB); the broker that receives it refuses bodies above its own (4 MiB).
    """

    topic: str
    body: bytes
    key: str | None = None
    tag: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    ordering_key: str | None = field(default=None, kw_only=True)
    deliver_at: datetime | None = field(default=None, kw_only=True)
    deliver_after: timedelta | None = field(default=None, kw_only=True)
    first_check_after: timedelta | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_name("topic", self.topic)
        if not isinstance(self.body, bytes):
            raise InvalidMessage(
                f"body for topic {self.topic!r} must be bytes, not {type(self.body).__name__}: encode it first, as by "
                "text.encode(), json.dumps(value).encode() or bytes(buffer)"
            )
        check_body_size(self.body, self.topic, BODY_SIZE_BYTES_CEILING)
        if self.tag is not None:
            check_tag(self.tag)
        if self.key is not None:
            _check_key("key", self.key)
        if self.headers is not _NO_HEADERS:
            self._copy_headers()
        if self.ordering_key is not None:
            _check_key("ordering key", self.ordering_key)
        if self._is_delayed:
            self._check_delay()
        if self.first_check_after is not None:
            self._check_first_check(self.first_check_after)

    @property
    def _is_delayed(self) -> bool:
        """True if it has a due time."""
        return self.deliver_at is not None or self.deliver_after is not None

    def _deliver_at_us(self, sent_at_us: int) -> int:
        """Return the due time of a delayed message sent at `sent_at_us`, in us since 1970. Raises InvalidMessage."""
        if self.deliver_at is not None:
            deliver_at_us = max(us_of_datetime(self.deliver_at), 1)  # 0 means: not delayed
        else:
            assert self.deliver_after is not None
            deliver_at_us = sent_at_us + self.deliver_after // timedelta(microseconds=1)
        check_delay(self.topic, deliver_at_us - sent_at_us)
        return deliver_at_us

    @property
    def _deliver_after_us(self) -> int:
        """`deliver_after` in us, at least 1; 0 without one."""
        return 0 if self.deliver_after is None else max(1, self.deliver_after // timedelta(microseconds=1))

    @property
    def _first_check_ms(self) -> int:
        """`first_check_after` in ms, at least 1; 0 without one."""
        return 0 if self.first_check_after is None else max(1, self.first_check_after // _MILLISECOND)

    def _check_first_check(self, after: object) -> None:
        if not isinstance(after, timedelta) or not timedelta(0) <= after <= FIRST_CHECK_MAX:
            raise InvalidMessage(
                f"first_check_after={shown(after)} is not a timedelta of 0 to 24 hours: give one, or leave it out"
            )

    def _check_delay(self) -> None:
        at, after = self.deliver_at, self.deliver_after
        if at is not None and after is not None:
            raise InvalidMessage("a message has deliver_at or deliver_after, not both: leave one out")
        if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
            raise InvalidMessage(
                f"deliver_at={shown(at)} is not a timezone-aware datetime: give one, such as datetime.now(UTC)"
            )
        if after is not None and (not isinstance(after, timedelta) or after < timedelta(0)):
            raise InvalidMessage(
                f"deliver_after={shown(after)} is not a non-negative timedelta: give a timedelta of 0 or more"
            )
        if self.ordering_key is not None:
            raise InvalidMessage(
                "a message with an ordering key cannot be delayed, because later ones of its key would wait with it: "
                "leave out the ordering key or the delay"
            )

    def _copy_headers(self) -> None:
        """Keep a checked copy: later changes of the caller's dict must not reach a batch with others' messages."""
        if not isinstance(self.headers, Mapping):
            raise InvalidMessage(f"headers must be a mapping of str to str, not {type(self.headers).__name__}")
        headers = dict(self.headers)
        # The bound is on the encoded sizes: names and values are stored and sent in UTF-8.
        size_bytes = 0
        for name, value in headers.items():
            size_bytes += len(_check_text("header name", name, InvalidMessage).encode())
            size_bytes += len(_check_text("header", value, InvalidMessage, of=name).encode())
        if size_bytes > HEADERS_SIZE_BYTES_MAX:
            raise MessageTooLarge(
                f"headers are {size_bytes} bytes long: at most {HEADERS_SIZE_BYTES_MAX} are allowed; put more into "
                "the body"
            )
        object.__setattr__(self, "headers", MappingProxyType(headers) if headers else _NO_HEADERS)


class ReceivedMessage(NamedTuple, Generic[P_co]):
    """A received message, for consumers and check listeners (for a check listener, queue and offset are None).

    attempt counts deliveries to this group from 1. To test a handler,
    `ReceivedMessage("user.registered", b"{}")` will do.

    A tuple; attributes that few handlers need are computed on access, because a hundred thousand are created per
    second.
    """

    topic: str
    body: bytes
    key: str | None = None
    tag: str | None = None
    headers: Mapping[str, str] = _NO_HEADERS
    queue: int | None = None
    offset: int | None = None
    attempt: int = 1
    id_bytes: bytes = bytes(16)
    """The transaction id."""
    n: int = 0
    """Its number among the messages of the transaction, from 0."""
    born_at_us: int = 0
    stored_at_us: int = 0
    ordering_key: str | None = None
    """Messages of one ordering key come one at a time, in the order in which they were stored."""
    generation: int = 0
    """Rises with each request to handle it again (`dead-letter redrive`, `group seek --again`): `idempotent` handles it
    once for each, and skips it under a generation lower than the one that it was handled under."""
    payload: P_co = cast(Any, None)
    """The body decoded by its `Topic`; None in handlers that subscribe by a topic's name, and in check listeners."""

    @property
    def id(self) -> MessageId:
        """`<transaction id>.<n>`: the same at every delivery, in every group."""
        return message_id(self.transaction_id, self.n)

    @property
    def transaction_id(self) -> TransactionId:
        """The transaction that sent it."""
        return TransactionId(UUID(bytes=self.id_bytes))

    def json(self) -> Any:
        """Return the body decoded from JSON, the default of producers. Raises InvalidMessage if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as exc:
            raise InvalidMessage(
                f"the body of message {self.id} of topic {self.topic!r} is not JSON ({exc}): read message.body"
            ) from exc

    @property
    def born_at(self) -> datetime:
        """The time of sending, by the sender's clock. UTC."""
        return datetime_of_us(self.born_at_us)

    @property
    def stored_at(self) -> datetime:
        """The time of the commit to its queue (for a check: of storing the half), by the database's clock. UTC."""
        return datetime_of_us(self.stored_at_us)


def datetime_of_us(us: int) -> datetime:
    """Return microseconds since 1970 as a datetime in UTC. Raises InvalidMessage outside of the years 1 to 9999."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError as exc:
        raise InvalidMessage(f"{us} microseconds since 1970 are not in the years 1 to 9999") from exc


def moment(us: int) -> datetime | None:
    """Return microseconds since 1970 as a datetime in UTC; None for 0, which means unknown."""
    return datetime_of_us(us) if us else None


def us_of_datetime(moment: datetime) -> int:
    """Return microseconds since 1970, the inverse of `datetime_of_us`."""
    # Integers throughout: `timestamp()` is a float, and rounds.
    return (moment - _EPOCH) // timedelta(microseconds=1)


def now_us() -> int:
    """Return microseconds since 1970, UTC, by this machine's clock. Informative only: no decision rests on it."""
    return time.time_ns() // 1000
