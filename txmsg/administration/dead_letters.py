"""Dead letters: messages that a group could not process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from txmsg.administration.ask import moment
from txmsg.wire.v1 import dead_letters_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why one attempt failed. is_expired: it was not settled within its visibility timeout, rather than refused."""

    attempt: int
    at: datetime | None
    error: str
    is_expired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters: all that is said must hold. "" and None say nothing."""

    group: str = ""
    topic: str = ""
    since: datetime | None = None
    """Died then or later."""
    until: datetime | None = None
    """Died before then."""
    error: str = ""
    """In the last error, whatever the case of its letters."""
    id: str = ""
    """Of a message (UUID.NUMBER), or of a transaction (UUID)."""
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message whose retries are used up. headers, body and failures may be empty unless they were asked for."""

    id: str
    group: str
    topic: str
    queue: int | None
    offset: int | None
    key: str | None
    tag: str | None
    ordering_key: str | None
    blocks_key: bool
    """Later messages of its ordering key wait for it."""
    born_at: datetime | None
    stored_at: datetime | None
    died_at: datetime | None
    attempts: int
    generation: int
    """How often it was redelivered on request."""
    last_error: str | None
    body_size_bytes: int
    headers: Mapping[str, str]
    body: bytes
    is_withheld: bool
    """Headers and body were asked for, and left out: the caller may not read the topic."""
    failures: Sequence[Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPage:
    """Dead letters, the longest dead first. next: what names the page after this one; None for the last one."""

    letters: Sequence[DeadLetter]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Dead letters that are to be redriven or purged. Those that die meanwhile are none of them, in Notify."""

    which: DeadLetterFilter
    count: int


def failures_of(failures: Iterable[dead_letters_pb2.Failure]) -> list[Failure]:
    """Why attempts failed, as a broker tells it."""
    return [
        Failure(attempt=each.attempt, at=moment(each.at_us), error=each.error, is_expired=each.expired)
        for each in failures
    ]
