"""Restarts an embedded PostgreSQL that has ended by itself, as when it was killed, or its disk was full."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from txmsg.broker.embedded.postgres import EmbeddedPostgres
from txmsg.errors import StorageError
from txmsg.runtime.logs import EventLog
from txmsg.runtime.restarts import Restarts

_log = EventLog(__name__)

_LOOK_S: Final = 0.25


class ServerWatch:
    """Checks that a server that this process uses still runs. `step` checks once; `watched` repeats it.

    now: the monotonic clock, in seconds. The server was started at the first of them.
    """

    def __init__(self, postgres: EmbeddedPostgres, now: float) -> None:
        self._postgres = postgres
        self._started_at = now
        self._start_at: float | None = None
        """The time of its next start, while it does not run."""
        self._restarts = Restarts()

    def step(self, now: float) -> None:
        """Notice the end of the server, or start it when that is due. Takes as long as a start does."""
        if self._start_at is None:
            if self._postgres.is_kept:
                return
            delay_s = self._restarts.delay_s(now - self._started_at)
            self._start_at = now + delay_s
            if self._postgres.running:
                return  # only its keeper was killed: the start makes another one, and changes nothing else
            _log.error(
                "embedded.ended",
                "the embedded PostgreSQL in %(data_dir)s has ended by itself, perhaps killed; it is started again in "
                "%(delay_s)g s. Its log: %(log)s",
                data_dir=self._postgres.data_dir,
                delay_s=delay_s,
                log=self._postgres.log,
            )
        elif now >= self._start_at:
            self._start(now)

    def _start(self, now: float) -> None:
        was_running = self._postgres.running
        try:
            self._postgres.start()
        except StorageError as exc:
            delay_s = self._restarts.delay_s(0.0)
            self._start_at = now + delay_s
            _log.error(
                "embedded.not_started",
                "the embedded PostgreSQL cannot be started (%(error)s); it is tried again in %(delay_s)g s",
                error=exc,
                delay_s=delay_s,
            )
            return
        self._started_at, self._start_at = now, None
        if not was_running:
            _log.warning(
                "embedded.started",
                "the embedded PostgreSQL in %(data_dir)s runs again",
                data_dir=self._postgres.data_dir,
            )


@contextmanager
def watched(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Keep a started server running within the block, by a thread. Leaving waits for a start in progress."""
    is_over = threading.Event()
    watch = ServerWatch(postgres, time.monotonic())

    def run() -> None:
        while not is_over.wait(_LOOK_S):
            try:
                watch.step(time.monotonic())
            except Exception:  # noqa: BLE001 - the root of a thread: the next step tries again
                _log.exception("embedded.watch_failed", "watching the embedded PostgreSQL failed")

    thread = threading.Thread(target=run, name="txmsg-embedded-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
