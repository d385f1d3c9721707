"""Starts the processes of two data centres.

Of each site: a server of its own log (`hz`), a copy of it in the other site (`hz-copy`), a program that writes its
orders (`hz-orders`), and one that adds up the orders of both sites in it (`hz-totals`).
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
    """Return the other site."""
    return SITES[1 - SITES.index(site)]


class DataCentres(DemoProcesses):
    """The logs, their copies and the totals; `start_orders` starts the programs that write."""

    ending = tuple(f"{site}-orders" for site in SITES)

    def __init__(self, directory: Path, line: CuttableLink) -> None:
        super().__init__(directory)
        self.line = line

    def log(self, name: str) -> Path:
        """Return the directory of a log, or of a copy."""
        return self.directory / name

    def _set_up(self) -> None:
        for site in SITES:
            self._start_server(site, "serve")
        self.await_ready()
        for site in SITES:
            self._start_server(f"{site}-copy", "follow", self.line.to(self.children[site].address))
        self.await_ready()
        for site in SITES:
            here = (self.children[site].address, self.children[f"{other(site)}-copy"].address)
            self.start_program(f"{site}-totals", f"{_EXAMPLE}.totals", *here, ready="adding up")
        self.await_ready()

    def _start_server(self, name: str, *command: str) -> None:
        where = ("--data-dir", str(self.log(name)), "--listen", f"{loopback()}:0")
        self.start_command(name, "metaq", *command, *where)

    def start_orders(self, site: str, count: int, per_s: float) -> Child:
        """Start the program that writes the orders of a site."""
        where = (self.children[site].address, site)
        return self.start_program(
            f"{site}-orders", f"{_EXAMPLE}.orders", *where, str(count), str(per_s), ready="written"
        )
