"""Registration of schemas of topics, by the applications that send to them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from txmsg.administration.schemas import registration
from txmsg.client.channel import Brokers, retrying
from txmsg.message.typed.topic import Topic
from txmsg.wire.method import Method


async def register_schemas(shards: Sequence[Brokers], topics: Sequence[Topic[Any]], *, timeout_s: float) -> None:
    """Register the schemas of topics in each Notify database. Idempotent: registered ones are kept.

    Raises MisuseError for one that must not be added, BrokerUnavailable, OutcomeUnknown, PermissionDenied.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    async def call(brokers: Brokers, method: Method[Any, Any], request: Any) -> Any:
        # What an attempt without an answer has added, the steps find when they list again.
        left_s = max(deadline - loop.time(), 0.001)
        return await retrying(left_s)(brokers.call, method, request, timeout_s=left_s)

    for brokers in shards:
        # One after the other: each step is decided by the reply to the one before.
        for topic in topics:
            steps = registration(topic)
            wanted = next(steps)
            try:
                while True:
                    wanted = steps.send(await call(brokers, *wanted))
            except StopIteration:
                continue
