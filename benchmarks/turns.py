"""Compares two settings measured by turns, so that other load on the machine affects both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

Work = Callable[[], dict[str, float]]
"""Runs once, and returns a rate for each kind of work."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Rates of one kind of work, in the measured setting and in the reference, turn by turn."""

    rates: list[float] = field(default_factory=list)
    reference_rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def reference(self) -> float:
        return median(self.reference_rates)

    @property
    def ratio(self) -> float:
        """Return the median of the ratios of neighbours in time: steadier than the ratio of the medians."""
        return self.last(len(self.rates))

    def last(self, turns: int) -> float:
        """Return the ratio in the last turns only."""
        pairs = list(zip(self.rates, self.reference_rates, strict=True))[-turns:]
        return median(rate / reference for rate, reference in pairs)

    def figures(self, name: str) -> dict[str, float]:
        """Return the figures for JSON."""
        return {
            f"{name}_per_s": round(self.rate, 1),
            f"{name}_reference_per_s": round(self.reference, 1),
            f"{name}_ratio": round(self.ratio, 3),
        }


def by_turns(setting: Work, reference: Work, into: dict[str, Compared]) -> None:
    """Measure both once, in every other turn the reference first."""
    if any(len(each.rates) % 2 for each in into.values()):
        found, expected = setting(), reference()
    else:
        expected, found = reference(), setting()
    for name, rate in found.items():
        each = into.setdefault(name, Compared())
        each.rates.append(rate)
        each.reference_rates.append(expected[name])
