"""The client side of the protocol for threads: calls to one server over one socket, without a loop and its thread.

A thread that waits for a reply reads the socket for all threads that wait; once it has its own reply, another one takes
over. Errors are those of `channel.py`.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from txmsg.errors import Overloaded, ProtocolError, TxmsgError, Unauthenticated
from txmsg.runtime.forks import renew_in_children
from txmsg.wire.address import UNIX, host_and_port
from txmsg.wire.channel import read_reply, too_large
from txmsg.wire.codec import MESSAGE_SIZE_BYTES_MAX
from txmsg.wire.connection import greeting, read_greeting, set_options
from txmsg.wire.credential import TokenChoice, client_token
from txmsg.wire.data import pieces_of, split
from txmsg.wire.failures import NoAnswer, error_of_bytes, not_begun, unanswered, unreachable
from txmsg.wire.frames import (
    CALLS_MAX,
    LAST,
    MORE,
    Buffer,
    FrameReader,
    WireFrame,
    WireFrameKind,
    call_head,
    frame_of,
    parts_of,
)
from txmsg.wire.method import Method, ReplyT, RequestT, checked, packed
from txmsg.wire.tls import TlsChoice, TlsStream, client_context

_READ_SIZE_BYTES: Final = 512 * 1024
_CONNECT_S_MAX: Final = 10.0
_CANCEL_S_MAX: Final = 1.0
_SILENCE_S: Final = 10.0
_PING_S_MAX: Final = 5.0
"""As in channel.py."""


class BlockingChannel:
    """Calls to the server at `address`, HOST:PORT or unix:PATH. kind: the server's kind, for errors. For any threads.

    Of several addresses, whose servers answer alike, it calls the first that takes a connection. A forked child has a
    connection of its own. tls: for a HOST:PORT. token: for a server that requires authentication.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        kind: str = "broker",
        tls: TlsChoice = None,
        token: TokenChoice = None,
    ) -> None:
        self._addresses = [address] if isinstance(address, str) else list(address)
        self.who = f"{kind} {' or '.join(self._addresses)}"
        are_files = all(each.startswith(UNIX) for each in self._addresses)
        self._tls = None if are_files else client_context(tls)
        self._token = client_token(token)
        self._line: _BlockingConnection | None = None
        self._renew()
        renew_in_children(self)

    def _renew(self) -> None:
        if self._line is not None:
            self._line.abandon()
        self._connecting = threading.Lock()
        self._line = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float, data: Sequence[Buffer] = ()
    ) -> ReplyT:
        """Return the reply. `data` is sent with the request. Raises the server's error, BrokerUnavailable or
        OutcomeUnknown."""
        [message] = self._messages(method, [pieces_of(checked(request), data)], timeout_s)
        return read_reply(method, message, self.who)

    def replies(
        self, method: Method[RequestT, ReplyT], requests: Iterable[RequestT], *, timeout_s: float
    ) -> Iterator[ReplyT]:
        """Yield the replies of a call in which messages are many, all within `timeout_s`. Sends all requests first."""
        sent = ((packed(checked(request)),) for request in requests)
        for message in self._messages(method, sent, timeout_s):
            yield read_reply(method, message, self.who)

    def replies_with_data(
        self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float
    ) -> Iterator[tuple[ReplyT, memoryview]]:
        """Yield the replies to one request, each with its data."""
        for message in self._messages(method, [(packed(checked(request)),)], timeout_s):
            head, data = split(message)
            yield read_reply(method, head, self.who), data

    def _messages(
        self, method: Method[Any, Any], requests: Iterable[Sequence[Buffer]], timeout_s: float
    ) -> Iterator[bytes]:
        deadline = time.monotonic() + timeout_s
        line = self._connected(deadline)
        call = line.begin_call(gives_many=method.gives_many)
        try:
            left_ms = max(1, int((deadline - time.monotonic()) * 1000))
            kind, head = WireFrameKind.CALL, call_head(method.wire_name, left_ms)
            before: Sequence[Buffer] | None = None
            for request in requests:
                if before is not None:
                    line.send_frames(kind, 0, call, (head, *before), deadline)
                    kind, head = WireFrameKind.PUSH, b""
                before = request
            line.send_frames(kind, LAST, call, (head, *(before or ())), deadline)
            while (message := line.receive(call, deadline)) is not None:
                yield message
        finally:
            line.end_call(call)

    def close(self) -> None:
        """Close the channel; calls in progress fail. Closing twice is fine."""
        self._is_closed = True
        if self._line is not None:
            self._line.lose("the channel was closed")

    def _connected(self, deadline: float) -> _BlockingConnection:
        # Held while connecting, so that many threads which find no connection make one, not one each. The wait is
        # bounded: the holder may need up to _CONNECT_S_MAX.
        if not self._connecting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise unreachable(self.who, "it did not take a connection in time")
        try:
            old = self._line
            if self._is_closed:
                raise unreachable(self.who, "the channel was closed")
            if old is not None and old.takes_calls():
                return old
            line = self._line = _BlockingConnection(self._connect(deadline), self.who)
            if old is not None:
                old.retire()
            if self._is_closed:  # meanwhile
                line.lose("the channel was closed")
            return line
        finally:
            self._connecting.release()

    def _connect(self, deadline: float) -> _GreetedSocket:
        """Return a socket over which both sides have greeted.

        Of several addresses, and of a name's several, each has its share of the time, in turn.
        """
        # Shares of the remaining time, not a fixed time per address: an address that drops packets must not use up the
        # time of those after it.
        deadline = min(deadline, time.monotonic() + _CONNECT_S_MAX)
        failed: Exception | None = None
        for addresses_left, address in zip(range(len(self._addresses), 0, -1), self._addresses, strict=True):
            now = time.monotonic()
            until = now + (deadline - now) / addresses_left
            try:
                ends = (
                    _ends(address)
                    if addresses_left == 1 or address.startswith(UNIX)
                    else _ends_in_time(address, until - now)
                )
            except (OSError, UnicodeError) as exc:
                failed = exc
                continue
            for left, end in zip(range(len(ends), 0, -1), ends, strict=True):
                try:
                    return self._greeted(end, max(0.001, (until - time.monotonic()) / left))
                except (OSError, ProtocolError, Overloaded) as exc:
                    failed = exc
        if isinstance(failed, Overloaded):
            raise failed
        reason = "it did not take a connection in time" if isinstance(failed, TimeoutError) else str(failed)
        raise unreachable(self.who, reason) from NoAnswer(reason)

    def _greeted(self, to: _ServerEndpoint, patience_s: float) -> _GreetedSocket:
        family, end = to.family, to.end
        tls = None
        if self._tls is not None and family != socket.AF_UNIX:
            tls = TlsStream(self._tls, to.host)
        if family == socket.AF_UNIX:
            token = self._token.read()
        else:
            token = self._token.for_host(end[0], is_protected=tls is not None)
        sock = socket.socket(family)
        try:
            sock.settimeout(patience_s)
            sock.connect(end)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_options(sock)
            hello = greeting(blocking=True, token=token)
            if tls is None:
                sock.sendall(hello)
            else:
                tls.encrypt_pieces([hello])
                sock.sendall(tls.leaving())
            reader = FrameReader()
            frames: list[WireFrame] = []
            while not frames:
                data = sock.recv(_READ_SIZE_BYTES)
                if not data:
                    raise ConnectionError("it closed the connection")
                if tls is not None:
                    data = tls.receive(data)
                    sock.sendall(tls.leaving())
                frames = reader.feed(data)
            read_greeting(frames[0])
            if any(frame.kind == WireFrameKind.GOAWAY for frame in frames):
                told = error_of_bytes(
                    next(frame for frame in frames if frame.kind == WireFrameKind.GOAWAY).payload, self.who
                )
                is_about_us = isinstance(told, Unauthenticated | Overloaded)
                raise not_begun(self.who, told) if is_about_us else ConnectionError(str(told))
        except BaseException:
            sock.close()
            raise
        return _GreetedSocket(sock, tls, reader, frames[1:])


