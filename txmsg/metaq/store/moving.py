"""The thread of a log's writer that moves delayed messages when they are due. It runs only if there are any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from txmsg.errors import TxmsgError
from txmsg.metaq.store.cells import queue_directory
from txmsg.metaq.store.delayed import DELAYED, ENTRIES
from txmsg.metaq.store.mover import Mover
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_LOOK_S_MAX = 1.0
"""Seconds between two runs at most.

Clocks may be set meanwhile, and messages that a timed flush makes visible come unannounced.
"""


class Moving:
    """The mover's thread. Starts with the first delayed message. clock: seconds since 1970."""

    def __init__(self, root: Path, mover: Mover, clock: Callable[[], float]) -> None:
        self.on_moved: Callable[[set[tuple[str, int]]], None] = lambda _: None
        """Called on the thread with the queues that have got messages."""
        self._root = root
        self._mover = mover
        self._clock = clock
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due = threading.Event()
        self._is_stopped = False

    def start(self) -> None:
        """Start the thread if entries may be waiting from before."""
        if queue_directory(self._root, DELAYED, ENTRIES).is_dir():
            self.wake()

    def wake(self) -> None:
        """Notify the thread of a new entry."""
        self._due.set()
        with self._starting:
            if self._thread is None and not self._is_stopped:
                # Made by the first entry: most logs never have a delayed message.
                self._thread = threading.Thread(target=self._run, name="txmsg-metaq-delayed", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Return when the current move is done. Waiting entries are moved when the log is opened next."""
        with self._starting:
            self._is_stopped = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        trouble = ""
        while not self._is_stopped:
            # Cleared before the run: an entry that arrives during it sets the event again.
            self._due.clear()
            wait_s = _LOOK_S_MAX
            try:
                now = self._clock()
                next_us, grown = self._mover.run_once(int(now * 1e6))
                if next_us is not None:
                    wait_s = min(max(0.0, next_us / 1e6 - now), _LOOK_S_MAX)
                if grown:
                    self.on_moved(grown)
                trouble = ""
            except (OSError, TxmsgError) as exc:  # a full disk, or damage: tried again until that is mended
                if trouble != str(exc):
                    _log.error(
                        "log.delayed_wait",
                        "delayed messages of the log %(log)s are not moved: %(error)s",
                        log=self._root,
                        error=exc,
                    )
                trouble = str(exc)
            except Exception:  # noqa: BLE001 - the root of a thread
                _log.exception("log.delayed_failed", "delayed messages of the log %(log)s wait", log=self._root)
            self._due.wait(wait_s)
