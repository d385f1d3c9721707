"""A service that takes orders and a subscriber to them: one program for clients of any release.

    python shop_client.py NAME BROKERS DATABASE_URL

Says in lines of JSON on stdout what it did and got. `finish` on stdin ends the orders, `stop` the program. Imports
nothing of the tests, for it runs on the txmsg of another release.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

from sqlalchemy import text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

import txmsg
from txmsg import (
    AsyncConsumer,
    AsyncProducer,
    BrokerUnavailable,
    FenceCheckListener,
    Message,
    ReceivedMessage,
    TransactionRefused,
    TransactionState,
    TxmsgError,
)
from txmsg.client.fence import AsyncFence

TASKS = 3
LONG_ONES = 5
PAUSE_S = 0.1
WAYS = ("commits", "commits", "commits", "rolls back", "commits", "forgets", "is forgotten")


def note(**what: object) -> None:
    print(json.dumps(what), flush=True)


class Shop:
    def __init__(self, name: str, brokers: str, url: str) -> None:
        self.name = name
        self.engine = create_async_engine(url)
        self.sessions = async_sessionmaker(self.engine)
        self.fence = AsyncFence(self.engine)
        self.listener = FenceCheckListener(self.engine)
        self.producer = AsyncProducer(brokers, group="shop", check_listener=self.listener, timeout_s=60)
        self.finish = asyncio.Event()

    async def take_orders(self, task: int) -> None:
        for n in itertools.count():
            if self.finish.is_set():
                return
            await self.take(f"{self.name}-{task}-{n}", WAYS[n % len(WAYS)], task)
            await asyncio.sleep(PAUSE_S)

    async def take_long(self, n: int) -> None:
        """Take an order whose transaction stays open until the end, when other brokers run."""
        for attempt in itertools.count():  # on a slow machine its check may come first
            if await self.take(f"{self.name}-long-{n}-{attempt}", "waits", None):
                return

    async def take(self, order: str, way: str, task: int | None) -> bool:
        """Take an order in this way. True if it ended, committed or not; False if it was refused or too late."""
        try:
            half = await self.producer.half([Message("orders", order.encode(), key=order)])
        except BrokerUnavailable as exc:
            note(did="was refused", order=order, error=str(exc))
            return False
        if way == "is forgotten":  # before its local transaction begins
            return True
        try:
            async with self.sessions() as session:
                await self.fence.write(session, half.transaction_id)
                await session.execute(text("insert into orders values (:id)"), {"id": order})
                if way == "waits":
                    note(did="opened", order=order)
                    await self.finish.wait()
                if way != "rolls back":
                    await session.commit()
        except TransactionRefused:  # so slow that its check came first
            note(did="was too late", order=order)
            return False
        outcome = TransactionState.ROLLBACK if way == "rolls back" else TransactionState.COMMIT
        told = False
        if way != "forgets":
            try:
                await self.producer.end(half, outcome)
                told = True
            except TxmsgError as exc:
                note(did="could not tell", order=order, error=repr(exc))
        note(did=outcome.value, order=order, task=task, told=told)
        return True

    async def received(self, message: ReceivedMessage) -> None:
        note(did="received", order=message.body.decode(), queue=message.queue, offset=message.offset)


async def main(name: str, brokers: str, url: str) -> None:
    shop = Shop(name, brokers, url)
    consumer = AsyncConsumer(brokers, group="mailers")
    consumer.subscribe("orders")(shop.received)
    async with shop.producer, consumer, asyncio.TaskGroup() as tasks:
        note(did="started", release=txmsg.__version__)
        for n in range(LONG_ONES):
            tasks.create_task(shop.take_long(n))
        for task in range(TASKS):
            tasks.create_task(shop.take_orders(task))
        await asyncio.to_thread(sys.stdin.readline)
        shop.finish.set()
        await asyncio.to_thread(sys.stdin.readline)
    await shop.engine.dispose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
