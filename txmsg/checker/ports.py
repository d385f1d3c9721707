"""Protocols of the check loop's environment: half messages, clients to ask, a writer of outcomes.

The broker implements them; the loop knows no SQL and no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from txmsg.checker.policy import ParkReason
from txmsg.message import ReceivedMessage, TransactionId, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Askable:
    """Half messages that a client attached to this broker can answer for."""

    group: str
    """The producer group."""
    fence_id: UUID | None
    """The fence those clients can read. None: halves without a fence, answered by the user's own listener."""
    interval_s: float
    """Seconds by which a claim postpones next_check_at, from the group's policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueHalf:
    """A half message claimed for a check: one per transaction, however many messages the transaction holds."""

    transaction_id: TransactionId
    group: str
    fence_id: UUID | None
    checks: int
    """Number of this check, from 1: the claim has counted it."""
    age_s: float
    """Seconds since it was stored, by the database's clock."""
    overdue_s: float
    """Seconds it was due before it was claimed, by the database's clock."""
    message: ReceivedMessage
    """The first (n = 0) of its messages, for the listener. queue and offset are None."""
    trace: str = ""
    """The traceparent of the check's span, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The result of one claim."""

    halves: Sequence[DueHalf]
    through: datetime
    """End of the window, by the database's clock: if fewer than `limit` were found, the statement's now();
    else the latest next_check_at (as it was before the claim) among those found."""


class HalfStore(Protocol):
    """The half messages of one Notify database, as the check loop sees them. Every call is its own transaction."""

    async def claim_due(self, askable: Sequence[Askable], *, limit: int, since: datetime | None) -> Claim:
        """Claim at most `limit` halves that are due and answerable by one of `askable`, the longest due first.

        Due is since <= next_check_at <= now() of the database, and not parked; `since` None looks at all (the sweep).
        Answerable is: same group and same fence id (None equals None). One statement: FOR UPDATE SKIP LOCKED, and in
        the same statement next_check_at = now() + the group's interval_s and checks = checks + 1, so that no other
        broker claims them before the interval is over, even if this one dies.
        """
        ...

    async def park(self, transaction_ids: Sequence[TransactionId], reason: ParkReason) -> None:
        """End the checks of these halves (next_check_at = null, parked_reason = the text of `reason`).

        Halves that have been resolved meanwhile are passed over. Idempotent.
        """
        ...

    async def park_abandoned(
        self, *, overdue_s: float, groups: Sequence[str] | None, except_groups: Sequence[str], limit: int
    ) -> int:
        """Park (NO_CLIENT) at most `limit` halves with next_check_at < now() - overdue_s. Returns their number.

        A half is claimed by whichever broker has a client for it; so one that stays due has none anywhere.
        `groups` None means all groups but `except_groups`; otherwise only `groups`. FOR UPDATE SKIP LOCKED.
        """
        ...


class CheckClients(Protocol):
    """The clients attached to this broker, as the check loop sees them."""

    def askable(self) -> Sequence[tuple[str, UUID | None]]:
        """Return producer group and fence id of all that can be asked now. A fence id of None: has a listener."""
        ...

    async def ask_client(self, half: DueHalf) -> TransactionState | None:
        """Ask one client with the group and the fence id of `half`. May be cancelled. Any error counts as UNKNOWN.

        None: the transaction was decided meanwhile.
        """
        ...


class Resolver(Protocol):
    """The broker's writer, as the check loop sees it."""

    async def end_transactions(
        self, *, commit: Sequence[TransactionId] = (), rollback: Sequence[TransactionId] = ()
    ) -> None:
        """Make these outcomes final; returns when they are on disk. Raises the errors of EndTransactions."""
        ...
