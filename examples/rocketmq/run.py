"""Runs the shop, kills all of it in the middle, and compares all totals.

python -m examples.rocketmq.run --jars DIRECTORY --go PROGRAM --node DIRECTORY [--orders N] [--picture FILE.svg]

Each of the two producers places N orders (200). Exit status 1 unless all totals are equal in the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .picture import Sample, drawn
from .shop import Built, Shop, Total

_LOOK_S = 0.5
_DONE_S_MAX = 1200.0


class Watch:
    """Samples the totals periodically."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    @property
    def now_s(self) -> float:
        """Return the seconds since its start."""
        return time.monotonic() - self._began

    def until(self, is_so: Callable[[Mapping[str, Total]], bool]) -> bool:
        """Return True if the condition became true in time."""
        deadline = time.monotonic() + _DONE_S_MAX
        while time.monotonic() < deadline:
            totals = self._shop.totals()
            self.samples.append(Sample(self.now_s, {name: total.orders for name, total in totals.items()}))
            if is_so(totals):
                return True
            time.sleep(_LOOK_S)
        return False


def run(built: Built, orders: int, directory: Path) -> tuple[dict[str, Total], list[Sample], tuple[float, float]]:
    """Run the shop; return the final totals, the samples, and begin and end of the outage."""
    with Shop(directory, built, orders) as shop:
        watch = Watch(shop)
        watch.until(lambda totals: min(totals["go"].orders, totals["node"].orders) >= orders * 3 // 4)
        killed_at_s = watch.now_s
        shop.kill_all()
        print(f"killed all {len(shop.killable)} processes at {shop.totals()['placed'].orders} orders", flush=True)
        shop.start_all()
        started_at_s = watch.now_s
        watch.until(lambda totals: totals["placed"].orders == 2 * orders and are_equal(totals))
        return shop.totals(), watch.samples, (killed_at_s, started_at_s)


def are_equal(totals: Mapping[str, Total]) -> bool:
    """Return True if all services have counted the same orders and cents."""
    return len({(total.orders, total.cents) for total in totals.values()}) == 1


def main() -> int:
    """Print the totals; return 1 unless they are equal."""
    parser = argparse.ArgumentParser(prog="python -m examples.rocketmq.run")
    for name in ("jars", "go", "node"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    built = Built(jars=given.jars.resolve(), go=given.go.resolve(), node=given.node.resolve())
    with tempfile.TemporaryDirectory(prefix="txmsg-rocketmq-") as directory:
        totals, samples, down_s = run(built, given.orders, Path(directory))
    for name, total in totals.items():
        repeats = f", {total.repeats} delivered again" if total.repeats else ""
        print(f"{name:7}{total.orders:7} orders {total.cents:10} cents{repeats}")
    if given.picture is not None:
        given.picture.write_text(drawn(samples, down_s), encoding="utf-8")
    is_complete = totals["placed"].orders == 2 * given.orders
    print("equal" if are_equal(totals) and is_complete else "NOT equal")
    return 0 if are_equal(totals) and is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
