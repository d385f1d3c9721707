"""Scenarios for RocketMQ's client for Python, each in a separate process that prints JSON lines.

python -m tests.rocketmq.client SCENARIO HOST:PORT TOPIC [WORD...]

The environment may have ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET; with ROCKETMQ_TLS it uses TLS, and trusts the
authorities in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq.grpc_protocol import FilterType, TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer, SimpleConsumer
from rocketmq.v5.exception import ClientException
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer, TransactionChecker

_RECEIVES_MAX = 20
_INVISIBLE_S = 15
_HELD_S = 600
_DONE_S_MAX = 300.0
_TIMEOUT_S = 20
_TLS = "ROCKETMQ_TLS" in os.environ


def tell(**facts: Any) -> None:
    """Print one whole line for the test, from any thread."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def told(message: Message) -> dict[str, Any]:
    """Return the fields of a message that tests check."""
    return {
        "id": message.message_id,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "group": message.message_group,
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
    }


def message_to(topic: str, body: str, *, keys: tuple[str, ...] = (), **properties: Any) -> Message:
    """Return a message to be sent."""
    made = Message()
    made.topic, made.body = topic, body.encode()
    for key in keys:
        made.keys = key  # adds it
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def send(where: ClientConfiguration, topic: str) -> None:
    """Send a message with all properties."""
    producer = Producer(where, (topic,), tls_enable=_TLS)
    producer.startup()
    message = message_to(topic, "hello", keys=("order-1", "user-7"), tag="new 订单")
    message.add_property("region", "eu")
    tell(id=producer.send(message).message_id)
    producer.shutdown()


def receive(where: ClientConfiguration, topic: str, group: str, count: str, tags: str = "*") -> None:
    """Receive `count` messages by a simple consumer, and acknowledge them."""
    consumer = SimpleConsumer(where, group, await_duration=5, tls_enable=_TLS)
    consumer.startup()
    consumer.subscribe(topic, FilterExpression(tags))
    left = int(count)
    for _ in range(_RECEIVES_MAX):
        for message in consumer.receive(32, _INVISIBLE_S) or ():
            tell(**told(message))
            consumer.ack(message)
            left -= 1
        if left <= 0:
            break
    consumer.shutdown()


def receive_in_turns(where: ClientConfiguration, topic: str, group: str, count: str) -> None:
    """Receive `count` messages by a simple consumer, 16 at a time, and print each receive."""
    consumer = SimpleConsumer(where, group, await_duration=5, tls_enable=_TLS)
    consumer.startup()
    consumer.subscribe(topic, FilterExpression())
    left = int(count)
    while left > 0:
        messages = consumer.receive(16, _HELD_S) or ()
        tell(bodies=[message.body.decode() for message in messages])
        for message in messages:
            consumer.ack(message)
            left -= 1
    consumer.shutdown()


class Answer(TransactionChecker):  # type: ignore[misc]  # of a package without types
    """Answers that transactions with these bodies have committed, and that others are unknown."""

    def __init__(self, *bodies: str) -> None:
        self._bodies = bodies

    def check(self, message: Message) -> Any:
        body = message.body.decode()
        tell(checked=body, id=message.message_id)
        return (
            TransactionResolution.COMMIT
            if body in self._bodies
            else TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        )


class Handler(MessageListener):  # type: ignore[misc]
    """Fails marked messages once, and knows when all have arrived."""

    def __init__(self, is_last: Callable[[set[str]], bool]) -> None:
        self._is_last = is_last
        self._done: set[str] = set()
        self.has_all = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        tell(**told(message))
        if message.body == b"fails once" and message.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        self._done.add(message.body.decode())
        if self._is_last(self._done):
            self.has_all.set()
        return ConsumeResult.SUCCESS


