"""The processes of two data centres. Knows how to start them, not why.

Of each site: a server of its own log (`hz`), a copy of it in the other site (`hz-copy`), who writes its orders
(`hz-orders`), and who adds up the orders of both sites in it (`hz-totals`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from txmsg.ops.demo.data_centres.cuttable_link import CuttableLink
from txmsg.ops.demo.stage import DemoProcesses
from txmsg.runtime.child import Child
from txmsg.wire.listening import loopback

SITES: Final = ("hz", "sh")
_EXAMPLE: Final = "txmsg.ops.demo.examples.data_centres"


def other(site: str) -> str:
    """The other site."""
    return SITES[1 - SITES.index(site)]


class DataCentres(DemoProcesses):
    """The logs and their copies, and who adds up; not who writes."""

    def __init__(self, directory: Path, line: CuttableLink) -> None:
        super().__init__(directory)
        self.line = line

    def log(self, name: str) -> Path:
        """The directory of a log, or of a copy."""
        return self.directory / name

    def _set_up(self) -> None:
        for site in SITES:
            self._start_server(site, "serve")
        for site in SITES:
            self.children[site].wait_ready()
            self._start_server(f"{site}-copy", "follow", self.line.to(self.children[site].address))
        for site in SITES:
            self.children[f"{site}-copy"].wait_ready()
        for site in SITES:
            here = (self.children[site].address, self.children[f"{other(site)}-copy"].address)
            self.start_program(f"{site}-totals", f"{_EXAMPLE}.totals", *here, ready="adding up")
        for site in SITES:
            self.children[f"{site}-totals"].wait_ready()

    def _start_server(self, name: str, *command: str) -> None:
        where = ("--data-dir", str(self.log(name)), "--listen", f"{loopback()}:0")
        self.start_program(name, "txmsg.ops.cli.main", "metaq", *command, *where)

    def start_orders(self, site: str, count: int, per_s: float) -> Child:
        here = self.children[site].address
        return self.start_program(
            f"{site}-orders", f"{_EXAMPLE}.orders", here, site, str(count), str(per_s), ready="written"
        )
