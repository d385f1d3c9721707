"""Which deliveries are out of date, for another broker has been given their queue since. Pure: time is an argument."""

from __future__ import annotations

OUSTED_S_MAX = 15.0
"""For so long an answer may still come that a broker gave before it lost its lease: longer than any poll takes. What
comes later under a lower epoch is of the lease that holds now. Epochs go back only where a
database does and the clock of its new server is behind; refusing them for ever would lose the queue."""


class Epochs:
    """The epochs under which messages of each queue came: of two at a time, the higher one counts."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}

    def is_current(self, queue_id: int, epoch: int, now: float) -> bool:
        """Whether what was delivered under this epoch is to be handled."""
        highest, since = self._seen.get(queue_id, (-1, now))
        if epoch == highest:
            return True
        if epoch < highest and now < since + OUSTED_S_MAX:
            return False
        self._seen[queue_id] = (epoch, now)
        return True
