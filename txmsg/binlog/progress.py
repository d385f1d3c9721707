"""What a tailer has done: for metrics, a bar, and tests.

What is not known any more, as the log or the database is away, does not keep the value that it had: a lag grows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from txmsg.binlog.slot import ReplicationSlot
from txmsg.metrics.counts import SECONDS, Histogram


@dataclass(slots=True)
class TailerProgress:
    """What a tailer has done since it started."""

    messages: int = 0
    """Appended to the log."""
    refilled: int = 0
    """Of these, read from the table."""
    repeated: int = 0
    """Came once more, and were there already."""
    missing: int = 0
    """Offsets that were gone before they could be mirrored; holes in the log mark them."""
    foreign: int = 0
    """Changes in the publication that are not messages."""
    stopped: int = 0
    """Queues that are no longer mirrored, since this run began."""
    behind_since: float | None = field(default_factory=time.monotonic)
    """Since when, by time.monotonic(), the log has not all that is committed, or it is not known whether it has; None:
    it has."""
    slot: ReplicationSlot | None = None
    """As the server told it last; None: there is none, or the server cannot be asked."""
    appends: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Seconds that the log took."""
    goal: int = 0
    """What `messages` will be when all that was in the table at the last look is in the log."""

    @property
    def lag_s(self) -> float:
        """How long ago the last transaction that is in the log was committed, while there may be more; else 0."""
        since = self.behind_since  # which the tailer's thread may set meanwhile
        return 0.0 if since is None else time.monotonic() - since