class _ServerEndpoint(NamedTuple):
    """An address for a socket to connect to. host: the name that the certificate must have."""

    family: int
    end: Any
    host: str


def _ends(address: str) -> list[_ServerEndpoint]:
    if address.startswith(UNIX):
        return [_ServerEndpoint(socket.AF_UNIX, address.removeprefix(UNIX), "")]
    host, port = host_and_port(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [_ServerEndpoint(family, end, host) for family, _, _, _, end in found]


def _ends_in_time(address: str, patience_s: float) -> list[_ServerEndpoint]:
    """Return the endpoints of an address, or fail in time: a look-up of a name that hangs cannot be ended."""
    found: SimpleQueue[list[_ServerEndpoint] | OSError | UnicodeError] = SimpleQueue()

    def find() -> None:
        try:
            found.put(_ends(address))
        except (OSError, UnicodeError) as exc:
            found.put(exc)

    # getaddrinfo has no timeout, and nothing can interrupt it. A daemon thread is left behind if it hangs; it holds
    # nothing but a queue.
    threading.Thread(target=find, name="txmsg-name", daemon=True).start()
    try:
        ends = found.get(timeout=max(0.001, patience_s))
    except Empty:
        raise OSError(f"the addresses of {address} were not found in time") from None
    if isinstance(ends, Exception):
        raise ends
    return ends


class _GreetedSocket(NamedTuple):
    """A socket over which both sides have greeted. frames: those that came after the greeting."""

    socket: socket.socket
    tls: TlsStream | None
    reader: FrameReader
    frames: list[WireFrame]


class _BlockingCall:
    """A call in progress. Guarded by the lock of its connection."""

    def __init__(self, number: int, gives_many: bool, lock: threading.Lock) -> None:
        self.number = number
        self.gives_many = gives_many
        self.begun_at = time.monotonic()
        self.came = threading.Condition(lock)
        self.is_waiting = False
        """True while its thread waits for `came`."""
        self.messages: deque[bytes] = deque()
        self.parts: list[bytes] = []
        self.size_bytes = 0
        """Of the parts."""
        self.is_ended = False
        self.error: TxmsgError | None = None

    @property
    def has_news(self) -> bool:
        """True if its thread has something to do: a message, or the end."""
        return bool(self.messages) or self.is_ended

    def forget_parts(self) -> None:
        """Forget the parts: the message is complete, or is not wanted."""
        self.parts.clear()
        self.size_bytes = 0

    def finish(self, error: TxmsgError | None) -> None:
        """End the call: no more messages will come."""
        self.is_ended, self.error = True, error
        self.came.notify()


class _BlockingConnection:
    """A socket and the calls that wait for its frames. One thread reads at a time, and one writes.

    Any thread may be interrupted anywhere, as by Ctrl-C: another one then reads instead; if it was interrupted within a
    frame, the connection is lost.
    """

    def __init__(self, connected: _GreetedSocket, who: str) -> None:
        self._socket, self._tls, self._reader, frames = connected
        self._ciphering = threading.Lock()
        """Guards `_tls`, which both the reading and the writing thread use."""
        self._who = who
        # Two locks: `_lock` guards calls and state and is held for moments only; `_writing` is held while a frame is
        # sent, which may take as long as the server does not read. Never taken in the other order: `_lose`, which needs
        # `_lock`, is called by a writer.
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._calls: dict[int, _BlockingCall] = {}
        self._next_call = 0
        self._heard_at = time.monotonic()
        self._pinged_at = 0.0
        self._is_read = False
        self._is_retired = False
        self._is_going: str | None = None
        """The reason why no more calls begin."""
        self._told: TxmsgError | None = None
        """The same reason as an error, if the server has sent it."""
        self._lost: str | None = None
        self._socket.setblocking(False)
        # Not select.select: it fails for descriptors above 1,023, which a process with many connections has.
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)
        for frame in frames:
            self._take_frame(frame)

    # ---- calls

    def takes_calls(self) -> bool:
        """Return True if a call may begin. Reads what came while no call waited: the server may have gone."""
        with self._lock:
            # Without a waiting thread nothing reads, so a GOAWAY or the end of the connection may lie unread in the
            # socket. Found here, it costs a new connection; found after the request was sent, it would cost the caller
            # an OutcomeUnknown.
            looks = not self._is_read and self._lost is None
            if looks:
                self._is_read = True
        if looks:
            self._read(0.0)
        with self._lock:
            self._hand_over()
            return self._lost is None and self._is_going is None

    def begin_call(self, *, gives_many: bool) -> _BlockingCall:
        """Begin a call. Raises BrokerUnavailable if none can begin, Unauthenticated if the server refuses our
        credential."""
        with self._lock:
            if self._told is not None:
                raise not_begun(self._who, self._told)
            if (reason := self._lost or self._is_going) is not None:
                raise unreachable(self._who, reason)
            self._next_call += 1
            if self._next_call == CALLS_MAX:
                self._is_going = "the connection was used up"
            call = self._calls[self._next_call] = _BlockingCall(self._next_call, gives_many, self._lock)
            return call

    def end_call(self, call: _BlockingCall) -> None:
        """Forget a call that its caller no longer waits for, and cancel it at the server unless it has ended."""
        with self._lock:
            del self._calls[call.number]
            self._hand_over()
            if self._is_retired and not self._calls:
                self._lose("the connection was closed")
            if call.is_ended or self._lost is not None:
                return
        # A CANCEL is a courtesy: if it cannot be sent, the server learns of the end by its own deadline.
        with suppress(TxmsgError):
            self.send_frames(WireFrameKind.CANCEL, 0, call, (), time.monotonic() + _CANCEL_S_MAX)

    def retire(self) -> None:
        """Close the connection when the calls in progress have ended: a newer one replaces it."""
        with self._lock:
            self._is_retired, self._is_going = True, self._is_going or "there is a newer connection"
            if not self._calls:
                self._lose("the connection was closed")

    def lose(self, reason: str) -> None:
        """End the connection: calls in progress fail."""
        with self._lock:
            self._lose(reason)

    def abandon(self) -> None:
        """Close a forked child's copy of the socket. The parent's stays open, and ends with the parent."""
        self._socket.close()

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        # A thread that reads owns the descriptor: closed here, its number could be given to another socket, which that
        # thread would then read. It closes the socket itself when it comes to `_lose`.
        if not self._is_read:
            self._socket.close()
        for call in self._calls.values():
            if not call.is_ended:
                call.finish(unanswered(self._who, self._lost))

    # ---- writing

    def send_frames(
        self, kind: WireFrameKind, flags: int, call: _BlockingCall, pieces: Iterable[Buffer], deadline: float
    ) -> None:
        """Send a message, given in pieces.

        Raises BrokerUnavailable while nothing of the call has left, OutcomeUnknown later.
        """
        is_first = kind == WireFrameKind.CALL
        for part in parts_of(kind, flags, call.number, *pieces):
            try:
                if not self._writing.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                try:
                    self._write(part, deadline)
                finally:
                    self._writing.release()
            except TimeoutError:
                failed = unreachable if is_first else unanswered
                raise failed(self._who, "it does not read in time") from NoAnswer("it does not read in time")
            is_first = False

    def _write(self, frame: bytes, deadline: float) -> None:
        """Write a frame. Raises TimeoutError; if part of the frame was sent, or it was encrypted, the connection is
        lost."""
        rest = memoryview(frame)
        try:
            if self._tls is not None:
                with self._ciphering:
                    self._tls.encrypt_pieces([frame])
                    rest = memoryview(self._tls.leaving())
            while rest:
                if self._lost is not None:
                    raise unanswered(self._who, self._lost)
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not self._writable.poll(left_s * 1000):
                        raise TimeoutError from None
        except TimeoutError:
            if len(rest) < len(frame) or self._tls is not None:
                self.lose("it does not read in time")
            raise
        except OSError as exc:
            self.lose(exc.strerror or str(exc))
            raise unanswered(self._who, exc.strerror or str(exc)) from NoAnswer(str(exc))
        except BaseException:
            self.lose("a thread was interrupted while it sent")
            raise

    # ---- reading

    def receive(self, call: _BlockingCall, deadline: float) -> bytes | None:
        """Return the next message of a call; None after its last. Reads for all waiting threads if none of them
        reads."""
        while True:
            with self._lock:
                # The loop has one rule: exactly one of the waiting threads reads. Whoever leaves with its reply, an
                # error or a timeout wakes another one by `_hand_over` under the same lock, or the others would wait for
                # frames that no thread reads.
                while self._is_read and not call.has_news:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not self._wait(call, left_s):
                        break
                if call.has_news:
                    self._hand_over(but=call)
                    if call.messages:
                        return call.messages.popleft()
                    if call.error is not None:
                        raise call.error
                    return None
                if deadline <= time.monotonic():
                    self._hand_over(but=call)
                    if self._heard_at < call.begun_at:  # the server may be gone
                        self._is_going = self._is_going or "it did not answer"
                    raise unanswered(self._who, "no answer in time")
                if self._is_read:
                    continue
                self._is_read = True
            self._read(min(deadline - time.monotonic(), _PING_S_MAX))
            self._ping_if_silent(call)

    def _ping_if_silent(self, call: _BlockingCall) -> None:
        """Ping a server that is silent while a call waits, and give up one that does not answer."""
        now = time.monotonic()
        since = max(self._heard_at, call.begun_at)
        if now - since < _SILENCE_S:
            return
        if self._pinged_at <= since:
            self._pinged_at = now
            if self._writing.acquire(timeout=0):
                try:
                    # Encrypted and not sent, it would be the end of the line.
                    if self._writable.poll(0):
                        with suppress(TxmsgError, TimeoutError):
                            self._write(frame_of(WireFrameKind.PING), now)
                finally:
                    self._writing.release()
        elif now - self._pinged_at >= _PING_S_MAX:
            self.lose("it answers no ping")

    def _wait(self, call: _BlockingCall, patience_s: float) -> bool:
        call.is_waiting = True
        try:
            return call.came.wait(patience_s)
        finally:
            call.is_waiting = False

    def _hand_over(self, *, but: _BlockingCall | None = None) -> None:
        """Wake one waiting thread to read, unless a thread reads."""
        if not self._is_read:
            for call in self._calls.values():
                if call is not but and call.is_waiting and not call.has_news:
                    call.came.notify()
                    return

    def _read(self, patience_s: float) -> None:
        """Read once, as the one reading thread, and pass the frames to their calls."""
        # The reason is set before the bytes are taken out of the socket and cleared after: an exception of a signal
        # handler between both loses bytes, and the finally block must end the connection then.
        data, reason = b"", ""
        try:
            if self._readable.poll(max(0.0, patience_s) * 1000):
                reason = "a thread was interrupted while it read"
                data = self._socket.recv(_READ_SIZE_BYTES)
                is_ended = not data
                if self._tls is not None:
                    with self._ciphering:
                        data = self._tls.receive(data)
                    is_ended = is_ended or self._tls.is_ended
                reason = "it closed the connection" if is_ended else ""
        except BlockingIOError:
            reason = ""
        except OSError as exc:
            reason = exc.strerror or str(exc)
        finally:
            with self._lock:
                self._is_read = False
                try:
                    for frame in self._reader.feed(data) if data else ():
                        self._take_frame(frame)
                except ProtocolError as exc:
                    reason = str(exc)
                if data:
                    self._heard_at = time.monotonic()
                if reason or self._lost is not None:
                    self._lose(reason)

    def _take_frame(self, frame: WireFrame) -> None:
        kind, flags, number, payload = frame
        if kind == WireFrameKind.GOAWAY:
            self._go_away(number, error_of_bytes(payload, self._who))
            return
        if kind == WireFrameKind.PING:
            return  # a server sends none to those who block
        # A reply to a call that its thread has given up is dropped: the server sent it before it read our CANCEL.
        found = self._calls.get(number)
        if found is None or found.is_ended or (kind == WireFrameKind.PUSH and not found.gives_many):
            return
        if kind == WireFrameKind.ERROR:
            found.forget_parts()  # of a message that had not come whole
        found.parts.append(payload)
        found.size_bytes += len(payload)
        if found.size_bytes > MESSAGE_SIZE_BYTES_MAX:
            found.forget_parts()
            found.finish(too_large(self._who))
            return
        if flags & MORE:
            return
        message = payload if len(found.parts) == 1 else b"".join(found.parts)
        found.forget_parts()
        if kind == WireFrameKind.ERROR:
            found.finish(error_of_bytes(message, self._who))
        elif kind == WireFrameKind.PUSH:
            found.messages.append(message)
            found.came.notify()
        elif kind == WireFrameKind.REPLY:
            if not found.gives_many:
                found.messages.append(message)
            found.finish(None)
        else:
            raise ProtocolError(f"a server sends no frames of kind {kind}")

    def _go_away(self, last_call: int, error: TxmsgError) -> None:
        """Fail the calls after `last_call`: the server has not begun them, and begins no more."""
        self._is_going, self._told = str(error), error
        for call in self._calls.values():
            if call.number > last_call and not call.is_ended:
                call.finish(not_begun(self._who, error))
