"""What a tailer has done: for metrics, a bar, and tests."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Queues that are mirrored no further, since this run began."""
    lag_s: float = 0.0
    """How long ago the last transaction that is in the log was committed, while there are more; else 0."""
    goal: int = 0
    """What `messages` will be when all that was in the table at the last look is in the log."""
