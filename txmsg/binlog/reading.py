"""Reads a replication stream on a thread of its own.

So the server is read and answered also while the log is synced, or much is read from the table. While one batch goes to
disk the next one comes in, so batches grow as large as disk and database make them and no larger.
"""

from __future__ import annotations

import os
import select
import threading
from typing import NamedTuple

from txmsg.binlog.replication import ReplicationStream

SIZE_BYTES_MAX = 8 * 1024 * 1024
"""Bytes that are read ahead at most, apart from one last read; then the server waits."""
_READ_SIZE_BYTES = 256 * 1024


class ReceivedChanges(NamedTuple):
    """The messages since the last call. sent_end: the position up to which the server has sent everything, these
    included.
    """

    messages: list[bytes]
    sent_end: int


class ReplicationReader:
    """A stream that is being read. Closing it closes the stream."""

    def __init__(self, stream: ReplicationStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._messages: list[bytes] = []
        self._size_bytes = 0
        self._sent_end = 0
        self._error: Exception | None = None
        self._confirmed = 0
        self._closing = False
        self._told_come = False
        self._has_come, self._tell_come = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._is_taken, self._tell_taken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="txmsg-tailer-reader", daemon=True)
        self._thread.start()

    # ---- for the one that takes

    def fileno(self) -> int:
        """Return a file that is readable while there are messages to take."""
        return self._has_come

    def take_messages(self) -> ReceivedChanges:
        """Take the messages that have arrived, without waiting. After the last one, raises the error that ended the
        stream.
        """
        with self._lock:
            taken = ReceivedChanges(self._messages, self._sent_end)
            was_full = self._size_bytes >= SIZE_BYTES_MAX
            if not taken.messages and self._error is not None:
                raise self._error
            self._messages, self._size_bytes = [], 0
            # Under the lock, with the flag: the pipe holds one byte exactly while there is something to take. After an
            # error the byte stays, so that the consumer wakes up until it has raised the error.
            if self._told_come and self._error is None:
                os.read(self._has_come, 1)
                self._told_come = False
        if was_full:
            os.write(self._tell_taken, b"\0")
        return taken

    def confirm(self, lsn: int) -> None:
        """Note that everything before this position is on disk; the server is told within a second."""
        self._confirmed = max(self._confirmed, lsn)

    @property
    def server_ahead_us(self) -> int:
        """Microseconds by which the server's clock is ahead of this one."""
        return self._stream.server_ahead_us

    def close(self) -> None:
        """Send the last confirmation, and end. Closing twice is fine."""
        if self._closing:
            return
        self._closing = True
        os.write(self._tell_taken, b"\0")
        self._thread.join()
        self._stream.close(self._confirmed)
        for fd in (self._has_come, self._tell_come, self._is_taken, self._tell_taken):
            os.close(fd)

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._closing:
                self._read_once()
        except Exception as exc:  # noqa: BLE001 - the root of this thread: `take_messages` raises it
            with self._lock:
                self._error = exc
                self._wake_consumer()

    def _read_once(self) -> None:
        is_all = False
        if not self._is_full():
            messages, is_all = self._stream.read(_READ_SIZE_BYTES)
            size = sum(map(len, messages))
            with self._lock:
                if messages or self._sent_end != self._stream.sent_end:
                    self._wake_consumer()
                self._messages += messages
                self._size_bytes += size
                self._sent_end = self._stream.sent_end
        # Sent by this thread alone, since two threads must not use one connection of libpq; `confirm` of the other one
        # only notes the position.
        self._stream.confirm(self._confirmed)
        is_full = self._is_full()
        if is_full or is_all:
            poll = select.poll()
            poll.register(self._is_taken, select.POLLIN)
            if not is_full:
                poll.register(self._stream.fileno(), select.POLLIN)
            if any(fd == self._is_taken for fd, _ in poll.poll(self._stream.STATUS_S * 1000)):
                os.read(self._is_taken, 4096)

    def _is_full(self) -> bool:
        with self._lock:
            return self._size_bytes >= SIZE_BYTES_MAX

    def _wake_consumer(self) -> None:
        """Make `fileno` readable. The caller holds the lock."""
        if not self._told_come:
            self._told_come = True
            os.write(self._tell_come, b"\0")
