"""Files for Prometheus and Grafana, generated from the catalogue of metrics and the checks."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from txmsg.checks.catalogue import RULES
from txmsg.metrics.catalogue import CATALOGUE, Metric, MetricKind, Scope

_WIDTH, _HEIGHT, _PER_ROW = 8, 7, 3
_UNITS = {"seconds": "s", "bytes": "bytes", "1": "percentunit"}


def rules_file() -> str:
    """Return the alert rules as YAML."""
    lines = [
        "# Alerts on txmsg, by `make generate` from txmsg/checks. The job of its processes is txmsg...",
        "groups:",
        "  - name: txmsg",
        "    rules:",
    ]
    for alert in RULES:
        lines += [
            f"      - alert: {alert.alert}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {alert.for_}",
            f"        labels: {{severity: {alert.severity.value}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          action: {json.dumps(alert.action)}",
        ]
    return "\n".join([*lines, ""])


def dashboard_file() -> str:
    """Return a Grafana dashboard as JSON: a row for each section of the catalogue, a panel for each metric."""
    panels: list[dict[str, Any]] = []
    top = 0
    for section, metrics in groupby(CATALOGUE.values(), key=lambda metric: metric.section):
        panels.append({"type": "row", "title": section, "gridPos": _place(0, top, 3 * _WIDTH, 1), "collapsed": False})
        top += 1
        for number, metric in enumerate(metrics):
            column = number % _PER_ROW
            if number and not column:
                top += _HEIGHT
            panels.append(_panel(metric, _place(column * _WIDTH, top, _WIDTH, _HEIGHT)))
        top += _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    dashboard = {
        "title": "txmsg",
        "uid": "txmsg",
        "description": "All metrics of txmsg. Made by `make generate` from its catalogue.",
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [
                _variable("datasource", "datasource", "prometheus"),
                _variable("job", "query", "label_values(txmsg_build_info, job)"),
                _variable("instance", "query", 'label_values(txmsg_build_info{job=~"$job"}, instance)'),
            ]
        },
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def expressions_of(metric: Metric) -> dict[str, str]:
    """Return the PromQL expressions of a metric's panel, by legend."""
    labels = ", ".join([*metric.labels, *(["instance"] if metric.scope is Scope.PROCESS else ["job"])])
    legend = " ".join(f"{{{{{label}}}}}" for label in labels.split(", "))
    selector = '{job=~"$job", instance=~"$instance"}'
    aggregate = "max" if metric.scope is Scope.DATABASE else "sum"
    if metric.kind is MetricKind.HISTOGRAM:
        rate = f"rate({metric.name}_bucket{selector}[$__rate_interval])"
        return {
            f"p{quantile} {legend}": f"histogram_quantile(0.{quantile}, sum by ({labels}, le) ({rate}))"
            for quantile in (50, 99)
        }
    if metric.kind is MetricKind.COUNTER:
        return {legend: f"{aggregate} by ({labels}) (rate({metric.name}{selector}[$__rate_interval]))"}
    return {legend: f"{aggregate} by ({labels}) ({metric.name}{selector})"}


def _panel(metric: Metric, place: dict[str, int]) -> dict[str, Any]:
    is_rate = metric.kind is MetricKind.COUNTER
    unit = (
        _UNITS.get(metric.unit, "short")
        if not is_rate
        else {"bytes": "Bps", "seconds": "percentunit"}.get(metric.unit, "ops")
    )
    if metric.unit == "1" and not metric.name.endswith("_ratio"):
        unit = "short"
    return {
        "type": "timeseries",
        "title": metric.name.removeprefix("txmsg_").removesuffix("_total").replace("_", " ")
        + (" /s" if is_rate else ""),
        "description": metric.meaning,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend}
            for number, (legend, expr) in enumerate(expressions_of(metric).items())
        ],
    }


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _variable(name: str, kind: str, query: str) -> dict[str, Any]:
    variable: dict[str, Any] = {"name": name, "type": kind, "query": query, "label": name}
    if kind == "query":
        variable |= {
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "includeAll": True,
            "multi": True,
            "refresh": 2,
            "current": {"text": "All", "value": "$__all"},
        }
    return variable
