"""Options that only a consumer of a log has: how its group shares queues, and where it continues if messages are
missing.

Imports nothing heavy: applications declare these before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from txmsg.errors import MisuseError, shown
from txmsg.message import check_name
from txmsg.runtime.user_function import check_takes

if TYPE_CHECKING:
    from txmsg.metaq.group.assignment import Strategy

LOG_VARIABLE: Final = "TXMSG_LOG"
"""The variable that names the log for applications and commands that do not name one."""

Missing: TypeAlias = Literal["error", "earliest", "latest"]
"""The position at which a queue continues whose next offset is not kept any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The same in all members of a group, and for all of its topics. Explained at `AsyncPullConsumer`."""

    ordered: bool = False
    """True if a queue waits for the retry of a message that failed. Default: later messages are delivered meanwhile."""
    strategy: Strategy | None = None
    """The assignment of queues to members. Default: equal shares, `averaged`."""
    zone: str = ""
    """The zone in which this member runs. Default: none, so that its log's zone does not apply."""
    missing: Missing = "earliest"
    """The position at which a queue continues whose next offset is no longer kept; with "error" it stops."""

    def __post_init__(self) -> None:
        if not isinstance(self.ordered, bool):
            raise MisuseError(f"ordered={shown(self.ordered)} is not True or False")
        if self.strategy is not None:
            check_takes("strategy", self.strategy, "queues", "members")
        if self.zone != "":
            check_name("zone", self.zone)
        if self.missing not in ("error", "earliest", "latest"):
            raise MisuseError(f"missing={shown(self.missing)} is not 'error', 'earliest' or 'latest'")
