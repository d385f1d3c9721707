"""Subscriptions of a module of an application: declared by decorators, and included in the application."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from txmsg.client.app.dependencies import NO_OVERRIDES, Injected, Overrides
from txmsg.client.app.processes import check_importable
from txmsg.client.receiving.idempotent import Idempotent
from txmsg.consumer.failures import Retry, check_retry
from txmsg.consumer.options import CONCURRENCY, ConsumerOptions, check_count
from txmsg.consumer.subscriptions import GroupHandler, hidden_group_handler, hides_group_handler, note_subscribed
from txmsg.errors import MisuseError, shown
from txmsg.message import ReceivedMessage, check_name
from txmsg.message.typed.codecs import codec_of
from txmsg.message.typed.names import check_topics, is_pattern, matches, overlap
from txmsg.message.typed.topic import Topic
from txmsg.message.typed.topic import name_of as name_of_topic
from txmsg.metaq.consumer.options import LogOptions, Missing
from txmsg.runtime.backoff import DELAYS_S, RETRIES_MAX
from txmsg.runtime.durations import in_seconds
from txmsg.runtime.user_function import check_takes, name_of
from txmsg.settings.clients import CONCURRENCY_MAX
from txmsg.wire.start import Start
from txmsg.wire.tags import parse_tags

if TYPE_CHECKING:
    from txmsg.metaq.group.assignment import Strategy

H = TypeVar("H", bound=Callable[..., Any])
M = TypeVar("M", bound=Callable[[ReceivedMessage], AbstractContextManager[Any]])

Middleware = Callable[[ReceivedMessage], AbstractContextManager[Any]]
"""Returns a context manager, which is entered while a message is handled."""
RunsIn = Literal["threads", "processes"]
Source = Literal["brokers", "log"]

_NO_LOG_OPTIONS: Final = LogOptions()
_RATE_MAX: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A handler, and how it gets its messages. Options are explained at `Router.subscribe`."""

    topics: tuple[str, ...]
    """Names and patterns of its topics."""
    typed: tuple[Topic[Any], ...] = ()
    """The topics among them that know their payloads."""
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
    broadcast: bool | str = False
    source: Source = "brokers"
    log_options: LogOptions = _NO_LOG_OPTIONS
    """Options of a group that reads the log."""
    middleware: tuple[Middleware, ...] = ()
    """Middleware of the routers that included it, the outermost one first."""

    @property
    def payload_types(self) -> tuple[type, ...]:
        """Payload types of the topics that know theirs; empty: the annotations of the handler decide."""
        return tuple(dict.fromkeys(each.payload_type for each in self.typed))

    @property
    def title(self) -> str:
        """Its topics, for errors."""
        return f"topic{'s' if len(self.topics) > 1 else ''} {', '.join(map(repr, self.topics))}"

    def takes(self, topic: str) -> bool:
        """Return True if the topic is one of its topics."""
        return any(matches(each, topic) for each in self.topics)

    def overlaps(self, topics: str) -> bool:
        """Return True if one of its topics could have this name, or match this pattern."""
        return any(overlap(each, topics) for each in self.topics)

    @property
    def message_concurrency(self) -> int:
        """Messages that are handled at once: with `batch`, the messages of all lists."""
        return self.concurrency * (self.batch or 1)


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
        *topics: str | Topic[Any],
        group: str | None = None,
        tag: str = "*",
        concurrency: int = CONCURRENCY,
        retry: Retry | None = None,
        batch: int | None = None,
        rate: float | None = None,
        runs_in: RunsIn = "threads",
        start: Start | None = None,
        broadcast: bool | str = False,
        source: Source = "brokers",
        ordered: bool = False,
        strategy: Strategy | None = None,
        zone: str = "",
        missing: Missing = "earliest",
    ) -> Callable[[H], H]:
        """Decorate a handler, def or async def, and return it unchanged, so that tests can call it.

        topics: names, `Topic` objects, or patterns of brokers' topics: a prefix and `*`, as in "order.*". A topic that
        is created later and matches is found within a second or two, and read from its first message, whatever `start`.
        The annotations of its parameters decide what they get: the message (ReceivedMessage, or a first parameter
        without annotation), a logging.Logger, `Annotated[T, Depends(f)]`, a session of the application's `database=`
        and `tx: Transaction`, with which it runs in one transaction, or the payload: with a `Topic` by the type of
        its payloads, with several by a union (`event: Placed | Paid`), of which the topic decides; with names one
        pydantic model, dataclass or msgspec struct, or fields of a JSON object by the names of the parameters, such as
        `order_id: int`. A message without them becomes a dead letter at once.

        A handler that is annotated to return `Message`, `Message | None` or a list of them, or that yields, runs in
        that transaction, too: each message is sent as by `tx.send`.

        group: the consumer group; one handler per group and topic. concurrency: handlers at once in each process;
        this, batch and rate are of all its topics together. tag, retry, start, broadcast: as for `Consumer`.
        batch: the handler gets lists of up to so many messages: `list[ReceivedMessage]`. It acknowledges all by
        returning and refuses all by raising; or it returns a list of as many results, as
        `asyncio.gather(..., return_exceptions=True)` does: an exception refuses its message.
        rate: maximum number of messages per second in each process.
        runs_in: "processes" for a CPU-bound `def` handler: it runs in `concurrency` separate processes.
        source: "log" reads the log of the application (`log=` of Txmsg): each queue is handled in its order, up to
        `concurrency` queues at once; a list of `batch` is of one queue. ordered: a queue waits for the retry of a
        message that failed. strategy, zone, missing: as for `AsyncPullConsumer`. The topics of a group share these,
        `start` and `broadcast`.
        """
        if not topics or callable(topics[0]):
            raise MisuseError('@subscribe is used without a topic: write @app.subscribe("topic", group="group")')
        names = tuple(check_topics(name_of_topic(each)) for each in topics)
        name = ", ".join(names)
        for i, each in enumerate(names):
            if same := [other for other in names[:i] if overlap(each, other)]:
                raise MisuseError(f"@subscribe names topic {each!r} twice, also by {same[0]!r}: leave one of them out")
        if group is not None:
            check_name("consumer group", group)
        parse_tags(tag)
        ConsumerOptions(concurrency=concurrency, start=start, broadcast=broadcast)
        check_retry(name, retry)
        if batch is not None:
            check_count("batch", batch, most=CONCURRENCY_MAX)
            check_count(f"batch={batch} times concurrency={concurrency}", batch * concurrency, most=CONCURRENCY_MAX)
        if rate is not None and not (isinstance(rate, int | float) and 0 < rate <= _RATE_MAX):
            raise MisuseError(f"rate={shown(rate)} of topic {name!r} must be a number of messages per second above 0")
        if runs_in not in ("threads", "processes"):
            raise MisuseError(f'runs_in={shown(runs_in)} of topic {name!r}: give "threads" or "processes"')
        if source not in ("brokers", "log"):
            raise MisuseError(f'source={shown(source)} of topic {name!r}: give "brokers" or "log"')
        log_options = LogOptions(ordered=ordered, strategy=strategy, zone=zone, missing=missing)
        if source == "log":
            for each in filter(is_pattern, names):
                raise MisuseError(
                    f"{each!r} is a pattern, and a member of a group of a log names its topics when it joins: name "
                    'them, as in @app.subscribe("order.placed", "order.paid", source="log"), or read from brokers'
                )
            _check_of_log(name, ordered=ordered, batch=batch, retry=retry)
        elif log_options != _NO_LOG_OPTIONS:
            raise MisuseError(
                f"ordered=, strategy=, zone= and missing= of topic {name!r} are about queues of a log: leave them out, "
                'or read the log with source="log"'
            )

        def register(handler: H) -> H:
            own = Subscription(
                topics=names,
                typed=tuple(each for each in topics if isinstance(each, Topic)),
                group=group or self.group,
                handler=handler,
                tag=tag,
                concurrency=concurrency,
                retry=retry,
                batch=batch,
                rate=rate,
                runs_in=runs_in,
                start=start,
                broadcast=broadcast,
                source=source,
                log_options=log_options,
            )
            injected = _checked(own)
            if injected.is_in_transaction:
                self._check_database(handler, injected)
            self._own.append(own)
            note_subscribed(handler)
            return handler

        return register

    def _check_database(self, handler: Callable[..., Any], injected: Injected) -> None:
        """Raise MisuseError for a handler that needs a transaction, if it is known that there is no database."""

    def include(self, router: Router) -> None:
        """Add the subscriptions of another router, including those that are added to it later."""
        if not isinstance(router, Router):
            raise MisuseError(f"include({shown(router)}) is given no Router: write app.include(router)")
        if self in (router, *router._below()):
            raise MisuseError("a router cannot include itself")
        self._included.append(router)

    def middleware(self, around: M) -> M:
        """Decorate a function that takes a message and returns a context manager around its handling.

        The first one added is the outermost; those of an application are outside those of its routers. An exception
        that leaves it counts as one of the handler; if it suppresses an exception, the message is acknowledged. It is
        entered on the loop for `async def` handlers, and must not block there; otherwise on the thread of the handler.
        That of a message in a list sees what becomes of this message.
        """
        check_takes("the middleware", around, "message")
        self._middleware.append(around)
        return around

    def _below(self) -> list[Router]:
        return [each for router in self._included for each in (router, *router._below())]

    def _subscriptions(self) -> list[Subscription]:
        """Return its own subscriptions and the included ones, completed with this router's group and middleware."""
        found = [*self._own, *(each for router in self._included for each in router._subscriptions())]
        around = tuple(self._middleware)
        return [replace(each, group=each.group or self.group, middleware=(*around, *each.middleware)) for each in found]


