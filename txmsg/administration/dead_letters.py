"""Dead letters: messages that a group could not process, for operators to inspect, redrive or purge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from txmsg.wire.method import Method
from txmsg.wire.values import NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailure:
    """The failure of one attempt. at: None if unknown.

    is_expired: the message was not settled within its visibility timeout, rather than refused.
    """

    attempt: int
    at: datetime | None = None
    error: str
    is_expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """A filter of dead letters: all given values must match; "" and None match all."""

    group: str = ""
    topic: str = ""
    since: datetime | None = None
    """Dead at this time or later."""
    until: datetime | None = None
    """Dead before this time."""
    error: str = ""
    """A part of the last error, case-insensitive."""
    id: str = ""
    """The id of a message (UUID.NUMBER), or of a transaction (UUID)."""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message whose retries are used up. headers, body and failures may be empty unless asked for."""

    id: str
    """UUID.NUMBER."""
    group: str
    topic: str
    queue: int | None = None
    offset: int | None = None
    key: str | None = None
    tag: str | None = None
    ordering_key: str | None = None
    blocks_key: bool = False
    """Later messages of its ordering key wait for it."""
    born_at: datetime | None = None
    stored_at: datetime | None = None
    died_at: datetime | None = None
    attempts: int
    generation: int
    """The number of redeliveries on request."""
    last_error: str | None = None
    body_size_bytes: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_withheld: bool = False
    """True if headers and body were asked for and left out, because the caller may not read the topic."""
    failures: Sequence[AttemptFailure] = ()
    """The oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterQuery:
    """A page of dead letters. after: `next` of the page before. whole: with headers, bodies and failures."""

    which: DeadLetterFilter = DeadLetterFilter()
    limit: Annotated[int, NumberRange(1, 10_000)] = 100
    after: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Dead letters, the longest dead first. next: `after` of the next page; None for the last one."""

    letters: Sequence[DeadLetter]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Dead letters to redrive or purge. In Notify, messages that die later are not included."""

    which: DeadLetterFilter
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterBatch:
    """A request for up to `limit` of these dead letters; repeated until none is left."""

    which: DeadLetterFilter
    limit: Annotated[int, NumberRange(1, 1000)] = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettersDone:
    """The number of dead letters that were redriven or purged. 0: none is left."""

    count: int


class DeadLettersService:
    """The service DeadLetters."""

    list: Final = Method("DeadLetters/List", DeadLetterQuery, DeadLetterPage)
    count: Final = Method("DeadLetters/Count", DeadLetterFilter, Selection)
    redrive: Final = Method("DeadLetters/Redrive", DeadLetterBatch, DeadLettersDone)
    purge: Final = Method("DeadLetters/Purge", DeadLetterBatch, DeadLettersDone)
