"""What a tailer has done: for metrics, a bar, and tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from txmsg.metrics.counts import SECONDS, Histogram


@dataclass(slots=True)
class Progress:
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
    lag_s: float = 0.0
    """How long ago the last transaction that is in the log was committed, while there are more; else 0."""
    behind_bytes: int = 0
    """Of the write-ahead log, not confirmed to the server at the last look."""
    kept_bytes: int = 0
    """Of it, kept by the server for the mirror."""
    safe_bytes: int | None = None
    """What may be written before the slot is in danger; None: there is no limit, or it is not known yet."""
    appends: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    """Seconds that the log took."""
    goal: int = 0
    """What `messages` will be when all that was in the table at the last look is in the log."""
