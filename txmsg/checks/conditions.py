"""Conditions on figures, evaluated at a moment, and in PromQL. Knows no clock and no database."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from txmsg.checks.thresholds import DEFAULTS, Thresholds
from txmsg.metrics.catalogue import CATALOGUE, GROUP, TOPIC, ExportingProcess, Scope
from txmsg.metrics.figures import Figures

Labels: TypeAlias = frozenset[tuple[str, str]]
Series: TypeAlias = Mapping[Labels, float]
Samples: TypeAlias = Mapping[str, Series]
"""The values of a moment, by metric and labels."""
Threshold: TypeAlias = float | Callable[[Thresholds], float]
"""A number, or a function that returns it from the operator's settings."""

MIRROR: Final = "mirror"
"""The label of a mirror in brokers' figures; in Prometheus each mirror has a job of its own."""
INSTANCE: Final = "instance"
JOB: Final = ("job",)
PAIR: Final = ("job", GROUP, TOPIC)
SEEN_OF_MIRRORS: Final = frozenset(
    {"txmsg_mirror_tailing", "txmsg_mirror_lag_seconds", "txmsg_mirror_stopped_queues", "txmsg_mirror_safe_bytes"}
)
"""Metrics of tailers that brokers also read from the database."""

_APART: Final = frozenset({INSTANCE, MIRROR})
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {">": operator.gt, "<": operator.lt, "==": operator.eq}


def _number(threshold: Threshold, thresholds: Thresholds) -> float:
    return threshold(thresholds) if callable(threshold) else threshold


@dataclass(frozen=True, slots=True)
class LevelCondition:
    """A value is beyond a threshold."""

    metric: str
    sign: str
    threshold: Threshold
    where: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Labels that its series must have."""
    by: tuple[str, ...] | None = field(default=None, kw_only=True)
    """The labels by which series are grouped; the greatest value of a group counts. None: each series by itself."""
    least: float | None = field(default=None, kw_only=True)
    """Values below belong to another check."""

    def holds(self, value: float, thresholds: Thresholds = DEFAULTS) -> bool:
        """Return True if a value is beyond the threshold, and not below `least`."""
        is_beyond = _SIGNS[self.sign](value, _number(self.threshold, thresholds))
        return is_beyond and (self.least is None or value >= self.least)

    @property
    def promql(self) -> str:
        """The same for Prometheus."""
        least = "" if self.least is None else f" >= {self.least:.12g}"
        series = _aggregate("max", self.by, _selector(self.metric, self.where))
        return f"{series} {self.sign} {_number(self.threshold, DEFAULTS):.12g}{least}"


@dataclass(frozen=True, slots=True)
class RiseCondition:
    """A counter has risen within a time."""

    metric: str
    window_s: float
    where: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    by: tuple[str, ...] | None = field(default=None, kw_only=True)
    """The labels by which series are grouped; the sum of a group counts. None: each series by itself."""

    @property
    def promql(self) -> str:
        """The same for Prometheus."""
        rise = f"increase({_selector(self.metric, self.where)}[{promql_duration(self.window_s)}])"
        return f"{_aggregate('sum', self.by, rise)} > 0"


@dataclass(frozen=True, slots=True)
class ShareCondition:
    """A value's share of another one is above a threshold. The other one being 0 means no limit."""

    metric: str
    of: str
    threshold: Threshold
    by: tuple[str, ...] | None = field(default=None, kw_only=True)
    """The labels by which series are grouped, as for a LevelCondition."""

    @property
    def promql(self) -> str:
        """The same for Prometheus."""
        whole = _aggregate("max", self.by, f"{self.of} > 0") if self.by else f"({self.of} > 0)"
        share = f"{_aggregate('max', self.by, self.metric)} / {whole}"
        return f"{share} > {_number(self.threshold, DEFAULTS):.12g}"


@dataclass(frozen=True, slots=True)
class PromQL:
    """A condition that only Prometheus can evaluate, over the values of several processes, or their history."""

    promql: str


Condition = LevelCondition | RiseCondition | ShareCondition | PromQL


def promql_duration(seconds: float) -> str:
    """Return a duration as Prometheus writes it: 90s, 10m, 1h."""
    for unit, length_s in (("h", 3600), ("m", 60)):
        if seconds % length_s == 0 and (seconds or unit == "m"):
            return f"{seconds / length_s:.0f}{unit}"
    return f"{seconds:g}s"


def _selector(metric: str, where: Mapping[str, str]) -> str:
    labels = ", ".join(f'{label}="{value}"' for label, value in where.items())
    return f"{metric}{{{labels}}}" if labels else metric


def _aggregate(how: str, by: tuple[str, ...] | None, expr: str) -> str:
    return expr if by is None else f"{how} by ({', '.join(by)}) ({expr})"


