"""The gRPC framing of messages: lengths, status codes, deadlines and texts. Pure, and independent of HTTP/2.

    message   compressed (1 byte, 0 or 1), size (4 bytes, big-endian), bytes

Compressed requests are refused, as the protocol requires of servers without compression: official clients compress
bodies, not calls.
"""

from __future__ import annotations

import enum
import re
from typing import Final
from urllib.parse import quote

_PREFIX_SIZE_BYTES: Final = 5
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT: Final = re.compile("([0-9]{1,8})([HMSmun])")
_AS_IT_IS: Final = "".join(chr(code) for code in range(0x20, 0x7F) if code != ord("%"))


class Code(enum.IntEnum):
    """gRPC status codes. Errors that RocketMQ's clients should see are in replies."""

    OK = 0
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class GrpcFailed(Exception):
    """Raised to end a call with this code."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class ClientGone(Exception):
    """Raised if the client has ended the call, or its connection has ended: it cannot be answered."""


def framed(message: bytes) -> bytes:
    """Return a message with its gRPC prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def timeout_s(header: str) -> float:
    """Parse `grpc-timeout`. Raises GrpcFailed."""
    found = _TIMEOUT.fullmatch(header)
    if found is None:
        raise GrpcFailed(Code.INTERNAL, "grpc-timeout is not 1 to 8 digits and one of H, M, S, m, u, n")
    return int(found[1]) * _UNITS_S[found[2]]


def quoted(text: str) -> bytes:
    """Encode a text for `grpc-message`."""
    return quote(text, safe=_AS_IT_IS, errors="replace").encode()


class IncomingMessages:
    """A buffer that assembles the messages of a stream. size_bytes_max: of one message."""

    def __init__(self, size_bytes_max: int) -> None:
        self._size_bytes_max = size_bytes_max
        self._bytes = bytearray()
        self._needed = _PREFIX_SIZE_BYTES
        """Bytes needed for the next step: a message's prefix, or the whole message."""

    def add(self, data: bytes) -> bool:
        """Add data. Returns True if a message may be complete."""
        self._bytes += data
        return len(self._bytes) >= self._needed

    @property
    def size_bytes(self) -> int:
        """Bytes that have arrived and were not taken."""
        return len(self._bytes)

    def take_message(self) -> bytes | None:
        """Return the next message; None if it is incomplete. Raises GrpcFailed if it is too large or compressed."""
        if len(self._bytes) < self._needed:
            return None
        if self._needed == _PREFIX_SIZE_BYTES:
            size_bytes = int.from_bytes(self._bytes[1:_PREFIX_SIZE_BYTES], "big")
            if self._bytes[0]:
                raise GrpcFailed(
                    Code.UNIMPLEMENTED, "requests that are compressed by gRPC are not taken: send them plain"
                )
            if size_bytes > self._size_bytes_max:
                raise GrpcFailed(
                    Code.RESOURCE_EXHAUSTED,
                    f"a request of {size_bytes} bytes: at most {self._size_bytes_max} are allowed",
                )
            self._needed += size_bytes
            if len(self._bytes) < self._needed:
                return None
        message = bytes(memoryview(self._bytes)[_PREFIX_SIZE_BYTES : self._needed])
        del self._bytes[: self._needed]
        self._needed = _PREFIX_SIZE_BYTES
        return message
