"""Conditions of rules over metrics: equal to those of Prometheus, which test_rules.py tests."""

from __future__ import annotations

from typing import Any

import pytest

from txmsg.broker.alerts.alerts_config import AlertsConfig, built_in_rules
from txmsg.checks.catalogue import BUILT_IN, BY_ALERT
from txmsg.checks.conditions import (
    NO_HISTORY,
    History,
    LevelCondition,
    PromQL,
    RiseCondition,
    holding,
    samples_of,
    scope_of,
)
from txmsg.checks.texts import filled, for_prometheus, told
from txmsg.errors import MisuseError
from txmsg.metrics.catalogue import GROUP, TOPIC, ExportingProcess, Scope
from txmsg.metrics.figures import Figures


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


def found(rule: str, samples: dict[str, Any], history: History = NO_HISTORY) -> Any:
    return holding(BY_ALERT[rule].condition, samples, history)


def test_level_condition_holds_above_its_threshold_and_not_at_it() -> None:
    behind, prompt = labels(**{GROUP: "g", TOPIC: "t"}), labels(**{GROUP: "h", TOPIC: "t"})
    assert found("TxmsgGroupBehind", {"txmsg_group_lag_seconds": {behind: 301.0, prompt: 300.0}}) == {behind: 301.0}


def test_level_condition_takes_the_maximum_of_its_series() -> None:
    halves = {labels(state="parked"): 2.0, labels(state="new"): 9.0}
    assert found("TxmsgTransactionsParked", {"txmsg_halves": halves}) == {labels(): 2.0}
    two = {labels(a="1", b="x"): 1.0, labels(a="1", b="y"): 3.0}
    assert holding(LevelCondition("m", ">", 0, by=("a",)), {"m": two}, NO_HISTORY) == {labels(a="1"): 3.0}


def test_mirrors_and_brokers_are_evaluated_separately() -> None:
    samples = {"txmsg_mirror_tailing": {labels(mirror="a"): 0.0, labels(mirror="b"): 1.0}}
    assert found("TxmsgNoMirror", samples) == {labels(mirror="a"): 0.0}


def test_condition_is_unknown_without_metrics() -> None:
    assert found("TxmsgGroupBehind", {}) is None
    assert found("TxmsgSegmentsTooLarge", {"txmsg_segments_bytes": {labels(): 1.0}}) is None
    assert holding(PromQL("up == 0"), {}, NO_HISTORY) is None


def test_share_of_a_missing_limit_never_holds() -> None:
    def shares(size: float, limit: float) -> Any:
        samples = {
            "txmsg_segments_bytes": {labels(): size},
            "txmsg_retention_limit_bytes": {labels(instance="a"): limit},
        }
        return found("TxmsgSegmentsTooLarge", samples)

    assert shares(126, 0) == {}
    assert found("TxmsgOpenFilesNear", {
        "txmsg_process_open_files": {labels(instance="a"): 81.0},
        "txmsg_process_open_files_limit": {labels(instance="a"): 100.0},
    }) == {labels(instance="a"): 0.81}  # fmt: skip


def test_segments_are_compared_with_the_limit_of_the_evaluating_broker() -> None:
    figures = Figures(ExportingProcess.BROKER)
    figures.put("txmsg_segments_bytes", 126)
    figures.put("txmsg_retention_limit_bytes", 100)
    assert found("TxmsgSegmentsTooLarge", samples_of(figures, instance="a")) == {labels(): 1.26}


def test_counter_condition_holds_only_for_rises_within_its_window() -> None:
    history = History([BY_ALERT["TxmsgDroppedUnread"].condition])
    series = labels(instance="a")

    def rises_at(now_s: float, count: float) -> Any:
        samples = {"txmsg_unread_dropped_messages_total": {series: count}}
        history.add(now_s, samples)
        return found("TxmsgDroppedUnread", samples, history)

    assert rises_at(0, 5) == {}
    assert rises_at(1000, 7) == {series: 2.0}
    assert rises_at(3600, 7) == {series: 2.0}
    assert rises_at(4600, 7) == {}


