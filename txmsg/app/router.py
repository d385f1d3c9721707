"""Subscriptions of a module of an application: declared by decorators, and included in the application."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from txmsg.app.dependencies import NO_OVERRIDES, Injected, Overrides
from txmsg.app.processes import check_importable
from txmsg.consumer.failures import Retry, check_retry
from txmsg.consumer.lifecycle import check_count
from txmsg.consumer.subscriptions import GroupHandler, hidden_group_handler, hides_group_handler, note_subscribed
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage, check_name
from txmsg.runtime.start import Start, check_group_start
from txmsg.runtime.user_function import check_takes, name_of
from txmsg.settings.clients import CONCURRENCY_MAX
from txmsg.typed.topic import Topic
from txmsg.typed.topic import name_of as name_of_topic
from txmsg.wire.tags import parse_tags

H = TypeVar("H", bound=Callable[..., Any])
M = TypeVar("M", bound=Callable[[ReceivedMessage], AbstractContextManager[Any]])

Middleware = Callable[[ReceivedMessage], AbstractContextManager[Any]]
"""Gives what is entered for the time in which a message is handled."""
RunsIn = Literal["threads", "processes"]

CONCURRENCY: Final = 16
_RATE_MAX: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A handler, and how it gets its messages. Options are explained at `Router.subscribe`."""

    topic: str
    typed: Topic[Any] | None
    """The topic, if it knows its payloads."""
    group: str | None
    """None: that of the router, or of the application."""
    handler: Callable[..., Any]
    tag: str = "*"
    concurrency: int = CONCURRENCY
    retry: Retry | None = None
    batch: int | None = None
    rate: float | None = None
    runs_in: RunsIn = "threads"
    start: Start | None = None
    middleware: tuple[Middleware, ...] = ()
    """Of the routers that it was included by, the outermost one first."""

    @property
    def payload_type(self) -> type | None:
        """Of the topic; None: the annotations of the handler say it."""
        return None if self.typed is None else self.typed.payload_type


class Router:
    """Subscriptions of a module, which an application runs after `app.include(router)`.

    group: of subscriptions that name none. A router may include others.
    """

    def __init__(self, *, group: str | None = None) -> None:
        self.group = None if group is None else check_name("consumer group", group)
        self._own: list[Subscription] = []
        self._included: list[Router] = []
        self._middleware: list[Middleware] = []

    def subscribe(
        self,
        topic: str | Topic[Any],
        *,
        group: str | None = None,
        tag: str = "*",
        concurrency: int = CONCURRENCY,
        retry: Retry | None = None,
        batch: int | None = None,
        rate: float | None = None,
        runs_in: RunsIn = "threads",
        start: Start | None = None,
    ) -> Callable[[H], H]:
        """Decorates a handler, def or async def, and returns it unchanged, so that tests can call it.

        The annotations of its parameters decide what they get: the message (ReceivedMessage, or a first parameter
        without annotation), a logging.Logger, `Annotated[T, Depends(f)]`, a session of the application's `database=`
        and `tx: Transaction`, with which it runs in one transaction, or the payload: with a `Topic` by the type of
        its payloads; with a name one pydantic model, dataclass or msgspec struct, or fields of a JSON object by the
        names of the parameters, such as `order_id: int`. A message without them becomes a dead letter at once.

        group: the consumer group; one handler per group and topic. concurrency: handlers at once in each process.
        tag, retry, start: as for `Consumer`. batch: the handler gets lists of up to so many messages:
        `list[ReceivedMessage]`. It acknowledges all by returning and refuses all by raising; or it returns a list of as
        many results, as `asyncio.gather(..., return_exceptions=True)` does: an exception refuses its message.
        rate: maximum number of messages per second in each process.
        runs_in: "processes" for a CPU-bound `def` handler: it runs in `concurrency` separate processes.
        """
        if callable(topic):
            raise MisuseError('@subscribe is used without a topic: write @app.subscribe("topic", group="group")')
        name = check_name("topic", name_of_topic(topic))
        if group is not None:
            check_name("consumer group", group)
        parse_tags(tag)
        check_count("concurrency", concurrency, most=CONCURRENCY_MAX)
        check_group_start(start, default=Start.earliest())
        check_retry(name, retry)
        if batch is not None:
            check_count("batch", batch, most=CONCURRENCY_MAX)
            check_count(f"batch={batch} times concurrency={concurrency}", batch * concurrency, most=CONCURRENCY_MAX)
        if rate is not None and not (isinstance(rate, int | float) and 0 < rate <= _RATE_MAX):
            raise MisuseError(f"rate={shown(rate)} of topic {name!r} must be a number of messages per second above 0")
        if runs_in not in ("threads", "processes"):
            raise MisuseError(f'runs_in={shown(runs_in)} of topic {name!r}: give "threads" or "processes"')

        def register(handler: H) -> H:
            own = Subscription(
                topic=name,
                typed=topic if isinstance(topic, Topic) else None,
                group=group or self.group,
                handler=handler,
                tag=tag,
                concurrency=concurrency,
                retry=retry,
                batch=batch,
                rate=rate,
                runs_in=runs_in,
                start=start,
            )
            _check(own)
            self._own.append(own)
            note_subscribed(handler)
            return handler

        return register

    def include(self, router: Router) -> None:
        """Adds the subscriptions of another router, including those that are added to it later."""
        if not isinstance(router, Router):
            raise MisuseError(f"include({shown(router)}) is given no Router: write app.include(router)")
        if self in (router, *router._below()):
            raise MisuseError("a router cannot include itself")
        self._included.append(router)

    def middleware(self, around: M) -> M:
        """Decorates a function that takes a message and returns a context manager around its handling.

        The first one added is the outermost; those of an application are outside those of its routers. An exception
        that leaves it counts as one of the handler; if it suppresses an exception, the message is acknowledged. It is
        entered on the loop for `async def` handlers, and must not block there.
        """
        check_takes("the middleware", around, "message")
        self._middleware.append(around)
        return around

    def _below(self) -> list[Router]:
        return [each for router in self._included for each in (router, *router._below())]

    def _subscriptions(self) -> list[Subscription]:
        """Its own and those included, as this router completes them."""
        found = [*self._own, *(each for router in self._included for each in router._subscriptions())]
        around = tuple(self._middleware)
        return [replace(each, group=each.group or self.group, middleware=(*around, *each.middleware)) for each in found]


