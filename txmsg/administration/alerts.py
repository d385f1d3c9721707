"""Administration of the alerts that brokers raise, by the service Alerts of any of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from txmsg.administration.ask import Ask, moment
from txmsg.wire.v1 import alerts_pb2 as pb
from txmsg.wire.v1.alerts_rpc import Alerts


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert. state: pending, firing or resolved. silences: the ids of those that hold receivers off it now."""

    id: int
    rule: str
    severity: str
    state: str
    labels: Mapping[str, str]
    value: float
    summary: str
    action: str
    since: datetime | None
    fired_at: datetime | None
    resolved_at: datetime | None
    notified_at: datetime | None
    silences: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Which alerts receivers are not told of: those that all matchers fit, LABEL=PATTERN with * and ?."""

    id: int
    matchers: Sequence[str]
    reason: str
    created_by: str
    created_at: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertReceiver:
    """Who is told. kind: webhook, email or command; None if the broker that was asked does not know this one."""

    name: str
    kind: str | None
    waiting: int
    """Notifications that it has not taken."""
    attempts: int
    """Of the next one."""
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertList:
    """All that is going on: firing alerts first, then pending ones."""

    alerts: Sequence[Alert]
    silences: Sequence[Silence]
    receivers: Sequence[AlertReceiver]


class AlertAdministration:
    """The alerts of one Notify database. Calls block. Raises the errors of errors.py."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def alerts(self) -> AlertList:
        """Firing and pending alerts, the silences that hold, and the receivers."""
        reply = self._ask(Alerts.list, pb.ListAlertsRequest())
        return AlertList(
            alerts=[_alert(alert) for alert in reply.alerts],
            silences=[_silence(silence) for silence in reply.silences],
            receivers=[
                AlertReceiver(
                    name=each.name,
                    kind=each.kind or None,
                    waiting=each.waiting,
                    attempts=each.attempts,
                    last_error=each.last_error or None,
                )
                for each in reply.receivers
            ],
        )

    def history(self, limit: int) -> Sequence[Alert]:
        """Alerts that are over, the last one first."""
        return [_alert(alert) for alert in self._ask(Alerts.history, pb.AlertHistoryRequest(limit=limit)).alerts]

    def silence(self, matchers: Sequence[str], *, for_s: float, reason: str, created_by: str) -> Silence:
        """Has receivers not told of alerts that all matchers fit, from now on. Not idempotent."""
        request = pb.SilenceRequest(matchers=matchers, for_s=for_s, reason=reason, created_by=created_by)
        return _silence(self._ask(Alerts.silence, request).silence)

    def unsilence(self, silence_id: int) -> bool:
        """Ends a silence; whether it held."""
        return self._ask(Alerts.unsilence, pb.UnsilenceRequest(id=silence_id)).held

    def test(self) -> Mapping[str, str | None]:
        """Tells each receiver of one broker of an alert that is none; by name what went wrong, or None."""
        reply = self._ask(Alerts.test, pb.TestAlertsRequest())
        return {each.receiver: each.error or None for each in reply.receivers}


def _alert(alert: pb.Alert) -> Alert:
    return Alert(
        id=alert.id,
        rule=alert.rule,
        severity=alert.severity,
        state=alert.state,
        labels=dict(sorted(alert.labels.items())),
        value=alert.value,
        summary=alert.summary,
        action=alert.action,
        since=moment(alert.since_us),
        fired_at=moment(alert.fired_at_us),
        resolved_at=moment(alert.resolved_at_us),
        notified_at=moment(alert.notified_at_us),
        silences=list(alert.silences),
    )


def _silence(silence: pb.Silence) -> Silence:
    return Silence(
        id=silence.id,
        matchers=list(silence.matchers),
        reason=silence.reason,
        created_by=silence.created_by,
        created_at=moment(silence.created_at_us),
        until=moment(silence.until_us),
    )
