"""The client side of the protocol for asyncio: calls to one server, over one connection that is made on demand.

A call that fails for want of an answer says if it may have been carried out: BrokerUnavailable when it certainly was
not, OutcomeUnknown when it may have been. Retries are left to the caller. Belongs to one loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any, Generic, Self

from google.protobuf.message import DecodeError

from txmsg.errors import BrokerUnavailable, ProtocolError, TxmsgError
from txmsg.wire.address import UNIX, host_and_port
from txmsg.wire.codec import MESSAGE_SIZE_BYTES_MAX
from txmsg.wire.connection import WireConnection
from txmsg.wire.credential import TokenChoice, client_token
from txmsg.wire.failures import error_of_bytes, not_begun, unanswered, unreachable
from txmsg.wire.frames import CALLS_MAX, LAST, Buffer, WireFrameKind, call_head
from txmsg.wire.method import Method, ReplyT, RequestT, checked, packed, unpacked
from txmsg.wire.tls import TlsChoice, TlsStream, client_context

_LOOK_S = 5.0
_SILENCE_S = 10.0
"""Seconds without a byte from a server that is waited for, after which it is sent a ping."""
_PING_S_MAX = 5.0
"""Seconds that it has to answer the ping; then it is considered dead."""
_CONNECT_S_MAX = 10.0


class Channel:
    """Calls to the server at `address`, HOST:PORT or unix:PATH. kind: the server's kind, for errors.

    tls: for a HOST:PORT. token: for a server that requires authentication.
    """

    def __init__(self, address: str, *, kind: str = "broker", tls: TlsChoice = None, token: TokenChoice = None) -> None:
        self.who = f"{kind} {address}"
        self._address = address
        self._tls = None if address.startswith(UNIX) else client_context(tls)
        self._token = client_token(token)
        self._connection: _ClientConnection | None = None
        self._connecting: asyncio.Task[_ClientConnection] | None = None
        self._old: set[_ClientConnection] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def call(self, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float) -> ReplyT:
        """Return the reply. Raises the server's error, BrokerUnavailable or OutcomeUnknown."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        message = packed(checked(request))
        connection = self._connection
        # Checked here, too: a lone call on an open connection needs no further coroutine.
        if connection is None or not connection.takes_calls:
            connection = await self._connected(deadline)
        return read_reply(method, await connection.ask_once(method, message, deadline), self.who)

    async def stream(
        self, method: Method[RequestT, ReplyT], first: RequestT, *, timeout_s: float
    ) -> ClientStream[RequestT, ReplyT]:
        """Begin a call in which messages are many; `timeout_s` is for the connection. Close the stream at the end."""
        connection = await self._connected(asyncio.get_running_loop().time() + timeout_s)
        return ClientStream(connection, method, first)

    async def close(self) -> None:
        """Close the channel; calls in progress fail. Closing twice is fine."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        for connection in [self._connection, *self._old]:
            if connection is not None:
                connection.abort("the channel was closed")
        await asyncio.sleep(0)  # in which asyncio closes the sockets

    async def _connected(self, deadline: float) -> _ClientConnection:
        """Return the connection, made if necessary. All callers that wait for it share one attempt."""
        if self._is_closed:
            raise unreachable(self.who, "the channel was closed")
        if self._connection is not None and self._connection.takes_calls:
            return self._connection
        if self._connecting is None:
            # In a context of its own: the connection outlives this call, and works for others.
            self._connecting = asyncio.create_task(self._connect_in_time(), context=Context())
            self._connecting.add_done_callback(self._connect_done)
        connecting = self._connecting
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(connecting)
        except TimeoutError:
            reason = "it did not take a connection in time"
        except asyncio.CancelledError:
            if not (self._is_closed and connecting.cancelled()):
                raise
            reason = "the channel was closed"
        except (OSError, UnicodeError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
            # The attempt keeps its error, whose traceback would keep the frames of all who waited, with their messages.
            exc.__traceback__ = None
        raise unreachable(self.who, reason)

    def _connect_done(self, connecting: asyncio.Task[_ClientConnection]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # those who waited were told

    async def _connect_in_time(self) -> _ClientConnection:
        """Connect within _CONNECT_S_MAX seconds. Each of a name's addresses has its share of the time, in turn.

        Not happy_eyeballs_delay, which uvloop lacks: it is rare that an address neither takes nor refuses a connection.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_S_MAX) as limit:
            ends = [""]
            if not self._address.startswith(UNIX):
                found = await loop.getaddrinfo(*host_and_port(self._address), type=socket.SOCK_STREAM)
                ends = [str(end[0]) for _, _, _, _, end in found]
            *others, last = ends
            for tried, end in enumerate(others):
                share_s = ((limit.when() or 0.0) - loop.time()) / (len(ends) - tried)
                with suppress(OSError, BrokerUnavailable):  # a TimeoutError is an OSError
                    async with asyncio.timeout(share_s):
                        return await self._connect(end)
            return await self._connect(last)

    async def _connect(self, host: str) -> _ClientConnection:
        loop = asyncio.get_running_loop()
        if self._address.startswith(UNIX):
            path, token = self._address.removeprefix(UNIX), self._token.read()
            _, connection = await loop.create_unix_connection(lambda: _ClientConnection(self.who, token=token), path)
        else:
            name, port = host_and_port(self._address)
            tls = None if self._tls is None else TlsStream(self._tls, name)
            token = self._token.for_host(host, is_protected=tls is not None)
            _, connection = await loop.create_connection(
                lambda: _ClientConnection(self.who, tls, token=token), host, port
            )
        try:
            await connection.ready
            connection.require_open()  # the server may have greeted only to say that it takes no calls
        except BaseException:
            connection.abort("it did not greet in time, or takes no calls")
            raise
        if self._connection is not None and not self._connection.is_lost:
            self._old = {old for old in self._old if not old.is_lost} | {self._connection}
        self._connection = connection
        return connection