def _check_of_log(topic: str, *, ordered: bool, batch: int | None, retry: Retry | None) -> None:
    """Raise MisuseError for options that brokers support, and a log does not."""
    if ordered and batch is not None:
        raise MisuseError(
            f"ordered= of topic {topic!r} with batch=: a queue that waits for the retry of one message cannot go on "
            "with the rest of its list. Leave one of them out"
        )
    for each in _with_inner(retry):
        if each.retries_max is not None and each.retries_max > RETRIES_MAX:
            raise MisuseError(
                f"retry= of topic {topic!r} has retries_max={each.retries_max}: a group of a log has up to "
                f"{RETRIES_MAX} retries"
            )
        if (longest_s := max(map(in_seconds, each.delays_s or [0.0])) * (1 + each.jitter)) > DELAYS_S[-1]:
            raise MisuseError(
                f"retry= of topic {topic!r} has a delay of {longest_s:g} s, with jitter: a log keeps a message that "
                f"failed for up to {DELAYS_S[-1]:g} s until its retry"
            )


def _with_inner(retry: Retry | None) -> Iterator[Retry]:
    """Yield the policy, and the policies that it has for types of exceptions."""
    if retry is not None:
        yield retry
        for each in retry.by_type.values():
            yield from _with_inner(each if isinstance(each, Retry) else None)


