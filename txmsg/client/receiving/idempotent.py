"""`@idempotent`: a handler whose effects happen once per message and consumer group. How is in inbox.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from txmsg.client.receiving.inbox_handler import IdempotentHandler
from txmsg.client.receiving.inbox_handler_async import AsyncIdempotentHandler
from txmsg.connections.opening import package_of
from txmsg.errors import MisuseError
from txmsg.message import ReceivedMessage
from txmsg.runtime.user_function import check_takes, is_coroutine, name_of

S = TypeVar("S")


@overload
def idempotent(
    session_factory: Callable[[], AbstractContextManager[S]], *, group: str | None = None
) -> Callable[[Callable[[S, ReceivedMessage], None]], IdempotentHandler]: ...
@overload
def idempotent(
    session_factory: Callable[[], AbstractAsyncContextManager[S] | Awaitable[S]], *, group: str | None = None
) -> Callable[[Callable[[S, ReceivedMessage], Awaitable[None]]], AsyncIdempotentHandler]: ...
def idempotent(session_factory: Callable[[], Any], *, group: str | None = None) -> Callable[[Any], Any]:
    """Decorates a handler `(session, message)` so that its effects happen once per message and consumer group.

    If an operator asks to handle a message again (`dead-letter redrive`, `group seek --again`), it has a higher
    generation and is handled once more. Any other repeat is skipped.

    session_factory: a sessionmaker, or an async_sessionmaker for `async def`; or a function that opens a connection, as
    for `transactional_message`. The session is opened, the message is recorded in txmsg_inbox (see `create_tables`),
    the handler runs, and everything is committed together; a repeated message is skipped. Committing inside raises
    MisuseError. group: default that of the consumer.

        @consumer.subscribe("user.registered")
        @idempotent(SessionLocal)
        def give_red_packet(session: Session, message: ReceivedMessage) -> None: ...
    """
    if isinstance(session_factory, Session | AsyncSession):
        raise MisuseError("@idempotent was given one session: give the sessionmaker, each message opens its own")
    if package_of(session_factory) is not None:
        raise MisuseError("@idempotent was given one connection: give a function that opens one for each message")
    check_takes("@idempotent(session_factory)", session_factory)

    def decorate(handler: Callable[..., Any]) -> IdempotentHandler | AsyncIdempotentHandler:
        check_takes("the handler under @idempotent", handler, "session", "message")
        is_async = is_coroutine(handler)
        other = sessionmaker | scoped_session if is_async else async_sessionmaker
        if isinstance(session_factory, other):
            raise MisuseError(
                f"{name_of(handler)} is {'async def' if is_async else 'def'}: @idempotent needs "
                f"{'an async_sessionmaker' if is_async else 'a sessionmaker'}"
            )
        kind: Any = AsyncIdempotentHandler if is_async else IdempotentHandler
        decorated: IdempotentHandler | AsyncIdempotentHandler = kind(handler, session_factory, group)
        return decorated

    return decorate
