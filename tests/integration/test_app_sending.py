"""`app.send`: messages that an application sends without a transaction."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine

from tests.broker_process import BrokerProcess
from txmsg import InvalidMessage, Message, MisuseError, Producer, ReceivedMessage, Topic, Txmsg
from txmsg.testing import Memory

WAIT_S = 30.0
ID = UUID("01890000-0000-7000-8000-000000000001")


@dataclass
class Order:
    order_id: int


ORDERS = Topic("orders", Order, key="order_id")


@pytest.fixture
def app(txmsg_memory: Memory) -> Iterator[Txmsg]:
    app = Txmsg("memory:", group="shop")
    with app:
        yield app


def test_messages_and_values_are_sent(app: Txmsg, txmsg_memory: Memory) -> None:
    ids = [
        app.send(Message("t", b"1", key="k")),
        app.send("t", {"id": ID, "wait": timedelta(seconds=90)}, key=ID, tag="a"),
        app.send("t", b"raw", ordering_key=7),
        app.send(ORDERS, Order(3)),
        app.send("t", None),
    ]
    found = txmsg_memory.sent()
    assert [each.id for each in found] == ids
    assert [(each.body, each.key, each.tag, each.ordering_key) for each in found] == [
        (b"1", "k", None, None),
        (f'{{"id":"{ID}","wait":"PT90S"}}'.encode(), str(ID), "a", None),
        (b"raw", None, None, "7"),
        (b'{"order_id":3}', "3", None, None),
        (b"null", None, None, None),
    ]


def test_coroutines_send_messages(txmsg_memory: Memory) -> None:
    async def send() -> str:
        app = Txmsg("memory:", group="shop")
        async with app:
            with pytest.raises(MisuseError, match=r"await app.send_async"):
                app.send("t", 1)
            return await app.send_async("t", [1], key=2)

    sent = asyncio.run(send())
    assert [(each.id, each.body, each.key) for each in txmsg_memory.sent()] == [(sent, b"[1]", "2")]


@pytest.mark.parametrize(
    ("args", "options", "error"),
    [
        (("t",), {}, MisuseError(r"app\.send\('t'\) has no value to send")),
        ((Message("t", b""), 1), {}, MisuseError("is given a Message and more")),
        ((Message("t", b""),), {"key": "k"}, MisuseError("is given a Message and more")),
        ((5, 1), {}, InvalidMessage("app.send got 5 of type int")),
        ((ORDERS, Order(1)), {"key": "k"}, MisuseError("which knows the keys")),
        (("t", {1, 2}), {}, InvalidMessage("the value for topic 't' is a set that JSON cannot represent")),
        (("t", 1), {"key": object()}, InvalidMessage("the key for topic 't' is an object")),
    ],
)
def test_an_invalid_send_is_refused_with_the_reason(
    app: Txmsg, txmsg_memory: Memory, args: Any, options: Any, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        app.send(*args, **options)
    assert txmsg_memory.sent() == []


def test_an_application_without_a_group_cannot_send(txmsg_memory: Memory) -> None:
    with pytest.raises(MisuseError, match=r"app\.send needs the group of the application"):
        Txmsg("memory:").send("t", 1)


def test_a_first_send_in_a_handler_creates_a_producer_that_is_closed_at_the_end(broker: BrokerProcess) -> None:
    app = Txmsg(broker.address, group="shop")
    got: queue.Queue[int] = queue.Queue()

    @app.on_send
    def note(message: Message) -> Message:
        return message

    @app.subscribe("first")
    def pass_on(message: ReceivedMessage) -> None:
        app.send("second", {"n": 1})

    @app.subscribe("second")
    async def take(n: int) -> None:
        if n < 3:
            await app.send_async("second", {"n": n + 1})
        got.put(n)

    for _ in range(2):
        with app:
            app.send("first", None)
            assert [got.get(timeout=WAIT_S) for _ in range(3)] == [1, 2, 3]
        assert [each._closed for each in app._producers] == [True, True]


def test_threads_share_one_producer(broker: BrokerProcess) -> None:
    app = Txmsg(broker.address, group="shop")
    ids: list[str] = []
    barrier = threading.Barrier(8)

    def send() -> None:
        barrier.wait()
        ids.append(app.send("t", 1))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 8
    (producer,) = app._producers
    assert isinstance(producer, Producer)
    producer.close()


@pytest.mark.parametrize("has_database", [False, True])
def test_an_application_sends_before_start_during_shutdown_and_after_it(
    txmsg_memory: Memory, tmp_path: Path, has_database: bool
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db") if has_database else None
    app = Txmsg("memory:", group="shop", database=engine)
    app.on_shutdown(lambda: app.send("t", "end"))
    app.send("t", "before")
    for _ in range(2):
        with app:
            pass
    app.send("t", "after")
    assert [each.json() for each in txmsg_memory.sent()] == ["before", "end", "end", "after"]
    with app:
        pass
    if engine is not None:
        engine.dispose()
