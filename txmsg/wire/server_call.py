"""A call in progress, as its handler sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from txmsg.errors import ProtocolError
from txmsg.wire.caller import Calling
from txmsg.wire.data import pieces_of
from txmsg.wire.frames import Buffer, WireFrameKind
from txmsg.wire.method import Method, ReplyT, RequestT, unpacked
from txmsg.wire.texts import nul_in

Handler = Callable[..., Awaitable[Any]]
HandlerT = TypeVar("HandlerT", bound=Handler)


def with_call(handler: HandlerT) -> HandlerT:
    """Mark the handler of a method with one request and one reply, so that it gets the `ServerCall`, too."""
    handler.with_call = True  # type: ignore[attr-defined]
    return handler


class CallConnection(Calling, Protocol):
    """The connection of a call, as the call and its handler see it."""

    @property
    def is_full(self) -> bool:
        """True while the client does not read what was sent to it."""
        ...

    async def emptied(self) -> None:
        """Return when the client reads more, or is gone."""
        ...

    def count_held_bytes(self, size_bytes: int) -> None:
        """Count bytes of requests in progress; negative when they are done."""
        ...

    def send_frames(self, kind: int, flags: int, call: int, *pieces: Buffer) -> None:
        """Send a message of a call."""
        ...

    async def drained(self, call: int) -> None:
        """Return when the client is receiving the messages sent for a call."""
        ...


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call in progress. call: set where messages are many. request: the first one."""

    deadline: float
    size_bytes: int
    request: object
    task: asyncio.Task[None] | None = None
    call: ServerCall[Any, Any] | None = None

    def cancel(self) -> None:
        """Cancel the task, once only: its clean-up must not be cancelled as well."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()


def ignore() -> None:
    pass


class ServerCall(Generic[RequestT, ReplyT]):
    """A call in which messages are many, as its handler sees it: iterate over requests, `send_reply` replies."""

    def __init__(self, connection: CallConnection, call: int, method: Method[RequestT, ReplyT]) -> None:
        self.connection = connection
        self._call = call
        self.method = method
        self._requests: deque[RequestT | Buffer] = deque()
        self._is_ended = False
        self._came = asyncio.Event()
        self.unsent: Callable[[], object] = ignore
        """Called if the reply has not been sent: the connection was lost, or the client has cancelled the call."""

    def put_first_request(self, request: RequestT, *, is_last: bool) -> None:
        """Add the first request, which came with the call."""
        self._requests.append(request)
        self._is_ended = is_last
        self._came.set()

    def put_request(self, message: Buffer, *, is_last: bool) -> None:
        """Add a further request. A last one that is empty only marks the end."""
        self._is_ended = is_last
        if message or not is_last:
            self._requests.append(message)
            # Counted until the handler reads it: a client that streams faster than the handler works is paused by the
            # connection's bound instead of filling this deque.
            self.connection.count_held_bytes(len(message))
        self._came.set()

    def forget_requests(self) -> None:
        """Drop the requests that were not read: the call is over."""
        # The handler can undo what it has done for a reply that was not sent.
        self.unsent()
        self.connection.count_held_bytes(
            -sum(len(request) for request in self._requests if isinstance(request, Buffer))
        )
        self._requests.clear()

    def __aiter__(self) -> ServerCall[RequestT, ReplyT]:
        return self

    async def __anext__(self) -> RequestT:
        while not self._requests:
            if self._is_ended:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        request = self._requests.popleft()
        if isinstance(request, Buffer):
            self.connection.count_held_bytes(-len(request))
            return read_request(self.method, request)
        return request

    async def send_reply(self, reply: ReplyT, data: Sequence[Buffer] = ()) -> None:
        """Send a reply, with its data if any, and return when the client is receiving it."""
        self.connection.send_frames(WireFrameKind.PUSH, 0, self._call, *pieces_of(reply, data))
        await self.connection.drained(self._call)


def read_request(method: Method[RequestT, Any], data: Buffer) -> RequestT:
    """Return the request in these bytes. Raises ProtocolError; InvalidName for a text that no database can store."""
    try:
        request = unpacked(method.request, data, strict=True)
    except (DecodeError, RecursionError) as exc:
        raise ProtocolError(f"a request of {len(data)} bytes cannot be read: {exc}") from exc
    if isinstance(request, Message) and (error := nul_in(request)) is not None:
        raise error
    return request
