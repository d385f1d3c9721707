"""A call of a client, as the methods that answer it see it. Knows no HTTP/2: its stream is somebody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from google.protobuf.message import Message

from txmsg.logs import EventLog
from txmsg.rocketmq.grpc.framing import Arriving, ClientGone, Code, Failed, framed, timeout_s

_log = EventLog(__name__)

_SMALL_SIZE_BYTES: Final = 64 * 1024
"""What a call may always send, so that acknowledgements and usual messages have room beside large ones."""


class Stream(Protocol):
    """What carries a call."""

    peer: str
    """HOST:PORT of the client."""

    async def send(self, data: bytes) -> None:
        """Returns when it is on its way to the client. Raises ClientGone if there is none any more."""

    def end(self, code: Code, text: str) -> None:
        """The call is over. Nothing happens if its client has ended it before."""

    def allow(self, size_bytes: int) -> None:
        """The client may send so much more."""

    def keep(self, size_bytes: int) -> bool:
        """Counts what is kept of requests; fewer bytes for less than 0. Whether there is room for all of them."""


class Call:
    """Belongs to one loop. Reads and writes may be of different tasks, but no two reads, nor two writes, at once.

    Nothing is read before somebody does: what comes by itself is as much as the client may send without being asked.
    headers: those of several values have the last of them. Those of HTTP/2 are among them.
    """

    def __init__(self, stream: Stream, headers: Mapping[str, str], *, size_bytes_max: int) -> None:
        self.headers = headers
        self._stream = stream
        self._arriving = Arriving(size_bytes_max)
        self._unread_bytes = 0
        """Of the stream, that the client is to be allowed again."""
        self._kept_bytes = 0
        """Of messages that are here, with the one that was read last."""
        self._has_room = True
        self._has_ended = False
        self._reading: asyncio.Future[None] | None = None
        self._deadline: float | None = None

    @property
    def peer(self) -> str:
        """HOST:PORT of the client."""
        return self._stream.peer

    def time_remaining(self) -> float | None:
        """Seconds to the deadline of the call; None without."""
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()

    async def read(self) -> bytes | None:
        """The next message; None after the last one. The one before is done with. Raises Failed."""
        self._forget(self._kept_bytes - self._arriving.size_bytes)
        while True:
            self._allow()
            if not self._has_room:
                raise Failed(Code.RESOURCE_EXHAUSTED, "large requests fill the memory: send fewer at once, or later")
            if (message := self._arriving.take()) is not None:
                return message
            if self._has_ended:
                if not self._arriving.size_bytes:
                    return None
                raise Failed(Code.INTERNAL, "the request has ended in the middle of a message")
            self._reading = asyncio.get_running_loop().create_future()
            try:
                await self._reading
            finally:
                self._reading = None

    async def write(self, message: Message) -> None:
        """Returns when it is on its way to the client. Raises ClientGone if there is none any more."""
        await self._stream.send(framed(message.SerializeToString()))

    async def run(self, method: Callable[[Call], Awaitable[None]]) -> None:
        """Lets the method answer it, until its deadline. For the task of the call, which is cancelled if it ends."""
        code, text = Code.OK, ""
        try:
            if (timeout := self.headers.get("grpc-timeout")) is not None:
                self._deadline = asyncio.get_running_loop().time() + timeout_s(timeout)
            await self._answered(method)
        except Failed as exc:
            code, text = exc.code, str(exc)
        except ClientGone:
            return
        except Exception:  # noqa: BLE001 - the root of a call: its client is told that it is none of its making
            _log.exception("rocketmq.stream_failed", "%(method)s failed unexpectedly", method=self.headers.get(":path"))
            code, text = Code.INTERNAL, "an error here: see the gateway's log"
        self._stream.end(code, text)

    async def _answered(self, method: Callable[[Call], Awaitable[None]]) -> None:
        if self._deadline is None:
            await method(self)
            return
        try:
            async with asyncio.timeout_at(self._deadline) as scope:
                await method(self)
        except TimeoutError:
            if scope.expired():
                raise Failed(Code.DEADLINE_EXCEEDED, "the deadline of the call is over") from None
            raise

    # ---- of the stream

    def arrived(self, data: bytes, size_bytes: int) -> None:
        """Of the stream, size_bytes have come, padding included."""
        self._unread_bytes += size_bytes
        self._kept_bytes += len(data)
        if not self._stream.keep(len(data)) and self._kept_bytes > _SMALL_SIZE_BYTES:
            self._has_room = False
        is_ready = self._arriving.add(data)
        if self._reading is not None:
            self._allow()
            if is_ready or not self._has_room:
                self._wake()

    def ended(self) -> None:
        """The client has sent all."""
        self._has_ended = True
        self._wake()

    def release(self) -> None:
        """Nobody reads any more."""
        self._allow()
        self._forget(self._kept_bytes)

    def _forget(self, size_bytes: int) -> None:
        self._kept_bytes -= size_bytes
        self._stream.keep(-size_bytes)

    def _allow(self) -> None:
        if self._unread_bytes:
            self._stream.allow(self._unread_bytes)
            self._unread_bytes = 0

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)


Method: TypeAlias = Callable[[Call], Awaitable[None]]
"""What answers calls of one path: it reads and writes messages. Returns when the call is over; raises Failed."""
