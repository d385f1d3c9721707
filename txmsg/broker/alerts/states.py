"""The life of an alert: pending, firing, resolved; and the times of notifications. Knows no clock and no database.

(none) -> pending      its condition holds
pending -> firing      it has held for the time of the rule
pending -> (none)      it does not hold any more
firing -> resolved     it has not held for keep_firing_s, so that one that comes and goes is one alert
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from txmsg.administration.alerts import ActiveAlert, AlertState
from txmsg.checks.check import Severity
from txmsg.checks.conditions import Labels
from txmsg.checks.texts import LABELS, told
from txmsg.errors import MisuseError, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRule:
    """The parts of a rule that an evaluation needs: of built-in and of custom ones."""

    name: str
    severity: Severity
    for_s: float
    summary: str
    action: str


def _key(alert: ActiveAlert) -> tuple[str, Labels]:
    """Return the identity of an alert within its source."""
    return alert.rule, frozenset(alert.labels.items())


def advanced(
    alert: ActiveAlert, *, holds: bool, now: datetime, for_s: float, keep_firing_s: float
) -> ActiveAlert | None:
    """Return the alert after an evaluation of its condition; None: it never fired, and is forgotten."""
    match alert.state, holds:
        case AlertState.PENDING, True:
            alert = replace(alert, seen_at=now)
            if now - alert.since >= timedelta(seconds=for_s):
                return replace(alert, state=AlertState.FIRING, fired_at=now)
            return alert
        case AlertState.PENDING, False:
            return None
        case AlertState.FIRING, True:
            return replace(alert, seen_at=now)
        case AlertState.FIRING, False:
            if now - alert.seen_at >= timedelta(seconds=keep_firing_s):
                return replace(alert, state=AlertState.RESOLVED, resolved_at=now)
            return alert
        case _:
            raise AssertionError(f"alert {alert.id} is {alert.state}: it does not change any more")


def is_due(alert: ActiveAlert, *, is_silenced: bool, now: datetime, repeat_s: float) -> bool:
    """Return True if receivers are to be notified of the alert now, as it is after `advanced`.

    Of the end of an alert they are notified only if they were notified of the alert, also during a silence: they must
    not wait for its end forever.
    """
    match alert.state:
        case AlertState.PENDING:
            return False
        case AlertState.FIRING:
            is_new = alert.notified_at is None or now - alert.notified_at >= timedelta(seconds=repeat_s)
            return is_new and not is_silenced
        case AlertState.RESOLVED:
            return alert.notified_at is not None


# ---- looks

Observed = Mapping[str, Mapping[Labels, float] | None]
"""The series for which each rule holds, with their values. None: unknown at present."""


class AlertChanges(NamedTuple):
    """The changes of an evaluation: alerts as they are now, and ids of those that are forgotten."""

    alerts: list[ActiveAlert]
    forgotten: list[int]


def looked(
    before: Iterable[ActiveAlert],
    source: str,
    rules: Mapping[str, ActiveRule],
    observed: Observed,
    *,
    now: datetime,
    keep_firing_s: float,
    job: str,
) -> AlertChanges:
    """Return the active alerts after an evaluation. Those of other sources, and of removed rules, are over."""
    alerts, forgotten = [], []
    known = set()
    for alert in before:
        rule, series = rules.get(alert.rule), observed.get(alert.rule)
        is_over = alert.source != source or rule is None
        if not is_over:
            known.add(_key(alert))
            if series is None:
                # An unknown result changes nothing: an alert must not end because a scrape failed.
                continue
        value = None if is_over or series is None else series.get(frozenset(alert.labels.items()))
        after = advanced(
            alert if value is None or rule is None else _with(alert, rule, value, job),
            holds=value is not None,
            now=now,
            for_s=rule.for_s if rule else 0.0,
            keep_firing_s=0.0 if is_over else keep_firing_s,
        )
        if after is None:
            forgotten.append(alert.id)
        else:
            alerts.append(after)
    for name, rule in rules.items():
        for labels, value in (observed.get(name) or {}).items():
            if (name, labels) in known:
                continue
            new = ActiveAlert(
                source=source,
                rule=name,
                labels=dict(sorted(labels)),
                severity=rule.severity,
                summary="",
                action=rule.action,
                state=AlertState.PENDING,
                value=value,
                since=now,
                seen_at=now,
            )
            first = advanced(_with(new, rule, value, job), holds=True, now=now, for_s=rule.for_s, keep_firing_s=0.0)
            assert first is not None
            alerts.append(first)
    return AlertChanges(alerts, forgotten)


def _with(alert: ActiveAlert, rule: ActiveRule, value: float, job: str) -> ActiveAlert:
    return replace(
        alert,
        value=value,
        severity=rule.severity,
        summary=told(rule.summary, {**alert.labels, "job": job}, value),
        action=rule.action,
    )


# ---- silences

RULE: Final = "rule"
_MATCHERS_MAX: Final = 20
_MATCHER_LENGTH_MAX: Final = 500


def check_matchers(matchers: Sequence[str]) -> list[str]:
    """Return the matchers of a silence with labels as alerts have them. Raises MisuseError."""
    if not 1 <= len(matchers) <= _MATCHERS_MAX:
        raise MisuseError(
            f"a silence needs 1 to {_MATCHERS_MAX} matchers, such as {RULE}=TxmsgGroupBehind or group=shop"
        )
    found = []
    for matcher in matchers:
        label, sign, pattern = matcher.partition("=")
        if not sign or not label or not pattern or len(matcher) > _MATCHER_LENGTH_MAX or not matcher.isprintable():
            raise MisuseError(
                f"{shown(matcher)} does not say which alerts: give LABEL=PATTERN of at most {_MATCHER_LENGTH_MAX} "
                f"characters, such as {RULE}=TxmsgGroupBehind or group=shop*"
            )
        found.append(f"{LABELS.get(label, label)}={pattern}")
    return found


def fits(matchers: Sequence[str], rule: str, labels: Mapping[str, str]) -> bool:
    """Return True if a silence applies to an alert: all its matchers fit. `*` matches any characters, `?` one."""
    values = {**labels, RULE: rule}
    return all(
        fnmatchcase(values.get(label, ""), pattern) for label, _, pattern in (each.partition("=") for each in matchers)
    )
