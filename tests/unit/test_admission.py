"""Admission of messages by a topic: permissions and rate."""

from __future__ import annotations

import asyncio

import pytest

from txmsg.broker.admission import Admission
from txmsg.broker.store.topics import StoredTopic
from txmsg.errors import Overloaded, TopicClosed
from txmsg.message import QueueId


def topic(*, permission: int = 6, rate: float | None = None) -> StoredTopic:
    return StoredTopic(
        "t", tuple(map(QueueId, (1, 2, 3))), 3, 3, 0, read_queues=2, permission=permission, send_rate_max=rate
    )


async def test_only_a_writable_topic_accepts_messages() -> None:
    admission = Admission()
    for permission in (2, 6):
        await admission.admit(topic(permission=permission), 1000)
    for permission in (0, 4):
        with pytest.raises(TopicClosed, match="accepts no messages now"):
            await admission.admit(topic(permission=permission), 1)


def test_only_the_first_read_queues_of_a_readable_topic_are_delivered() -> None:
    assert topic(permission=4).readable_queue_ids == (1, 2)
    assert topic(permission=2).readable_queue_ids == ()


async def test_senders_over_the_rate_wait_and_those_beyond_the_limit_are_refused() -> None:
    now = [0.0]
    admission = Admission(8.0, lambda: now[0])
    slow = topic(rate=10)
    for _ in range(3):
        await admission.admit(slow, 5)  # 5 at once, 10 as debt
        now[0] += 1
    await admission.admit(slow, 1000)
    with pytest.raises(Overloaded, match=r"accepts 10 messages/s.*--send-rate"):
        await admission.admit(slow, 1)
    await admission.admit(topic(rate=1000), 1)
    await admission.admit(topic(), 10**6)


async def test_a_request_over_the_rate_waits_for_those_before_it() -> None:
    admission = Admission(60.0, lambda: 0.0)
    slow = topic(rate=1000)
    await admission.admit(slow, 520)
    waiting = asyncio.create_task(admission.admit(slow, 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.wait_for(waiting, 30)


async def test_a_sender_that_gives_up_while_waiting_does_not_delay_others() -> None:
    admission = Admission(60.0, lambda: 0.0)
    slow = topic(rate=100)
    await admission.admit(slow, 51)  # one more than the burst
    for _ in range(3):
        impatient = asyncio.create_task(admission.admit(slow, 100_000))
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.wait({impatient})
    await asyncio.wait_for(admission.admit(slow, 1), 30)
