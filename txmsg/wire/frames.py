"""Frames: the bytes of a connection, as specified in docs/protocol.md. Pure: knows no socket, no loop and no method.

A frame is a header of 10 bytes and a payload. A message that is larger than a frame is sent in parts; frames of other
calls may be sent between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from txmsg.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

PREFACE: Final = b"txmsg\x00\x01\n"
"""The first bytes of each side: by them a foreign client, or another framing, is detected."""
PART_SIZE_BYTES: Final = 128 * 1024
"""Size of a frame's payload, at most: between two frames of a large message, other calls send theirs."""
GREETING_SIZE_BYTES_MAX: Final = 4096
"""Size of a frame from a peer that has not greeted yet, at most."""
CALLS_MAX: Final = 2**31
"""Calls of a connection before it is replaced: call numbers must not wrap around while an old call is in progress."""
_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of a server with TLS to a client without."""
_HEADER: Final = Struct(">IBBI")
_CALL_HEAD: Final = Struct(">BI")


class WireFrameKind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    CALL = 2
    REPLY = 3
    ERROR = 4
    PUSH = 5
    CANCEL = 6
    PING = 7
    GOAWAY = 8


MORE: Final = 1
"""Flag: the message continues in the next frame of this call and kind."""
LAST: Final = 2
"""Flag of CALL and PUSH: the caller sends no more messages of this call. Of PING: this is the answer."""


class WireFrame(NamedTuple):
    """A frame. call: the number of its call, 0 for none."""

    kind: int
    flags: int
    call: int
    payload: bytes


class CallHead(NamedTuple):
    """The beginning of a CALL."""

    method: str
    timeout_ms: int
    size_bytes: int
    """Size of the head itself: the request follows."""


def header_of(kind: int, flags: int, call: int, size_bytes: int) -> bytes:
    """Return the header of a frame with a payload of this size."""
    return _HEADER.pack(size_bytes, kind, flags, call)


def frame_of(kind: int, flags: int = 0, call: int = 0, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return _HEADER.pack(len(payload), kind, flags, call) + payload


class OutgoingMessage:
    """A message of any size that leaves frame by frame. It is given in pieces, of which nothing is copied."""

    def __init__(self, kind: int, flags: int, call: int, pieces: Iterable[Buffer]) -> None:
        self._kind = kind
        self._flags = flags
        self._call = call
        self._pieces = deque(memoryview(piece) for piece in pieces)
        self.size_bytes = sum(map(len, self._pieces))
        """Bytes that have not been taken by `next_frame`."""

    def next_frame(self) -> list[Buffer]:
        """Return the next frame, in pieces; with the last one, `size_bytes` becomes 0."""
        size_bytes = left_bytes = min(self.size_bytes, PART_SIZE_BYTES)
        self.size_bytes -= size_bytes
        flags = self._flags | MORE if self.size_bytes else self._flags
        frame: list[Buffer] = [header_of(self._kind, flags, self._call, size_bytes)]
        while left_bytes:
            # Slices of memoryviews: a body of many MiB is never copied, only cut at the borders of frames.
            piece = self._pieces.popleft()
            if len(piece) > left_bytes:
                self._pieces.appendleft(piece[left_bytes:])
                piece = piece[:left_bytes]
            frame.append(piece)
            left_bytes -= len(piece)
        return frame


def parts_of(kind: int, flags: int, call: int, *pieces: Buffer) -> Iterator[bytes]:
    """Yield the frames of a message of any size, which is given in pieces."""
    leaving = OutgoingMessage(kind, flags, call, pieces)
    yield b"".join(leaving.next_frame())
    while leaving.size_bytes:
        yield b"".join(leaving.next_frame())


def call_head(method: bytes, timeout_ms: int) -> bytes:
    """Return the bytes before a request: the method, and the time that the caller waits for it."""
    return _CALL_HEAD.pack(len(method), min(timeout_ms, 0xFFFFFFFF)) + method


def read_call_head(payload: Buffer) -> CallHead:
    """Return the head of a CALL; the inverse of `call_head`. Raises ProtocolError."""
    if len(payload) < _CALL_HEAD.size:
        raise ProtocolError(f"a call of {len(payload)} bytes is too short")
    length, timeout_ms = _CALL_HEAD.unpack_from(payload)
    end = _CALL_HEAD.size + length
    name = bytes(payload[_CALL_HEAD.size : end])
    if len(name) < length or not name.isascii():
        raise ProtocolError(f"a call of {len(payload)} bytes does not name a method")
    return CallHead(name.decode("ascii"), timeout_ms, end)


class FrameReader:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_preface = False
        self._size_bytes_max = GREETING_SIZE_BYTES_MAX

    def feed(self, data: bytes) -> list[WireFrame]:
        """Return the frames that are complete with these bytes. Raises ProtocolError: then the connection cannot be
        used."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self._has_preface:
            # Compared with as many bytes as have come: a foreign client is refused by its first byte, and one that
            # sends the preface byte by byte is not.
            if data[: len(PREFACE)] != PREFACE[:end]:
                if data.startswith(_TLS_ALERT):
                    raise ProtocolError("it speaks TLS only: set TXMSG_TLS_CA, or give tls=")
                raise ProtocolError(f"it begins with {data[:16]!r}, not as txmsg's protocol does")
            if end < len(PREFACE):
                self._rest = data
                return []
            self._has_preface = True
            at = len(PREFACE)
        frames = []
        while end - at >= _HEADER.size:
            size, kind, flags, call = _HEADER.unpack_from(data, at)
            # Checked by the header alone, before anything is buffered: a stranger's claim of 4 GiB costs 10 bytes here.
            if size > self._size_bytes_max:
                raise ProtocolError(f"a frame of {size} bytes: at most {self._size_bytes_max} are allowed here")
            begin = at + _HEADER.size
            if end - begin < size:
                break
            at = begin + size
            self._size_bytes_max = PART_SIZE_BYTES
            frames.append(WireFrame(kind, flags, call, data[begin:at]))
        # At most one incomplete frame is kept, so no more than that is copied again with the next read.
        self._rest = data[at:]
        return frames

    @property
    def is_between_frames(self) -> bool:
        """True if the next byte begins a frame."""
        return not self._rest and self._has_preface
