"""A client's call as the methods that answer it see it. Independent of HTTP/2: a `GrpcStream` carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from google.protobuf.message import Message

from txmsg.rocketmq.grpc.framing import ClientGone, Code, GrpcFailed, IncomingMessages, framed, timeout_s
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_SMALL_SIZE_BYTES: Final = 64 * 1024
"""Bytes that a call may always send, so that acknowledgements and usual messages have room beside large ones."""


class GrpcStream(Protocol):
    """The transport of a call."""

    peer: str
    """The HOST:PORT of the client."""

    async def send_data(self, data: bytes) -> None:
        """Send bytes. Returns when they are on their way to the client. Raises ClientGone if the client is gone."""

    def end_call(self, code: Code, text: str) -> None:
        """End the call. Does nothing if the client has already ended it."""

    def allow(self, size_bytes: int) -> None:
        """Let the client send this many more bytes."""

    def admitted(self, user: str, *, is_admin: bool) -> None:
        """Note that a call of this user is admitted; "" is no user. Raises Overloaded if the connection then has no
        place.
        """

    def count_bytes(self, size_bytes: int) -> bool:
        """Count bytes of requests in memory; negative numbers release them. Returns True if all are within
        the bound.
        """


class GrpcCall:
    """Belongs to one loop. Different tasks may read and write, but there must be only one read and one write at a time.

    Data is accepted only while a task reads, apart from what the client may always send in advance. headers: if a name
    occurs several times, the last value; HTTP/2 pseudo-headers are included.
    """

    def __init__(self, stream: GrpcStream, headers: Mapping[str, str], *, size_bytes_max: int) -> None:
        self.headers = headers
        self._stream = stream
        self._arriving = IncomingMessages(size_bytes_max)
        self._unread_bytes = 0
        """Received bytes of the stream that the client has not been allowed to send again."""
        self._kept_bytes = 0
        """Bytes of messages in memory, including the one that was read last."""
        self._has_room = True
        self._has_ended = False
        self._reading: asyncio.Future[None] | None = None
        self._deadline: float | None = None

    @property
    def peer(self) -> str:
        """The HOST:PORT of the client."""
        return self._stream.peer

    def time_remaining(self) -> float | None:
        """Return seconds to the deadline of the call; None without one."""
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()

    async def read(self) -> bytes | None:
        """Return the next message; None after the last one. Releases the previous one. Raises GrpcFailed."""
        self._forget_bytes(self._kept_bytes - self._arriving.size_bytes)
        while True:
            self._allow()
            if not self._has_room:
                raise GrpcFailed(
                    Code.RESOURCE_EXHAUSTED, "large requests fill the memory: send fewer at once, or later"
                )
            if (message := self._arriving.take_message()) is not None:
                return message
            if self._has_ended:
                if not self._arriving.size_bytes:
                    return None
                raise GrpcFailed(Code.INTERNAL, "the request has ended in the middle of a message")
            self._reading = asyncio.get_running_loop().create_future()
            try:
                await self._reading
            finally:
                self._reading = None

    async def write(self, message: Message) -> None:
        """Send a message. Returns when it is on its way to the client. Raises ClientGone if the client is gone."""
        await self._stream.send_data(framed(message.SerializeToString()))

    async def run(self, method: Callable[[GrpcCall], Awaitable[None]]) -> None:
        """Run the method until it returns or the deadline passes. Runs in the call's task, which is cancelled if the
        call ends.
        """
        code, text = Code.OK, ""
        try:
            if (timeout := self.headers.get("grpc-timeout")) is not None:
                self._deadline = asyncio.get_running_loop().time() + timeout_s(timeout)
            await self._answered(method)
        except GrpcFailed as exc:
            code, text = exc.code, str(exc)
        except ClientGone:
            return
        except Exception:  # noqa: BLE001 - the root of a call: its client is told that it is none of its making
            _log.exception("rocketmq.stream_failed", "%(method)s failed unexpectedly", method=self.headers.get(":path"))
            code, text = Code.INTERNAL, "an error here: see the gateway's log"
        self._stream.end_call(code, text)

    async def _answered(self, method: Callable[[GrpcCall], Awaitable[None]]) -> None:
        if self._deadline is None:
            await method(self)
            return
        try:
            async with asyncio.timeout_at(self._deadline) as scope:
                await method(self)
        except TimeoutError:
            if scope.expired():
                raise GrpcFailed(Code.DEADLINE_EXCEEDED, "the deadline of the call is over") from None
            raise

    def admitted(self, user: str, *, is_admin: bool) -> None:
        """Note that the caller is known. Raises Overloaded if its connection has no place."""
        self._stream.admitted(user, is_admin=is_admin)

    # ---- of the stream

    def arrived(self, data: bytes, size_bytes: int) -> None:
        """Add data of the stream. size_bytes: its size including padding."""
        self._unread_bytes += size_bytes
        self._kept_bytes += len(data)
        if not self._stream.count_bytes(len(data)) and self._kept_bytes > _SMALL_SIZE_BYTES:
            self._has_room = False
        is_ready = self._arriving.add(data)
        if self._reading is not None:
            self._allow()
            if is_ready or not self._has_room:
                self._wake()

    def ended(self) -> None:
        """Note that the client has sent everything."""
        self._has_ended = True
        self._wake()

    def release(self) -> None:
        """Release all data: no task reads any more."""
        self._allow()
        self._forget_bytes(self._kept_bytes)

    def _forget_bytes(self, size_bytes: int) -> None:
        self._kept_bytes -= size_bytes
        self._stream.count_bytes(-size_bytes)

    def _allow(self) -> None:
        if self._unread_bytes:
            self._stream.allow(self._unread_bytes)
            self._unread_bytes = 0

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)


Method: TypeAlias = Callable[[GrpcCall], Awaitable[None]]
"""A function that answers calls of one path: it reads and writes messages, and returns at the end; raises
GrpcFailed."""
