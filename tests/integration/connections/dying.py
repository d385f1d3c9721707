"""An application killed in a transactional call: `python -m tests.integration.connections.dying`.

Arguments: driver, address of its database, address of a broker, and when it dies: "inside", or "after" the commit.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from tests.integration.connections.drivers import ASYNC, connecting
from txmsg import AsyncProducer, FenceCheckListener, Producer, transactional_message
from txmsg.checker.connections.engines import DriverConnection
from txmsg.checker.connections.opening import driver_of, driver_of_async

INSERT = "insert into effects values (%s)"


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def place_order(driver: str, address: str, broker: str, when: str) -> None:
    connect: Callable[[], AbstractContextManager[DriverConnection]] = connecting(driver, address)
    listener = FenceCheckListener(connecting(driver, address))
    with Producer(broker, group="shop", check_listener=listener) as producer:

        @transactional_message(producer, topic="order", session=connect)
        def place(connection: DriverConnection, name: str) -> None:
            found = driver_of(connection)
            assert found is not None
            found.execute(connection, INSERT, name)
            if when == "inside":
                die()

        producer.hooks.before_end = die
        place("first")


async def place_order_async(driver: str, address: str, broker: str, when: str) -> None:
    connect: Callable[[], Awaitable[DriverConnection]] = connecting(driver, address)
    async with AsyncProducer(
        broker, group="shop", check_listener=FenceCheckListener(connecting(driver, address))
    ) as producer:

        @transactional_message(producer, topic="order", session=connect)
        async def place(connection: DriverConnection, name: str) -> None:
            found = driver_of_async(connection)
            assert found is not None
            await found.execute(connection, INSERT, name)
            if when == "inside":
                die()

        producer.hooks.before_end = die
        await place("first")


if __name__ == "__main__":
    if sys.argv[1] in ASYNC:
        asyncio.run(place_order_async(*sys.argv[1:]))
    else:
        place_order(*sys.argv[1:])