class _ClientConnection(WireConnection):
    """A connection to a server, and the calls that wait for its frames."""

    def __init__(self, who: str, tls: TlsStream | None = None, *, token: str = "") -> None:
        super().__init__(tls=tls, token=token)
        self.ready: asyncio.Future[None] = self.loop.create_future()
        # False until the server's greeting: before it, nothing shows that a server of this protocol and version is
        # there.
        self.takes_calls = False
        self._closed_by = "the connection is not open"
        self._told: TxmsgError | None = None
        """The error by which the server has said that it accepts no more calls."""
        self._who = who
        self._waiting: dict[int, asyncio.Future[Buffer]] = {}
        self._streams: dict[int, ClientStream[Any, Any]] = {}
        self._next_call = 0
        self._pinged_at = 0.0
        self._looking: asyncio.TimerHandle | None = None

    # ---- calls

    async def ask_once(self, method: Method[Any, Any], request: bytes, deadline: float) -> Buffer:
        """Return the bytes of the reply."""
        self.require_open()
        loop = self.loop
        answer: asyncio.Future[Buffer] = loop.create_future()
        call = self.next_call()
        self._waiting[call] = answer
        left_s = deadline - loop.time()
        self.send_frames(
            WireFrameKind.CALL, LAST, call, call_head(method.wire_name, max(1, int(left_s * 1000))), request
        )
        # Not asyncio.timeout: when the deadline passes, `_expire` cancels the call at the server, and the caller gets
        # OutcomeUnknown; a cancelled caller gets nothing but its CancelledError.
        timer = loop.call_at(deadline, self._expire, call)
        if self._looking is None:
            self._ping_if_silent()
        try:
            return await answer
        finally:
            timer.cancel()
            if self._waiting.pop(call, None) is not None:  # the caller was cancelled
                self._cancel(call)
            del answer  # its error knows this frame, and would keep the request until it is collected

    def begin_call(self, stream: ClientStream[Any, Any], method: Method[Any, Any], first: bytes) -> int:
        """Begin a call in which messages are many; return its number."""
        self.require_open()
        call = self.next_call()
        self._streams[call] = stream
        flags = 0 if method.takes_many else LAST
        self.send_frames(WireFrameKind.CALL, flags, call, call_head(method.wire_name, 0), first)
        if self._looking is None:
            self._ping_if_silent()
        return call

    def end_call(self, call: int) -> None:
        """Cancel a call of which no more is wanted."""
        if self._streams.pop(call, None) is not None:
            self._cancel(call)

    def _cancel(self, call: int) -> None:
        self.drop(call)
        self.send_frames(WireFrameKind.CANCEL, 0, call)

    def require_open(self) -> None:
        """Raise BrokerUnavailable if no more calls can begin, Unauthenticated if the server refuses our credential."""
        if not self.takes_calls:
            raise unreachable(self._who, self._closed_by) if self._told is None else not_begun(self._who, self._told)

    def next_call(self) -> int:
        """Return the number of a new call."""
        self._next_call += 1
        if self._next_call == CALLS_MAX:
            self.takes_calls, self._closed_by = False, "the connection was used up"
        return self._next_call

    def _expire(self, call: int) -> None:
        answer = self._waiting.pop(call, None)
        if answer is not None and not answer.done():
            self._cancel(call)
            answer.set_exception(unanswered(self._who, "no answer in time"))

    # ---- what comes

    def greeted(self) -> None:
        self.takes_calls = True
        if not self.ready.done():
            self.ready.set_result(None)

    def take_message(self, kind: int, flags: int, call: int, message: Buffer) -> None:
        if kind == WireFrameKind.REPLY:
            answer = self._waiting.pop(call, None)
            if answer is not None:
                if not answer.done():
                    answer.set_result(message)
            elif (stream := self._streams.pop(call, None)) is not None:
                stream.finish(None)
        elif kind == WireFrameKind.ERROR:
            if self.drop(call):  # refused before it had left whole: the server forgets what it has of it
                self.send_frames(WireFrameKind.CANCEL, 0, call)
            self._fail(call, error_of_bytes(message, self._who))
        elif kind == WireFrameKind.PUSH:
            if (stream := self._streams.get(call)) is not None:
                stream.put_reply(message)
        elif kind == WireFrameKind.GOAWAY:
            self._go_away(call, error_of_bytes(message, self._who))
        else:
            raise ProtocolError(f"a server sends no frames of kind {kind}")

    def allowed_bytes(self, kind: int, call: int, first: bytes) -> int:
        return MESSAGE_SIZE_BYTES_MAX if call in self._waiting or call in self._streams else 0

    def too_large(self, kind: int, call: int, allowed_bytes: int) -> None:
        self._fail(call, too_large(self._who))

    def _fail(self, call: int, error: TxmsgError) -> None:
        answer, stream = self._waiting.pop(call, None), self._streams.pop(call, None)
        if answer is not None and not answer.done():
            answer.set_exception(error)
        elif stream is not None:
            stream.finish(error)

    def lost(self, reason: str) -> None:
        if self.takes_calls:
            self.takes_calls, self._closed_by = False, reason
        if self._looking is not None:
            self._looking.cancel()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
        for call in [*self._waiting, *self._streams]:
            self._fail(call, unanswered(self._who, reason))

    def _go_away(self, last_call: int, error: TxmsgError) -> None:
        """Fail the calls after `last_call`: the server has not begun them, and begins no more."""
        self.takes_calls, self._told = False, error
        # Only these can be repeated safely. Calls up to `last_call` were begun: their replies may still come, and if
        # not they are OutcomeUnknown.
        for call in [call for call in (*self._waiting, *self._streams) if call > last_call]:
            self._fail(call, not_begun(self._who, error))

    def _ping_if_silent(self) -> None:
        """Ping a server that is silent while a call waits, and abort if it does not answer."""
        self._looking = None
        if self.is_lost or not (self._waiting or self._streams):
            return
        now = self.loop.time()
        if now - self.heard_at > _SILENCE_S:
            if self._pinged_at <= self.heard_at:
                self._pinged_at = now
                self.send_frames(WireFrameKind.PING, 0, 0)
            elif now - self._pinged_at >= _PING_S_MAX:
                self.abort("it answers no ping")
                return
        self._looking = self.loop.call_later(_LOOK_S, self._ping_if_silent, context=Context())