def _checked(subscription: Subscription) -> Injected:
    """Return the handler of a subscription. Raises MisuseError for one that could not be called."""
    handler = subscription.handler
    what = f"the handler of {subscription.title}"
    if not callable(handler):
        raise MisuseError(f"{what} is {shown(handler)}, not a function")
    if isinstance(handler, GroupHandler):
        if subscription.runs_in == "processes":
            raise MisuseError(f"{what} is @idempotent: it runs here, leave runs_in= out")
        if subscription.batch is not None and not isinstance(handler, Idempotent):
            raise MisuseError(f"{what} is @idempotent: it takes one message, leave batch= out")
    injected = injected_of(subscription)
    payloads_of(subscription, injected)  # says here what a payload's type needs, such as msgspec, and not at the start
    if injected.is_in_transaction:
        _check_in_transaction(f"{what} {injected.why_in_transaction}", subscription)
    hidden = hidden_group_handler(handler)
    if hidden is not None and (hidden.group is None or not _injected(hidden, subscription).is_plain):
        raise hides_group_handler(what)
    if subscription.runs_in == "processes":
        if injected.is_coroutine or subscription.batch is not None:
            raise MisuseError(f'{what} with runs_in="processes" must be a def for single messages: {name_of(handler)}')
        check_importable(what, handler)
    if inspect.isclass(handler):
        raise MisuseError(f"{what} is the class {handler.__name__}: give a function")
    return injected


def _check_in_transaction(what: str, subscription: Subscription) -> None:
    if isinstance(subscription.handler, GroupHandler):
        raise MisuseError(f"{what}, and is @idempotent, which has a transaction of its own: take @idempotent out")
    if subscription.batch is not None:
        raise MisuseError(
            f"{what}, which is of one message, and has batch=: leave batch= out, or open the session by Depends and "
            "send with a producer"
        )
    if subscription.runs_in == "processes":
        raise MisuseError(f'{what}, which is of this process: leave runs_in="processes" out')


def payloads_of(subscription: Subscription, injected: Injected) -> dict[str, Topic[Any] | type | None]:
    """Return for each of its topics the source of its payload type: the Topic, the type that the handler asks for, or
    None.

    Raises MisuseError for a type that cannot be read, and for a topic with several possible types.
    """
    typed = {each.name: each for each in subscription.typed}
    if not injected.takes_payload:
        return {each: typed.get(each) for each in subscription.topics}
    if len(injected.payload_types) > 1 and (untyped := [each for each in subscription.topics if each not in typed]):
        kinds = " or ".join(each.__name__ for each in injected.payload_types)
        raise MisuseError(
            f"{untyped[0]!r} of {subscription.title} does not say whether its payloads are {kinds}: give "
            f"@subscribe a Topic({untyped[0]!r}, ...) in its place"
        )
    if injected.payload_types:
        codec_of(injected.payload_types[0])
    return {each: typed.get(each) or injected.payload_types[0] for each in subscription.topics}


def injected_of(subscription: Subscription, overrides: Overrides = NO_OVERRIDES) -> Injected:
    """Return its handler with its dependencies. Raises MisuseError."""
    return _injected(subscription.handler, subscription, overrides)


def _injected(handler: Callable[..., Any], subscription: Subscription, overrides: Overrides = NO_OVERRIDES) -> Injected:
    inner, given = (handler.handler, handler.given) if isinstance(handler, GroupHandler) else (handler, 0)
    return Injected(
        inner,
        given=given,
        is_batch=subscription.batch is not None,
        payload_types=subscription.payload_types,
        overrides=overrides,
    )
