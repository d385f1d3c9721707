"""Admission of messages to topics: permission, and messages per second. Knows no database."""

from __future__ import annotations

import time
from collections.abc import Callable

from txmsg.broker.store.topics import StoredTopic
from txmsg.errors import Overloaded, TopicClosed
from txmsg.wire.access.rate import TokenBucket, admitted


class Admission:
    """Slows senders down to the rates of their topics. Rates are per broker.

    A request is admitted as a whole once the requests before it are paid for, so the next one waits for its excess. A
    request that would wait longer than wait_s_max is refused at once.
    """

    def __init__(self, wait_s_max: float = 8.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wait_s_max = wait_s_max
        self._monotonic = monotonic
        self._buckets: dict[str, TokenBucket] = {}

    async def admit(self, topic: StoredTopic, count: int) -> None:
        """Return when `count` messages may be stored. Raises TopicClosed, and Overloaded."""
        if not topic.is_writable:
            raise TopicClosed(
                f"topic {topic.name!r} accepts no messages now: it is closed for writing; open it with "
                f"`txmsg topic alter {topic.name} --permission rw`, or send to another topic"
            )
        if topic.send_rate_max is None:
            self._buckets.pop(topic.name, None)
            return
        now = self._monotonic()
        bucket = self._buckets.get(topic.name)
        if bucket is None or bucket.rate != topic.send_rate_max:
            bucket = self._buckets[topic.name] = TokenBucket(topic.send_rate_max, now)
        await admitted(
            bucket, count, now=now, wait_s_max=self._wait_s_max, refusal=lambda: _refusal(topic, self._wait_s_max)
        )


def _refusal(topic: StoredTopic, wait_s_max: float) -> Overloaded:
    return Overloaded(
        f"topic {topic.name!r} accepts {topic.send_rate_max:g} messages/s at each broker, and more wait here than can "
        f"be sent in {wait_s_max:g} s: nothing was stored, send more slowly, or raise the rate with `txmsg topic "
        f"alter {topic.name} --send-rate N`"
    )
