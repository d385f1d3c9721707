"""Runs the demo: two data centres write orders while the line between them is cut and healed; then all is compared.

Decides when the line is cut. Knows neither how processes are started (stage) nor how the line fails (cuttable_link).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txmsg.ops.demo.data_centres.cuttable_link import CuttableLink
from txmsg.ops.demo.data_centres.site_stage import SITES, DataCentres, other
from txmsg.ops.demo.director import Audience, Director, Step
from txmsg.ops.demo.examples.data_centres.orders import cents_of

CUT_SHARE: Final = 0.6
"""Of the time, with several cuts, in which the line is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCentresPlan:
    """The number of orders, and how often the line fails meanwhile."""

    orders: int
    """Of each data centre."""
    seconds: float
    cuts: int = 2

    def __post_init__(self) -> None:
        if not 100 <= self.orders <= 10_000_000:
            raise ValueError(f"{self.orders} orders: give 100 to 10,000,000")
        if not 1 <= self.seconds <= 3600:
            raise ValueError(f"{self.seconds:g} seconds: give 1 to 3600, an hour")
        if not 0 <= self.cuts <= 100:
            raise ValueError(f"{self.cuts} cuts: give 0 to 100")

    @property
    def cuts_at(self) -> list[tuple[float, float]]:
        """Return when the line is cut and when it is healed, as shares of the orders."""
        uncut = (1 - CUT_SHARE) / 2
        return [((cut + uncut) / self.cuts, (cut + 1 - uncut) / self.cuts) for cut in range(self.cuts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCentresResult:
    """The result. The names are those of `txmsg demo data-centres --json`."""

    orders: int
    """Of both data centres."""
    totals: dict[str, dict[str, tuple[int, int]]]
    """The sums by data centre: there orders and cents by the data centre that wrote them."""
    missing: int
    """Orders that are not in both."""
    cuts: int
    written_while_cut: int
    behind_max: int
    """Orders of the other data centre that a data centre lacked at the worst moment."""
    caught_up_s: float
    """From the last order until both had all."""
    logs_equal: bool
    """True if each copy has the bytes of its log."""
    seconds: float
    findings: list[str]

    @property
    def clean(self) -> bool:
        return not self.findings


def run(plan: DataCentresPlan, directory: Path, audience: Audience) -> DataCentresResult:
    """Run the demo in `directory`. Raises ChildFailed when a process fails."""
    with CuttableLink() as line, CopyRun(plan, DataCentres(directory, line), audience) as demo:
        demo.write()
        caught_up_s = demo.catch_up()
        findings = demo.findings()
        unequal = demo.unequal()
    findings += [f"the copy of the log of {site} has other bytes" for site in unequal]
    return DataCentresResult(
        orders=len(SITES) * plan.orders,
        totals=demo.totals,
        missing=demo.missing,
        cuts=demo.cuts,
        written_while_cut=demo.written_while_cut,
        behind_max=demo.behind_max,
        caught_up_s=round(caught_up_s, 2),
        logs_equal=not unequal,
        seconds=demo.seconds,
        findings=findings,
    )


class CopyRun(Director[DataCentres]):
    """Writes orders in both data centres, and reads from the processes what each has written and received."""

    look_s = 0.05

    def __init__(self, plan: DataCentresPlan, stage: DataCentres, audience: Audience) -> None:
        super().__init__(stage, audience)
        self._plan = plan
        self.totals: dict[str, dict[str, tuple[int, int]]] = {site: {} for site in SITES}
        self.written = dict.fromkeys(SITES, 0)
        self.cuts = 0
        self.written_while_cut = 0
        self.behind_max = 0
        self._is_cut = False

    @property
    def missing(self) -> int:
        """Return the number of orders that are not in both data centres."""
        return sum(self._plan.orders - self._known(here, of) for here in SITES for of in SITES)

    def write(self) -> None:
        """Return when all orders are in the log of their data centre."""
        plan = self._plan
        cuts = [Step(share, self._cut) for share, _ in plan.cuts_at]
        heals = [Step(share, self._heal) for _, share in plan.cuts_at]
        self.phase("orders are written", len(SITES) * plan.orders, *cuts, *heals)
        writers = [self.stage.start_orders(site, plan.orders, plan.orders / plan.seconds) for site in SITES]
        self.wait(
            lambda: all(writer.returncode is not None for writer in writers),
            lambda: sum(self.written.values()),
            patience_s=math.inf,
        )
        self.script.run_rest()

    def catch_up(self) -> float:
        """Wait until both data centres know all orders. Return after how many seconds."""
        self.phase("both get everything", before := self.missing)
        began_at = time.monotonic()
        self.wait(lambda: not self.missing, lambda: before - self.missing)
        return time.monotonic() - began_at

    def findings(self) -> list[str]:
        """Return the errors of the totals."""
        count = self._plan.orders
        expected = (count, sum(map(cents_of, range(count))))
        return [
            f"{here} has orders and cents {self.totals[here].get(of)} of {of}, which wrote {expected}"
            for here in SITES
            for of in SITES
            if self.totals[here].get(of) != expected
        ]

    def unequal(self) -> list[str]:
        """Return the sites whose log and its copy still differ when nothing has changed for a while."""
        self.wait(lambda: all(map(self._is_copied, SITES)), lambda: 0)
        return [site for site in SITES if not self._is_copied(site)]

    def read_children(self) -> None:
        for site in SITES:
            totals = self.stage.last_json(f"{site}-totals")
            self.totals[site].update({of: (count, cents) for of, (count, cents) in totals.items()})
        before = sum(self.written.values())
        for site in SITES:
            self.written[site] = int(self.stage.children[f"{site}-orders"].last_line.rpartition(" ")[2] or 0)
        if self._is_cut:
            self.written_while_cut += sum(self.written.values()) - before
        self.behind_max = max(self.behind_max, self._behind())

    def progress_note(self) -> str:
        return f"line {'cut' if self._is_cut else 'whole'}, {self._behind():,} behind"

    def _cut(self) -> None:
        self.stage.line.cut()
        self._is_cut = True
        self.cuts += 1

    def _heal(self) -> None:
        self.stage.line.heal()
        self._is_cut = False

    def _is_copied(self, site: str) -> bool:
        return _bytes_of(self.stage.log(site)) == _bytes_of(self.stage.log(f"{site}-copy"))

    def _known(self, here: str, of: str) -> int:
        return self.totals[here].get(of, (0, 0))[0]

    def _behind(self) -> int:
        return max(self.written[site] - self._known(other(site), site) for site in SITES)


def _bytes_of(log: Path) -> list[tuple[str, bytes]]:
    found = sorted((log / "commitlog").glob("*.log"))
    return [(path.name, data) for path in found if (data := path.read_bytes())]
