"""The figures of one process at one moment, checked against the catalogue. Knows no library and no network."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

from txmsg.metrics.catalogue import BOUNDS, CATALOGUE, ExportingProcess, Metric, MetricKind
from txmsg.metrics.counts import Histogram

Value = float | Histogram
Labels = tuple[str, ...]

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_release = version("txmsg")


class Figures:
    """The values of one scrape by metric and labels, in the order of the catalogue."""

    def __init__(self, process: ExportingProcess) -> None:
        self.process = process
        self._values: dict[str, dict[Labels, Value]] = {
            metric.name: {} for metric in CATALOGUE.values() if process in metric.processes
        }
        if process is not ExportingProcess.APPLICATION:  # An application knows its own process best.
            self._add_process()

    def put(self, name: str, value: Value, **labels: str) -> None:
        """Set the value of one series.

        Raises KeyError for metrics and labels that the catalogue lacks for this process.
        """
        metric = CATALOGUE[name]
        assert isinstance(value, Histogram) == (metric.kind is MetricKind.HISTOGRAM), name
        if labels.keys() != set(metric.labels):
            raise KeyError(f"{name} has the labels {metric.labels}, not {tuple(labels)}")
        self._values[name][tuple(labels[label] for label in metric.labels)] = value

    def put_each(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Set a series for each value of a metric's only label."""
        for of, value in values.items():
            self.put(name, value, **{label: of})

    def add(self, name: str, value: Value, **labels: str) -> None:
        """Add to the value of one series, which several parts of this process share."""
        before = self._values[name].get(tuple(labels[label] for label in CATALOGUE[name].labels))
        if isinstance(value, Histogram) and isinstance(before, Histogram):
            value = before.plus(value)
        elif before is not None:
            assert not isinstance(value, Histogram)
            assert not isinstance(before, Histogram)
            value += before
        self.put(name, value, **labels)

    def raise_to(self, name: str, value: float, **labels: str) -> None:
        """Raise the value of one series, which several parts of this process share, to at least `value`."""
        before = self._values[name].get(tuple(labels[label] for label in CATALOGUE[name].labels), value)
        assert not isinstance(before, Histogram)
        self.put(name, max(before, value), **labels)

    def put_bound(self, bound: str, used: float, limit: float) -> None:
        """Set the used share of a bounded resource; limit 0: no bound. Raises KeyError for an unknown bound."""
        if bound not in BOUNDS[self.process]:
            raise KeyError(f"the catalogue names no bound {bound} of a {self.process.value}")
        self.put("txmsg_bound_used_ratio", used / limit if limit else 0, bound=bound)

    def series(self) -> list[tuple[Metric, Mapping[Labels, Value]]]:
        """Return all metrics of the process with their series, of which there may be none yet."""
        return [(CATALOGUE[name], values) for name, values in self._values.items()]

    def _add_process(self) -> None:
        self.put("txmsg_build_info", 1, service_version=_release, process=self.process.value)
        self.put("txmsg_process_start_time_seconds", _STARTED_AT)
        self.put("txmsg_process_cpu_seconds_total", time.process_time())
        self.put("txmsg_process_open_files_limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        if _PROC.exists():
            resident_pages = int((_PROC / "statm").read_text().split()[1])
            self.put("txmsg_process_resident_bytes", resident_pages * _PAGE_BYTES)
            self.put("txmsg_process_open_files", len(os.listdir(_PROC / "fd")))


_PROC = Path("/proc/self")


def _started_at() -> float:
    if not _PROC.exists():
        return time.time()
    # By the kernel: this module may be imported long after the process has started. The name of the command, in
    # parentheses, may itself contain spaces and parentheses, so fields are counted behind the last one.
    ticks = int((_PROC / "stat").read_text().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / _TICKS_PER_S


_STARTED_AT = _started_at()
