"""Queues that a mirror has stopped at, while it goes on with the others: each is logged, and noted in the database."""

from __future__ import annotations

from txmsg.binlog.mirrors import Mirrors
from txmsg.binlog.progress import Progress
from txmsg.errors import MirrorDiverged
from txmsg.logs import EventLog

_log = EventLog(__name__)

_REASON_LENGTH_MAX = 2000


class Stops:
    """The queues that one run does not mirror any further. The next start of the tailer looks at them again."""

    def __init__(self, mirrors: Mirrors, progress: Progress) -> None:
        self._mirrors = mirrors
        self._progress = progress
        self._ids: set[int] = set()
        progress.stopped = 0

    def __contains__(self, queue_id: int) -> bool:
        return queue_id in self._ids

    def add(self, queue_id: int, topic: str, number: int, error: Exception) -> None:
        """Stops at a queue. From now on retention keeps what follows in the table, as what a group has not read."""
        self._ids.add(queue_id)
        self._progress.stopped = len(self._ids)
        reason = str(error) if str(error) else repr(error)
        _log.error(
            "mirror.queue_stopped",
            "topic %(topic)s queue %(queue)d is mirrored no further, the others go on: %(error)s",
            topic=topic,
            queue=number,
            error=reason,
        )
        # Where log and table are equal up to is known of one that has diverged; else the position noted last is right.
        offset = error.offset if isinstance(error, MirrorDiverged) else None
        self._mirrors.stop(queue_id, offset, reason[:_REASON_LENGTH_MAX])
