"""Read-ahead of a tailer is bounded while changes are not consumed, and the server still gets its status."""

from __future__ import annotations

import os

import pytest

from tests.waiting import until
from txmsg.binlog import reading
from txmsg.binlog.reading import ReplicationReader
from txmsg.binlog.replication import ReplicationStream


class Endless(ReplicationStream):
    """A stream with endless changes and no connection."""

    def __init__(self) -> None:
        self.sent_end = self.server_ahead_us = self.confirmed = 0
        self.read_bytes = 0
        self.confirms = 0
        self._fd, self._end = os.pipe()

    def fileno(self) -> int:
        return self._fd

    def read(self, size_bytes_max: int) -> tuple[list[bytes], bool]:
        self.read_bytes += size_bytes_max
        return [bytes(size_bytes_max)], False

    def confirm(self, lsn: int) -> None:
        self.confirms += 1

    def close(self, confirmed: int = 0) -> None:
        os.close(self._fd)
        os.close(self._end)


def test_reading_pauses_while_changes_are_not_consumed_but_status_is_still_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "SIZE_BYTES_MAX", 1024 * 1024)
    monkeypatch.setattr(ReplicationStream, "STATUS_S", 0.001)
    stream = Endless()
    read_ahead = ReplicationReader(stream)
    try:
        for part in (1, 2):
            until(lambda: stream.read_bytes >= part * 1024 * 1024)  # noqa: B023
            before = stream.confirms
            until(lambda: stream.confirms > before + 20)  # noqa: B023
            assert stream.read_bytes == part * 1024 * 1024
            read_ahead.take_messages()
    finally:
        read_ahead.close()
