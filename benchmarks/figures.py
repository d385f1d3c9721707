"""Names of benchmark figures, the better direction of each, and the test for differences of two series.

A benchmark prints one JSON document as its last line. A number in it is a figure if its key, or the nearest key above
it that has one, ends with a unit of UNITS; the path to it is its name. An entry of an array is named by its texts and
its number of callers; entries of the same name are repetitions, whose median counts. Other numbers are counts, settings
and ratios of figures that are in the document as well: they are not compared.

The rule: a figure differs if its medians are more than DIFFERENCE_MIN apart, and if series that are as far apart by
their ranks come by chance in less than P_MAX of all cases (Mann-Whitney's test, two-sided, exact). Ranks assume no
distribution, and one run that something disturbed counts as one rank, however long it took. With five runs of each
commit, the fewest that can reach P_MAX, each run of one must be faster than each of the other; with nine, one run may
be anywhere. The distance of the quartiles is not the rule because that of five runs is noise itself: of 1,000 figures
that do not differ, with runs 10 % apart (standard deviation), it calls 164 different, the test 8. Of many figures that
do not differ, up to one in a hundred is called different all the same: measure such a script again.

Runs nothing, and knows no commits.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Final

DIFFERENCE_MIN: Final = 0.05
"""Smallest difference of the medians that is reported, however certain a smaller one is."""
P_MAX: Final = 0.01
RUNS_MIN: Final = 5
"""Fewest runs of each commit: with fewer, no difference is beyond chance by P_MAX."""
WITHIN_NOISE: Final = "within noise"


@dataclass(frozen=True, slots=True)
class Unit:
    """The suffix of a kind of figures, and the words for a greater and a lesser one."""

    suffix: str
    more: str
    less: str


UNITS: Final = (
    Unit("ms_per_s", "slower", "faster"),  # CPU time each second
    Unit("us_per_s", "slower", "faster"),
    Unit("failing_per_s", "more", "less"),  # of benchmarks/backend_down.py: work that is done for nothing
    Unit("rows_per_s", "more", "less"),
    Unit("_per_s", "faster", "slower"),
    Unit("_s_per_million", "slower", "faster"),
    Unit("_us", "slower", "faster"),
    Unit("_ms", "slower", "faster"),
    Unit("_s", "slower", "faster"),
    Unit("_bytes", "larger", "smaller"),
    Unit("_mib", "larger", "smaller"),
    Unit("_mib_max", "larger", "smaller"),
)
"""The first one that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One figure in both series. ratio: of the medians, new to old. spread: see `spread`."""

    name: str
    old: float
    new: float
    ratio: float
    spread: float
    verdict: str
    old_runs: tuple[float, ...]
    new_runs: tuple[float, ...]


def figures_of(document: object) -> dict[str, float]:
    """Return the figures of a benchmark's output, by name, in order."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for path, value in _numbers(document, ()):
        if any(unit_of(part) for part in path):
            found[" ".join(path)].append(value)
    return {name: median(values) for name, values in found.items()}


def unit_of(name: str) -> Unit | None:
    """Return the unit with which the name of a figure, or a part of it, ends."""
    return next((unit for unit in UNITS if name.endswith(unit.suffix)), None)


def compare(name: str, old: Sequence[float], new: Sequence[float]) -> Comparison:
    """Apply the rule to the runs of one figure."""
    medians = median(old), median(new)
    ratio = _ratio(medians[1], medians[0])
    differs = abs(math.log(ratio)) > math.log(1 + DIFFERENCE_MIN) if 0 < ratio < math.inf else ratio != 1
    verdict = WITHIN_NOISE
    if differs and p_of_ranks(old, new) < P_MAX:
        unit = next(unit for part in reversed(name.split(" ")) if (unit := unit_of(part)) is not None)
        verdict = unit.more if ratio > 1 else unit.less
    return Comparison(
        name=name,
        old=medians[0],
        new=medians[1],
        ratio=ratio,
        spread=max(spread(old), spread(new)),
        verdict=verdict,
        old_runs=tuple(old),
        new_runs=tuple(new),
    )


def p_of_ranks(old: Sequence[float], new: Sequence[float]) -> float:
    """The share of all ways to deal the runs to two commits that puts the sums of their ranks at least this far apart.

    Equal runs share the mean of their ranks, in all ways alike, so that it is exact with them as well.
    """
    runs = sorted((*old, *new))
    twice_rank = {run: runs.index(run) + len(runs) - runs[::-1].index(run) + 1 for run in runs}  # whole numbers
    ways: Counter[tuple[int, int]] = Counter({(0, 0): 1})
    for run in runs:
        for (count, total), several in list(ways.items()):
            if count < len(old):
                ways[count + 1, total + twice_rank[run]] += several
    expected = len(old) * (len(runs) + 1)
    distance = abs(sum(twice_rank[run] for run in old) - expected)
    dealt = {total: several for (count, total), several in ways.items() if count == len(old)}
    return sum(several for total, several in dealt.items() if abs(total - expected) >= distance) / sum(dealt.values())


def spread(runs: Sequence[float]) -> float:
    """Return the distance of the quartiles, as a share of the median. For readers: the rule does not use it."""
    low, _, high = quantiles(runs, n=4, method="inclusive")
    return _ratio(high - low, median(runs)) if high > low else 0.0


def _ratio(value: float, reference: float) -> float:
    if reference:
        return value / reference
    return math.inf if value else 1.0


def _numbers(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(each, (*path, str(name)))
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each, (*path, *_label(each)))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def _label(entry: Any) -> tuple[str, ...]:
    if not isinstance(entry, Mapping):
        return ()
    texts = [value for value in entry.values() if isinstance(value, str)]
    callers = entry.get("callers")
    return tuple([*texts, f"{callers} callers"] if isinstance(callers, int) else texts)
