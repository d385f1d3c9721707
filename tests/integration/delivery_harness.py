"""Helpers for tests of delivery: a Notify database seen from outside, and a running Delivery."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import psycopg

from tests.waiting import until_async
from txmsg.administration.halves import GroupLag
from txmsg.administration.topics import TopicChange
from txmsg.broker.cluster import Leases, Membership
from txmsg.broker.delivery import Delivery, DeliveryConfig
from txmsg.broker.delivery.offsets import Expiry
from txmsg.broker.delivery.values import MemberSubscription, MessageBatch, PollSequenceStep, Receipt, Receive
from txmsg.broker.store.connect import Pool, open_pool
from txmsg.broker.store.group_administration import GroupAdministration
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.topics import TopicRegistry
from txmsg.errors import BrokerUnavailable, TxmsgError
from txmsg.message import EPOCH_2000_US, QueueId
from txmsg.runtime.backoff import Backoff
from txmsg.wire.start import Start

T = [("t", "*")]
NEVER_S = 3000.0
LEASE_TTL_S = 60.0
"""A broker that a busy machine pauses for seconds keeps its leases: `bury` ends those of a dead one."""
AT_ONCE = Backoff(delays_s=(0.0,))


@dataclass
class Notify:
    """The Notify database of a test, seen from outside the broker."""

    url: str
    topics: TopicRegistry

    async def ensure(self, topic: str) -> Sequence[tuple[int, int]]:
        found = await self.topics.ensure(topic)
        return [(queue_id, number) for number, queue_id in enumerate(found.readable_queue_ids)]

    async def make_missing(self, topics: Collection[str]) -> Mapping[str, TxmsgError]:
        return await self.topics.make_missing(topics)

    async def find_queues(self, topic: str) -> Sequence[tuple[int, int]]:
        return [] if await self.topics.find_topic(topic) is None else await self.ensure(topic)

    async def is_erasable(self, topic: str) -> bool:
        found = await self.topics.find_topic(topic)
        return found is not None and found.erasable_s is not None

    async def queue_ids(self, topic: str = "t") -> list[QueueId]:
        """Return the ids of all queues, including unreadable ones."""
        return list((await self.topics.ensure(topic)).queue_ids)

    def query(self, statement: str, *args: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as conn:
            cursor = conn.execute(statement.encode(), args)
            return cursor.fetchall() if cursor.description else []

    async def add(
        self, count: int, *, topic: str = "t", tag: str | None = None, body: bytes = b"body"
    ) -> dict[int, int]:
        """Store `count` messages in each queue of a topic, in the open segment, and return the ends of the queues for
        `wake`.
        """
        ends: dict[int, int] = {}
        for queue_id in await self.queue_ids(topic):
            (row,) = self.query(
                """
                with base as (select s.id as segment, coalesce(
                    (select max(m.queue_offset) + 1 from txmsg.message m where m.segment = s.id and m.queue = %s),
                    (select b.base from txmsg.segment_base b where b.segment = s.id and b.queue = %s), 0) as base
                  from txmsg.segment s where s.state = 'open'),
                added as (insert into txmsg.message
                    (segment, queue, queue_offset, transaction_id, n, key, tag, headers, body, born_at)
                    select segment, %s, base + g, gen_random_uuid(), 0, 'k' || g, %s, null, %s, now()
                      from base, generate_series(0, %s - 1) g returning queue_offset)
                select max(queue_offset) + 1 from added
                """,
                *(queue_id, queue_id, queue_id, tag, body, count),
            )
            ends[queue_id] = row[0]
        return ends

    async def grow(self, queues: int, topic: str = "t") -> None:
        """Add queues to a topic."""
        await TopicAdministration(self.topics._pool).alter(topic, TopicChange(queues=queues))
        await self.topics.refresh_once()

    async def lag(self, delivery: Delivery) -> Sequence[GroupLag]:
        await delivery.flush()
        async with open_pool(self.url) as pool:
            return await GroupAdministration(pool).lag()

    def bury(self, broker_id: str) -> None:
        """Expire the lease of a broker, as if it had been silent for long enough."""
        self.query("update txmsg.broker set expires_at = now() - interval '1 s' where id = %s", broker_id)

    def rotate(self) -> None:
        self.query("select txmsg.rotate((select id from txmsg.segment where state = 'open'))")
        self.query("select txmsg.add_segment()")


@asynccontextmanager
async def notify_at(url: str, *, queues: int = 1) -> AsyncIterator[Notify]:
    pool = open_pool(url)
    await pool.open()
    try:
        yield Notify(url, TopicRegistry(pool, auto_create=True, queues=queues))
    finally:
        await pool.close()


def new_delivery(
    pool: Pool,
    notify: Notify,
    broker_id: str = "b1",
    *,
    monotonic: Callable[[], float] = time.monotonic,
    **settings: Any,
) -> Delivery:
    """Return a delivery and its membership, not running."""
    unhurried = {"lease_ttl_s": LEASE_TTL_S, "statement_timeout_s": 60.0}
    config = DeliveryConfig(**{"hand_over_s": 0.05, **unhurried, **settings})
    leases = Leases(broker_id, config.lease_ttl_s, monotonic)
    membership = Membership(pool, leases, release="test", schema_revision="0001", heartbeat_s=config.heartbeat_s)
    membership.address = f"{broker_id}:1"
    return Delivery(pool, membership, config, topics=notify)


@asynccontextmanager
async def delivering(
    notify: Notify,
    broker_id: str = "b1",
    *,
    graceful: bool = True,
    monotonic: Callable[[], float] = time.monotonic,
    background: bool = True,
    **settings: Any,
) -> AsyncIterator[Delivery]:
    """A running delivery. graceful=False ends it as in a crash: nothing is flushed, leases are kept.

    background=False: it does nothing by itself, not even renew its lease, so that lasts.
    """
    if not background:
        settings = {"lease_ttl_s": NEVER_S, **settings}
    pool = open_pool(notify.url)
    await pool.open()
    delivery = new_delivery(pool, notify, broker_id, monotonic=monotonic, **settings)
    membership = delivery._membership

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(delivery.run())
            tasks.create_task(membership.run())

    task = asyncio.create_task(run() if background else asyncio.Event().wait())
    try:
        if background:
            await until_async(membership.leases.is_held)
        else:
            await membership.step_once()
        yield delivery
        if graceful:
            await delivery.close()
    finally:
        task.cancel()
        await asyncio.wait({task})
        await pool.close()


@dataclass(frozen=True)
class Delivered:
    """A delivered message."""

    topic: str
    queue: int
    receipt: Receipt
    """The receipt of this message alone."""
    attempt: int
    offset: int
    transaction_id: bytes
    n: int
    key: str | None
    tag: str | None
    headers: bytes | None
    body: bytes
    born_at_us: int
    stored_at_us: int
    ordering_key: str | None
    generation: int


def each_of(handouts: Sequence[MessageBatch]) -> list[Delivered]:
    """Return the messages of handouts, one by one."""
    return [
        Delivered(
            handout.topic,
            handout.queue,
            handout.receipt._replace(offsets=[row[0]]),
            attempt,
            *row[:7],
            row[7] + EPOCH_2000_US,
            row[8] + EPOCH_2000_US,
            row[9],
            generation,
        )
        for handout in handouts
        for row, attempt, generation in zip(
            handout.rows, handout.attempts or repeat(1), handout.generations or repeat(0), strict=False
        )
    ]


def poll(  # noqa: PLR0917 - a value that nearly each test writes in one line
    group: str,
    client_id: str,
    subscriptions: Sequence[MemberSubscription | tuple[str, str]],
    count_max: int,
    wait_s: float,
    visibility_timeout_s: float,
    start: Start | None = None,
    *,
    line: PollSequenceStep | None = None,
    expiry: Expiry = Expiry.COUNTED,
    in_runs: bool = False,
) -> Receive:
    """Return a long poll of one member."""
    return Receive(
        group=group,
        client_id=client_id,
        subscriptions=subscriptions,
        count_max=count_max,
        wait_s=wait_s,
        visibility_timeout_s=visibility_timeout_s,
        start=start,
        line=line,
        expiry=expiry,
        in_runs=in_runs,
    )


async def receive(
    delivery: Delivery,
    count: int = 100,
    *,
    wait_s: float = 30.0,
    visibility_timeout_s: float = 60.0,
    group: str = "g",
    **how: Any,
) -> list[Delivered]:
    """Return `count` messages, or fewer when a receive finds nothing for wait_s.

    For messages that must come leave wait_s as it is: on a busy machine any short time is too short.
    """
    got: list[Delivered] = []
    while len(got) < count:
        more = await delivery.receive(
            poll(
                *(group, how.get("client", "c"), how.get("topics", T)),
                *(count - len(got), wait_s, visibility_timeout_s),
                expiry=how.get("expiry", Expiry.COUNTED),
                in_runs=how.get("in_runs", False),
            )
        )
        if not more:
            break
        got += each_of(more)
    return got


async def receive_only(delivery: Delivery, count: int, **how: Any) -> list[Delivered]:
    """Return `count` messages, however long they take, and check that no more follow for a moment."""
    got = await receive(delivery, count, **how)
    assert len(got) == count, f"{len(got)} of {count} messages came: {got}"
    assert await receive(delivery, 1, wait_s=0.2, **how) == []
    return got


async def receive_until(
    delivery: Delivery, is_all: Callable[[Sequence[Delivered]], bool], **how: Any
) -> list[Delivered]:
    """Return all messages received until the condition holds, and for a moment longer."""
    got: list[Delivered] = []
    while not is_all(got):
        more = await receive(delivery, 1, **how)
        assert more, f"only these came: {got}"
        got += more
    return got + await receive(delivery, 100, wait_s=0.2, **how)


def receipts(messages: Sequence[Delivered]) -> list[Receipt]:
    return [message.receipt for message in messages]


def offsets(messages: Sequence[Delivered]) -> list[int]:
    return [message.offset for message in messages]


async def eventually(step: Callable[[], Awaitable[Any]], timeout_s: float = 60.0) -> Any:
    """Return the result of a step that may raise BrokerUnavailable for a while."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                return await step()
            except BrokerUnavailable:
                await asyncio.sleep(0.02)
