"""`@idempotent`: a handler whose effects happen once per message and consumer group. How is in inbox.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from inspect import isfunction, signature
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from txmsg.checker.connections.opening import package_of
from txmsg.client.receiving.inbox_handler import IdempotentHandler
from txmsg.client.receiving.inbox_handler_async import AsyncIdempotentHandler
from txmsg.consumer.subscriptions import refuse_subscribed
from txmsg.errors import MisuseError
from txmsg.runtime.user_function import check_takes, is_coroutine, name_of

P = ParamSpec("P")
S_co = TypeVar("S_co", covariant=True)


Idempotent: TypeAlias = IdempotentHandler | AsyncIdempotentHandler
"""The decorator's result: it handles lists, too."""


class _IdempotentDecorator(Protocol[S_co]):
    """Removes the session parameter: callers of the handler do not pass it. S is the session, or the connection."""

    def __call__(self, handler: Callable[Concatenate[S_co, P], None], /) -> Callable[P, None]: ...


class _AsyncIdempotentDecorator(Protocol[S_co]):
    """The same for coroutine functions."""

    def __call__(
        self, handler: Callable[Concatenate[S_co, P], Awaitable[None]], /
    ) -> Callable[P, Coroutine[Any, Any, None]]: ...


@overload
def idempotent(
    session_factory: Callable[[], AbstractContextManager[S_co]], *, group: str | None = None
) -> _IdempotentDecorator[S_co]: ...
@overload
def idempotent(
    session_factory: Callable[[], AbstractAsyncContextManager[S_co] | Awaitable[S_co]], *, group: str | None = None
) -> _AsyncIdempotentDecorator[S_co]: ...
def idempotent(session_factory: Callable[[], Any], *, group: str | None = None) -> Callable[[Any], Any]:
    """Decorate a handler `(session, message)` so that its effects happen once per message and consumer group.

    If an operator asks to handle a message again (`dead-letter redrive`, `group seek --again`), it has a higher
    generation and is handled once more. Any other repeat is skipped.

    session_factory: a sessionmaker, or an async_sessionmaker for `async def`; or a function that opens a connection, as
    for `transactional_message`. The session is opened, the message is recorded in txmsg_inbox (see `create_tables`),
    the handler runs, and everything is committed together; a repeated message is skipped. Committing inside raises
    MisuseError. group: default that of the consumer. In an application, what comes after the session is filled as for
    any other handler: the message, its payload, or dependencies; with `batch=`, a list of those that were not handled
    before, all in one transaction, or, if that fails, each in its own.

        @consumer.subscribe("user.registered")
        @idempotent(SessionLocal)
        def give_red_packet(session: Session, message: ReceivedMessage) -> None: ...
    """
    if isinstance(session_factory, Session | AsyncSession):
        raise MisuseError("@idempotent was given one session: give the sessionmaker, each message opens its own")
    if package_of(session_factory) is not None:
        raise MisuseError("@idempotent was given one connection: give a function that opens one for each message")
    if isfunction(session_factory) and any(
        each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        for each in signature(session_factory).parameters.values()
    ):
        raise MisuseError(
            f"@idempotent is written without a session factory above {name_of(session_factory)}: write "
            "@idempotent(SessionLocal), with a sessionmaker"
        )
    check_takes("@idempotent(session_factory)", session_factory)

    def decorate(handler: Callable[..., Any]) -> Idempotent:
        refuse_subscribed(handler)
        # What comes after the session is checked by `subscribe`, which knows who fills it.
        check_takes("the handler under @idempotent", handler, "session", is_all=False)
        is_async = is_coroutine(handler)
        other = sessionmaker | scoped_session if is_async else async_sessionmaker
        if isinstance(session_factory, other):
            raise MisuseError(
                f"{name_of(handler)} is {'async def' if is_async else 'def'}: @idempotent needs "
                f"{'an async_sessionmaker' if is_async else 'a sessionmaker'}"
            )
        kind: Any = AsyncIdempotentHandler if is_async else IdempotentHandler
        decorated: Idempotent = kind(handler, session_factory, group)
        return decorated

    return decorate
