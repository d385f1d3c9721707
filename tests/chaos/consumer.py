"""A consumer process: `python -m tests.chaos.consumer ORDERS`. A member of each group; logs each handler call."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from itertools import count

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from tests.chaos import business
from tests.chaos.client import orders, quiet_event
from tests.chaos.history import GROUPS_WITH_GUESTS, PULLED, VISIBILITY_TIMEOUT_S
from tests.chaos.journal import Journal
from txmsg import AsyncConsumer, ReceivedMessage, RetryAfter, idempotent
from txmsg.wire.start import Start

RETRIED_LATER = 0.5
"""Share of failures that set their own retry time."""
UNPRINTABLE = 0.1
"""Share of failures whose exception raises when it is asked for its text."""
BREAKING = 0.02
"""Share of log records at which a filter raises."""
Handler = Callable[[ReceivedMessage], Awaitable[None]]


class Failed(Exception):
    """Raised by a handler that fails a message."""


class Unprintable(Failed):
    """The same with a class whose text cannot be read."""

    def __str__(self) -> str:
        raise ValueError("a class of the user's that raises when it is asked")


class Breaking(logging.Filter):
    """A user's log filter that raises for some records."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def filter(self, record: logging.LogRecord) -> bool:
        if self._rng.random() < BREAKING:
            raise ValueError("a filter of the user's that raises")
        return True


def handlers(url: str, rng: random.Random, *, guests: bool) -> dict[str, Handler]:
    """Return the handlers by group. The fate of a message depends on its body, so that it is the same in every life."""

    @idempotent(async_sessionmaker(business.async_engine_of(url)), group="ledger")
    async def ledger(session: AsyncSession, message: ReceivedMessage) -> None:
        await session.run_sync(business.take_effect, "ledger", message.body.decode())

    async def grumbler(message: ReceivedMessage) -> None:
        if business.is_failed_by_handler(message.body, message.attempt, is_first=message.generation == 0):
            if rng.random() < RETRIED_LATER:
                raise RetryAfter(rng.uniform(0.0, 2.0), "later")
            kind = Unprintable if rng.random() < UNPRINTABLE else Failed
            raise kind(f"attempt {message.attempt}: не сейчас, „Müller“ ☃")

    async def sleeper(message: ReceivedMessage) -> None:
        longer_than_visible = message.attempt == 1 and rng.random() < 0.01
        await asyncio.sleep(VISIBILITY_TIMEOUT_S * 1.2 if longer_than_visible else rng.expovariate(1 / 0.05))

    async def watcher(message: ReceivedMessage) -> None:
        """Handle every message and log it."""

    found: dict[str, Handler] = {"ledger": ledger, "grumbler": grumbler, "sleeper": sleeper, "watcher": watcher}
    return found | ({PULLED: watcher} if guests else {})


def noted(group: str, handle: Handler, journal: Journal, calls: count[int]) -> Handler:
    """Wrap a handler: the journal records begin, end and result. Each call has a number."""

    async def note(message: ReceivedMessage) -> None:
        call, body = next(calls), message.body.decode()
        journal.write("got", call, group, body, message.topic, message.queue, message.offset, message.attempt)
        try:
            await handle(message)
        except BaseException:
            journal.write("refused", call)
            raise
        journal.write("done", call)

    return note


async def pause_one(consumer: AsyncConsumer, rng: random.Random, quiet: asyncio.Event) -> None:
    """Pause one of the groups in this process for a moment, after some seconds."""
    for pause_s, then in ((rng.uniform(2, 8), consumer.pause), (rng.uniform(0.2, 2), consumer.resume)):
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await quiet.wait()
        if quiet.is_set():
            return
        then()


async def main() -> None:
    told = orders()
    quiet = quiet_event()
    journal = Journal(told.journal_path)
    rng = random.Random(f"{told.seed} {told.name}")
    calls = count(1)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Breaking(random.Random(f"{told.seed} {told.name} log")))
    async with AsyncExitStack() as consumers:
        running: list[AsyncConsumer] = []
        for group, handle in handlers(told.business_url, rng, guests=told.guests).items():
            # RocketMQ's clients are alone in the first one.
            shards = told.brokers[1:] if group == PULLED else told.brokers
            brokers = [rng.sample(shard, len(shard)) for shard in shards]
            instance = told.name.partition(".")[0].rpartition("-")[2]  # the same in every life
            consumer = AsyncConsumer(
                brokers,
                group=group,
                concurrency=8,
                visibility_timeout_s=VISIBILITY_TIMEOUT_S,
                close_timeout_s=10,
                start=Start.earliest(),
                broadcast=instance if group == "watcher" else False,
            )
            for topic, tags in GROUPS_WITH_GUESTS[consumer.group].items():
                consumer.subscribe(topic, tags)(noted(consumer.group, handle, journal, calls))
            running.append(await consumers.enter_async_context(consumer))
        while not quiet.is_set():
            await pause_one(rng.choice(running), rng, quiet)
    journal.write("quiet")


if __name__ == "__main__":
    asyncio.run(main())
