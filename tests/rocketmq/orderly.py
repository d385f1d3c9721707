"""A push consumer of RocketMQ's own client for Python in an orderly group, with an SQL filter, in a process of its own.

python -m tests.rocketmq.orderly HOST:PORT TOPIC GROUP FILTER: prints the body of each message that it handles, a line
each, fails what is "bad", and ends after what is "last".
"""

from __future__ import annotations

import sys
import threading

from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import ConsumeResult, MessageListener, PushConsumer
from rocketmq.v5.model import FilterExpression, Message

_DONE_S_MAX = 100.0


class Handler(MessageListener):  # type: ignore[misc]  # of a package without types
    """Knows when the last one has come."""

    def __init__(self) -> None:
        self.is_done = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        sys.stdout.write(f"{body}\n")
        sys.stdout.flush()
        if body == "bad":
            return ConsumeResult.FAILURE
        if body == "last":
            self.is_done.set()
        return ConsumeResult.SUCCESS


def main(endpoints: str, topic: str, group: str, condition: str) -> None:
    """Consumes until the last message."""
    handler = Handler()
    where = ClientConfiguration(endpoints, Credentials())
    consumer = PushConsumer(where, group, handler, {topic: FilterExpression(condition, FilterType.SQL)})
    consumer.startup()
    assert handler.is_done.wait(_DONE_S_MAX)
    consumer.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
