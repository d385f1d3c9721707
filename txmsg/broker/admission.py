"""Which messages a topic takes: whether any, and how many per second. Knows no database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from txmsg.broker.rate import TokenBucket
from txmsg.broker.store.topics import Topic
from txmsg.errors import Overloaded, TopicClosed

__all__ = ["Admission"]


class Admission:
    """Slows senders down to the rates of their topics, each of this broker alone.

    A request goes through as a whole when those before it are paid for, so what it is over waits with the next one. One
    that would wait for longer than wait_s_max is refused at once.
    """

    def __init__(self, wait_s_max: float = 8.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wait_s_max = wait_s_max
        self._monotonic = monotonic
        self._buckets: dict[str, TokenBucket] = {}

    async def admit(self, topic: Topic, count: int) -> None:
        """Returns when so many messages may be stored. Raises TopicClosed, and Overloaded."""
        if not topic.is_writable:
            raise TopicClosed(
                f"topic {topic.name!r} takes no messages now: somebody has taken its permission to write; give it back "
                f"with `txmsg topic alter {topic.name} --permission rw`, or send elsewhere"
            )
        if topic.send_rate_max is None:
            self._buckets.pop(topic.name, None)
            return
        now = self._monotonic()
        bucket = self._buckets.get(topic.name)
        if bucket is None or bucket.rate != topic.send_rate_max:
            bucket = self._buckets[topic.name] = TokenBucket(topic.send_rate_max, now)
        wait_s = bucket.debt_s(now)
        if wait_s > self._wait_s_max:
            raise Overloaded(
                f"topic {topic.name!r} takes {topic.send_rate_max:g} messages/s at each broker, and more wait here "
                f"than that lets through in {self._wait_s_max:g} s: nothing was stored, send more slowly, or let it "
                f"take more with `txmsg topic alter {topic.name} --send-rate N`"
            )
        bucket.take(count)
        if wait_s:
            try:
                await asyncio.sleep(wait_s)
            except asyncio.CancelledError:
                bucket.take(-count)  # its sender has given up: what it does not send, the others may
                raise
