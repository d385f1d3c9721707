"""A client that sends any bytes, and reads only when told to. It validates nothing that it receives."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from txmsg.errors import TxmsgError
from txmsg.wire.address import UNIX
from txmsg.wire.connection import greeting, read_greeting
from txmsg.wire.failures import error_of_told
from txmsg.wire.frames import LAST, MORE, FrameReader, WireFrame, WireFrameKind, call_head, parts_of
from txmsg.wire.v1.wire_pb2 import CallError

WAIT_S = 60.0
_READ_SIZE_BYTES = 64 * 1024


@dataclass(slots=True)
class Answer:
    """The answer to one call so far. pushed: messages of a streaming call; reply: of any other."""

    pushed: list[bytes] = field(default_factory=list)
    reply: bytes | None = None
    told: CallError | None = None

    @property
    def is_whole(self) -> bool:
        """True if the call has ended."""
        return self.reply is not None or self.told is not None

    @property
    def error(self) -> TxmsgError | None:
        """The refusal, as clients raise it."""
        told = self.told
        return None if told is None else error_of_told(told.code, told.text, told.begin, told.end)


class RawClient:
    """A connection that has sent its greeting and does not answer pings. For one thread."""

    def __init__(self, address: str) -> None:
        if address.startswith(UNIX):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(WAIT_S)
            self.socket.connect(address.removeprefix(UNIX))
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host, int(port)), WAIT_S)
        self.read_bytes = 0
        self.answers: dict[int, Answer] = {}
        """Answers by call, without cancelled calls."""
        self.gone: CallError | None = None
        """The error with which the server refuses further calls, if it has sent one."""
        self._reader = FrameReader()
        self._has_greeted = False
        self._parts: dict[tuple[int, int], list[bytes]] = {}
        self._next_call = 0
        self.socket.sendall(greeting(blocking=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def begin(self, method: str, request: bytes, *, flags: int = LAST, timeout_ms: int = 0) -> int:
        """Begin a call and return its number. Without LAST in the flags, `push` sends more."""
        self._next_call += 1
        self.answers[self._next_call] = Answer()
        self._send(WireFrameKind.CALL, flags, self._next_call, call_head(method.encode("ascii"), timeout_ms) + request)
        return self._next_call

    def begin_with_all(self, method: str, requests: list[bytes]) -> int:
        """Begin a call with many request messages, send all of them, and return its number."""
        first, *rest = requests or [b""]
        call = self.begin(method, first, flags=0 if rest else LAST)
        for place, message in enumerate(rest, 1):
            self.push(call, message, flags=LAST if place == len(rest) else 0)
        return call

    def push(self, call: int, message: bytes, *, flags: int = 0) -> None:
        """Send another message of a call."""
        self._send(WireFrameKind.PUSH, flags, call, message)

    def cancel(self, call: int) -> None:
        """Cancel a call."""
        self._send(WireFrameKind.CANCEL, 0, call, b"")
        self.answers.pop(call, None)

    def answer(self, call: int, *, within_s: float = WAIT_S) -> Answer:
        """Return the answer to a call when it has ended. Raises TimeoutError, or ConnectionError when the server
        closes.
        """
        deadline = time.monotonic() + within_s
        answer = self.answers[call]
        while not answer.is_whole:
            self.read(deadline - time.monotonic())
        return answer

    def read(self, within_s: float = WAIT_S) -> None:
        """Read once. Raises as `answer` does."""
        if within_s <= 0:
            raise TimeoutError
        self.socket.settimeout(within_s)
        try:
            data = self.socket.recv(_READ_SIZE_BYTES)
        finally:
            self.socket.settimeout(WAIT_S)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.read_bytes += len(data)
        for frame in self._reader.feed(data):
            self._take(frame)

    def _send(self, kind: WireFrameKind, flags: int, call: int, message: bytes) -> None:
        self.socket.sendall(b"".join(parts_of(kind, flags, call, message)))

    def _take(self, frame: WireFrame) -> None:
        kind, flags, call, payload = frame
        if not self._has_greeted:
            read_greeting(frame)
            self._has_greeted = True
            return
        parts = self._parts.setdefault((kind, call), [])
        parts.append(payload)
        if flags & MORE:
            return
        message = b"".join(self._parts.pop((kind, call)))
        if kind == WireFrameKind.GOAWAY:
            self.gone = CallError.FromString(message)
            return
        answer = self.answers.get(call)
        if answer is None:
            return
        assert not answer.is_whole, f"the server sent a frame of kind {kind} behind the end of call {call}"
        if kind == WireFrameKind.PUSH:
            answer.pushed.append(message)
        elif kind == WireFrameKind.REPLY:
            answer.reply = message
        else:
            assert kind == WireFrameKind.ERROR, f"a server sends no frames of kind {kind}"
            answer.told = CallError.FromString(message)
