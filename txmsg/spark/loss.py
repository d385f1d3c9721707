"""What becomes of a read when messages are gone that it should have read."""

from __future__ import annotations

import logging

from txmsg.errors import OffsetOutOfRange
from txmsg.metaq.access import LogQueue

_LOG = logging.getLogger(__name__)


class LossPolicy:
    """Fails, or goes on: the option failOnDataLoss."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def lost(self, queue: LogQueue, begin: int, end: int, why: str) -> None:
        """Raises OffsetOutOfRange; or logs a warning, and the read goes on without them."""
        what = f"topic {queue.topic} queue {queue.queue}: offsets {begin} to {end - 1} cannot be read: {why}"
        if self._fails:
            raise OffsetOutOfRange(f"{what}; look into it, then go on without them by failOnDataLoss=false", begin, end)
        _LOG.warning("%s; going on without them", what)
