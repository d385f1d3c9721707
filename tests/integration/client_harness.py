"""What the client's tests share: a collecting consumer, and a look into the Notify database."""

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
    """A consumer that puts what it gets into a queue."""
    got: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(address, group=group)
    consumer.subscribe(topic, tag)(got.put)
    with consumer:
        yield got


async def received(address: str, topic: str, wanted: set[MessageId]) -> list[MessageId]:
    """What a new group has received when all that is wanted has come."""
    got: list[MessageId] = []
    consumer = AsyncConsumer(address, group="mailer")

    @consumer.subscribe(topic)
    async def note(message: ReceivedMessage) -> None:
        got.append(message.id)

    async with consumer:
        await until_async(lambda: wanted <= set(got))
    return got


def message_count(notify_url: str) -> int:
    """Messages that are committed in the Notify database."""
    return _count(notify_url, "select count(*) from txmsg.message")


def half_count(notify_url: str) -> int:
    """Halves that are undecided in the Notify database."""
    return _count(notify_url, "select count(*) from txmsg.half_message")


def counts(notify_url: str) -> tuple[int, int]:
    """Undecided halves, and messages, when the outcomes that callers do not wait for have come."""
    with suppress(AssertionError):
        until(lambda: half_count(notify_url) == 0, within_s=5.0)
    return half_count(notify_url), message_count(notify_url)


def _count(notify_url: str, statement: str) -> int:
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


def different(got: queue.Queue[ReceivedMessage], count: int) -> set[MessageId]:
    """The ids of the next messages, so many different ones. Any may come twice: a lease may end on a busy machine."""
    found: set[MessageId] = set()
    while len(found) < count:
        found.add(got.get(timeout=WAIT_S).id)
    return found


def nothing_comes(got: queue.Queue[ReceivedMessage], *, within_s: float = 0.5) -> bool:
    """Whether the queue stays empty this long."""
    try:
        got.get(timeout=within_s)
    except queue.Empty:
        return True
    return False


def waited_for(caplog: pytest.LogCaptureFixture, words: str) -> str:
    """The log when it has these words, which must come in time."""
    until(lambda: words in caplog.text, why=f"{words!r} is not in the log")
    return caplog.text
