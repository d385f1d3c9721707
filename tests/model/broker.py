"""A broker inside this process that can crash: the parts that `txmsg/broker/server.py` joins, without connections.

It reaches the database through a proxy of its own, which cuts, holds and severs what it is told to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch
from uuid import UUID

from tests.model.history import Cut
from tests.postgres_proxy import CUT_AFTER, CUT_BEFORE, FORWARD, HOLD, PostgresProxy, Request, Verdict
from txmsg.administration.topics import TopicChange
from txmsg.broker import writer as writer_module
from txmsg.broker.clients import AttachedClient, AttachedClients
from txmsg.broker.config import BrokerConfig
from txmsg.broker.segments import Segments
from txmsg.broker.service import CheckResolver, NotifyService
from txmsg.broker.store.connect import Pool, open_pool
from txmsg.broker.store.halves import HalfMessages
from txmsg.broker.store.topic_settings import TopicAdministration
from txmsg.broker.store.topics import TopicRegistry
from txmsg.broker.writer import Writer
from txmsg.checker.loop import CheckLoop
from txmsg.checker.policy import CheckPolicies, CheckPolicy
from txmsg.checker.ports import DueHalf
from txmsg.errors import BrokerUnavailable, MisuseError, OutcomeUnknown, TxmsgError, UnknownTopic
from txmsg.message import TransactionState
from txmsg.message.columns import Columns

FENCE_ID = UUID(int=0xFE)
GROUP = "shop"

Problems = Mapping[bytes, TxmsgError]
Answer = Callable[[DueHalf], TransactionState]


@dataclass(frozen=True, slots=True)
class SendRequest:
    half: bool
    fence_id: bytes
    batches: tuple[tuple[str, Columns], ...]


@dataclass(frozen=True, slots=True)
class EndRequest:
    commit: tuple[bytes, ...]
    rollback: tuple[bytes, ...]
    unknown: tuple[bytes, ...]


@contextmanager
def quick_reconnects() -> Iterator[None]:
    """Let writers reconnect after 5 ms rather than 200 ms, so that a minute holds more crashes."""
    with patch.object(writer_module, "_RECONNECT_PAUSE_S", 0.005):
        yield


class Broker:
    """Broker `number` on the database at `url`. `answer`: answers checks for its attached clients."""

    def __init__(self, number: int, url: str, answer: Answer) -> None:
        self.number = number
        self.cuts = 0
        self._proxy = PostgresProxy(url)
        self._answer = answer
        self._parts: _Parts | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._cut: Cut | None = None
        self._skip = 0
        self._hold = False
        self._restarting = asyncio.Lock()

    @property
    def proxy(self) -> PostgresProxy:
        """The proxy between it and the database."""
        return self._proxy

    async def open(self) -> None:
        """Start it for the first time."""
        self._proxy.__enter__()
        self._proxy.on_request = self._verdict
        await self._start()

    async def close(self) -> None:
        """Stop it for good."""
        self.calm()
        async with self._restarting:
            await self._crash()
        self._proxy.__exit__(None, None, None)

    # ---- start and crash

    async def restart(self) -> None:
        """Crash and restart it, one restart at a time."""
        async with self._restarting:
            await self._crash()
            await self._start()

    async def _start(self) -> None:
        """Start with an empty memory."""
        pool = open_pool(self._proxy.url)
        await pool.open(wait=True, timeout=60)
        parts = _Parts(self._proxy.url, pool, self._answer)
        while True:
            try:
                await parts.segments.refresh()
                break
            except BrokerUnavailable:  # cut while starting
                continue
        self._spawn(parts.half_writer.run())
        self._spawn(parts.writer.run())
        self._parts = parts

    async def _crash(self) -> None:
        """Lose all connections, then everything in memory. Statements that the server had begun continue there."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        self._proxy.refuse()
        self._proxy.cut_all()
        while alive := {task for task in self._tasks if not task.done()}:
            for task in alive:
                task.cancel()
            await asyncio.wait(alive, timeout=0.02)  # a lost connection may hide a cancellation
        await parts.pool.close(timeout=1)
        self._proxy.requests.clear()
        self._proxy.accept()

    # ---- requests

    def new_topics(self, queues: int) -> None:
        """Forget the topics; new ones have this many queues."""
        if self._parts is not None:
            self._parts.new_topics(queues)

    async def ask(self, request: SendRequest | EndRequest) -> Problems:
        """Make one call, as a connection would. Raises OutcomeUnknown when the broker dies during it."""
        if self._parts is None:
            raise BrokerUnavailable("the broker is down")
        task = self._spawn(self._parts.serve(request))
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()  # nothing if it is done; otherwise the client has disconnected
        if task.cancelled():
            raise OutcomeUnknown("the broker died")
        problems: Problems = task.result()
        return problems

    async def check(self) -> None:
        """Look once for due halves and make their checks."""
        if self._parts is not None:
            await self._survive(self._parts.checks.run_once())

    async def rotate(self) -> None:
        """Rotate to the next segment, as if the open one were old enough."""
        if self._parts is not None:
            await self._survive(self._parts.segments.run_once())

    async def grow(self, topics: Sequence[str], queues: int) -> None:
        """Add queues to topics that have fewer."""
        for topic in topics:
            if self._parts is not None:  # it may crash in between
                await self._survive(self._grow(self._parts, topic, queues))

    async def _grow(self, parts: _Parts, topic: str, queues: int) -> None:
        with suppress(MisuseError):  # it has as many, or more
            await TopicAdministration(parts.pool).alter(topic, TopicChange(queues=queues))
        await parts.service.topics.refresh_once()

    async def learn(self) -> None:
        """Read whether topics have got more queues."""
        if self._parts is not None:
            await self._survive(self._parts.service.topics.refresh_once())

    async def _survive(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._spawn(work)
        await asyncio.wait({task})
        with suppress(asyncio.CancelledError):  # the broker died
            try:
                task.result()
            except* (BrokerUnavailable, UnknownTopic):  # its connection was cut; nobody has sent to the topic yet
                pass

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---- faults

    def cut(self, cut: Cut) -> None:
        """Cut a request as `Cut` says. One at a time: a later one replaces one that has not happened yet."""
        self._cut, self._skip = cut, cut.skip

    def sever(self) -> None:
        """Break all connections now; the server may still execute requests that it has received."""
        self.cuts += 1
        self._proxy.cut_all()

    def hold(self) -> None:
        """Hold the next batch in transit until `release`."""
        self._hold = True

    def release(self) -> None:
        self._hold = False
        self._proxy.release()

    def calm(self) -> None:
        """End all disturbances."""
        self._cut = None
        self.release()

    def _verdict(self, request: Request) -> Verdict:
        # In the proxy's thread; the other one sets the faults, one attribute at a time.
        batch = "txmsg.write_batch" in request.sql
        if batch and self._hold:
            self._hold = False
            return HOLD
        cut = self._cut
        if cut is None or not request.sql or (cut.batches and not batch):
            return FORWARD
        self._skip -= 1
        if self._skip > 0:
            return FORWARD
        self._cut = None
        self.cuts += 1
        return CUT_AFTER if cut.after else CUT_BEFORE


class _Parts:
    """The parts of a broker in memory."""

    def __init__(self, url: str, pool: Pool, answer: Answer) -> None:
        config = BrokerConfig(
            storage=url,
            segment_age_s=0,
            outcome_memory_s=0,  # tests move time on by themselves
            first_check_s=0.03,
            check_interval_s=0.1,
            checks_max=1_000_000,
            request_timeout_s=10,
        )
        self.pool = pool
        self.segments = Segments(pool, config)
        self.half_writer = Writer(config, self.segments, on_ends=_nobody_waits)
        self.writer = Writer(config, self.segments, on_ends=_nobody_waits)
        self.service = NotifyService(_topics(pool, 1), self.half_writer, self.writer)
        policy = CheckPolicy(
            first_check_s=config.first_check_s,
            interval_s=config.check_interval_s,
            checks_max=config.checks_max,
            answer_timeout_s=config.check_interval_s * 0.9,
        )
        clients = AttachedClients()
        for fence_id in (FENCE_ID, None):
            clients.attach(_client(fence_id, answer))
        resolver = CheckResolver(self.writer, self.service.counts)
        self.checks = CheckLoop(HalfMessages(pool), clients, resolver, policies=CheckPolicies(default=policy))

    def new_topics(self, queues: int) -> None:
        self.service.topics = _topics(self.pool, queues)

    async def serve(self, request: SendRequest | EndRequest) -> Problems:
        match request:
            case SendRequest():
                return await self.service.store_messages(
                    group=GROUP, fence_id=request.fence_id, half=request.half, batches=request.batches
                )
            case EndRequest():
                return await self.service.end_transactions(
                    commit=request.commit, rollback=request.rollback, unknown=request.unknown
                )


def _topics(pool: Pool, queues: int) -> TopicRegistry:
    return TopicRegistry(pool, auto_create=True, queues=queues)


def _client(fence_id: UUID | None, answer: Answer) -> AttachedClient:
    def send_check(half: DueHalf) -> None:
        client.answer(half.transaction_id, answer(half))

    client = AttachedClient(f"client of {fence_id}", GROUP, frozenset({fence_id}), send_check)
    return client


def _nobody_waits(_ends: Mapping[int, int]) -> None:
    """Ignore the ends of queues: reads are made from the tables."""
