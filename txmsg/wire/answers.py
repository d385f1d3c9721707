"""What a server says over gRPC when a request cannot be answered: txmsg errors become statuses with their code.

Serves brokers and MetaQ servers; knows no method. Nothing leaves here as gRPC's own UNKNOWN, whatever bytes came in.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, NoReturn, TypeVar

import grpc

from txmsg.errors import InvalidName, ProtocolError, TxmsgError, shown
from txmsg.wire.codec import metadata_of_error, status_of_error

__all__ = ["TEXT_LENGTH_MAX", "Context", "RefuseUnreadable", "answering", "refuse"]

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Request = TypeVar("Request")
Reply = TypeVar("Reply")

TEXT_LENGTH_MAX = 1000
"""Of a status: gRPC drops the connection's stream, and the text with it, when trailing metadata is over 16 KiB."""


async def refuse(context: Context, error: TxmsgError) -> NoReturn:
    """Ends the call with the status of an error."""
    await context.abort(status_of_error(error), str(error)[:TEXT_LENGTH_MAX], metadata_of_error(error))
    raise AssertionError("abort() raises")


def answering(
    method: Callable[[Any, Request, Context], Awaitable[Reply]],
) -> Callable[[Any, Request, Context], Awaitable[Reply]]:
    """Turns a txmsg error into a status with its code; logs what nobody expected."""

    async def answer(self: Any, request: Request, context: Context) -> Reply:
        try:
            return await method(self, request, context)
        except TxmsgError as exc:
            await refuse(context, exc)
        except Exception as exc:
            logger.exception("%s failed", method.__name__)
            await refuse(context, TxmsgError(f"the server failed: {type(exc).__name__}; its log says more"))

    return answer


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Stands where a request should be. An error raised by the parser itself would be UNKNOWN, with a traceback."""

    error: TxmsgError


class RefuseUnreadable(grpc.aio.ServerInterceptor):
    """Answers what no method can take, before any method sees it.

    Bytes that are no request of the method: ProtocolError. A text with a NUL, which PostgreSQL cannot store or compare:
    InvalidName; but not in a list, whose items are looked at one by one, each for its own error.
    """

    def __init__(self) -> None:
        self._handlers: dict[str, Any] = {}  # bounded by the methods there are

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The method's handler, made to read carefully."""
        known = self._handlers.get(details.method)
        if known is None:
            handler = await continuation(details)
            if handler is None:
                return None
            known = self._handlers[details.method] = _careful(handler)
        return known


def _careful(handler: Any) -> Any:
    parse = handler.request_deserializer

    def read(data: bytes) -> object:
        try:
            request = parse(data)
        except Exception as exc:  # noqa: BLE001 - whatever a parser raises, the bytes are not readable
            return _Unreadable(ProtocolError(f"a request of {len(data)} bytes cannot be read: {exc}"))
        return request if (error := _nul_in(request)) is None else _Unreadable(error)

    async def unary(request: object, context: Context) -> object:
        if isinstance(request, _Unreadable):
            await refuse(context, request.error)
        return await handler.unary_unary(request, context)

    async def writer(request: object, context: Context) -> None:
        if isinstance(request, _Unreadable):
            await refuse(context, request.error)
        await handler.unary_stream(request, context)

    async def reply_to_many(requests: AsyncIterator[object], context: Context) -> object:
        return await handler.stream_unary(_readable(requests), context)

    async def stream(requests: AsyncIterator[object], context: Context) -> AsyncIterator[object]:
        async with aclosing(handler.stream_stream(_readable(requests), context)) as replies:
            async for reply in replies:
                yield reply

    serialize = handler.response_serializer
    if handler.stream_stream is not None:
        return grpc.stream_stream_rpc_method_handler(stream, read, serialize)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(writer, read, serialize)
    if handler.stream_unary is not None:
        return grpc.stream_unary_rpc_method_handler(reply_to_many, read, serialize)
    return grpc.unary_unary_rpc_method_handler(unary, read, serialize)


def _nul_in(request: Any) -> TxmsgError | None:
    for path in _texts_of(request.DESCRIPTOR):
        text = reduce(getattr, path, request)
        if "\0" in text:
            return InvalidName(
                f"{path[-1]} {shown(text)} contains a NUL character, which no stored text has: remove it"
            )
    return None


@cache  # bounded by the messages of the protocol
def _texts_of(descriptor: Any, above: tuple[Any, ...] = ()) -> tuple[tuple[str, ...], ...]:
    """The way to each text in a message of this type that is not in a list."""
    found: list[tuple[str, ...]] = []
    for each in descriptor.fields:
        if each.is_repeated:
            continue
        if each.type == each.TYPE_STRING:
            found.append((each.name,))
        elif each.message_type is not None and each.message_type not in above:
            found += [(each.name, *rest) for rest in _texts_of(each.message_type, (*above, descriptor))]
    return tuple(found)


async def _readable(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        if isinstance(request, _Unreadable):
            raise request.error
        yield request
