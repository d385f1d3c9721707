"""A client's side of the protocol for threads: calls to one server over one socket, without a loop and its thread.

A thread that waits for a reply reads the socket, also for the other threads that wait; when it has its own, another one
reads on. Errors are those of `channel.py`.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from txmsg.errors import ProtocolError, TxmsgError
from txmsg.wire.address import UNIX
from txmsg.wire.channel import read_reply
from txmsg.wire.connection import greeting, read_greeting, set_keepalive
from txmsg.wire.failures import NoAnswer, error_of_bytes, unanswered, unreachable
from txmsg.wire.frames import LAST, MORE, Frame, FrameReader, Kind, call_head, parts_of
from txmsg.wire.method import Method, ReplyT, RequestT

_READ_SIZE_BYTES: Final = 512 * 1024
_CONNECT_S_MAX: Final = 10.0


class BlockingChannel:
    """Calls to the server at `address`, HOST:PORT or unix:PATH. kind: what is there, for errors. For any threads."""

    def __init__(self, address: str, *, kind: str = "broker") -> None:
        self.who = f"{kind} {address}"
        self._address = address
        self._connecting = threading.Lock()
        self._line: _Line | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT:
        """The reply. Raises what the server told, BrokerUnavailable or OutcomeUnknown."""
        [reply] = self.replies(method, [request], timeout_s=timeout_s)
        return reply

    def replies(
        self, method: Method[RequestT, ReplyT], requests: Iterable[RequestT], *, timeout_s: float
    ) -> Iterator[ReplyT]:
        """The replies of a call in which messages are many, all within `timeout_s`. Sends all requests first."""
        deadline = time.monotonic() + timeout_s
        line = self._connected(deadline)
        call = line.begin(gives_many=method.gives_many)
        try:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            before: bytes | None = None
            kind, head = Kind.CALL, call_head(method.wire_name, left_ms)
            for request in requests:
                if before is not None:
                    line.send(kind, 0, call.number, head + before, deadline)
                    kind, head = Kind.PUSH, b""
                before = request.SerializeToString()
            line.send(kind, LAST, call.number, head + (before or b""), deadline)
            while (message := line.receive(call, deadline)) is not None:
                yield read_reply(method, message, self.who)
        finally:
            line.end(call)

    def close(self) -> None:
        """Calls under way fail. Closing twice is fine."""
        self._is_closed = True
        if self._line is not None:
            self._line.lose("the channel was closed")

    def _connected(self, deadline: float) -> _Line:
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise unreachable(self.who, "it did not take a connection in time")
        try:
            if self._is_closed:
                raise unreachable(self.who, "the channel was closed")
            old = self._line
            if old is None or not old.takes_calls():
                self._line = _Line(self._connect(deadline), self.who)
                if old is not None:
                    old.retire()
            assert self._line is not None
            return self._line
        finally:
            self._connecting.release()

    def _connect(self, deadline: float) -> tuple[socket.socket, FrameReader, list[Frame]]:
        """A socket over which both sides have greeted, and what came behind the greeting."""
        patience_s = min(_CONNECT_S_MAX, max(0.001, deadline - time.monotonic()))
        sock: socket.socket | None = None
        try:
            if self._address.startswith(UNIX):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(patience_s)
                sock.connect(self._address.removeprefix(UNIX))
            else:
                host, _, port = self._address.rpartition(":")
                sock = socket.create_connection((host.strip("[]"), int(port)), patience_s)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_keepalive(sock)
            sock.sendall(greeting(blocking=True))
            reader = FrameReader()
            frames: list[Frame] = []
            while not frames:
                data = sock.recv(_READ_SIZE_BYTES)
                if not data:
                    raise ConnectionError("it closed the connection")
                frames = reader.feed(data)
            read_greeting(frames[0])
            if any(frame.kind == Kind.GOAWAY for frame in frames):
                told = next(frame for frame in frames if frame.kind == Kind.GOAWAY)
                raise ConnectionError(str(error_of_bytes(told.payload, self.who)))
        except (OSError, ProtocolError) as exc:
            if sock is not None:
                sock.close()
            reason = "it did not take a connection in time" if isinstance(exc, TimeoutError) else str(exc)
            raise unreachable(self.who, reason) from NoAnswer(reason)
        return sock, reader, frames[1:]


class _Call:
    """A call under way. Everything in it is guarded by its line's lock."""

    def __init__(self, number: int, gives_many: bool, lock: threading.Lock) -> None:
        self.number = number
        self.gives_many = gives_many
        self.came = threading.Condition(lock)
        self.messages: deque[bytes] = deque()
        self.parts: list[bytes] = []
        self.is_ended = False
        self.error: TxmsgError | None = None

    def finish(self, error: TxmsgError | None) -> None:
        """No more will come."""
        self.is_ended, self.error = True, error
        self.came.notify()


