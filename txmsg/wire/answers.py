"""What a server says over gRPC when a request cannot be answered: txmsg errors become statuses with their code.

Serves brokers and MetaQ servers; knows no method. Nothing leaves here as gRPC's own UNKNOWN, whatever bytes came in.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import grpc

from txmsg.errors import ProtocolError, TxmsgError
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

    error: ProtocolError


class RefuseUnreadable(grpc.aio.ServerInterceptor):
    """Answers bytes that are no request of the method with ProtocolError, before any method sees them."""

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
            return parse(data)
        except Exception as exc:  # noqa: BLE001 - whatever a parser raises, the bytes are not readable
            return _Unreadable(ProtocolError(f"a request of {len(data)} bytes cannot be read: {exc}"))

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


async def _readable(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        if isinstance(request, _Unreadable):
            raise request.error
        yield request
