"""The states of an alert; clocks are arguments."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from txmsg.administration.alerts import ActiveAlert, AlertState
from txmsg.broker.alerts.states import ActiveRule, advanced, check_matchers, fits, is_due, looked
from txmsg.checks.check import Severity
from txmsg.errors import MisuseError

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RULE = ActiveRule(
    name="R", severity=Severity.WARNING, for_s=300, summary="{{ $value }} of {{ $labels.job }}", action="Act."
)
G = frozenset({("g", "shop")})


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def look(before: list[ActiveAlert], seconds: float, observed: Any, *, rules: Any = None, source: str = "s") -> Any:
    return looked(
        before, source, {"R": RULE} if rules is None else rules, {"R": observed}, now=at(seconds), keep_firing_s=60,
        job="db",
    )  # fmt: skip


def test_an_alert_is_pending_then_fires_then_is_resolved() -> None:
    [alert] = look([], 0, {G: 5.0}).alerts
    assert (alert.state, alert.since, alert.summary, alert.labels) == (AlertState.PENDING, T0, "5 of db", {"g": "shop"})
    [alert] = look([replace(alert, id=1)], 299, {G: 6.0}).alerts
    assert alert.state is AlertState.PENDING
    [alert] = look([alert], 300, {G: 7.0}).alerts
    assert (alert.state, alert.fired_at, alert.value, alert.summary) == (AlertState.FIRING, at(300), 7.0, "7 of db")
    [alert] = look([alert], 359, {}).alerts
    assert alert.state is AlertState.FIRING
    [alert] = look([alert], 360, {}).alerts
    assert (alert.state, alert.resolved_at, alert.id) == (AlertState.RESOLVED, at(360), 1)


def test_a_rule_without_a_time_fires_at_once() -> None:
    [alert] = look([], 0, {G: 5.0}, rules={"R": replace(RULE, for_s=0)}).alerts
    assert alert.state is AlertState.FIRING


def test_a_pending_alert_that_passes_is_forgotten() -> None:
    [alert] = look([], 0, {G: 5.0}).alerts
    found = look([replace(alert, id=1)], 60, {})
    assert found.alerts == []
    assert found.forgotten == [1]


def test_flapping_alert_stays_one_alert() -> None:
    alert = firing()
    for seconds in range(330, 3000, 30):
        [alert] = look([alert], seconds, {G: 1.0} if seconds % 60 else {}).alerts
    assert (alert.state, alert.fired_at, alert.id) == (AlertState.FIRING, at(300), 1)


def firing(**values: Any) -> ActiveAlert:
    alert: ActiveAlert = look([], 0, {G: 5.0}).alerts[0]
    return replace(alert, id=1, state=AlertState.FIRING, fired_at=at(300), seen_at=at(300), **values)


def test_unknown_condition_leaves_the_alert_unchanged() -> None:
    found = look([firing()], 10_000, None)
    assert found.alerts == []
    assert found.forgotten == []


@pytest.mark.parametrize("of", [{"rules": {}}, {"source": "other"}])
def test_alerts_of_removed_rules_and_brokers_resolve_at_once(of: dict[str, Any]) -> None:
    [alert] = look([firing()], 301, {}, **of).alerts
    assert alert.state is AlertState.RESOLVED


def test_resolved_alert_never_changes_again() -> None:
    over = firing(resolved_at=at(400))
    with pytest.raises(AssertionError, match="does not change any more"):
        advanced(replace(over, state=AlertState.RESOLVED), holds=True, now=at(500), for_s=0, keep_firing_s=0)


# ---- notifications


@pytest.mark.parametrize(
    ("alert", "is_silenced", "expected"),
    [
        (firing(), False, True),
        (firing(), True, False),
        (firing(notified_at=at(300)), False, False),
        (firing(notified_at=at(300 - 3600)), False, True),
        (firing(notified_at=at(300 - 3600)), True, False),
        (replace(firing(), state=AlertState.PENDING), False, False),
        (replace(firing(notified_at=at(300)), state=AlertState.RESOLVED), True, True),
        (replace(firing(), state=AlertState.RESOLVED), False, False),
    ],
)
def test_receivers_get_a_repeat_and_a_resolved_notification(
    alert: ActiveAlert, is_silenced: bool, expected: bool
) -> None:
    assert is_due(alert, is_silenced=is_silenced, now=at(300), repeat_s=3600) is expected


# ---- silences


def test_silence_applies_if_all_its_matchers_match() -> None:
    labels = {"messaging_consumer_group_name": "shop-1"}
    assert fits(check_matchers(["group=shop-*"]), "TxmsgGroupBehind", labels)
    assert fits(check_matchers(["rule=TxmsgGroupBehind", "group=shop-?"]), "TxmsgGroupBehind", labels)
    assert not fits(check_matchers(["rule=TxmsgDeadLetters", "group=shop-*"]), "TxmsgGroupBehind", labels)
    assert not fits(check_matchers(["topic=x"]), "TxmsgGroupBehind", labels)


@pytest.mark.parametrize(
    "matchers", [[], ["group"], ["=x"], ["group="], ["group=a\n"], ["a=b"] * 21, ["a=" + "b" * 500]]
)
def test_invalid_matcher_is_refused(matchers: list[str]) -> None:
    with pytest.raises(MisuseError):
        check_matchers(matchers)
