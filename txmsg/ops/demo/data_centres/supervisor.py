"""The demo: two data centres write orders while the line between them is cut and healed; at the end all is compared.

Decides when the line is cut. Knows neither how processes are started (stage) nor how the line fails (line).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from txmsg.ops.demo.data_centres.cuttable_link import CuttableLink
from txmsg.ops.demo.data_centres.stage import SITES, DataCentres, other
from txmsg.ops.demo.examples.data_centres.orders import cents_of
from txmsg.ops.demo.stage import Audience

PATIENCE_S: Final = 60.0
"""Nothing changes for this long: it will not get better."""
LOOK_S: Final = 0.05
CUT_SHARE: Final = 0.6
"""Of the time, with several cuts, in which the line is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCentresPlan:
    """How much is written, and how often the line fails meanwhile."""

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

    def is_cut(self, share: float) -> bool:
        """Whether the line is to be cut when this share of the orders is written."""
        place = share * self.cuts % 1.0
        return share < 1 and bool(self.cuts) and (1 - CUT_SHARE) / 2 <= place < (1 + CUT_SHARE) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCentresResult:
    """What came out. The names are those of `txmsg demo data-centres --json`."""

    orders: int
    """Of both data centres."""
    totals: dict[str, dict[str, tuple[int, int]]]
    """What was added up, by the data centre in which it was: orders and cents by the one that wrote them."""
    missing: int
    """Orders that are not in both."""
    cuts: int
    written_while_cut: int
    behind_max: int
    """How many orders of the other data centre a data centre lacked at the worst moment."""
    caught_up_s: float
    """From the last order until both had all."""
    logs_equal: bool
    """Whether each copy has the bytes of its log."""
    seconds: float
    findings: list[str]

    @property
    def clean(self) -> bool:
        return not self.findings


def run(plan: DataCentresPlan, directory: Path, public: Audience) -> DataCentresResult:
    """Runs it all under `directory`. Ends every process it started, also when interrupted. Raises ChildFailed."""
    began_at = time.monotonic()
    public.phase("starting all processes", 1)
    with CuttableLink() as line, DataCentres(directory, line) as stage:
        played = _CopyRun(plan, stage, public)
        played.write()
        caught_up_s = played.catch_up()
        findings = played.findings()
        unequal = played.unequal()
    findings += [f"the copy of the log of {site} has other bytes" for site in unequal]
    return DataCentresResult(
        orders=len(SITES) * plan.orders,
        totals=played.totals,
        missing=played.missing,
        cuts=played.cuts,
        written_while_cut=played.written_while_cut,
        behind_max=played.behind_max,
        caught_up_s=round(caught_up_s, 2),
        logs_equal=not unequal,
        seconds=round(time.monotonic() - began_at, 1),
        findings=findings,
    )


class _CopyRun:
    """What is written, and what is known of it where."""

    def __init__(self, plan: DataCentresPlan, stage: DataCentres, public: Audience) -> None:
        self._plan, self._stage, self._public = plan, stage, public
        self.totals: dict[str, dict[str, tuple[int, int]]] = {site: {} for site in SITES}
        self.written = dict.fromkeys(SITES, 0)
        self.cuts = 0
        self.written_while_cut = 0
        self.behind_max = 0

    @property
    def missing(self) -> int:
        return sum(self._plan.orders - self._known(here, of) for here in SITES for of in SITES)

    def write(self) -> None:
        """Returns when all orders are in the log of their data centre."""
        all_orders = len(SITES) * self._plan.orders
        self._public.phase("orders are written", all_orders)
        writers = [
            self._stage.start_orders(site, self._plan.orders, self._plan.orders / self._plan.seconds) for site in SITES
        ]
        is_cut, written_before = False, 0
        while any(writer.returncode is None for writer in writers):
            time.sleep(LOOK_S)
            self._read_children()
            written = sum(self.written.values())
            if is_cut:
                self.written_while_cut += written - written_before
            written_before = written
            if (wanted := self._plan.is_cut(written / all_orders)) != is_cut:
                is_cut = wanted
                self.cuts += is_cut
                self._stage.line.cut() if is_cut else self._stage.line.heal()
            self._public.progress(written, f"line {'cut' if is_cut else 'whole'}, {self._behind():,} behind")
        self._stage.line.heal()

    def catch_up(self) -> float:
        """Returns when both data centres know all orders, or when nothing changes any more; after how many seconds."""
        self._public.phase("both get everything", self.missing)
        began_at = changed_at = time.monotonic()
        before = missing = self.missing
        while missing and time.monotonic() < changed_at + PATIENCE_S:
            time.sleep(LOOK_S)
            self._read_children()
            if self.missing != missing:
                missing, changed_at = self.missing, time.monotonic()
            self._public.progress(before - missing, f"{missing:,} behind")
        return time.monotonic() - began_at

    def findings(self) -> list[str]:
        """What is wrong with the totals."""
        count = self._plan.orders
        expected = (count, sum(map(cents_of, range(count))))
        return [
            f"{here} has orders and cents {self.totals[here].get(of)} of {of}, which wrote {expected}"
            for here in SITES
            for of in SITES
            if self.totals[here].get(of) != expected
        ]

    def unequal(self) -> list[str]:
        """The sites whose log and its copy differ also when nothing changes any more."""
        ends_at = time.monotonic() + PATIENCE_S
        unequal = list(SITES)
        while unequal := [site for site in unequal if not self._is_copied(site)]:
            if time.monotonic() >= ends_at:
                break
            time.sleep(LOOK_S)
        return unequal

    def _is_copied(self, site: str) -> bool:
        return _bytes_of(self._stage.log(site)) == _bytes_of(self._stage.log(f"{site}-copy"))

    def _read_children(self) -> None:
        """What the processes say. Raises ChildFailed."""
        for name, child in self._stage.children.items():
            status = child.returncode  # asked once: it may end now
            if status is not None and not (status == 0 and name.endswith("-orders")):
                child.require_running()
        for site in SITES:
            said = self._stage.children[f"{site}-totals"].last_line
            if said.startswith("{"):
                self.totals[site] = {of: (count, cents) for of, (count, cents) in json.loads(said).items()}
            told = self._stage.children[f"{site}-orders"].last_line
            self.written[site] = int(told.rpartition(" ")[2] or 0)
        self.behind_max = max(self.behind_max, self._behind())

    def _known(self, here: str, of: str) -> int:
        return self.totals[here].get(of, (0, 0))[0]

    def _behind(self) -> int:
        return max(self.written[site] - self._known(other(site), site) for site in SITES)


def _bytes_of(log: Path) -> list[tuple[str, bytes]]:
    found = sorted((log / "commitlog").glob("*.log"))
    return [(path.name, data) for path in found if (data := path.read_bytes())]
