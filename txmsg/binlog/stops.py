"""Queues at which a mirror has stopped while it continues with the others; each is logged and noted in the database."""

from __future__ import annotations

import time
from typing import Final

from txmsg.binlog.mirrors import TailerMirror
from txmsg.binlog.progress import TailerProgress
from txmsg.errors import MirrorDiverged, PermissionDenied
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_REASON_LENGTH_MAX = 2000
AGAIN_S: Final = 60.0
"""Seconds until a queue that stopped for want of a right is tried again."""


class StoppedQueues:
    """The queues that one run no longer mirrors. The next start of the tailer tries all of them again.

    Those that stopped for want of a right are tried again while it runs: granting a right does not restart a tailer.
    """

    def __init__(self, mirrors: TailerMirror, progress: TailerProgress) -> None:
        self._mirrors = mirrors
        self._progress = progress
        self._reasons: dict[int, str] = {}
        self._again_at: dict[int, float] = {}
        progress.stopped = 0

    def __contains__(self, queue_id: int) -> bool:
        return queue_id in self._reasons

    def add(self, queue_id: int, topic: str, number: int, error: Exception) -> None:
        """Stop a queue. From now on retention keeps the rest of it in the table, as for a group that has
        not read it.
        """
        reason = str(error) if str(error) else repr(error)
        if isinstance(error, PermissionDenied):
            self._again_at[queue_id] = time.monotonic() + AGAIN_S
        if self._reasons.get(queue_id) == reason:
            return
        self._reasons[queue_id] = reason
        self._progress.stopped = len(self._reasons)
        _log.error(
            "mirror.queue_stopped",
            "topic %(topic)s queue %(queue)d is no longer mirrored; other queues continue: %(error)s",
            topic=topic,
            queue=number,
            error=reason,
        )
        # Where log and table are equal up to is known of one that has diverged; else the position noted last is right.
        offset = error.offset if isinstance(error, MirrorDiverged) else None
        self._mirrors.stop(queue_id, offset, reason[:_REASON_LENGTH_MAX])

    def to_try(self) -> set[int]:
        """Return the queues to try again now. Each is returned once per stop."""
        now = time.monotonic()
        due = {queue_id for queue_id, at in self._again_at.items() if at <= now}
        for queue_id in due:
            del self._again_at[queue_id]
        return due

    def remove(self, queue_id: int, topic: str, number: int) -> None:
        """Note that a queue is mirrored again."""
        del self._reasons[queue_id]
        self._progress.stopped = len(self._reasons)
        _log.info(
            "mirror.queue_resumed", "topic %(topic)s queue %(queue)d is mirrored again", topic=topic, queue=number
        )
