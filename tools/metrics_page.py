"""The page of metrics, generated from the catalogue: docs/metrics.md."""

from __future__ import annotations

from itertools import groupby

from txmsg.checks.catalogue import RULES
from txmsg.checks.check import Check
from txmsg.metrics.catalogue import BOUNDS, CATALOGUE, LABELS, ExportingProcess, Metric, Scope

_HEAD = """# Metrics

The metrics that each process exports for [Prometheus](https://prometheus.io) if it is started with `--http-listen
HOST:PORT`; [operations](operations.md#metrics) says how to scrape them. Generated from `txmsg/metrics/catalogue.py` by
`make generate`.

Values are those of one process: add them up (`sum`). Values with the scope `database` are those of the whole Notify
database, and each of its brokers exports the same: take the maximum (`max`). Counters start at 0 with the process.
Series without a label for a topic or a group exist before any traffic.
"""
_ALERTS = """
## Alerts

The rules of `deploy/prometheus/txmsg-rules.yml`, for Prometheus. `critical`: messages wait, or are lost. All processes
of one Notify database have one job, whose name begins with `txmsg`; those of another database have another one.

| Alert | Severity | After | Condition | What to do |
|---|---|---|---|---|
"""
_NAMES = {
    ExportingProcess.BROKER: "broker",
    ExportingProcess.METAQ: "MetaQ server",
    ExportingProcess.TAILER: "tailer",
    ExportingProcess.AGENT: "agent",
    ExportingProcess.ROCKETMQ: "gateway for RocketMQ's clients",
    ExportingProcess.PAGE: "page server",
    ExportingProcess.APPLICATION: "application, by `txmsg.metrics.ClientCollector`",
    ExportingProcess.WORKER: "worker of an application",
}


def metrics_page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    for section, metrics in groupby(CATALOGUE.values(), key=lambda metric: metric.section):
        of_section = list(metrics)
        lines.append(f"\n## {section}\n\nOf: {_processes(of_section[0])}.\n")
        lines.append("\n| Name | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n")
        lines += [_row(metric) for metric in of_section]
    lines.append("\n## Labels\n\n| Label | Values |\n|---|---|\n")
    lines += [f"| `{label}` | {meaning} |\n" for label, meaning in LABELS.items()]
    lines.append("\n## Bounds\n\nThe values of the label `bound` of `txmsg_bound_used_ratio`.\n")
    lines.append("\n| Bound | Of | What |\n|---|---|---|\n")
    for process, bounds in BOUNDS.items():
        lines += [f"| `{bound}` | {_NAMES[process]} | {meaning} |\n" for bound, meaning in bounds.items()]
    lines += [_ALERTS, *map(_alert_row, RULES)]
    return "".join(lines)


def _processes(metric: Metric) -> str:
    return ", ".join(name for process, name in _NAMES.items() if process in metric.processes)


def _alert_row(alert: Check) -> str:
    return f"| `{alert.alert}` | {alert.severity.value} | {alert.for_} | `{alert.expr}` | {alert.action} |\n"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    scope = " Scope: `database`." if metric.scope is Scope.DATABASE else ""
    return f"| `{metric.name}` | {metric.kind.value} | {metric.unit} | {labels} | {metric.meaning}{scope} |\n"
