"""A replication connection: START_REPLICATION on psycopg's pgconn. The only module that uses COPY_BOTH.

Source: "Streaming Replication Protocol" of the PostgreSQL manual.
"""

from __future__ import annotations

import select
import struct
import time
from typing import Final

import psycopg
from psycopg import pq, sql

from txmsg.message import EPOCH_2000_US
from txmsg.runtime.postgres import KEEPALIVES, connect

_DATA, _KEEPALIVE = b"wk"
_KEEPALIVE_MESSAGE = struct.Struct(">xQqB")
_STATUS = struct.Struct(">cQQQqB")
_SENT_AT = struct.Struct(">17xq")
_START_S_MAX = 30.0
_SILENCE_S_MAX = 30.0
_END_S_MAX = 5.0


def lsn_of(text: str) -> int:
    """Parse a position in the write-ahead log from its SQL text."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


class ReplicationStream:
    """The changes of one publication, read from one slot at its position. Not thread-safe.

    All methods raise psycopg.OperationalError when the connection is gone, or silent for _SILENCE_S_MAX.
    Protocol version 1: the server sends whole transactions after they have committed, and keeps large ones on its own
    disk meanwhile. So this side can write a part of a transaction before the rest has come, and needs memory for a part
    only.
    """

    STATUS_S: Final = 1.0
    """Maximum seconds between two reports to the server of the position that is on disk here."""

    def __init__(
        self,
        url: str,
        *,
        slot: str,
        publication: str,
    ) -> None:
        self._connection = connect(
            url,
            replication="database",
            application_name=f"txmsg tailer {slot}",
            connect_timeout=10,
            **KEEPALIVES,
        )
        self._pgconn = self._connection.pgconn
        self._readable = select.poll()  # not select.select, which takes no file above 1,023
        self._readable.register(self._pgconn.socket, select.POLLIN)
        self._writable = select.poll()
        self._writable.register(self._pgconn.socket, select.POLLOUT)
        self.confirmed = 0
        """The position before which everything is on disk, as the server was told last."""
        self.sent_end = 0
        """The position up to which the server has sent everything that it has to send."""
        self.server_ahead_us = 0
        """Microseconds by which the server's clock is ahead of this one, estimated from the last message."""
        self._told_at = self._heard_at = time.monotonic()
        self._asked = False
        try:
            self._start(slot, publication)
        except BaseException:
            self._connection.close()
            raise

    def fileno(self) -> int:
        """Return the socket, which is readable when there is something to read."""
        return self._pgconn.socket

    def _start(self, slot: str, publication: str) -> None:
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}, binary 'true')"
        ).format(sql.Identifier(slot), sql.Literal(sql.Identifier(publication).as_string(self._connection)))
        self._pgconn.send_query(command.as_bytes(self._connection))
        self._pgconn.flush()
        deadline = time.monotonic() + _START_S_MAX
        while self._pgconn.is_busy():
            if not self._wait_readable(deadline - time.monotonic()):
                raise psycopg.OperationalError(f"the server does not start replication within {_START_S_MAX:g} s")
            self._pgconn.consume_input()
        result = self._pgconn.get_result()
        assert result is not None
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _error_of(result)

    def _wait_readable(self, timeout_s: float) -> bool:
        return bool(self._readable.poll(max(0.0, timeout_s) * 1000))

    def read(self, size_bytes_max: int) -> tuple[list[bytes], bool]:
        """Return the messages w that have come, undecoded, and whether these are all for now. Does not wait.

        May exceed size_bytes_max by one message.
        """
        messages: list[bytes] = []
        get = self._pgconn.get_copy_data
        consumed = False
        while size_bytes_max > 0:
            size, data = get(1)
            if size > 0:
                message = bytes(data)
                if message[0] == _DATA:
                    messages.append(message)
                    size_bytes_max -= size
                else:
                    self._take_keepalive(message)
            elif size < 0:
                raise _error_of(self._pgconn.get_result())
            elif consumed and not self._wait_readable(0):
                if messages:
                    self._heard(messages[-1])
                self._require_alive()
                return messages, True
            else:
                self._pgconn.consume_input()
                consumed = True
        self._heard(messages[-1])
        return messages, False

    def _heard(self, message: bytes) -> None:
        self._heard_at, self._asked = time.monotonic(), False
        (sent_at_2000_us,) = _SENT_AT.unpack_from(message)
        self.server_ahead_us = sent_at_2000_us + EPOCH_2000_US - time.time_ns() // 1000

    def _take_keepalive(self, message: bytes) -> None:
        if message[0] != _KEEPALIVE:
            return  # of a kind that this release does not know, and that asks for nothing
        self.sent_end, _, wants_reply = _KEEPALIVE_MESSAGE.unpack(message)
        self._heard_at, self._asked = time.monotonic(), False
        if wants_reply:
            self._told_at = -self.STATUS_S  # the next `confirm` tells it

    def _require_alive(self) -> None:
        silent_s = time.monotonic() - self._heard_at
        if silent_s > _SILENCE_S_MAX:
            raise psycopg.OperationalError(f"the server has said nothing for {silent_s:.0f} s")
        # A hung server, or a line that was cut without a reset, raises nothing. So ask for a sign of life well before
        # giving up.
        if silent_s > _SILENCE_S_MAX / 3 and not self._asked:
            self._asked = True
            self._send_status(wants_reply=True)

    def confirm(self, lsn: int) -> None:
        """Note that everything before this position is on disk, so that the server need not keep it. Sent every
        STATUS_S.
        """
        self.confirmed = max(self.confirmed, lsn)
        if time.monotonic() - self._told_at >= self.STATUS_S:
            self._send_status()

    def _send_status(self, *, wants_reply: bool = False) -> None:
        now_2000_us = time.time_ns() // 1000 - EPOCH_2000_US
        at = self.confirmed
        self._pgconn.put_copy_data(_STATUS.pack(b"r", at, at, at, now_2000_us, wants_reply))
        while self._pgconn.flush():
            if not self._writable.poll(_SILENCE_S_MAX * 1000):
                raise psycopg.OperationalError("the server takes no status")
        self._told_at = time.monotonic()

    def close(self, confirmed: int = 0) -> None:
        """Send the last position, and close. Closing twice is fine, also when the connection is gone."""
        if self._connection.closed:
            return
        self.confirmed = max(self.confirmed, confirmed)
        try:
            self._send_status()
            self._pgconn.put_copy_end()
            self._pgconn.flush()
            deadline = time.monotonic() + _END_S_MAX
            while (size := self._pgconn.get_copy_data(1)[0]) >= 0 and time.monotonic() < deadline:
                if size == 0 and self._wait_readable(deadline - time.monotonic()):
                    self._pgconn.consume_input()
        except psycopg.Error:
            pass  # it was gone: what is confirmed was told before, or will be again
        finally:
            self._connection.close()


def _error_of(result: pq.abc.PGresult | None) -> psycopg.Error:
    if result is None or result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
        return psycopg.OperationalError("the server has ended the replication")
    return psycopg.errors.error_from_result(result)