def test_a_history_keeps_no_more_than_its_window() -> None:
    rise = RiseCondition("txmsg_unread_dropped_messages_total", 60)
    history = History([BY_ALERT["TxmsgServerErrors"].condition])
    for moment in range(100_000):
        history.add(moment, {})
    assert len(history._moments) <= 602
    assert history.rise("txmsg_call_errors_total", rise.window_s) == {}


def test_samples_are_labelled_by_broker_unless_they_are_of_the_database() -> None:
    figures = Figures(ExportingProcess.BROKER)
    figures.put("txmsg_halves", 1, state="parked")
    figures.put("txmsg_delivery_paused_groups", 2)
    samples = samples_of(figures, instance="b1")
    assert samples["txmsg_halves"] == {labels(state="parked"): 1}
    assert samples["txmsg_delivery_paused_groups"] == {labels(instance="b1"): 2}


def test_brokers_evaluate_metrics_of_their_own_and_of_the_database() -> None:
    assert scope_of(BY_ALERT["TxmsgGroupBehind"].condition) is Scope.DATABASE
    assert scope_of(BY_ALERT["TxmsgMirrorBehind"].condition) is Scope.DATABASE
    assert scope_of(BY_ALERT["TxmsgGroupPaused"].condition) is Scope.PROCESS
    for name in ("TxmsgProcessDown", "TxmsgLogFailed", "TxmsgPageStale", "TxmsgMirrorIncomplete"):
        assert scope_of(BY_ALERT[name].condition) is None, name


# ---- texts


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("group {{ $labels.g }} has {{ $value }} dead letters", 3, "group shop has 3 dead letters"),
        ("{{ $value | humanizeDuration }} behind", 301.4, "5m1s behind"),
        ("{{ $value | humanizePercentage }} full", 0.8123, "81.23% full"),
        ("{{ $value | humanize1024 }}B more", 1.5 * 1024**3, "1.5GiB more"),
        ("{{ $labels.nothing }}{{ $value }}", 0.5, "0.5"),
    ],
)
def test_summary_template_is_rendered_like_in_prometheus(text: str, value: float, expected: str) -> None:
    assert told(text, {"g": "shop"}, value) == expected


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("group {group} in topic {topic}", 3, "group shop in topic paid"),
        ("{value:duration}, {value:share}, {value:size}", 301.4, "5m1s, 3.014e+04%, 301.4B"),
    ],
)
def test_check_text_renders_like_its_prometheus_template(text: str, value: float, expected: str) -> None:
    labels = {GROUP: "shop", TOPIC: "paid"}
    assert filled(text, {**labels, "value": value}) == told(for_prometheus(text), labels, value) == expected


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_rule_texts_have_no_unfilled_fields(name: str) -> None:
    assert "{{" not in told(BUILT_IN[name].summary, {}, 1.0)


# ---- settings


def test_threshold_settings_default_to_the_prometheus_rules() -> None:
    assert list(built_in_rules(AlertsConfig())) == list(BUILT_IN.values())
    changed = AlertsConfig(group_behind_s=7.0, off="TxmsgDeadLetters")
    assert BUILT_IN["TxmsgDeadLetters"] not in list(built_in_rules(changed))
    samples = {"txmsg_group_lag_seconds": {labels(**{GROUP: "g", TOPIC: "t"}): 8.0}}
    assert holding(BUILT_IN["TxmsgGroupBehind"].condition, samples, thresholds=changed)
    assert not holding(BUILT_IN["TxmsgGroupBehind"].condition, samples)


def test_switching_off_an_unknown_rule_is_refused() -> None:
    with pytest.raises(MisuseError, match=r"did you mean TxmsgDeadLetters\?"):
        AlertsConfig(off="TxmsgDeadLeters")


def test_rules_are_evaluated_at_most_once_per_second() -> None:
    assert AlertsConfig(interval_s=1.0).interval_s == 1.0
    with pytest.raises(MisuseError, match="interval_s"):
        AlertsConfig(interval_s=0.9)
