"""Two settings measured by turns, so that what else the machine does hits both, and how they compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

Work = Callable[[], dict[str, float]]
"""Works once, and answers a rate for each kind of work."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Rates of one kind of work: in the setting that is looked at, and in the reference, turn by turn."""

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
        """The median of the ratios of neighbours in time: steadier than the ratio of the medians."""
        return self.last(len(self.rates))

    def last(self, turns: int) -> float:
        """The ratio in the last turns only."""
        pairs = list(zip(self.rates, self.reference_rates, strict=True))[-turns:]
        return median(rate / reference for rate, reference in pairs)

    def figures(self, name: str) -> dict[str, float]:
        """For JSON."""
        return {
            f"{name}_per_s": round(self.rate, 1),
            f"{name}_reference_per_s": round(self.reference, 1),
            f"{name}_ratio": round(self.ratio, 3),
        }


def by_turns(setting: Work, reference: Work, into: dict[str, Compared]) -> None:
    """Measures both once, in every other turn the reference first."""
    if any(len(each.rates) % 2 for each in into.values()):
        found, expected = setting(), reference()
    else:
        expected, found = reference(), setting()
    for name, rate in found.items():
        each = into.setdefault(name, Compared())
        each.rates.append(rate)
        each.reference_rates.append(expected[name])
