"""Whether the condition of a rule holds, over the figures of a moment. Knows no clock and no database."""

from __future__ import annotations

import operator
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Final, TypeAlias

from txmsg.metrics.catalogue import CATALOGUE, Process, Scope
from txmsg.metrics.figures import Figures
from txmsg.metrics.rules import Alert, Condition, Level, PromQL, Rise, Share
from txmsg.runtime.durations import shown_duration

Labels: TypeAlias = frozenset[tuple[str, str]]
Series: TypeAlias = Mapping[Labels, float]
Samples: TypeAlias = Mapping[str, Series]
"""The values of a moment, by metric and labels."""

MIRROR: Final = "mirror"
"""The label of what brokers see of a mirror; in Prometheus each has a job of its own."""
INSTANCE: Final = "instance"
SEEN_OF_MIRRORS: Final = frozenset(
    {"txmsg_mirror_tailing", "txmsg_mirror_lag_seconds", "txmsg_mirror_stopped_queues", "txmsg_mirror_safe_bytes"}
)
"""Metrics of tailers that the database knows, too."""

_APART: Final = frozenset({INSTANCE, MIRROR})

_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {">": operator.gt, "<": operator.lt, "==": operator.eq}


def scope_of(alert: Alert) -> Scope | None:
    """Who evaluates a rule: each broker for itself, or one for the database. None: brokers cannot."""
    if isinstance(alert.condition, PromQL):
        return None
    metric = CATALOGUE[alert.condition.metric]
    if metric.name in SEEN_OF_MIRRORS:
        return Scope.DATABASE
    return metric.scope if Process.BROKER in metric.processes else None


def samples_of(figures: Figures, *, instance: str) -> dict[str, dict[Labels, float]]:
    """The single values of a process. Those that concern it alone get its name as a label."""
    found: dict[str, dict[Labels, float]] = {}
    for metric, series in figures.series():
        own = () if metric.scope is Scope.DATABASE else ((INSTANCE, instance),)
        found[metric.name] = {
            frozenset((*zip(metric.labels, labels, strict=True), *own)): value
            for labels, value in series.items()
            if isinstance(value, int | float)
        }
    return found


class History:
    """The counters of a process over the longest window of a rule."""

    def __init__(self, alerts: Iterable[Alert]) -> None:
        rises = [alert.condition for alert in alerts if isinstance(alert.condition, Rise)]
        self._metrics = {rise.metric for rise in rises}
        self._window_s = max((rise.window_s for rise in rises), default=0.0)
        self._moments: deque[tuple[float, dict[str, Series]]] = deque()

    def add(self, now_s: float, samples: Samples) -> None:
        """Remembers the counters of a moment."""
        self._moments.append((now_s, {name: samples.get(name, {}) for name in self._metrics}))
        while len(self._moments) > 1 and self._moments[1][0] <= now_s - self._window_s:
            self._moments.popleft()

    def rise(self, metric: str, window_s: float) -> Series:
        """How much each series has risen within the window before the last moment; counters begin at 0."""
        if not self._moments:
            return {}
        now_s, now = self._moments[-1]
        # The youngest moment that is not within the window, else the oldest one that is known.
        then = next((each for at_s, each in reversed(self._moments) if at_s <= now_s - window_s), self._moments[0][1])
        return {labels: value - then[metric].get(labels, 0.0) for labels, value in now[metric].items()}


def holding(condition: Condition, samples: Samples, history: History) -> dict[Labels, float] | None:
    """The series for which a condition holds, and their values. None: there are no figures to tell."""
    match condition:
        case Level():
            if condition.metric not in samples:
                return None
            values = _by(condition.by, _where(condition.where, samples[condition.metric]), max)
            is_beyond = _SIGNS[condition.sign]
            return {labels: value for labels, value in values.items() if is_beyond(value, condition.threshold)}
        case Rise():
            rises = _where(condition.where, history.rise(condition.metric, condition.window_s))
            summed = _by(condition.by, rises, operator.add)
            return {labels: value for labels, value in summed.items() if value > condition.threshold}
        case Share():
            if condition.metric not in samples or condition.of not in samples:
                return None
            # What is of the database is compared with the limit of the broker that looks.
            apart = {MIRROR} if CATALOGUE[condition.metric].scope is Scope.DATABASE else _APART
            whole = _by(condition.by, samples[condition.of], max, apart)
            shares = {
                labels: value / whole[labels]
                for labels, value in _by(condition.by, samples[condition.metric], max, apart).items()
                if whole.get(labels, 0) > 0
            }
            return {labels: share for labels, share in shares.items() if share > condition.threshold}
        case PromQL():
            return None


def _where(where: Mapping[str, str], series: Series) -> Series:
    return {labels: value for labels, value in series.items() if where.items() <= set(labels)}


def _by(
    by: tuple[str, ...] | None,
    series: Series,
    combine: Callable[[float, float], float],
    apart: Set[str] = _APART,
) -> dict[Labels, float]:
    """Values by the labels that tell them apart: those of the condition, and what in Prometheus is another job."""
    if by is None:
        return dict(series)
    found: dict[Labels, float] = {}
    for labels, value in series.items():
        kept = frozenset((name, of) for name, of in labels if name in by or name in apart)
        found[kept] = combine(found[kept], value) if kept in found else value
    return found


_FIELD: Final = re.compile(r"\{\{ \$(?:value|labels\.(\w+))(?: \| (\w+))? \}\}")


def told(text: str, labels: Mapping[str, str], value: float) -> str:
    """A summary with its fields filled in, as Prometheus does it."""

    def filled(field: re.Match[str]) -> str:
        label, form = field.groups()
        return labels.get(label, "") if label else _FORMS[form](value)

    return _FIELD.sub(filled, text)


def _binary(value: float) -> str:
    for unit in ("", "Ki", "Mi", "Gi"):
        if abs(value) < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}Ti"


_FORMS: Final[Mapping[str | None, Callable[[float], str]]] = {
    None: lambda value: f"{value:g}" if value != round(value) else f"{value:.0f}",
    "humanizeDuration": lambda value: shown_duration(round(value)),
    "humanizePercentage": lambda value: f"{value * 100:.4g}%",
    "humanize1024": _binary,
}
