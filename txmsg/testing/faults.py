"""What goes wrong on request: context managers around the code of a test. Each fails when it has had no occasion.

They act on one producer or consumer of the test's process, at the place where the failure would come from. All else,
the broker above all, is real and knows nothing of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, Literal

from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.consumer import Consumer
from txmsg.client.half import Half
from txmsg.client.producer import Producer
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown
from txmsg.message import ReceivedMessage, TransactionState, check_name
from txmsg.runtime.user_function import UserFunction

__all__ = ["ProcessDied", "broker_away", "dies_after_commit", "dies_before_commit", "handler_fails", "lost_reply"]


class ProcessDied(Exception):
    """Here the process would have ended. Code that catches it goes on, which a dead process would not."""


@contextmanager
def dies_after_commit(producer: Producer | AsyncProducer) -> Iterator[None]:
    """In the block the process dies after a local commit, before the broker is told: the check-back must finish it.

    The transactional function raises ProcessDied instead of returning, which ends the block. The producer lives on, as
    another process of its group would, and answers the check-back.
    """
    __tracebackhide__ = True
    occasions = _Occasions()

    def die(half: Half, state: TransactionState, **_: object) -> None:
        if state is TransactionState.COMMIT:
            occasions.add()
            raise ProcessDied(f"transaction {half.transaction_id} is committed, and the broker is not told")

    with _replaced(producer, end=_with(producer.end, before=die), end_soon=_with(producer.end_soon, before=die)):
        yield from _until_it_dies()
    occasions.expect(1, f"no transaction of producer group {producer.group!r} was committed", "dies_after_commit")


@contextmanager
def dies_before_commit(producer: Producer | AsyncProducer) -> Iterator[None]:
    """In the block the process dies once its half message is stored: the check-back must roll the message back.

    The transactional function raises ProcessDied, which ends the block. Nothing is committed, and nobody is told.
    """
    __tracebackhide__ = True
    occasions = _Occasions()

    def die(half: Half) -> None:
        occasions.add()
        raise ProcessDied(f"the half message of transaction {half.transaction_id} is stored, and nothing else is done")

    with _replaced(producer, half=_with(producer.half, after=die)):
        yield from _until_it_dies()
    occasions.expect(1, f"no half message of producer group {producer.group!r} was sent", "dies_before_commit")


@contextmanager
def broker_away(producer: Producer | AsyncProducer) -> Iterator[None]:
    """In the block no broker can be reached by the producer: BrokerUnavailable, at once and not after its timeout_s.

    `txmsg_broker.stop()` is the real thing, for all producers and consumers.
    """
    __tracebackhide__ = True
    occasions = _Occasions()

    def refuse(*_: object, **__: object) -> None:
        occasions.add()
        raise BrokerUnavailable("no broker can be reached (txmsg.testing.broker_away)")

    names = ("half", "send_many", "end")
    with _replaced(producer, **{name: _with(getattr(producer, name), before=refuse) for name in names}):
        yield
    occasions.expect(1, f"producer group {producer.group!r} sent nothing", "broker_away")


@contextmanager
def lost_reply(
    producer: Producer | AsyncProducer, to: Literal["send", "half", "outcome"] = "half", *, count: int = 1
) -> Iterator[None]:
    """In the block the broker does what it is asked, but its reply is lost, `count` times: the producer asks again.

    to: which request: a plain message, a half message, or the outcome of a transaction. Raises MisuseError for an
    AsyncProducer that is not started.
    """
    __tracebackhide__ = True
    occasions = _Occasions()
    if isinstance(producer, Producer):
        producer.start()
    core = producer._core if isinstance(producer, Producer) else producer
    if not core._brokers:
        raise MisuseError("lost_reply() of an AsyncProducer that is not started: `await producer.start()` comes first")

    def losing(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(method: str, request: Any, **options: Any) -> Any:
            reply = await original(method, request, **options)
            asked = "outcome" if method == "EndTransactions" else "half" if request.half else "send"
            if asked == to and occasions.add_up_to(count):
                raise OutcomeUnknown("the broker's reply was lost (txmsg.testing.lost_reply)")
            return reply

        return call

    with ExitStack() as stack:
        for brokers in core._brokers:
            stack.enter_context(_replaced(brokers, call=losing(brokers.call)))
        yield
    occasions.expect(count, f"producer group {producer.group!r} asked {{}} times for {to!r}", "lost_reply")


@contextmanager
def handler_fails(
    consumer: Consumer | AsyncConsumer, topic: str, times: int = 1, *, error: Exception | None = None
) -> Iterator[None]:
    """In the block the handler of the topic raises instead of being run, `times` times; then it is run as ever.

    error: what is raised; default RuntimeError. Wait in the block for what shall happen, as by
    `txmsg_broker.wait_until_idle(group, jump=True)`, which passes over the pauses between retries. Raises MisuseError
    when the consumer has no such handler.
    """
    __tracebackhide__ = True
    core = consumer._core if isinstance(consumer, Consumer) else consumer
    handlers = core._subscriptions.handlers
    handler = handlers.get(check_name("topic", topic))
    if handler is None:
        known = ", ".join(map(repr, handlers)) or "none"
        raise MisuseError(f"group {core.group} has no handler for topic {topic!r}, but for {known}: subscribe first")
    occasions, original = _Occasions(), handler.function

    def fail_first() -> None:
        if occasions.add_up_to(times):
            raise error or RuntimeError("the handler was made to fail (txmsg.testing.handler_fails)")

    def run(message: ReceivedMessage) -> object:
        fail_first()
        return original._call(message)

    async def run_async(message: ReceivedMessage) -> object:
        fail_first()
        return await original.on_loop(message)

    chosen = run_async if original.is_coroutine else run
    with _replaced(handler, function=UserFunction(f"the handler of topic {topic!r}", chosen, "message")):
        yield
    occasions.expect(times, f"the handler of topic {topic!r} was called {{}} times", "handler_fails")


# ---- inside


class _Occasions:
    """Counts what went wrong, on any thread."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    def add(self) -> None:
        with self._lock:
            self._count += 1

    def add_up_to(self, most: int) -> bool:
        """Adds one unless there are so many already; whether it was added."""
        with self._lock:
            is_room = self._count < most
            self._count += is_room
            return is_room

    def expect(self, least: int, what: str, name: str) -> None:
        """A test in which nothing went wrong shows nothing."""
        __tracebackhide__ = True
        assert self._count >= least, (
            f"{what.format(self._count)} in the block of {name}(), so nothing went wrong in it as often as wanted "
            f"({least} times): do in the block what shall fail, and wait in it until it has"
        )


def _until_it_dies() -> Iterator[None]:
    try:
        yield
    except ProcessDied:
        return


@contextmanager
def _replaced(owner: object, **attributes: object) -> Iterator[None]:
    """Sets attributes of one object for a while."""
    missing = object()
    with ExitStack() as stack:
        for name, value in attributes.items():
            before = vars(owner).get(name, missing)
            setattr(owner, name, value)
            stack.callback(delattr, owner, name) if before is missing else stack.callback(setattr, owner, name, before)
        yield


def _with(
    method: Callable[..., Any],
    *,
    before: Callable[..., None] | None = None,
    after: Callable[[Any], None] | None = None,
) -> Callable[..., Any]:
    """The method, with something done before it (with its arguments) and after it (with its result)."""
    if inspect.iscoroutinefunction(method):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            result = await method(*args, **kwargs)
            if after is not None:
                after(result)
            return result

        return call_async

    def call(*args: Any, **kwargs: Any) -> Any:
        if before is not None:
            before(*args, **kwargs)
        result = method(*args, **kwargs)
        if after is not None:
            after(result)
        return result

    return call
