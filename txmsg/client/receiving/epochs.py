"""Detection of outdated deliveries, whose queue another broker has been given since. Pure: time is an argument."""

from __future__ import annotations

OUSTED_S_MAX = 15.0
"""Seconds in which an answer may still come that a broker gave before it lost its lease: longer than any poll takes. A
later answer under a lower epoch is of the lease that holds now. Epochs go back only if a database does and the clock of
its new server is behind; refusing them forever would lose the queue."""


class Epochs:
    """The epochs under which messages of each queue came: of two at a time, the higher one counts."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def is_current(self, queue_id: int, epoch: int, now: float) -> bool:
        """Return True if messages that were delivered under this epoch are to be handled."""
        highest, since = self._seen.get(queue_id, (-1, now))
        if epoch == highest:
            return True
        if epoch < highest and now < since + OUSTED_S_MAX:
            return False
        self._seen[queue_id] = (epoch, now)
        return True
