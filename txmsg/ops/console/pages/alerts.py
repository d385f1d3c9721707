"""Alerts of brokers: those that fire or are pending, silences, receivers, and resolved ones."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from typing import Any, Final

from txmsg.administration.alerts import (
    ActiveAlert,
    AlertHistoryQuery,
    AlertList,
    AlertsService,
    AlertState,
    EndOfSilence,
    NewSilence,
    Silence,
)
from txmsg.administration.ask import Nothing, changer
from txmsg.broker.alerts.states import RULE, check_matchers, fits
from txmsg.errors import MisuseError, shown
from txmsg.ops.console.actions import Confirmation, ConsoleAction, Field
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.views import View
from txmsg.runtime.durations import seconds_in

_ROWS: Final = 100
_HISTORY: Final = 50
_SILENCE_FOR: Final = "2h"


async def _read(look: PageContext) -> Mapping[str, Any]:
    found = await look.ask_broker(AlertsService.list, Nothing())
    over = await look.ask_broker(AlertsService.history, AlertHistoryQuery(limit=_HISTORY))
    return {
        "alerts": [(each, "\n".join(_matchers_of(each))) for each in found.alerts[:_ROWS]],
        "counts": _counts(found.alerts),
        "count": len(found.alerts),
        "silences": found.silences,
        "receivers": found.receivers,
        "over": over.alerts,
    }


def _counts(alerts: Sequence[ActiveAlert]) -> Mapping[str, int]:
    """Return the number of alerts in each state; silenced ones count as silenced only."""
    silenced = sum(bool(each.silences) for each in alerts)
    firing = sum(each.state is AlertState.FIRING and not each.silences for each in alerts)
    return {"firing": firing, "pending": len(alerts) - firing - silenced, "silenced": silenced}


def _matchers_of(alert: ActiveAlert) -> list[str]:
    """Return matchers for this alert and similar ones. Signs in a label's value are escaped."""
    return [
        f"{label}={glob.escape(value)}"
        for label, value in {RULE: alert.rule, **alert.labels}.items()
        if value and value.isprintable()
    ]


def _given_matchers(look: PageContext) -> list[str]:
    return [line.strip() for line in look.values.get("matchers", "").splitlines() if line.strip()]


async def _confirm_silence(look: PageContext) -> Confirmation:
    given = _given_matchers(look)
    says = [look.t("alerts.silence_says")]
    if given:
        try:
            matchers = check_matchers(given)
        except MisuseError as exc:
            says.append(str(exc))  # not raised: what was typed stays
        else:
            found = await look.ask_broker(AlertsService.list, Nothing())
            says.append(look.t("alerts.silence_fits", count=_count_fitting(found, matchers)))
    return Confirmation(
        title=look.t("alerts.silence_title"),
        says=says,
        button=look.t("alerts.silence"),
        fields=[
            Field(
                name="matchers",
                label=look.t("alerts.matchers"),
                value="\n".join(given),
                kind="area",
                help=look.t("alerts.matchers_help"),
                is_required=True,
                affects=True,
            ),
            Field(
                name="for",
                label=look.t("alerts.for"),
                value=look.values.get("for", _SILENCE_FOR),
                help=look.t("alerts.for_help"),
                is_required=True,
            ),
            Field(
                name="reason",
                label=look.t("halves.reason"),
                value=look.values.get("reason", ""),
                help=look.t("alerts.reason_help"),
                is_required=True,
            ),
        ],
    )


def _count_fitting(found: AlertList, matchers: Sequence[str]) -> int:
    return sum(fits(matchers, each.rule, each.labels) for each in found.alerts)


async def _silence(look: PageContext) -> str:
    matchers, reason, text = _given_matchers(look), look.values.get("reason", "").strip(), look.values.get("for", "")
    seconds = seconds_in(text.strip())
    if seconds is None:
        raise MisuseError(look.t("groups.no_duration", text=shown(text)))
    new = NewSilence(matchers=matchers, for_s=seconds, reason=reason, created_by=changer())
    made = await look.ask_broker(AlertsService.silence, new)
    return look.t("alerts.was_silenced", id=made.id, for_=text.strip())


async def _held(look: PageContext) -> tuple[Silence, AlertList]:
    number = int(look.path["silence"])
    found = await look.ask_broker(AlertsService.list, Nothing())
    silence = next((each for each in found.silences if each.id == number), None)
    if silence is None:
        raise MisuseError(look.t("alerts.no_silence", id=number))
    return silence, found


async def _confirm_unsilence(look: PageContext) -> Confirmation:
    silence, found = await _held(look)
    others = sum(list(each.silences) == [silence.id] and each.state is AlertState.FIRING for each in found.alerts)
    return Confirmation(
        title=look.t("alerts.unsilence_title", id=silence.id),
        says=[
            look.t("alerts.unsilence_of", matchers=", ".join(silence.matchers), by=silence.created_by),
            look.t("alerts.unsilence_says", count=others),
        ],
        button=look.t("alerts.unsilence"),
    )


async def _unsilence(look: PageContext) -> str:
    number = int(look.path["silence"])
    if not (await look.ask_broker(AlertsService.unsilence, EndOfSilence(id=number))).held:
        raise MisuseError(look.t("alerts.no_silence", id=number))
    return look.t("alerts.was_unsilenced", id=number)


VIEWS: Final = (View(path="/alerts", section="alerts", template="alerts.html", read=_read, every_s=2.0),)
ACTIONS: Final = (
    ConsoleAction(path="/alerts/silence", method="Alerts/Silence", confirm=_confirm_silence, perform=_silence),
    ConsoleAction(
        path="/alerts/silences/{silence:int}/end",
        method="Alerts/Unsilence",
        confirm=_confirm_unsilence,
        perform=_unsilence,
    ),
)