def scope_of(condition: Condition | None) -> Scope | None:
    """Return the scope of the figures by which brokers evaluate it: process or database. None: brokers cannot."""
    if condition is None or isinstance(condition, PromQL):
        return None
    metric = CATALOGUE[condition.metric]
    if metric.name in SEEN_OF_MIRRORS:
        return Scope.DATABASE
    return metric.scope if ExportingProcess.BROKER in metric.processes else None


# ---- over figures


def samples_of(figures: Figures, *, instance: str) -> dict[str, dict[Labels, float]]:
    """Return the single values of a process, without histograms. Those of the process get its name as a label."""
    return {
        metric.name: {
            _labels(metric.name, labels, instance): value
            for labels, value in series.items()
            if isinstance(value, int | float)
        }
        for metric, series in figures.series()
    }


def samples_told(series: Mapping[tuple[str, tuple[str, ...]], float], *, instance: str) -> Samples:
    """Return the same for values that a broker has sent by metric and labels, without metrics unknown here."""
    found: dict[str, dict[Labels, float]] = {}
    for (name, labels), value in series.items():
        if name in CATALOGUE:  # A broker of a later release may send others.
            found.setdefault(name, {})[_labels(name, labels, instance)] = value
    return found


def _labels(name: str, values: tuple[str, ...], instance: str) -> Labels:
    metric = CATALOGUE[name]
    own = () if metric.scope is Scope.DATABASE else ((INSTANCE, instance),)
    return frozenset((*zip(metric.labels, values, strict=True), *own))


class History:
    """The counters of a process over the longest window of a condition."""

    def __init__(self, conditions: Iterable[Condition | None] = ()) -> None:
        rises = [condition for condition in conditions if isinstance(condition, RiseCondition)]
        self._metrics = {rise.metric for rise in rises}
        self._window_s = max((rise.window_s for rise in rises), default=0.0)
        self._moments: deque[tuple[float, dict[str, Series]]] = deque()

    def add(self, now_s: float, samples: Samples) -> None:
        """Record the counters of a moment."""
        self._moments.append((now_s, {name: samples.get(name, {}) for name in self._metrics}))
        # One moment before the window is kept, as the base of rises within the whole window.
        while len(self._moments) > 1 and self._moments[1][0] <= now_s - self._window_s:
            self._moments.popleft()

    def rise(self, metric: str, window_s: float) -> Series:
        """Return the rise of each series within the window before the last moment; counters begin at 0."""
        if not self._moments:
            return {}
        now_s, now = self._moments[-1]
        # The youngest moment that is not within the window, else the oldest one that is known.
        then = next((each for at_s, each in reversed(self._moments) if at_s <= now_s - window_s), self._moments[0][1])
        return {labels: value - then[metric].get(labels, 0.0) for labels, value in now[metric].items()}


NO_HISTORY: Final = History()
"""The history of a single look: no counter has risen."""


def holding(
    condition: Condition | None,
    samples: Samples,
    history: History = NO_HISTORY,
    thresholds: Thresholds = DEFAULTS,
) -> dict[Labels, float] | None:
    """Return the series for which a condition holds, and their values. None: the figures are missing."""
    match condition:
        case LevelCondition():
            if condition.metric not in samples:
                return None
            values = _by(condition.by, _where(condition.where, samples[condition.metric]), max)
            return {labels: value for labels, value in values.items() if condition.holds(value, thresholds)}
        case RiseCondition():
            rises = _where(condition.where, history.rise(condition.metric, condition.window_s))
            return {labels: value for labels, value in _by(condition.by, rises, operator.add).items() if value > 0}
        case ShareCondition():
            if condition.metric not in samples or condition.of not in samples:
                return None
            # A value of the database has no instance: it is compared with the limit of the broker that evaluates.
            apart = {MIRROR} if CATALOGUE[condition.metric].scope is Scope.DATABASE else _APART
            whole = _by(condition.by, samples[condition.of], max, apart)
            shares = {
                labels: value / whole[labels]
                for labels, value in _by(condition.by, samples[condition.metric], max, apart).items()
                if whole.get(labels, 0) > 0
            }
            threshold = _number(condition.threshold, thresholds)
            return {labels: share for labels, share in shares.items() if share > threshold}
        case PromQL() | None:
            return None


def _where(where: Mapping[str, str], series: Series) -> Series:
    return {labels: value for labels, value in series.items() if where.items() <= set(labels)}


def _by(
    by: tuple[str, ...] | None,
    series: Series,
    combine: Callable[[float, float], float],
    apart: Set[str] = _APART,
) -> dict[Labels, float]:
    """Return values by the condition's labels, and by the labels that in Prometheus are separate jobs."""
    if by is None:
        return dict(series)
    found: dict[Labels, float] = {}
    for labels, value in series.items():
        kept = frozenset((name, of) for name, of in labels if name in by or name in apart)
        found[kept] = combine(found[kept], value) if kept in found else value
    return found
