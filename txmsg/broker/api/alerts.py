"""The service Alerts: alerts, silences and receivers, for people. Decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from txmsg.broker.alerts.alerting import Alerting
from txmsg.broker.alerts.states import ActiveAlert, check_matchers, fits
from txmsg.broker.store import alerts as store
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Pool, session
from txmsg.errors import MisuseError, shown
from txmsg.message import us_of_datetime
from txmsg.wire.caller import signature
from txmsg.wire.v1 import alerts_pb2 as pb

_SILENCE_S_MAX = 366 * 86_400.0
_TEXT_LENGTH_MAX = 500
_HISTORY_MAX = 10_000


class AlertsApi:
    """The service Alerts."""

    def __init__(self, pool: Pool, alerting: Alerting) -> None:
        self._pool = pool
        self._alerting = alerting

    async def list(self, _: pb.ListAlertsRequest) -> pb.ListAlertsReply:
        async with session(self._pool) as conn:
            alerts, silences = await store.listed(conn), await store.silences(conn)
            waiting = {each.receiver: each for each in await store.waiting(conn)}
        kinds = {name: messenger.receiver.kind for name, messenger in self._alerting.messengers.items()}
        return pb.ListAlertsReply(
            alerts=[_alert(alert, silences) for alert in alerts],
            silences=[_silence(silence) for silence in silences],
            receivers=[_receiver(name, kinds.get(name, ""), waiting.get(name)) for name in sorted({*kinds, *waiting})],
        )

    async def history(self, request: pb.AlertHistoryRequest) -> pb.AlertHistoryReply:
        async with session(self._pool) as conn:
            alerts = await store.history(conn, min(request.limit or 100, _HISTORY_MAX))
        return pb.AlertHistoryReply(alerts=[_alert(alert, ()) for alert in alerts])

    async def silence(self, request: pb.SilenceRequest) -> pb.SilenceReply:
        matchers = check_matchers(request.matchers)
        if not 0 < request.for_s <= _SILENCE_S_MAX:
            raise MisuseError(f"for_s={request.for_s:g} must be above 0 and at most {_SILENCE_S_MAX:g} seconds")
        created_by = signature(request.created_by)
        _check_text("created_by", created_by)
        _check_text("reason", request.reason)
        async with session(self._pool) as conn, conn.transaction():
            made = await store.silence(
                conn, matchers, for_s=request.for_s, reason=request.reason, created_by=created_by
            )
            await audit.record(conn, "alert.silence", str(made.id), after=made._asdict())
        return pb.SilenceReply(silence=_silence(made))

    async def unsilence(self, request: pb.UnsilenceRequest) -> pb.UnsilenceReply:
        async with session(self._pool) as conn, conn.transaction():
            held = await store.unsilence(conn, min(request.id, 2**63 - 1))
            if held:
                await audit.record(conn, "alert.unsilence", str(request.id))
            return pb.UnsilenceReply(held=held)

    async def test(self, _: pb.TestAlertsRequest) -> pb.TestAlertsReply:
        outcomes = await self._alerting.test()
        async with session(self._pool) as conn:
            await audit.record(
                conn, "alert.test", "", after={name: error or "told" for name, error in outcomes.items()}
            )
        return pb.TestAlertsReply(
            receivers=[pb.AlertTest(receiver=name, error=error) for name, error in outcomes.items()]
        )


def _check_text(name: str, text: str) -> None:
    if not 0 < len(text) <= _TEXT_LENGTH_MAX or not text.isprintable():
        raise MisuseError(f"{name}={shown(text)} must be 1 to {_TEXT_LENGTH_MAX} characters on one line")


def _alert(alert: ActiveAlert, silences: Sequence[store.Silence]) -> pb.Alert:
    return pb.Alert(
        id=alert.id,
        rule=alert.rule,
        severity=alert.severity,
        state=alert.state.value,
        labels=alert.labels,
        value=alert.value,
        summary=alert.summary,
        action=alert.action,
        since_us=_us(alert.since),
        fired_at_us=_us(alert.fired_at),
        resolved_at_us=_us(alert.resolved_at),
        notified_at_us=_us(alert.notified_at),
        silences=[silence.id for silence in silences if fits(silence.matchers, alert.rule, alert.labels)],
    )


def _silence(silence: store.Silence) -> pb.Silence:
    return pb.Silence(
        id=silence.id,
        matchers=silence.matchers,
        reason=silence.reason,
        created_by=silence.created_by,
        created_at_us=_us(silence.created_at),
        until_us=_us(silence.until),
    )


def _receiver(name: str, kind: str, waiting: store.Waiting | None) -> pb.AlertReceiver:
    if waiting is None:
        return pb.AlertReceiver(name=name, kind=kind)
    return pb.AlertReceiver(
        name=name,
        kind=kind,
        waiting=waiting.waiting,
        attempts=waiting.attempts,
        last_error=waiting.last_error or "",
    )


def _us(moment: datetime | None) -> int:
    return 0 if moment is None else us_of_datetime(moment)