def _check(subscription: Subscription) -> None:
    """Raises MisuseError for a handler that could not be called."""
    handler = subscription.handler
    what = f"the handler of topic {subscription.topic!r}"
    if not callable(handler):
        raise MisuseError(f"{what} is {shown(handler)}, not a function")
    if isinstance(handler, GroupHandler) and (subscription.batch is not None or subscription.runs_in == "processes"):
        raise MisuseError(f"{what} is @idempotent: it takes one message, here; leave batch= and runs_in= out")
    injected = injected_of(subscription)
    if injected.is_in_transaction:
        _check_in_transaction(what, subscription)
    hidden = hidden_group_handler(handler)
    if hidden is not None and (hidden.group is None or not _injected(hidden, subscription).is_plain):
        raise hides_group_handler(what)
    if subscription.runs_in == "processes":
        if injected.is_coroutine or subscription.batch is not None:
            raise MisuseError(f'{what} with runs_in="processes" must be a def for single messages: {name_of(handler)}')
        check_importable(what, handler)
    if inspect.isclass(handler):
        raise MisuseError(f"{what} is the class {handler.__name__}: give a function")


def _check_in_transaction(what: str, subscription: Subscription) -> None:
    if isinstance(subscription.handler, GroupHandler):
        raise MisuseError(
            f"{what} is @idempotent, and asks for a session or tx, which do the same: take @idempotent out"
        )
    if subscription.batch is not None:
        raise MisuseError(
            f"{what} asks for a session or tx, which are of one message, and has batch=: leave batch= out, or open the "
            "session by Depends"
        )
    if subscription.runs_in == "processes":
        raise MisuseError(f'{what} asks for a session or tx, which are of this process: leave runs_in="processes" out')


def injected_of(subscription: Subscription, overrides: Overrides = NO_OVERRIDES) -> Injected:
    """Its handler with what it depends on. Raises MisuseError."""
    return _injected(subscription.handler, subscription, overrides)


def _injected(handler: Callable[..., Any], subscription: Subscription, overrides: Overrides = NO_OVERRIDES) -> Injected:
    inner, given = (handler.handler, handler.given) if isinstance(handler, GroupHandler) else (handler, 0)
    return Injected(
        inner,
        given=given,
        is_batch=subscription.batch is not None,
        payload_type=subscription.payload_type,
        overrides=overrides,
    )
