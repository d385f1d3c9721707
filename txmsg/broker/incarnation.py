"""Which incarnation of the Notify database this broker's memory is of, and who forgets what when it is over.

A database can go back: after a crash, the promotion of a standby, a restore. What was read from it before may name
queues and offsets that are gone, or mean others by now. Knows no database: store/incarnation.py has the statements, and
migrations/sql/0001/incarnation.sql says what an incarnation is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

_log = logging.getLogger(__name__)

Forget = Callable[[str], None]


class Incarnation:
    """The incarnation that memory is of. All that is kept in memory registers how it is forgotten."""

    def __init__(self) -> None:
        self.shard: UUID | None = None
        """Which Notify database this is, as last read; a backup has the same, one that was made anew another."""
        self._id: UUID | None = None
        self._forget: list[Forget] = []

    @property
    def id(self) -> UUID | None:
        """None: nothing was read yet, or the last one is over."""
        return self._id

    def on_end(self, forget: Forget) -> None:
        """Has this called when an incarnation ends, with the reason: it drops what it has read, at once."""
        self._forget.append(forget)

    def begin(self, found: UUID, shard: UUID) -> UUID:
        """This is the current one, as just read; unless another caller was faster. The one that holds."""
        if self._id is None:
            self._id, self.shard = found, shard
        return self._id

    def end(self, over: UUID | None, why: str) -> None:
        """The database refused this one: all memory of it is dropped. Nothing happens if it has ended before."""
        if over is None or over != self._id:
            return
        _log.warning("all that was read from the Notify database is dropped, and read again: %s", why)
        self._id = None
        for forget in self._forget:
            forget(why)