class ClientStream(Generic[RequestT, ReplyT]):
    """The caller's side of a call in which messages are many."""

    def __init__(self, connection: _ClientConnection, method: Method[RequestT, ReplyT], first: RequestT) -> None:
        self._connection = connection
        self._method = method
        self._replies: deque[Buffer] = deque()
        self._came = asyncio.Event()
        self._is_ended = False
        self._error: TxmsgError | None = None
        self._call = connection.begin_call(self, method, packed(checked(first)))

    async def send_request(self, request: RequestT) -> None:
        """Send a message, and return when the server is receiving it."""
        self._connection.send_frames(WireFrameKind.PUSH, 0, self._call, packed(request))
        await self._connection.drained(self._call)

    async def receive(self) -> ReplyT | None:
        """Return the next message; None at the end. Raises the server's error, or OutcomeUnknown."""
        while not self._replies:
            if self._error is not None:
                raise self._error
            if self._is_ended:
                return None
            self._came.clear()
            await self._came.wait()
        return read_reply(self._method, self._replies.popleft(), "the server")

    def close(self) -> None:
        """End the call, unless it has ended. Closing twice is fine."""
        self._connection.end_call(self._call)

    def put_reply(self, message: Buffer) -> None:
        """Add a message that came."""
        self._replies.append(message)
        self._came.set()

    def finish(self, error: TxmsgError | None) -> None:
        """End the stream: no more messages will come."""
        self._error, self._is_ended = error, True
        self._came.set()


def too_large(who: str) -> ProtocolError:
    """Return the error of a reply that exceeds MESSAGE_SIZE_BYTES_MAX."""
    return ProtocolError(f"{who} sent a reply of over {MESSAGE_SIZE_BYTES_MAX} bytes")


def read_reply(method: Method[Any, ReplyT], data: Buffer, who: str) -> ReplyT:
    """Return the reply in these bytes. Raises ProtocolError."""
    try:
        return unpacked(method.reply, data)
    except DecodeError as exc:
        raise ProtocolError(f"{who} sent a reply of {len(data)} bytes that cannot be read") from exc