def push(where: ClientConfiguration, topic: str) -> None:
    """Run a push consumer for a message that fails once, three of a group, a delayed one, and three transactions."""
    wanted = {"fails once", "1 of a", "2 of a", "3 of a", "delayed", "committed", "checked"}
    handler = Handler(wanted.issubset)
    consumer = PushConsumer(where, "push", handler, {topic: FilterExpression()}, tls_enable=_TLS)
    consumer.startup()
    producer = Producer(where, (topic,), Answer("checked"), tls_enable=_TLS)
    producer.startup()
    producer.send(message_to(topic, "fails once"))
    for number in (1, 2, 3):
        producer.send(message_to(topic, f"{number} of a", message_group="a"))
    producer.send(message_to(topic, "delayed", delivery_timestamp=int(time.time()) + 2))
    for body, end in (("committed", "commit"), ("rolled back", "rollback"), ("checked", "")):
        transaction = producer.begin_transaction()
        producer.send(message_to(topic, body), transaction)
        if end:
            getattr(transaction, end)()
    assert handler.has_all.wait(_DONE_S_MAX)
    consumer.shutdown()
    producer.shutdown()


class FailingHandler(MessageListener):  # type: ignore[misc]
    """Fails every delivery of "bad", and knows when the last message has arrived."""

    def __init__(self) -> None:
        self.has_last = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        tell(**told(message))
        if message.body == b"last":
            self.has_last.set()
        return ConsumeResult.FAILURE if message.body == b"bad" else ConsumeResult.SUCCESS


def orderly(where: ClientConfiguration, topic: str, group: str, condition: str) -> None:
    """Run a push consumer with an SQL filter that fails a message until it is given up."""
    handler = FailingHandler()
    consumer = PushConsumer(where, group, handler, {topic: FilterExpression(condition, FilterType.SQL)})
    consumer.startup()
    assert handler.has_last.wait(_DONE_S_MAX)
    consumer.shutdown()


class DelayedAnswer(TransactionChecker):  # type: ignore[misc]
    """Does not know the outcome of a transaction until a line is read."""

    def __init__(self) -> None:
        self._is_told = threading.Event()

    def wait(self) -> None:
        sys.stdin.readline()
        self._is_told.set()
        sys.stdin.read()

    def check(self, _: Message) -> Any:
        return (
            TransactionResolution.COMMIT
            if self._is_told.is_set()
            else TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        )


def hold(where: ClientConfiguration, topic: str) -> None:
    """Begin a transaction whose producer stays; it answers a check-back with commit after a line is read."""
    answer = DelayedAnswer()
    producer = Producer(where, (topic,), answer)
    producer.startup()
    tell(id=producer.send(message_to(topic, "in doubt"), producer.begin_transaction()).message_id)
    answer.wait()


def answer(where: ClientConfiguration, topic: str) -> None:
    """Run a producer that sends nothing, and answers check-backs with commit, until it is stopped."""
    Producer(where, (topic,), Answer("in doubt")).startup()
    sys.stdin.read()


def consume(where: ClientConfiguration, topic: str, group: str) -> None:
    """Run a push consumer until it is stopped."""
    PushConsumer(where, group, Handler(lambda _: False), {topic: FilterExpression()}).startup()
    sys.stdin.read()


def refused(where: ClientConfiguration, topic: str) -> None:
    """Start a producer that is refused. Without a route, this client raises a plain Exception, and logs the error."""
    producer = Producer(where, (topic,), tls_enable=_TLS)
    try:
        producer.startup()
        producer.send(message_to(topic, "hello"))
    except ClientException as exc:
        tell(error=type(exc).__name__, code=int(exc.code))
    except Exception as exc:  # noqa: BLE001 - of no other type
        tell(error=str(exc))


def half(where: ClientConfiguration, topic: str) -> None:
    """Begin a transaction whose producer exits without an outcome."""
    producer = Producer(where, (topic,), Answer(), tls_enable=_TLS)
    producer.startup()
    transaction = producer.begin_transaction()
    tell(id=producer.send(message_to(topic, "in doubt"), transaction).message_id)
    sys.stdout.flush()
    producer.shutdown()


def main(scenario: str, endpoints: str, *words: str) -> None:
    """Run one scenario."""
    scenarios: dict[str, Callable[..., None]] = {
        each.__name__: each
        for each in (send, receive, receive_in_turns, push, orderly, half, hold, answer, consume, refused)
    }
    credentials = Credentials(os.environ.get("ROCKETMQ_ACCESS_KEY", ""), os.environ.get("ROCKETMQ_SECRET", ""))
    scenarios[scenario](ClientConfiguration(endpoints, credentials, request_timeout=_TIMEOUT_S), *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
