"""The topics that a consumer subscribes to, and their handlers: one piece of code for brokers and for logs.

Knows neither: what a consumer does with a message that failed is its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import isfunction, unwrap
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar
from weakref import WeakSet

from txmsg.consumer.failures import AS_THE_GROUP, HandlerFailure, Reject, Retry, RetryAfter, check_retry
from txmsg.consumer.handler_counts import HandlerCounts
from txmsg.errors import InvalidMessage, MisuseError, TxmsgError, said_by, shown
from txmsg.message import Message, ReceivedMessage, check_name
from txmsg.message.typed.names import check_topics, is_pattern, matches
from txmsg.message.typed.topic import Topic, name_of
from txmsg.metrics.figures import Figures
from txmsg.runtime.logs import EventLog
from txmsg.runtime.reason import text_of, without_words
from txmsg.runtime.user_function import UserFunction, check_takes, finished
from txmsg.runtime.user_function import name_of as name_of_function
from txmsg.wire.tags import TagExpression, parse_tags

if TYPE_CHECKING:
    from txmsg.message.encryption import Encryption
    from txmsg.tracing import Tracing

_log = EventLog(__name__)

H = TypeVar("H", bound=Callable[[ReceivedMessage], Any])
R = TypeVar("R")


class GroupHandler(ABC):
    """A handler that has to know the group whose progress it is part of: `Subscriptions` tells it."""

    given: ClassVar[int] = 0
    """Number of arguments that it passes to the user's function before the message, such as a session."""
    handler: Callable[..., Any]
    """The user's function. An application replaces it in a bound handler by one that fills further parameters."""
    group: str | None
    """None: that of its subscription."""

    def bound(self, group: str) -> Self:
        """Return a copy for this consumer group, unless a group was given before."""
        bound = copy(self)
        bound.group = self.group or group
        return bound

    @abstractmethod
    def __call__(self, message: ReceivedMessage) -> Any:
        """Handle a message."""


def hidden_group_handler(handler: object) -> GroupHandler | None:
    """Return the GroupHandler that a decorator has wrapped, so that its subscription cannot tell it its group; or
    None."""
    found = unwrap(handler, stop=lambda each: isinstance(each, GroupHandler)) if callable(handler) else None
    return found if isinstance(found, GroupHandler) and found is not handler else None


def hides_group_handler(what: str) -> MisuseError:
    """Return the error for a hidden GroupHandler."""
    return MisuseError(f"{what} has a decorator between @subscribe and @idempotent: put it below @idempotent")


# Weak: the set must not keep functions alive that a program defines and drops, as tests do.
_subscribed: Final[WeakSet[Callable[..., Any]]] = WeakSet()


def note_subscribed(handler: object) -> None:
    """Remember a function that an application has subscribed, and returned unchanged."""
    if isfunction(handler):
        _subscribed.add(handler)


def refuse_subscribed(handler: object) -> None:
    """Raise MisuseError for a subscribed function: the result of @idempotent around it would never be called."""
    if isfunction(handler) and handler in _subscribed:
        raise MisuseError(
            f"@idempotent is above the @subscribe of {name_of_function(handler)}, which calls the function itself: put "
            "@idempotent below @subscribe"
        )


def handled(name: str, result: R) -> R:
    """Return a handler's result. Raises MisuseError for work that is yet to run, and for messages: they are not sent.

    name: of the handler, in the error.
    """
    if result is None:  # as nearly always
        return result
    is_list = isinstance(result, list | tuple) and any(isinstance(each, Message) for each in result)
    if is_list or isinstance(result, Message):
        raise MisuseError(
            f"{name} returned {shown(result)}, which would not be sent: annotate a handler of an application with "
            "-> Message or -> list[Message], of names that it imports when it runs, or send with its producer"
        )
    return finished(name, result)


@dataclass(frozen=True, slots=True, eq=False)
class ConcurrencyShare:
    """Calls at once of some handlers together, apart from those of their consumer."""

    concurrency: int


