"""The progress of a tailer: for metrics, a progress bar, and tests.

Figures that become unknown while the log or the database is away do not keep their last value: a lag grows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from txmsg.binlog.slot import ReplicationSlot
from txmsg.metrics.counts import SECONDS, Histogram


@dataclass(slots=True)
class TailerProgress:
    """Counts and times of a tailer since it started."""

    messages: int = 0
    """Messages appended to the log."""
    refilled: int = 0
    """The part of `messages` that was read from the table."""
    repeated: int = 0
    """Messages that replication sent again, and that the log had already."""
    missing: int = 0
    """Offsets that were gone before they could be mirrored; holes in the log mark them."""
    foreign: int = 0
    """Changes in the publication that are not messages."""
    stopped: int = 0
    """Queues that are no longer mirrored, since this run began."""
    behind_since: float | None = field(default_factory=time.monotonic)
    """The time.monotonic() since which the log lacks committed messages, or since which that is unknown; None: it has
    all."""
    slot: ReplicationSlot | None = None
    """The slot as the server reported it last; None: it does not exist, or the server cannot be asked."""
    appends: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Seconds per append to the log."""
    goal: int = 0
    """The value of `messages` at which the log has everything that the table had at the last look."""

    @property
    def lag_s(self) -> float:
        """Seconds since the commit of the log's last transaction, while there may be more to mirror; else 0."""
        since = self.behind_since  # which the tailer's thread may set meanwhile
        return 0.0 if since is None else time.monotonic() - since
