"""A call under way, as the method has it that answers."""

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
    """Marks what answers a method with one request and one reply, and is to be given the `ServerCall`, too."""
    handler.with_call = True  # type: ignore[attr-defined]
    return handler


class CallConnection(Calling, Protocol):
    """The connection of a call, as the call sees it, and the method that answers."""

    @property
    def is_full(self) -> bool:
        """The client does not take what was sent to it."""
        ...

    async def emptied(self) -> None:
        """Returns when it takes more, or is gone."""
        ...

    def count_held_bytes(self, size_bytes: int) -> None:
        """So many bytes more of requests are under way, or fewer."""
        ...

    def send_frames(self, kind: int, flags: int, call: int, *pieces: Buffer) -> None:
        """Sends a message of a call."""
        ...

    async def drained(self, call: int) -> None:
        """Returns when the client is taking what was sent of a call."""
        ...


@dataclass(slots=True, eq=False)
class RunningCall:
    """A call under way. call: where messages are many. request: the first one."""

    deadline: float
    size_bytes: int
    request: object
    task: asyncio.Task[None] | None = None
    call: ServerCall[Any, Any] | None = None

    def cancel(self) -> None:
        """Once only: what it does to end must not be cancelled, too."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()


def ignore() -> None:
    pass


class ServerCall(Generic[RequestT, ReplyT]):
    """A call in which messages are many, as the method has it that answers: iterate over requests, `send` replies."""

    def __init__(self, connection: CallConnection, call: int, method: Method[RequestT, ReplyT]) -> None:
        self.connection = connection
        self._call = call
        self.method = method
        self._requests: deque[RequestT | Buffer] = deque()
        self._is_ended = False
        self._came = asyncio.Event()
        self.unsent: Callable[[], object] = ignore
        """Called when the reply has not left: the connection was lost, or the client has cancelled the call."""

    def put_first_request(self, request: RequestT, *, is_last: bool) -> None:
        """The first request, which came with the call."""
        self._requests.append(request)
        self._is_ended = is_last
        self._came.set()

    def put_request(self, message: Buffer, *, is_last: bool) -> None:
        """Another one came. A last one that is empty is only the end."""
        self._is_ended = is_last
        if message or not is_last:
            self._requests.append(message)
            self.connection.count_held_bytes(len(message))
        self._came.set()

    def forget_requests(self) -> None:
        """The call is over: what was not taken is dropped."""
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
        """Sends a reply, with data if it has some, and returns when the client is taking it."""
        self.connection.send_frames(WireFrameKind.PUSH, 0, self._call, *pieces_of(reply, data))
        await self.connection.drained(self._call)


def read_request(method: Method[RequestT, Any], data: Buffer) -> RequestT:
    """The request in these bytes. Raises ProtocolError; InvalidName for a text that no database can store."""
    try:
        request = unpacked(method.request, data, strict=True)
    except (DecodeError, RecursionError) as exc:
        raise ProtocolError(f"a request of {len(data)} bytes cannot be read: {exc}") from exc
    if isinstance(request, Message) and (error := nul_in(request)) is not None:
        raise error
    return request
