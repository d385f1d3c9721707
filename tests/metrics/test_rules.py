"""Alerts and dashboard use existing metrics; Prometheus accepts them; each alert fires when it should."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests import prometheus
from txmsg.checks.catalogue import RULES as ALERTS
from txmsg.metrics.catalogue import CATALOGUE, MetricKind

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "txmsg-rules.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "txmsg-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

needs_promtool = pytest.mark.skipif(not prometheus.is_installed(), reason=prometheus.HOW_TO_INSTALL)

_PAIR = 'messaging_consumer_group_name="g",messaging_destination_name="t"'
FIRES = {
    "TxmsgProcessDown": ("up", "0x60", "1x60"),
    "TxmsgNotReady": ("txmsg_ready", "0x60", "1x60"),
    "TxmsgNobodyDelivers": ("txmsg_lease_held", "0x60", "1x60"),
    "TxmsgBrokerDied": ("txmsg_brokers_dead", "1x60", "0x60"),
    "TxmsgDiskNearlyFull": ("txmsg_disk_free_ratio", "0.09x60", "0.1x60"),
    "TxmsgGroupBehind": (f"txmsg_group_lag_seconds{{{_PAIR}}}", "301x60", "299x60"),
    "TxmsgGroupPaused": ("txmsg_delivery_paused_groups", "1x60", "0x60"),
    "TxmsgDeadLetters": (f"txmsg_group_dead_letters{{{_PAIR}}}", "1x60", "0x60"),
    "TxmsgTransactionsInDoubt": ('txmsg_half_oldest_seconds{state="in_doubt"}', "601x60", "599x60"),
    "TxmsgChecksOverdue": ("txmsg_half_overdue_seconds", "121x60", "120x60"),
    "TxmsgTransactionsParked": ('txmsg_halves{state="parked"}', "1x60", "0x60"),
    "TxmsgBoundNear": ('txmsg_bound_used_ratio{bound="connections"}', "0.81x60", "0.8x60"),
    "TxmsgBatchesSlow": (
        'txmsg_writer_batch_seconds_bucket{writer="half",le="2.0"} 0+10x60;'
        'txmsg_writer_batch_seconds_bucket{writer="half",le="+Inf"} 0+10x60;'
        'txmsg_writer_batch_seconds_bucket{writer="half",le="1.0"}',
        "0x60",
        "0+10x60",
    ),
    "TxmsgServerErrors": ('txmsg_call_errors_total{error_type="internal"}', "0+1x60", "5x60"),
    "TxmsgDroppedUnread": ("txmsg_unread_dropped_messages_total", "0+1x60", "5x60"),
    "TxmsgSegmentsTooLarge": ("txmsg_retention_limit_bytes 100x60;txmsg_segments_bytes", "126x60", "125x60"),
    "TxmsgFiguresOld": ("txmsg_database_figures_age_seconds", "601x60", "600x60"),
    "TxmsgOpenFilesNear": ("txmsg_process_open_files_limit 100x60;txmsg_process_open_files", "81x60", "80x60"),
    "TxmsgReleasesDiffer": (
        'txmsg_build_info{service_version="1"} 1x120;txmsg_build_info{service_version="2"}',
        "1x120",
        "_x120",
    ),
    "TxmsgNoMirror": ("txmsg_mirror_tailing", "0x60", "1x60"),
    "TxmsgMirrorBehind": ("txmsg_mirror_lag_seconds", "61x60", "60x60"),
    "TxmsgMirrorStopped": ("txmsg_mirror_stopped_queues", "1x60", "0x60"),
    "TxmsgMirrorIncomplete": ("txmsg_mirror_missing_messages_total", "0+1x60", "5x60"),
    "TxmsgSlotInDanger": ("txmsg_mirror_safe_bytes", "1000x60", "2000000000x60"),
    "TxmsgSlotKeepsLog": ("txmsg_slot_kept_bytes", "10737418241x60", "10737418240x60"),
    "TxmsgLogFailed": ("txmsg_log_failed", "1x60", "0x60"),
    "TxmsgLogCopiesMissing": ("txmsg_log_copies_missing", "1x60", "0x60"),
    "TxmsgLogCopyBehind": ("txmsg_log_follow_silent_seconds", "61x60", "60x60"),
    "TxmsgLogSyncSlow": (
        'txmsg_log_sync_seconds_bucket{le="1.0"} 0+10x60;txmsg_log_sync_seconds_bucket{le="+Inf"} 0+10x60;'
        'txmsg_log_sync_seconds_bucket{le="0.5"}',
        "0x60",
        "0+10x60",
    ),
    "TxmsgLogGroupBehind": (f"txmsg_log_group_lag_seconds{{{_PAIR}}}", "301x60", "299x60"),
    "TxmsgAgentHeld": ("txmsg_agent_held", "1x60", "0x60"),
    "TxmsgAgentUnreadable": ("txmsg_agent_unreadable_files", "1x60", "0x60"),
    "TxmsgAgentSpoolFills": ("txmsg_agent_spool_used_ratio", "0.51x60", "0.5x60"),
    "TxmsgAgentBehind": ("txmsg_agent_paused 0x60;txmsg_agent_unread_bytes", "268435457x60", "268435456x60"),
    "TxmsgAgentLostLines": ("txmsg_agent_lost_bytes_total", "0+1x60", "5x60"),
    "TxmsgOutboxWaits": ("txmsg_client_outbox_oldest_seconds", "301x60", "300x60"),
    "TxmsgOutboxRefused": ("txmsg_client_outbox_refused_rows", "1x60", "0x60"),
    "TxmsgCertificateExpires": ("txmsg_tls_certificate_remaining_seconds", "1209599x60", "1209600x60"),
    "TxmsgCertificateExpired": ("txmsg_tls_certificate_remaining_seconds", "-1x60", "0x60"),
    "TxmsgPageStale": ("txmsg_page_figures_age_seconds", "61x60", "60x60"),
}
"""By alert: other series, a series, and values of it with which the alert fires and does not."""


def metrics_in(expr: str) -> set[str]:
    """Return the catalogued names in an expression."""
    names = set(re.findall(r"\btxmsg_\w+", expr))
    histograms = {metric.name for metric in CATALOGUE.values() if metric.kind is MetricKind.HISTOGRAM}
    return {base if (base := name.removesuffix("_bucket")) in histograms else name for name in names}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.alert)
def test_alert_uses_catalogued_metrics_and_states_the_fix(alert: Any) -> None:
    assert metrics_in(alert.expr) <= CATALOGUE.keys()
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    labels = {label for name in metrics_in(alert.expr) for label in CATALOGUE[name].labels} | {"job", "instance"}
    assert used <= labels
    assert alert.action.endswith((".", "?"))
    assert re.fullmatch(r"Txmsg([A-Z][a-z]+)+", alert.alert)


def test_there_is_a_case_for_each_alert() -> None:
    assert {alert.alert for alert in ALERTS} == FIRES.keys()


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    prometheus.promtool("check", "rules", RULES)


@needs_promtool
def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    tests = [
        {
            "interval": "1m",
            "input_series": series_of(name, others, values),
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                    "eval_time": "61m" if name == "TxmsgReleasesDiffer" else "45m",
                    "exp_samples": [{"labels": "{}", "value": expected}],
                }
            ],
        }
        for name, (others, fires, quiet) in FIRES.items()
        for values, expected in ((fires, 1), (quiet, 0))
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    prometheus.promtool("test", "rules", file)


def series_of(name: str, series: str, values: str) -> list[dict[str, str]]:
    """Return the series of a case, all of one process."""
    *others, last = series.split(";")
    of_all = [other.rpartition(" ")[::2] for other in others] + [(last, values)]
    return [{"series": with_target(each), "values": value} for each, value in of_all]


_TARGET = ('job="txmsg"', 'instance="a:1"')


def with_target(series: str) -> str:
    name, _, labels = series.partition("{")
    given = [labels.removesuffix("}")] if labels else []
    return f"{name}{{{','.join([*given, *_TARGET])}}}"


# ---- the dashboard


def test_the_dashboard_has_a_panel_for_each_metric() -> None:
    drawn = [metrics_in(target["expr"]) for panel in PANELS for target in panel["targets"]]
    assert set().union(*drawn) == CATALOGUE.keys()
    assert len(PANELS) == len(CATALOGUE)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert {panel["description"] for panel in PANELS} == {metric.meaning for metric in CATALOGUE.values()}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@needs_promtool
def test_prometheus_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    exprs = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "1m")}
        for number, expr in enumerate(exprs)
    ]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    prometheus.promtool("check", "rules", file)
