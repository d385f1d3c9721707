"""The incarnation of the Notify database that this broker's memory belongs to, and its end.

A database can go back: after a crash, the promotion of a standby, a restore. Rows read before may name queues and
offsets that are gone or reused. Knows no database: store/incarnation.py has the statements, and
migrations/0001/02_incarnation.sql defines an incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

Forget = Callable[[str], None]


class Incarnation:
    """The current incarnation.

    All code that keeps data of the database in memory registers a function that drops it.
    """

    def __init__(self) -> None:
        self.shard: UUID | None = None
        """The id of the Notify database, as last read. A restored backup keeps it, a recreated database does not."""
        self._id: UUID | None = None
        self._forget: list[Forget] = []

    @property
    def id(self) -> UUID | None:
        """The id; None: none was read yet, or the last one has ended."""
        return self._id

    def on_end(self, forget: Forget) -> None:
        """Call this with the reason when an incarnation ends: it must drop at once all that was read."""
        self._forget.append(forget)

    def begin_incarnation(self, found: UUID, shard: UUID) -> UUID:
        """Take the incarnation just read, unless another caller was faster. Returns the current one."""
        if self._id is None:
            self._id, self.shard = found, shard
        return self._id

    def end_incarnation(self, over: UUID | None, why: str) -> None:
        """Drop all memory of an incarnation that the database has refused. Idempotent."""
        # Statements that were under way when it ended all fail, and the incarnation may have begun again since the
        # first.
        if over is None or over != self._id:
            return
        _log.warning(
            "database.went_back",
            "all that was read from the Notify database is dropped, and read again: %(reason)s",
            reason=why,
        )
        # First: from here on no statement is given the old id.
        self._id = None
        for forget in self._forget:
            forget(why)
