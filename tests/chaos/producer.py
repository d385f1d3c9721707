"""A producer process: `python -m tests.chaos.producer ORDERS`. Sends in every way, and logs each step.

The body of a message is SERIAL/N: SERIAL names what was done, in this process and this life of it; N is the place of
the message in its transaction.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count

from sqlalchemy.exc import SQLAlchemyError

from tests.chaos.client import Orders, orders, quiet_event
from tests.chaos.history import DURABILITY, HALF_TOPICS, STORY_TOPIC, TOPICS, SendMethod, Sent
from tests.chaos.journal import Journal
from tests.chaos.plant import planted
from tests.chaos.senders import DISTURBED, Coroutines, LocalWork, Refused, Senders, Threads
from txmsg import Half, Message, TransactionState, TxmsgError

CALLERS = 16
RARE, DELAYED, STORIES = 0.1, 0.1, 0.1
"""Shares of messages with the tag, of delayed operations, and of stories."""
HOT = 0.15
"""Share of operations that send one message of the caller's own ordering key, which always has traffic."""
KEPT_STORIES = 0.5
"""Share among operations with an outbox, so that several are in the middle of one when brokers return."""
KEPT_TOPICS = tuple(topic for topic in TOPICS if DURABILITY[topic] == "sync")
"""Topics of operations with an outbox: only `sync`, since no producer learns when their messages are stored."""
COMMIT, ROLLBACK, UNKNOWN = TransactionState


