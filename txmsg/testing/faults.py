"""Injects faults: context managers around the code of a test. Each fails if its fault did not occur.

They set hooks of one producer or consumer of the test's process, at the step where the real failure would occur.
Everything else is real, also the broker, which knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import TypeAlias

from txmsg.client.app.application import Txmsg
from txmsg.client.async_consumer import AsyncConsumer
from txmsg.client.async_producer import AsyncProducer
from txmsg.client.consumer import Consumer
from txmsg.client.hooks import ConsumerHooks, ProducerHooks, Request
from txmsg.client.producer import Producer
from txmsg.client.sending.half import Half
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown
from txmsg.message import ReceivedMessage, TransactionState, check_name
from txmsg.message.typed.names import matches

Sender: TypeAlias = Producer | AsyncProducer | Txmsg
"""The faulty sender: a producer, or an application with `database=`, whose decorated functions and handlers send."""


class ProcessDied(Exception):
    """Raised where the process would have died. Code that catches it continues, unlike a dead process."""


@contextmanager
def dies_after_commit(sender: Sender) -> Iterator[None]:
    """Let the process die in the block between local commit and outcome: the check-back has to commit the message.

    The transactional function raises ProcessDied instead of returning, which ends the block. The producer continues, as
    another process of its group would, and answers the check-back.
    """
    __tracebackhide__ = True
    producer = _producer_of(sender)
    occasions = _Occasions()

    def die(half: Half, state: TransactionState) -> None:
        if state is TransactionState.COMMIT:
            occasions.add()
            raise ProcessDied(f"transaction {half.transaction_id} is committed, and the broker is not told")

    with _hooked(producer.hooks, before_end=die):
        yield from _until_it_dies()
    occasions.expect(1, f"no transaction of producer group {producer.group!r} was committed", "dies_after_commit")


@contextmanager
def dies_before_commit(sender: Sender) -> Iterator[None]:
    """Let the process die in the block after its half message is stored: the check-back has to roll it back.

    The transactional function raises ProcessDied, which ends the block. Nothing is committed, and no outcome is sent.
    """
    __tracebackhide__ = True
    producer = _producer_of(sender)
    occasions = _Occasions()

    def die(half: Half) -> None:
        occasions.add()
        raise ProcessDied(f"the half message of transaction {half.transaction_id} is stored, and nothing else is done")

    with _hooked(producer.hooks, after_half=die):
        yield from _until_it_dies()
    occasions.expect(1, f"no half message of producer group {producer.group!r} was sent", "dies_before_commit")


@contextmanager
def broker_away(sender: Sender) -> Iterator[None]:
    """Cut the producer off from all brokers in the block: BrokerUnavailable, at once and not after its timeout_s.

    `txmsg_broker.stop()` really stops the broker, for all producers and consumers.
    """
    __tracebackhide__ = True
    producer = _producer_of(sender)
    occasions = _Occasions()

    def refuse(*_: object) -> None:
        occasions.add()
        raise BrokerUnavailable("no broker can be reached (txmsg.testing.broker_away)")

    with _hooked(producer.hooks, before_send=refuse, before_half=refuse, before_end=refuse):
        yield
    occasions.expect(1, f"producer group {producer.group!r} sent nothing", "broker_away")


@contextmanager
def lost_reply(sender: Sender, to: Request = "half", *, count: int = 1) -> Iterator[None]:
    """Lose `count` replies in the block, after the broker has carried out the requests: the producer repeats them.

    to: the request: a plain message, a half message, or the outcome of a transaction.
    """
    __tracebackhide__ = True
    producer = _producer_of(sender)
    occasions = _Occasions()

    def lose(request: Request) -> None:
        if request == to and occasions.add_up_to(count):
            raise OutcomeUnknown("the broker's reply was lost (txmsg.testing.lost_reply)")

    with _hooked(producer.hooks, after_reply=lose):
        yield
    occasions.expect(count, f"producer group {producer.group!r} asked {{}} times for {to!r}", "lost_reply")


@contextmanager
def handler_fails(
    receiver: Consumer | AsyncConsumer | Txmsg, topic: str, times: int = 1, *, error: Exception | None = None
) -> Iterator[None]:
    """Let the handler of the topic raise instead of running, `times` times in the block; then it runs as usual.

    receiver: a consumer, or a running application, whose handlers of the topic at brokers fail. error: the exception;
    default RuntimeError. Wait in the block for the result, as with
    `txmsg_broker.wait_until_idle(group, jump=True)`, which skips the delays between retries. Raises MisuseError
    without such a handler.
    """
    __tracebackhide__ = True
    check_name("topic", topic)
    consumers = _consumers_of(receiver)
    meant = [each for each in consumers if any(matches(handled, topic) for handled in each.topics)]
    if not meant:
        known = ", ".join(repr(handled) for each in consumers for handled in each.topics) or "none"
        raise MisuseError(
            f"group {receiver.group} has no handler for topic {topic!r}, but for {known}: subscribe first, and start "
            "the application before the block"
        )
    occasions = _Occasions()

    def fail(message: ReceivedMessage) -> None:
        if message.topic == topic and occasions.add_up_to(times):
            raise error or RuntimeError("the handler was made to fail (txmsg.testing.handler_fails)")

    with ExitStack() as hooked:
        for each in meant:
            hooked.enter_context(_hooked(each.hooks, before_handler=fail))
        yield
    occasions.expect(times, f"the handler of topic {topic!r} was called {{}} times", "handler_fails")


# ---- inside


def _producer_of(sender: Sender) -> Producer | AsyncProducer:
    return sender._producer_of("the fault of a test") if isinstance(sender, Txmsg) else sender


def _consumers_of(receiver: Consumer | AsyncConsumer | Txmsg) -> Sequence[Consumer | AsyncConsumer]:
    if not isinstance(receiver, Txmsg):
        return [receiver]
    consumers = (each.consumer for each in receiver._receivers)
    return [each for each in consumers if isinstance(each, AsyncConsumer)]


class _Occasions:
    """Counts occurrences of the fault, on any thread."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = Lock()

    def add(self) -> None:
        with self._lock:
            self._count += 1

    def add_up_to(self, most: int) -> bool:
        """Add one up to `most`. Return True if it was added."""
        with self._lock:
            is_room = self._count < most
            self._count += is_room
            return is_room

    def expect(self, least: int, what: str, name: str) -> None:
        """Raises AssertionError if the fault occurred less often than `least`: such a test would show nothing."""
        __tracebackhide__ = True
        assert self._count >= least, (
            f"{what.format(self._count)} in the block of {name}(), so nothing went wrong in it as often as wanted "
            f"({least} times): do in the block what is to fail, and wait in it until it has"
        )


def _until_it_dies() -> Iterator[None]:
    try:
        yield
    except ProcessDied:
        return


@contextmanager
def _hooked(hooks: ProducerHooks | ConsumerHooks, **functions: Callable[..., object]) -> Iterator[None]:
    """Set these hooks for the block. Others, and those of an outer block, are called as before."""
    before = {name: getattr(hooks, name) for name in functions}
    for name, function in functions.items():
        setattr(hooks, name, _both(before[name], function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(hooks, name, function)


def _both(first: Callable[..., object], second: Callable[..., object]) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        first(*arguments)
        second(*arguments)

    return call
