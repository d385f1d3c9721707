"""The service Alerts: adds silences to alerts, checks new silences, and audits changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from txmsg.administration.alerts import (
    ActiveAlert,
    AlertHistory,
    AlertHistoryQuery,
    AlertList,
    AlertReceiver,
    EndOfSilence,
    NewSilence,
    Silence,
    SilenceEnded,
    TrialOutcomes,
)
from txmsg.administration.ask import Nothing
from txmsg.broker.alerts.alerting import Alerting
from txmsg.broker.alerts.states import check_matchers, fits
from txmsg.broker.store import alerts as store
from txmsg.broker.store import audit
from txmsg.broker.store.connect import Pool, session
from txmsg.errors import MisuseError, shown
from txmsg.wire.caller import signature

_SILENCE_S_MAX = 366 * 86_400.0
_TEXT_LENGTH_MAX = 500


class AlertsApi:
    """The service Alerts."""

    def __init__(self, pool: Pool, alerting: Alerting) -> None:
        self._pool = pool
        self._alerting = alerting

    async def list(self, _: Nothing) -> AlertList:
        async with session(self._pool) as conn:
            alerts, silences = await store.listed(conn), await store.silences(conn)
            waiting = {each.name: each for each in await store.waiting(conn)}
        here = {name: messenger.receiver.kind for name, messenger in self._alerting.messengers.items()}
        receivers = waiting | {
            name: replace(waiting.get(name, AlertReceiver(name=name)), kind=kind) for name, kind in here.items()
        }
        return AlertList(
            alerts=[_with_silences(alert, silences) for alert in alerts],
            silences=silences,
            receivers=[receivers[name] for name in sorted(receivers)],
        )

    async def history(self, query: AlertHistoryQuery) -> AlertHistory:
        async with session(self._pool) as conn:
            return AlertHistory(alerts=await store.history(conn, query.limit))

    async def silence(self, new: NewSilence) -> Silence:
        new = replace(new, matchers=check_matchers(new.matchers), created_by=signature(new.created_by))
        if not 0 < new.for_s <= _SILENCE_S_MAX:
            raise MisuseError(f"for_s={new.for_s:g} must be above 0 and at most {_SILENCE_S_MAX:g} seconds")
        _check_text("created_by", new.created_by)
        _check_text("reason", new.reason)
        async with session(self._pool) as conn, conn.transaction():
            made = await store.silence(conn, new)
            await audit.record(conn, "alert.silence", str(made.id), after=asdict(made))
        return made

    async def unsilence(self, end: EndOfSilence) -> SilenceEnded:
        async with session(self._pool) as conn, conn.transaction():
            held = await store.unsilence(conn, end.id)
            if held:
                await audit.record(conn, "alert.unsilence", str(end.id))
            return SilenceEnded(held=held)

    async def test(self, _: Nothing) -> TrialOutcomes:
        outcomes = await self._alerting.test()
        async with session(self._pool) as conn:
            await audit.record(
                conn, "alert.test", "", after={name: error or "told" for name, error in outcomes.items()}
            )
        return TrialOutcomes(receivers={name: error or None for name, error in outcomes.items()})


def _check_text(name: str, text: str) -> None:
    if not 0 < len(text) <= _TEXT_LENGTH_MAX or not text.isprintable():
        raise MisuseError(f"{name}={shown(text)} must be 1 to {_TEXT_LENGTH_MAX} characters on one line")


def _with_silences(alert: ActiveAlert, silences: Sequence[Silence]) -> ActiveAlert:
    return replace(
        alert, silences=[silence.id for silence in silences if fits(silence.matchers, alert.rule, alert.labels)]
    )
