"""Alerts that brokers raise, silences, and receivers of notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from txmsg.administration.ask import Nothing
from txmsg.checks.check import Severity
from txmsg.wire.method import Method
from txmsg.wire.values import Natural, NumberRange


class AlertState(StrEnum):
    """A state of an alert."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveAlert:
    """A stored alert. id 0: new, not stored yet.

    source: the evaluator of its condition: the id of the broker that it concerns, or "(database)" for any broker.
    seen_at: the last time that its condition held.
    """

    id: int = 0
    source: str
    rule: str
    labels: Mapping[str, str]
    severity: Severity
    summary: str
    action: str
    state: AlertState
    value: float
    since: datetime
    seen_at: datetime
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    notified_at: datetime | None = None
    silences: Sequence[int] = ()
    """Ids of the silences in force for it, in a broker's answer; they are not stored with the alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A silence of the alerts that match all matchers, LABEL=PATTERN with * and ?: receivers are not notified."""

    id: int
    matchers: Sequence[str]
    reason: str
    created_by: str
    created_at: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertReceiver:
    """A receiver of notifications. kind: webhook, email or command; None if unknown to the broker that was asked."""

    name: str
    kind: str | None = None
    waiting: int = 0
    """Notifications that it has not yet accepted."""
    attempts: int = 0
    """Attempts to deliver the next one."""
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertList:
    """Current alerts, firing ones first, then pending ones; the silences in force; receivers by name."""

    alerts: Sequence[ActiveAlert]
    silences: Sequence[Silence]
    receivers: Sequence[AlertReceiver]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertHistoryQuery:
    """A query of past alerts, at most `limit`."""

    limit: Annotated[int, NumberRange(1, 10_000)] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertHistory:
    """Past alerts, the last one first."""

    alerts: Sequence[ActiveAlert]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSilence:
    """A silence to begin now. for_s: above 0, at most 366 days.

    created_by: used only without authentication; with it, the user of the call is recorded.
    """

    matchers: Sequence[str]
    for_s: float
    reason: str
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfSilence:
    """A request to end a silence."""

    id: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceEnded:
    """The reply to that. held: False if the silence was unknown or over."""

    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcomes:
    """The error of a test notification by receiver; None: it was delivered."""

    receivers: Mapping[str, str | None]


class AlertsService:
    """The service Alerts."""

    list: Final = Method("Alerts/List", Nothing, AlertList)
    history: Final = Method("Alerts/History", AlertHistoryQuery, AlertHistory)
    silence: Final = Method("Alerts/Silence", NewSilence, Silence)
    """Create a silence. Not idempotent."""
    unsilence: Final = Method("Alerts/Unsilence", EndOfSilence, SilenceEnded)
    test: Final = Method("Alerts/Test", Nothing, TrialOutcomes)