class Handler:
    """The handler of a topic's messages in a group."""

    def __init__(
        self, group: str, topic: str, function: UserFunction, retry: Retry = AS_THE_GROUP, *, is_secret: bool = False
    ) -> None:
        self.group = group
        self.topic = topic
        self.function = function
        self.retry = retry
        self.counts = HandlerCounts()
        """Counts of its calls."""
        self.share: ConcurrencyShare | None = None
        """Calls of a handler that does not share those of its consumer."""
        self.list_count = 1
        """Messages of one queue of a log that are handled together: so many calls at once make a list."""
        self._is_secret = is_secret
        """True if its errors may quote encrypted data."""

    def failure_of(self, message: ReceivedMessage, exc: Exception) -> HandlerFailure | None:
        """Return the failure of a message whose handler raised; None: the message is done. Logs it. Raises nothing.

        Its text is for a person who looks at retries, in characters that can be stored.
        """
        try:
            # User code runs in here: a subclass of RetryAfter with a property, an exception with a `__str__` that
            # raises. It must refuse its message, not fail the run.
            return self._judged(message, exc)
        except Exception as wrong:  # noqa: BLE001 - the user's: what is asked of an exception may be code of its class
            kind, cause = type(exc).__name__, type(wrong).__name__
            return HandlerFailure(f"{kind}: its class raised {cause} when it was asked what becomes of the message")

    def _judged(self, message: ReceivedMessage, exc: Exception) -> HandlerFailure | None:
        text = text_of(exc)
        failure = self.retry._failure_of(exc, message.attempt, without_words(text) if self._is_secret else text)
        if failure is None:
            _log.info(
                "handler.skipped",
                "group %(group)s: the handler of topic %(topic)r skips message %(message_id)s: %(error)s",
                group=self.group,
                topic=self.topic,
                message_id=message.id,
                error=said_by(exc),
            )
            return None
        # Their text says all: no traceback with each delivery.
        own = isinstance(exc, TxmsgError | Reject | RetryAfter)
        _log.warning(
            "handler.raised",
            "group %(group)s: the handler of topic %(topic)r raised for message %(message_id)s at queue %(queue)s "
            "offset %(offset)s, delivery %(attempt)d; %(next)s%(cause)s",
            group=self.group,
            topic=self.topic,
            message_id=message.id,
            queue=message.queue,
            offset=message.offset,
            attempt=message.attempt,
            next=_told(failure),
            cause=f": {type(exc).__name__}: {said_by(exc)}" if own else "",
            error=exc,
            exc_info=None if own else exc,
        )
        return failure


def _told(failure: HandlerFailure) -> str:
    if failure.is_final:
        return "it is a dead letter"
    if failure.delay_s is not None:
        return f"it is retried in {failure.delay_s:g} s, unless its retries are used up"
    return "the group's back-off decides whether and when it is retried"


def _typed(
    topic: Topic[Any], decrypt: Callable[[ReceivedMessage], ReceivedMessage] | None, message: ReceivedMessage
) -> ReceivedMessage:
    """Return the message with its payload. Raises Reject for an invalid one: no retry would help."""
    if decrypt is not None:
        message = decrypt(message)
    try:
        return topic.received(message)
    except InvalidMessage as exc:
        raise Reject(str(exc)) from None


