"""Alerts that brokers raise, silences, and who is told."""

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
    """Where an alert is in its life."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveAlert:
    """An alert, as it is stored. id 0: it is new, and not stored yet.

    source: who looks whether it holds: the id of the broker that it concerns, or "(database)" for any of them. seen_at:
    when its condition was last seen to hold.
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
    """Ids of those that hold receivers off it now, as a broker answers; they are not stored with the alert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Which alerts receivers are not told of: those that all matchers fit, LABEL=PATTERN with * and ?."""

    id: int
    matchers: Sequence[str]
    reason: str
    created_by: str
    created_at: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertReceiver:
    """Who is told. kind: webhook, email or command; None if the broker that was asked does not know this one."""

    name: str
    kind: str | None = None
    waiting: int = 0
    """Notifications that it has not taken."""
    attempts: int = 0
    """Of the next one."""
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertList:
    """All that is going on: firing alerts first, then pending ones; the silences that hold; receivers by name."""

    alerts: Sequence[ActiveAlert]
    silences: Sequence[Silence]
    receivers: Sequence[AlertReceiver]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertHistoryQuery:
    """How many of the alerts that are over."""

    limit: Annotated[int, NumberRange(1, 10_000)] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertHistory:
    """Alerts that are over, the last one first."""

    alerts: Sequence[ActiveAlert]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSilence:
    """A silence that is to hold from now on. for_s: above 0, at most 366 days.

    created_by: kept without authentication only; with it, the user of the call is.
    """

    matchers: Sequence[str]
    for_s: float
    reason: str
    created_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfSilence:
    """Which silence is to end."""

    id: Natural


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceEnded:
    """held: False if there is no such silence, or it was over."""

    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcomes:
    """By the name of each receiver what went wrong; None: it was told."""

    receivers: Mapping[str, str | None]


class AlertsService:
    """The service Alerts."""

    list: Final = Method("Alerts/List", Nothing, AlertList)
    history: Final = Method("Alerts/History", AlertHistoryQuery, AlertHistory)
    silence: Final = Method("Alerts/Silence", NewSilence, Silence)
    """Not idempotent."""
    unsilence: Final = Method("Alerts/Unsilence", EndOfSilence, SilenceEnded)
    test: Final = Method("Alerts/Test", Nothing, TrialOutcomes)
