"""Starts the databases and all processes of the lottery.

Databases: "notify" of the broker, "activity" of the page where users enter, "tickets" of the lottery system, "figures"
of the live page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from txmsg.ops.demo.examples.lottery.figures import create_tables
from txmsg.ops.demo.stage import DemoStage
from txmsg.runtime.child import Child
from txmsg.runtime.postgres import FORM, connect
from txmsg.wire.listening import loopback
from txmsg.wire.ports import own_port

ACTIVITIES: Final = ("activity_1", "activity_2")
PRINTERS: Final = ("printer_1", "printer_2", "printer_3", "printer_4")
_EXAMPLE: Final = "txmsg.ops.demo.examples.lottery"


class LotteryStage(DemoStage):
    """All processes but the burst, and the printers that are started later."""

    ending = ("burst",)

    def __init__(self, directory: Path, *, print_ms: int, printers: int) -> None:
        super().__init__(directory, "activity", "tickets", "figures")
        self._print_ms = str(print_ms)
        self._printers = printers
        self.activities = {name: f"{loopback()}:{own_port()}" for name in ACTIVITIES}
        """Addresses, which are the same after a crash."""

    def _set_up(self) -> None:
        self.start_broker().wait_ready()
        self.run("activity-tables", f"{_EXAMPLE}.activity", **self._activity_env())
        with connect(self.url("figures"), FORM) as connection:
            create_tables(connection)
        for name in ACTIVITIES:
            self.start_activity(name)
        for name in PRINTERS[: self._printers]:
            self.start_printer(name).wait_ready()  # the first one makes the tables
        self.start_page(f"{_EXAMPLE}.page", "--figures", self.url("figures"))
        self.await_ready()

    def start_activity(self, name: str) -> Child:
        """Start a process of the page where users enter."""
        return self.start(name, f"{__package__}.run_activity", self.activities[name], **self._activity_env())

    def start_printer(self, name: str) -> Child:
        """Start a process that prints tickets."""
        env = {"TICKETS_DATABASE_URL": self.sqlalchemy_url("tickets"), "PRINT_MS": self._print_ms}
        return self.start(name, f"{__package__}.run_printing", ready="printing", **env)

    def _activity_env(self) -> dict[str, str]:
        return {"ACTIVITY_DATABASE_URL": self.sqlalchemy_url("activity")}

    def start_burst(self, users: int, seconds: float) -> Child:
        """Start the program that has all users enter."""
        return self.start(
            "burst", f"{__package__}.run_burst", str(users), str(seconds), *self.activities.values(), ready="bursting"
        )
