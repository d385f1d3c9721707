"""Waits for a log to grow, whichever process writes it. Costs nearly nothing while it does not grow.

Each check is two `stat` calls. Checks come a millisecond after the last batch was served, and then less and less often,
down to 40 per second. Not inotify: the standard library does not have it, other systems have different mechanisms, and
network file systems do not report changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from txmsg.metaq.store.commit_log import files_of, log_file

T = TypeVar("T")

_LOOK_S_MIN = 0.001
_LOOK_S_MAX = 0.025
_SETTLING_S = 0.25
_CALL_ANYWAY_S = 1.0


class Growth:
    """Watches the end of a commit log. Threads may share it."""

    def __init__(self, root: Path, closed: threading.Event) -> None:
        self._directory = root / "commitlog"
        self._closed = closed
        self._last: tuple[int, Path] | None = None  # when the directory last changed, and its last file then

    def wait(self, found: Callable[[], T], wait_s: float) -> T:
        """Return the result of `found` as soon as it is not empty; an empty one after wait_s, or if the log is closed.

        `found` is called again while the log grows, and a little longer: a batch becomes visible when it is on disk,
        which may be a moment after its file has grown. For disks slower than that it is also called every second.
        """
        seen = self._last_file()  # before the first call, so that nothing comes between
        result = found()
        now = time.monotonic()
        deadline, call_at, settled_at, pause_s = now + wait_s, now + _CALL_ANYWAY_S, 0.0, _LOOK_S_MIN
        while not result and now < deadline and not self._closed.wait(min(pause_s, deadline - now)):
            # From 1 ms to 25 ms: a waiting fetch costs 0.5 % of a core, and a message after a pause is handled 15 ms
            # later in the median (decision 0022).
            pause_s = min(2 * pause_s, _LOOK_S_MAX)
            now = time.monotonic()
            if (end := self._last_file()) != seen:
                seen, settled_at = end, now + _SETTLING_S
            if now < settled_at or now >= min(call_at, deadline):
                result, call_at = found(), now + _CALL_ANYWAY_S
        return result

    def _last_file(self) -> tuple[Path, int] | None:
        """Return the last file and its size; None when there is none."""
        try:
            changed_at = self._directory.stat().st_mtime_ns
            last = self._last
            if last is None or last[0] != changed_at:
                firsts = files_of(self._directory, ".log")
                if not firsts:
                    return None
                last = self._last = (changed_at, log_file(self._directory, firsts[-1]))
            return last[1], last[1].stat().st_size
        except FileNotFoundError:  # emptied this moment, or removed: readers raise
            self._last = None
            return None
