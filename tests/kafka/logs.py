"""Logs in Kafka for tests: messages whose contents say where they belong."""

from __future__ import annotations

from tests.metaq.logs import bodies
from txmsg.metaq.access import LogAccess, LogQueue
from txmsg.metaq.format.frame import Columns, encode
from txmsg.metaq.store.log import Append


def fill(log: LogAccess, topic: str, queue: int, count: int, *, at_us: int = 1, tags: list[str] | None = None) -> int:
    """Appends so many messages at the queue's end; returns the offset after them."""
    at = LogQueue(topic, queue)
    offset = log.ranges([at])[at].end
    columns = Columns(bodies(topic, queue, offset, count), [at_us], tags=tags or [])
    assert log.append([Append(topic, queue, encode(columns))]) == [offset]
    return offset + count
