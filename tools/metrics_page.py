"""The page of metrics, generated from the catalogue: docs/metrics.md."""

from __future__ import annotations

from itertools import groupby

from page_table import table

from txmsg.checks.catalogue import RULES
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
        lines.append(table("Name | Type | Unit | Labels | Meaning", map(_row, of_section)))
    labels = [(f"`{label}`", meaning) for label, meaning in LABELS.items()]
    bounds = [
        (f"`{bound}`", _NAMES[process], meaning)
        for process, of_process in BOUNDS.items()
        for bound, meaning in of_process.items()
    ]
    alerts = [(f"`{each.alert}`", each.severity.value, each.for_, f"`{each.expr}`", each.action) for each in RULES]
    lines += ["\n## Labels\n", table("Label | Values", labels)]
    lines += ["\n## Bounds\n\nThe values of the label `bound` of `txmsg_bound_used_ratio`.\n"]
    lines += [table("Bound | Of | What", bounds)]
    lines += [_ALERTS, table("Alert | Severity | After | Condition | What to do", alerts)]
    return "".join(lines)


def _processes(metric: Metric) -> str:
    return ", ".join(name for process, name in _NAMES.items() if process in metric.processes)


def _row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    scope = " Scope: `database`." if metric.scope is Scope.DATABASE else ""
    return f"`{metric.name}`", metric.kind.value, metric.unit, labels, f"{metric.meaning}{scope}"
