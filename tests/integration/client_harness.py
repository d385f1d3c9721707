"""Helpers for tests of clients: a collecting consumer, and queries of the Notify database."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
import pytest

from tests.waiting import until, until_async
from txmsg.client import AsyncConsumer, Consumer
from txmsg.message import MessageId, ReceivedMessage

WAIT_S = 60.0


@contextmanager
def collecting(
    address: str, topic: str, *, group: str = "collector", tag: str = "*"
) -> Iterator[queue.Queue[ReceivedMessage]]:
    """Yield a queue with the messages that a consumer receives."""
    got: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(address, group=group)
    consumer.subscribe(topic, tag)(got.put)
    with consumer:
        yield got


async def received(address: str, topic: str, wanted: set[MessageId]) -> list[MessageId]:
    """Return the messages received by a new group, after all wanted ones have arrived."""
    got: list[MessageId] = []
    consumer = AsyncConsumer(address, group="mailer")

    @consumer.subscribe(topic)
    async def note(message: ReceivedMessage) -> None:
        got.append(message.id)

    async with consumer:
        await until_async(lambda: wanted <= set(got))
    return got


def message_count(notify_url: str) -> int:
    """Return the number of committed messages in the Notify database."""
    return _count(notify_url, "select count(*) from txmsg.message")


def half_count(notify_url: str) -> int:
    """Return the number of undecided halves in the Notify database."""
    return _count(notify_url, "select count(*) from txmsg.half_message")


def counts(notify_url: str) -> tuple[int, int]:
    """Return the numbers of undecided halves and of messages, after pending outcomes have arrived."""
    with suppress(AssertionError):
        until(lambda: half_count(notify_url) == 0, within_s=5.0)
    return half_count(notify_url), message_count(notify_url)


def _count(notify_url: str, statement: str) -> int:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


def different(got: queue.Queue[ReceivedMessage], count: int) -> set[MessageId]:
    """Return so many different ids of the next messages. Any may come twice: a lease may end on a busy machine."""
    found: set[MessageId] = set()
    while len(found) < count:
        found.add(got.get(timeout=WAIT_S).id)
    return found


def nothing_comes(got: queue.Queue[ReceivedMessage], *, within_s: float = 0.5) -> bool:
    """Return True if the queue stays empty this long."""
    try:
        got.get(timeout=within_s)
    except queue.Empty:
        return True
    return False


def waited_for(caplog: pytest.LogCaptureFixture, words: str) -> str:
    """Return the log when it contains these words; fails if not in time."""
    until(lambda: words in caplog.text, why=f"{words!r} is not in the log")
    return caplog.text