class Subscriptions:
    """The topics of a consumer of a group, each with its tags and at most one handler.

    tracing: traces the handlers. encryption: decrypts what they get. takes_patterns: whether a topic may be a pattern.
    """

    def __init__(
        self,
        group: str,
        tracing: Tracing | None = None,
        encryption: Encryption | None = None,
        *,
        takes_patterns: bool = True,
    ) -> None:
        self._group = group
        self._takes_patterns = takes_patterns
        self._convert = None if encryption is None else encryption.decrypt
        is_secret = encryption is not None
        self._around = None if tracing is None else partial(tracing.processing, group, is_secret=is_secret)
        self._is_closed = False
        self.tags: dict[str, str] = {}
        """Tags of each topic, as they were given."""
        self.wanted: dict[str, TagExpression] = {}
        """Tags of each topic, parsed."""
        self.handlers: dict[str, Handler] = {}
        """Handlers by topic, including topics that match a pattern once their first message has come."""
        self._of_patterns: dict[str, Callable[[str], Handler]] = {}
        """Factories of the handler of a topic, by pattern."""

    def add(
        self,
        wanted_topic: str | Topic[Any],
        tag: str,
        retry: Retry | None = None,
        *,
        payload_type: type | None = None,
    ) -> Callable[[H], H]:
        """Add a topic, or a pattern; return the decorator of its handler. Raises MisuseError, InvalidName.

        payload_type: of the messages of a topic that is given by its name.
        """
        if callable(wanted_topic):
            raise MisuseError('@consumer.subscribe is used without a topic: write @consumer.subscribe("topic")')
        topic = check_topics(name_of(wanted_topic)) if self._takes_patterns else self._one(name_of(wanted_topic))
        wanted = parse_tags(tag)
        check_retry(topic, retry)
        if topic in self.wanted:
            raise MisuseError(f"group {self._group} subscribes to topic {topic!r} already: once per consumer")
        self._require_open(topic)
        self.tags[topic], self.wanted[topic] = tag, wanted

        def register(handler: H) -> H:
            if topic in self.handlers or topic in self._of_patterns:
                raise MisuseError(f"group {self._group} has a handler for topic {topic!r} already: one per consumer")
            self._require_open(topic)
            call: Callable[[ReceivedMessage], Any] = handler
            what = f"the handler of topic {topic!r}"
            if isinstance(handler, GroupHandler):
                check_takes(what, handler.handler, *["session"] * handler.given, "message")
                call = handler.bound(self._group)
            elif (hidden := hidden_group_handler(handler)) is not None and hidden.group is None:
                raise hides_group_handler(what)
            make = partial(self._handler, call, retry or AS_THE_GROUP, payload_type)
            if is_pattern(topic):
                UserFunction(what, call, "message")  # refuses here what it refuses when the first message comes
                self._of_patterns[topic] = make
            else:
                self.handlers[topic] = make(wanted_topic)
            return handler

        return register

    def _one(self, topic: str) -> str:
        if isinstance(topic, str) and is_pattern(topic):
            raise MisuseError(
                f"{topic!r} is a pattern, and a member of a group of a log names its topics when it joins: "
                f"subscribe to each topic by its name, or read {topic!r} from brokers"
            )
        return check_name("topic", topic)

    def _handler(
        self,
        call: Callable[[ReceivedMessage], Any],
        retry: Retry,
        payload_type: type | None,
        of_topic: str | Topic[Any],
    ) -> Handler:
        topic = of_topic if payload_type is None else Topic(name_of(of_topic), payload_type)
        convert = partial(_typed, topic, self._convert) if isinstance(topic, Topic) else self._convert
        name = name_of(topic)
        function = UserFunction(
            f"the handler of topic {name!r}", call, "message", around=self._around, convert=convert, finish=handled
        )
        return Handler(self._group, name, function, retry, is_secret=self._convert is not None)

    @property
    def handled(self) -> tuple[str, ...]:
        """The topics and patterns that have a handler."""
        return tuple(each for each in self.wanted if each in self.handlers or each in self._of_patterns)

    def handler_of(self, topic: str) -> Handler | None:
        """Return the handler of a topic by its name, or else by the longest pattern; None if there is none."""
        found = self.handlers.get(topic)
        if found is None and (patterns := [each for each in self._of_patterns if matches(each, topic)]):
            # Kept once found: later messages of the topic cost one dict lookup, not a comparison with each pattern.
            found = self.handlers[topic] = self._of_patterns[max(patterns, key=len)](topic)
        return found

    def put_figures(self, figures: Figures, running: Iterable[Handler]) -> None:
        """Add the figures of its handlers. running: the handler of each call in progress."""
        under_way = Counter(handler.topic for handler in running)
        for topic, handler in [*self.handlers.items()]:  # a pattern may get another one meanwhile
            handler.counts.put_figures(figures, self._group, topic, running=under_way[topic])

    def reset_figures(self) -> None:
        """Forget the calls of its handlers: a forked child has made none of its parent's."""
        for handler in self.handlers.values():
            handler.counts = HandlerCounts()

    def close(self, *, need_handlers: bool) -> None:
        """Accept no more topics: the consumer starts. Raises MisuseError for no topic, and for topics without a
        handler.

        need_handlers: True if every topic needs one.
        """
        if not self.wanted:
            raise MisuseError(f"group {self._group} subscribes to nothing: call consumer.subscribe(topic) first")
        if need_handlers and (without := self.wanted.keys() - set(self.handled)):
            raise MisuseError(
                f"topic {min(without)!r} of group {self._group} has no handler: decorate one by "
                f"@consumer.subscribe({min(without)!r})"
            )
        self._is_closed = True

    def _require_open(self, topic: str) -> None:
        if self._is_closed:
            raise MisuseError(f"subscribing to {topic!r} after the start: subscribe first, then start")
