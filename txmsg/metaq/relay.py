"""Appends a spool's batches to a log, in order, on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from txmsg.errors import CorruptLog, MisuseError, TxmsgError
from txmsg.metaq.format.frame import Compression
from txmsg.metaq.spool import Spool
from txmsg.metaq.store.log import Append
from txmsg.metaq.store.topics import TopicSettings
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
_COUNT_MAX: Final = 1024
_PAUSE_S_MAX: Final = 5.0
_CLOSE_S_MAX: Final = 60.0


class Appendable(Protocol):
    """The log to append to: a `Log`, or one from `open_log`."""

    def append(self, appends: Sequence[Append]) -> list[int]: ...

    def settings_of(self, topic: str) -> TopicSettings: ...


class SpoolRelay:
    """Moves batches from a spool to a log, between `start` and `close`.

    Nothing is dropped: batches that the log refuses are retried, and block later ones. An append without an answer is
    repeated, so the log may contain it twice, under the same ids.
    """

    def __init__(
        self,
        spool: Spool,
        log: Appendable,
        *,
        on_relayed: Callable[[Sequence[Append]], None] | None = None,
    ) -> None:
        self.failure = ""
        """The reason why the log accepts nothing now; empty if it does."""
        self.is_spool_damaged = False
        """True if the next batches cannot be read, until the spool is opened again."""
        self._spool = spool
        self._log = log
        self._on_relayed = on_relayed
        self._waiting = threading.Event()
        self._closed = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="txmsg-spool", daemon=True)

    def start(self) -> None:
        """Start the thread, beginning with batches that an earlier process left."""
        self._waiting.set()
        self._thread.start()

    def wake(self) -> None:
        """Notify the thread of new batches in the spool."""
        self._waiting.set()

    def close(self) -> None:
        """End the thread after the current append. Waiting batches stay. Closing twice is fine."""
        self._closed.set()
        self._waiting.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._waiting.wait()
            self._waiting.clear()
            while not self._closed.is_set() and not self._spool.is_empty:
                try:
                    self.run_once()
                except TxmsgError as exc:
                    self._log_failure(exc)
                    self._closed.wait(self._pause_s())
                except Exception as exc:  # noqa: BLE001 - the root of a thread: what waits must not be forgotten
                    _log.exception("spool.relay_failed", "relaying from %(spool)s failed", spool=self._spool.directory)
                    self._log_failure(exc)
                    self._closed.wait(_PAUSE_S_MAX)

    def run_once(self) -> int:
        """Move the oldest batches, and return their number. Raises the log's errors."""
        try:
            appends, mark = self._spool.head(size_bytes_max=_SIZE_BYTES_MAX, count_max=_COUNT_MAX)
        except (CorruptLog, OSError):
            self.is_spool_damaged = True
            raise
        if appends:
            # Appended before the mark is moved: a crash in between appends them again, under the same ids.
            self._log.append(appends)
            self._spool.done(mark)
            if self._on_relayed is not None:
                self._on_relayed(appends)
            if self.failure:
                _log.info("spool.relaying", "the log takes what waits in %(spool)s", spool=self._spool.directory)
            self.failure, self._failures = "", 0
        return len(appends)

    def _log_failure(self, exc: Exception) -> None:
        if not self.failure:
            _log.warning(
                "spool.waiting",
                "%(size_bytes)d bytes wait in %(spool)s, as the log takes nothing: %(error)s",
                size_bytes=self._spool.waiting_size_bytes,
                spool=self._spool.directory,
                error=exc,
            )
        self.failure = str(exc) or type(exc).__name__
        self._failures += 1

    def _pause_s(self) -> float:
        return min(_PAUSE_S_MAX, 0.1 * 2.0 ** min(self._failures, 10))


class SpooledLog:
    """A log whose appends return when they are in the spool. Closing leaves its batches for the next process."""

    def __init__(self, log: Appendable, spool: Spool) -> None:
        self.spool = spool
        self._known: dict[str, TopicSettings] = {}
        self._log = log
        self._is_closed = False
        self.relay = SpoolRelay(spool, log, on_relayed=self._learn)
        self.relay.start()

    def append(self, appends: Sequence[Append]) -> list[int]:
        """Store batches for the log, on disk on return. Their offsets are not known yet: -1."""
        if delayed := next((append.topic for append in appends if append.due_at_us is not None), None):
            raise MisuseError(  # the log may refuse the delay, and block later batches
                f"a message for topic {delayed!r} is delayed, which a spool does not hold: send it by a LogProducer "
                "without spool="
            )
        if self._is_closed:
            raise MisuseError("this LogProducer was closed: make another one")
        self.spool.put_batches(appends)
        self.relay.wake()
        return [-1] * len(appends)

    def settings_of(self, topic: str) -> TopicSettings:
        """Return the compression of the topic, once it is known: the log is not asked, since it may be unavailable.

        Not its number of queues: if it became known late, ordering keys would move to other queues.
        """
        return self._known.get(topic, _UNKNOWN)

    def _learn(self, appends: Sequence[Append]) -> None:
        for topic in {append.topic for append in appends} - self._known.keys():
            self._known[topic] = TopicSettings(compression=self._log.settings_of(topic).compression)

    def close(self) -> None:
        """Close the spool. Closing twice is fine."""
        self._is_closed = True
        self.relay.close()
        self.spool.close()


_UNKNOWN: Final = TopicSettings(compression=Compression.NONE)
