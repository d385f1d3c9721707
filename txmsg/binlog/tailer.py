"""The tailer: keeps a mirror running. Waits for its turn, runs, and retries after errors that may pass.

One tailer of a mirror works at a time: it holds a lock in the Notify database, and the log's. Others stand by, and the
first of them takes over when the active one ends, however that happens.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import closing
from enum import Enum

from txmsg.binlog.config import TailerConfig
from txmsg.binlog.database import Session, connect, require_own_session, translated
from txmsg.binlog.mirrors import TailerMirror
from txmsg.binlog.progress import TailerProgress
from txmsg.binlog.run import MirrorRun
from txmsg.binlog.sink import MirrorSink
from txmsg.binlog.slot import MirrorSlot
from txmsg.errors import BrokerUnavailable, LogBusy, OutcomeUnknown, StorageError, Unauthenticated
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_TURN_S = 0.5
_WAIT_S = 0.2


class TailerState(Enum):
    """The states of a tailer."""

    STARTING = "starting"
    STANDING_BY = "standing by"
    TAKING_OVER = "taking over"
    """It has stood by and now holds the mirror's lock; it does not mirror yet."""
    TAILING = "tailing"
    INTERRUPTED = "interrupted"
    """Its database or its log is away; it retries."""


_BEGUN = (TailerState.TAKING_OVER, TailerState.TAILING, TailerState.INTERRUPTED)


class TailerStop:
    """Ends a tailer, from another thread or a signal handler."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.is_set = False
        self.looked_at = time.monotonic()
        """The time.monotonic() of the last wait."""

    def set(self) -> None:
        """End the tailer. Calling it twice is fine."""
        self.is_set = True
        os.write(self._writer, b"\0")

    def wait(self, timeout_s: float, fd: int | None = None) -> bool:
        """Wait until it is set, this file is readable, or the time is over. Returns True if it is set."""
        self.looked_at = time.monotonic()
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if fd is not None:
            poll.register(fd, select.POLLIN)
        poll.poll(timeout_s * 1000)
        return self.is_set

    def close(self) -> None:
        """Close its files. It must not be set after that."""
        os.close(self._reader)
        os.close(self._writer)


class Tailer:
    """One process, or thread, that keeps a mirror running. `open_sink` opens the log for writing; it raises LogBusy."""

    def __init__(
        self,
        config: TailerConfig,
        open_sink: Callable[[], MirrorSink],
        *,
        on_state: Callable[[TailerState], None] = lambda _: None,
        on_progress: Callable[[TailerProgress], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._open_sink = open_sink
        self._on_state = on_state
        self._on_progress = on_progress
        self._stop = TailerStop()
        self._progress_at = time.monotonic()
        self.state = TailerState.STARTING
        self.progress = TailerProgress()

    def apply_settings(self, config: TailerConfig) -> None:
        """Apply the live ones of these settings from now on. From any thread."""
        self._config = config

    def stop(self) -> None:
        """Ask `run` to return soon, with all taken messages on disk. From any thread, or a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Mirror until it is stopped.

        Errors that may pass (a database or log that is away, a full disk, a token that was rotated late) are logged and
        retried; an error of one queue stops that queue alone. Raises CorruptLog for a log that cannot be opened; when
        it starts, StorageError if the database is not set up for it, and Unauthenticated.
        """
        wait_s = _WAIT_S
        try:
            while not self._stop.is_set:
                before = self.progress.messages
                try:
                    self.run_once()
                except (BrokerUnavailable, LogBusy, OutcomeUnknown) as exc:  # where the log ends is looked at again
                    self._interrupted()
                    _log.warning("mirror.interrupted", "%(error)s; trying again", error=exc)
                except (StorageError, OSError) as exc:
                    # Before the first run these are the operator's mistakes, which a retry would hide. Later the same
                    # errors may pass, as a full disk does.
                    if self.state not in _BEGUN:
                        raise
                    self._interrupted()
                    _log.error("mirror.failed", "%(error)s; trying again", error=exc)
                except Unauthenticated as exc:
                    # A wrong token at the start is a mistake in the settings; later it may be a rotation that reached
                    # this process late.
                    if self.state is TailerState.STARTING:
                        raise
                    self._interrupted()
                    _log.error("mirror.failed", "%(error)s; trying again", error=exc)
                if self.progress.messages > before:
                    wait_s = _WAIT_S
                self._stop.wait(wait_s)
                wait_s = min(2 * wait_s, self._config.wait_s_max)
        finally:
            self._stop.close()

    def run_once(self) -> None:
        """Wait for the turn, then mirror until it is stopped or something fails."""
        self.progress.slot = None
        with closing(connect(self._config.storage)) as session, translated():
            require_own_session(session, self._config.storage)
            if not self._await_turn(session):
                return
            self._take_over()
            self.progress.slot = MirrorSlot(session, self._config.mirror).read_slot()
            sink = self._await_sink(session)
            if sink is None:
                return
            self._take_over()
            with closing(sink):
                run = MirrorRun(
                    self._config,
                    session,
                    sink,
                    self.progress,
                    on_progress=self._tell_progress,
                )
                with closing(run):
                    run.start()
                    self._report_state(TailerState.TAILING)
                    while not self._stop.is_set:
                        run.config = self._config
                        run.step(self._wait)
                        self._tell_progress(self.progress)

    def silence_s(self) -> float:
        """Return seconds since `run` last made progress. From any thread."""
        return time.monotonic() - max(self._stop.looked_at, self._progress_at)

    def _tell_progress(self, progress: TailerProgress) -> None:
        self._progress_at = time.monotonic()
        self._on_progress(progress)

    def _wait(self, fd: int, timeout_s: float) -> None:
        self._stop.wait(timeout_s, fd)

    def _await_turn(self, session: Session) -> bool:
        mirrors = TailerMirror(session, self._config.mirror)
        while not mirrors.try_lock():
            self._stand_by()
            if self._stop.wait(_TURN_S):
                return False
        return True

    def _await_sink(self, session: Session) -> MirrorSink | None:
        while True:
            try:
                return self._open_sink()
            except LogBusy as exc:
                if self.state is not TailerState.STANDING_BY:
                    _log.info("mirror.standing_by", "%(error)s; standing by", error=exc)
                self._stand_by()
            session.execute("select 1")  # an idle session would be ended, and the turn lost
            if self._stop.wait(_TURN_S):
                return None

    def _stand_by(self) -> None:
        self._report_state(TailerState.STANDING_BY)
        self.progress.behind_since = time.monotonic()  # if it lags, then from its turn on

    def _take_over(self) -> None:
        if self.state is TailerState.STANDING_BY:
            self._report_state(TailerState.TAKING_OVER)

    def _interrupted(self) -> None:
        """Report the interruption. From now on the lag grows, because it is unknown."""
        if self.progress.behind_since is None:
            self.progress.behind_since = time.monotonic()
        if self.state is not TailerState.STARTING:
            self._report_state(TailerState.INTERRUPTED)

    def _report_state(self, state: TailerState) -> None:
        if state is not self.state:
            self.state = state
            self._on_state(state)