class Caller:
    """One of the concurrent callers. Each operation is logged before it begins and when it ends."""

    def __init__(self, told: Orders, journal: Journal, senders: Senders, serials: count[int], number: int) -> None:
        self._name, self._journal, self._senders, self._serials = told.name, journal, senders, serials
        self._rng = random.Random(f"{told.seed} {told.name} {number}")
        self._hot_key = f"{told.name} hot {number}"
        self._pause_s = CALLERS / told.rate_per_s
        self._keeps = told.keeps

    async def run(self, quiet: asyncio.Event) -> None:
        """Call until told to stop."""
        ways: list[tuple[SendMethod, float, Callable[[str, Sequence[Message]], Awaitable[None]]]] = [
            (SendMethod.PLAIN, 4, self._plain),
            (SendMethod.FENCED, 2, self._fenced),
            (SendMethod.FENCED, 2, self._alongside),
            (SendMethod.FENCED, 1, self._late),
            (SendMethod.CLASSIC, 3, self._classically),
            (SendMethod.KEPT, 6 if self._keeps else 0, self._keep),
        ]
        while not quiet.is_set():
            if self._rng.random() < HOT:
                serial = self._serial()
                message = Message(STORY_TOPIC, f"{serial}/0".encode(), tag="common", ordering_key=self._hot_key)
                await self._note(SendMethod.PLAIN, serial, [message], self._plain)
                await self._pause(quiet)
                continue
            way, _, act = self._rng.choices(ways, [weight for _, weight, _ in ways])[0]
            if self._rng.random() < (KEPT_STORIES if way is SendMethod.KEPT else STORIES):
                await (self._tell_kept_story() if way is SendMethod.KEPT else self._tell_story())
            else:
                serial = self._serial()
                await self._note(
                    way, serial, self._messages(serial, KEPT_TOPICS if way is SendMethod.KEPT else TOPICS), act
                )
            await self._pause(quiet)

    async def _pause(self, quiet: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.uniform(0, 2 * self._pause_s)):
                await quiet.wait()

    def _serial(self) -> str:
        return f"{self._name}.{next(self._serials)}"

    async def _note(
        self,
        way: SendMethod,
        serial: str,
        messages: Sequence[Message],
        act: Callable[[str, Sequence[Message]], Awaitable[None]],
    ) -> None:
        delays_s = [each.deliver_after.total_seconds() if each.deliver_after else 0 for each in messages]
        sent = [
            Sent(each.topic, each.tag or "", each.ordering_key or "", delay_s)
            for each, delay_s in zip(messages, delays_s, strict=True)
        ]
        self._journal.write("begin", serial, way.value, sent)
        try:
            await act(serial, messages)
        except Refused:
            self._journal.write("failed", serial, "refused")
        except DISTURBED as exc:
            self._journal.write("failed", serial, getattr(exc, "code", "business"))
        else:
            self._journal.write("returned", serial)

    def _messages(self, serial: str, topics: Sequence[str]) -> list[Message]:
        how_many = self._rng.choices((1, 2, 3), (6, 2, 1))[0]
        delay = timedelta(seconds=self._rng.uniform(0.2, 4)) if self._rng.random() < DELAYED else None
        return [
            Message(
                self._rng.choice(topics),
                f"{serial}/{n}".encode(),
                key=f"{serial} Müller",
                tag="rare" if self._rng.random() < RARE else "common",
                deliver_after=delay,
            )
            for n in range(how_many)
        ]

    def _local(self) -> LocalWork:
        """Run the local transaction: mostly fast, sometimes slower than a check-back waits, sometimes refused."""
        for_s = self._rng.uniform(0.5, 3) if self._rng.random() < 0.05 else 0.0
        return LocalWork(for_s, is_refused=self._rng.random() < 0.1)

    async def _fenced(self, serial: str, messages: Sequence[Message]) -> None:
        await self._senders.sell(serial, messages, self._local())

    async def _alongside(self, serial: str, messages: Sequence[Message]) -> None:
        await self._senders.sell_alongside(serial, messages, self._local())

    async def _late(self, serial: str, messages: Sequence[Message]) -> None:
        await self._senders.sell_late(serial, messages, self._local())

    async def _keep(self, serial: str, messages: Sequence[Message]) -> None:
        await self._senders.keep(serial, messages, LocalWork(0.0, is_refused=self._rng.random() < 0.1))

    async def _tell_kept_story(self) -> None:
        """Make several calls of one ordering key, each after the one before has returned, with or without a broker."""
        key = f"{self._serial()} kept"
        for _ in range(self._rng.randint(3, 6)):
            serial = self._serial()
            message = Message(STORY_TOPIC, f"{serial}/0".encode(), tag="common", ordering_key=key)
            await self._note(SendMethod.KEPT, serial, [message], self._keep)

    async def _plain(self, serial: str, messages: Sequence[Message]) -> None:
        await self._senders.send(messages)
        self._journal.write("stored", serial)

    async def _classically(self, serial: str, messages: Sequence[Message]) -> None:
        """Send half message, local transaction, outcome; sometimes then an outcome that must be refused or repeated."""
        await self._senders.begin_attempt(serial)
        half = await self._senders.half(messages)
        self._journal.write("half", serial, str(half.transaction_id))
        state = ROLLBACK if self._rng.random() < 0.15 else COMMIT
        try:
            if not await self._senders.finish_attempt(serial, state):
                state = ROLLBACK
        except (SQLAlchemyError, OSError):
            state = UNKNOWN
        is_known = await self._tell(serial, half, state)
        if is_known and state is not UNKNOWN and self._rng.random() < 0.2:
            other = ROLLBACK if state is COMMIT else COMMIT
            await self._tell(serial, half, self._rng.choice((state, other, other)))

    async def _tell_story(self) -> None:
        """Send several messages of one ordering key, each after the one before is stored.

        Of transactions only the halves follow each other; their outcomes come later, in any order, or never.
        """
        key = f"{self._serial()} „Müller“"
        async with asyncio.TaskGroup() as endings:
            for _ in range(self._rng.randint(3, 6)):
                serial = self._serial()
                message = Message(STORY_TOPIC, f"{serial}/0".encode(), tag="common", ordering_key=key)
                if self._rng.random() < 0.4:
                    await self._note(SendMethod.PLAIN, serial, [message], self._plain)
                else:
                    stored = asyncio.Event()
                    act = partial(self._end_late, stored=stored)
                    endings.create_task(self._note(SendMethod.CLASSIC, serial, [message], act))
                    await stored.wait()

    async def _end_late(self, serial: str, messages: Sequence[Message], stored: asyncio.Event) -> None:
        try:
            await self._senders.begin_attempt(serial)
            half = await self._senders.half(messages)
            self._journal.write("half", serial, str(half.transaction_id))
        finally:
            stored.set()
        await asyncio.sleep(self._rng.expovariate(1 / 0.3))
        state = ROLLBACK if self._rng.random() < 0.2 else COMMIT
        if not await self._senders.finish_attempt(serial, state):
            state = ROLLBACK
        await self._tell(serial, half, UNKNOWN if self._rng.random() < 0.1 else state)

    async def _tell(self, serial: str, half: Half, state: TransactionState) -> bool:
        """Return True if the outcome was answered OK."""
        self._journal.write("tell", serial, state.value)
        reply = "ok"
        try:
            await self._senders.end(half, state)
        except TxmsgError as exc:
            reply = exc.code
        self._journal.write("told", serial, state.value, reply)
        return reply == "ok"


async def main() -> None:
    told = orders()
    quiet = quiet_event()
    journal = Journal(told.journal_path)
    rng = random.Random(f"{told.seed} {told.name}")
    serials = count(1)

    def brokers() -> list[list[str]]:
        return [rng.sample(shard, len(shard)) for shard in told.brokers]

    senders: Senders = (
        Threads(brokers, told.business_url, count=CALLERS)
        if told.threads
        else Coroutines(brokers, told.business_url, answers=HALF_TOPICS if told.answers else ())
    )
    with planted(told.plant):
        await senders.start()
        async with asyncio.TaskGroup() as callers:
            for number in range(CALLERS):
                callers.create_task(Caller(told, journal, senders, serials, number).run(quiet))
        journal.write("quiet")
        await asyncio.Event().wait()  # attached, so that it answers check-backs, until it is killed


if __name__ == "__main__":
    asyncio.run(main())
