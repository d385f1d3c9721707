"""The half messages of a Notify database, and a broker's counts, by the service Admin of any of its brokers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from txmsg.administration.ask import Nothing
from txmsg.errors import OutcomeExpired
from txmsg.message import MESSAGES_PER_TRANSACTION_MAX
from txmsg.wire.method import Method
from txmsg.wire.values import NumberRange


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfQuery:
    """A query of half messages that match all given values. with_bodies: and headers. after: the last page's `next`."""

    group: str = ""
    """The producer group; "": all."""
    parked_only: bool = False
    transaction_id: UUID | None = None
    limit: Annotated[int, NumberRange(1, 10_000)] = 100
    with_bodies: bool = False
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfMessage:
    """A half message, or a committed one that waits for an earlier one of its ordering key (held_back_by).

    next_check_at: None while it is parked. clients: the number attached to the broker that was asked that can answer
    its check. headers and body may be empty unless asked for. group: of the producer; "" for a committed plain message.
    """

    transaction_id: UUID
    n: int
    group: str
    topic: str
    key: str | None = None
    ordering_key: str | None = None
    tag: str | None = None
    born_at: datetime
    stored_at: datetime
    next_check_at: datetime | None = None
    checks: int
    parked_reason: str | None = None
    deliver_at: datetime | None = None
    """The due time; None: at once."""
    committed: bool = False
    held_back_by: UUID | None = None
    """The earlier transaction; None also for a message that is entering its queue."""
    fence_id: UUID | None = None
    clients: int = 0
    headers: Mapping[str, str]
    body: bytes
    is_withheld: bool = False
    """True if headers and body were asked for and left out, because the caller may not read the topic."""

    def is_unanswerable(self, now: datetime) -> bool:
        """Return True if its check is due, and no client can answer it."""
        return self.next_check_at is not None and self.next_check_at <= now and not self.clients


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfPage:
    """Half messages, the oldest first: up to the limit, and only those that begin within 16 MiB of headers and bodies.

    next: `after` of the next page; None for the last one.
    """

    halves: Sequence[HalfMessage]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfDecision:
    """A decision on a transaction: commit or rollback. reason: for the audit log and the broker's log."""

    transaction_id: UUID
    commit: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeHalves:
    """A request to check again: one transaction, or all parked ones of a producer group."""

    transaction_id: UUID | None = None
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The number of parked transactions that are checked again."""

    resumed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The lag of a group in a topic: messages not yet acknowledged, waiting for a retry, and dead."""

    group: str
    topic: str
    waiting: int
    retrying: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Undecided transactions, those of them in doubt, and the lag of groups; and counts since the broker's start.

    unread_dropped: messages in segments that this broker dropped, once for each group that had not read them.
    """

    halves: int
    in_doubt: int
    committed_by_client: int
    rolled_back_by_client: int
    committed_by_check: int
    rolled_back_by_check: int
    groups: Sequence[GroupLag]
    segments_dropped: int
    unread_dropped: int


class AdminService:
    """The service Admin."""

    list_halves: Final = Method("Admin/ListHalves", HalfQuery, HalfPage)
    resolve_half: Final = Method("Admin/ResolveHalf", HalfDecision, Nothing)
    """Decide a transaction for good. Raises OutcomeConflict if it has the other outcome."""
    resume_halves: Final = Method("Admin/ResumeHalves", ResumeHalves, Resumed)
    """Check parked transactions again, at once, as if they were new. Others are left alone. Idempotent."""
    stats: Final = Method("Admin/Stats", Nothing, Stats)


def of_transaction(transaction_id: UUID, *, with_bodies: bool = True) -> HalfQuery:
    """Return a query of all half messages of a transaction. The reply has a `next` if they are too large for one."""
    return HalfQuery(transaction_id=transaction_id, with_bodies=with_bodies, limit=MESSAGES_PER_TRANSACTION_MAX)


def found_of(transaction_id: UUID, page: HalfPage) -> HalfPage:
    """Return the reply to that query. Raises OutcomeExpired if it has no half messages."""
    if not page.halves:
        raise OutcomeExpired(
            f"there is no half message of transaction {transaction_id}: it was decided, or never stored here; "
            "`txmsg half list` shows undecided ones"
        )
    return page