class _Line:
    """A socket, and who waits for what. One thread reads at a time, and one writes."""

    def __init__(self, connected: tuple[socket.socket, FrameReader, list[Frame]], who: str) -> None:
        self._socket, self._reader, frames = connected
        self._who = who
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._next_call = 0
        self._is_read = False
        self._is_going = self._is_retired = False
        self._lost: str | None = None
        self._socket.setblocking(False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)
        for frame in frames:
            self._take(frame)

    def takes_calls(self) -> bool:
        """Whether a call may begin. Looks at what came while nobody waited: the server may have gone."""
        with self._lock:
            if not self._is_read and self._lost is None:
                self._is_read = True
            else:
                return self._lost is None and not self._is_going
        self._read(0.0)
        with self._lock:
            self._hand_over(None)
        return self._lost is None and not self._is_going

    def begin(self, *, gives_many: bool) -> _Call:
        """A new call."""
        with self._lock:
            self._next_call = self._next_call % 0xFFFFFFFF + 1
            call = self._calls[self._next_call] = _Call(self._next_call, gives_many, self._lock)
            return call

    def retire(self) -> None:
        """Closes the connection when the calls under way have ended: there is a newer one."""
        with self._lock:
            self._is_going = self._is_retired = True
            if not self._calls:
                self._lose("the connection was closed")

    def end(self, call: _Call) -> None:
        """Nobody waits for this call any more."""
        with self._lock:
            del self._calls[call.number]
            if self._is_retired and not self._calls:
                self._lose("the connection was closed")
            if call.is_ended or self._lost is not None:
                return
        with suppress(TxmsgError):
            self.send(Kind.CANCEL, 0, call.number, b"", time.monotonic() + 1.0)

    def send(self, kind: Kind, flags: int, call: int, message: bytes, deadline: float) -> None:
        """Sends a message. One that has begun is sent whole, or the connection is of no more use."""
        for part in parts_of(kind, flags, call, message):
            if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise unanswered(self._who, "it does not read in time")
            try:
                self._write(memoryview(part), deadline)
            finally:
                self._writing.release()

    def _write(self, rest: memoryview, deadline: float) -> None:
        while rest:
            if self._lost is not None:
                raise unanswered(self._who, self._lost)
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._writable.poll(left_s * 1000):
                    self.lose("it does not read in time")
            except OSError as exc:
                self.lose(exc.strerror or str(exc))

    def receive(self, call: _Call, deadline: float) -> bytes | None:
        """The next message of a call; None behind its last. Reads for all who wait while nobody else does."""
        while True:
            with self._lock:
                while self._is_read and not (call.messages or call.is_ended):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not call.came.wait(left_s):
                        raise unanswered(self._who, "no answer in time")
                if call.messages or call.is_ended:
                    self._hand_over(call)
                    if call.messages:
                        return call.messages.popleft()
                    if call.error is not None:
                        raise call.error
                    return None
                self._is_read = True
            left_s = deadline - time.monotonic()
            self._read(max(0.0, left_s))
            if left_s <= 0:
                with self._lock:
                    if not (call.messages or call.is_ended):
                        self._hand_over(call)
                        raise unanswered(self._who, "no answer in time")

    def _hand_over(self, leaving: _Call | None) -> None:
        """Has another thread read that waits, unless one does. For a thread that reads no more."""
        if not self._is_read:
            for call in self._calls.values():
                if call is not leaving and not (call.messages or call.is_ended):
                    call.came.notify()
                    return

    def lose(self, reason: str) -> None:
        """Ends the connection: calls under way fail."""
        with self._lock:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
            if not self._is_read:
                self._socket.close()
        for call in self._calls.values():
            if not call.is_ended:
                call.finish(unanswered(self._who, reason))

    def _read(self, patience_s: float) -> None:
        """Reads once, as the one thread that does, and gives the frames to those who wait for them."""
        data, reason = b"", ""
        try:
            if self._readable.poll(patience_s * 1000):
                data = self._socket.recv(_READ_SIZE_BYTES)
                reason = "" if data else "it closed the connection"
        except BlockingIOError:
            pass
        except OSError as exc:
            reason = exc.strerror or str(exc)
        with self._lock:
            self._is_read = False
            try:
                for frame in self._reader.feed(data) if data else ():
                    self._take(frame)
            except ProtocolError as exc:
                reason = str(exc)
            if reason or self._lost is not None:
                self._lose(reason)
                self._socket.close()

    def _take(self, frame: Frame) -> None:
        kind, flags, number, payload = frame
        if kind == Kind.GOAWAY:
            self._is_going = True
            error = error_of_bytes(payload, self._who)
            for call in self._calls.values():
                if call.number > number and not call.is_ended:
                    call.finish(unreachable(self._who, str(error)))
            return
        if kind == Kind.PING:
            return  # a server sends none to those who block
        found = self._calls.get(number)
        if found is None or found.is_ended or (kind == Kind.PUSH and not found.gives_many):
            return
        if kind == Kind.ERROR:
            found.parts.clear()  # of a message that had not come whole
        found.parts.append(payload)
        if flags & MORE:
            return
        message = payload if len(found.parts) == 1 else b"".join(found.parts)
        found.parts.clear()
        if kind == Kind.ERROR:
            found.finish(error_of_bytes(message, self._who))
        elif kind == Kind.PUSH:
            found.messages.append(message)
            found.came.notify()
        elif kind == Kind.REPLY:
            if not found.gives_many:
                found.messages.append(message)
            found.finish(None)
        else:
            raise ProtocolError(f"a server sends no frames of kind {kind}")
