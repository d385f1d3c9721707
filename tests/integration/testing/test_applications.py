"""Applications with the broker of a test: `txmsg_app`, and their behaviour while running and when stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from tests.ports import own_port
from txmsg.administration.notify import NotifyAdministration
from txmsg.client.app import Depends, Txmsg
from txmsg.consumer.failures import Reject, Retry
from txmsg.errors import BrokerUnavailable, MisuseError
from txmsg.message import Message, ReceivedMessage
from txmsg.message.typed.topic import Topic
from txmsg.metaq import Log, LogProducer
from txmsg.metrics.catalogue import ExportingProcess
from txmsg.metrics.figures import Figures
from txmsg.ops.cli.connections import asker
from txmsg.testing import Broker, MakeConsumer, MakeProducer, RunApp, broker_away, dies_before_commit, handler_fails


def greeting() -> str:
    return "hello"


def test_waiting_covers_messages_between_handlers_and_the_application_is_restored(txmsg_app: RunApp) -> None:
    app = Txmsg("localhost:1", group="all")
    producer = app.producer("p")
    seen: list[str] = []

    @app.subscribe("first", group="first")
    def pass_on(message: ReceivedMessage, said: Annotated[str, Depends(greeting)]) -> None:
        for n in range(5):
            producer.send(Message("second", f"{said} {n}".encode()))

    @app.subscribe("second", group="second")
    async def take(message: ReceivedMessage) -> None:
        seen.append(message.body.decode())

    @app.subscribe("never-sent-to")
    async def wait(message: ReceivedMessage) -> None: ...

    app.dependency_overrides[wait] = pass_on
    with txmsg_app(app, overrides={greeting: lambda: "bye"}) as running:
        producer.send(Message("first", b""))
        running.wait_until_idle()
        assert sorted(seen) == [f"bye {n}" for n in range(5)]
    assert (app.brokers, app.dependency_overrides) == ("localhost:1", {wait: pass_on})


def test_unexpected_dead_letters_fail_the_wait(txmsg_app: RunApp) -> None:
    app = Txmsg(group="g")
    producer = app.producer("p")

    @app.subscribe("t")
    def reject(message: ReceivedMessage) -> None:
        raise Reject("not valid")

    with txmsg_app(app) as running:
        producer.send(Message("t", b""))
        with pytest.raises(AssertionError, match="has 1 dead letters, 0 were expected"):
            running.wait_until_idle()
        running.wait_until_idle(dead=1)


async def test_a_locally_paused_group_gets_nothing_until_resumed(txmsg_app: RunApp, txmsg_broker: Broker) -> None:
    app = Txmsg()
    producer = app.async_producer("p")
    seen: dict[str, list[ReceivedMessage]] = {"paused": [], "other": []}
    for group, got in seen.items():
        app.subscribe("t", group=group)(_appends(got))
    async with txmsg_app(app) as running:
        await producer.send(Message("t", b""))
        await running.wait_until_idle_async()
        app.pause("paused")
        await producer.send_many([Message("t", b"") for _ in range(20)])
        await txmsg_broker.wait_until_idle_async("other")
        assert {group: len(got) for group, got in seen.items()} == {"paused": 1, "other": 21}
        app.resume("paused")
        await running.wait_until_idle_async()
        assert len(seen["paused"]) == 21
    assert _acknowledged(app) == 42  # counts are still reported after the end


async def test_a_group_stopped_by_one_process_is_stopped_in_all_until_started_again(
    txmsg_app: RunApp, txmsg_broker: Broker
) -> None:
    app, another = Txmsg(), Txmsg()
    producer = app.async_producer("p")
    seen: dict[str, list[ReceivedMessage]] = {"stopped": [], "other": []}
    for group, got in seen.items():
        app.subscribe("t", group=group)(_appends(got))
    another.subscribe("t", group="stopped")(_appends(seen["stopped"]))
    async with txmsg_app(app) as running, txmsg_app(another):
        await producer.send(Message("t", b""))
        await running.wait_until_idle_async()
        await app.stop_group("stopped")
        for begin_anew in (txmsg_broker.stop, txmsg_broker.start):  # rather than wait for its next poll
            await asyncio.to_thread(begin_anew)
        await producer.send_many([Message("t", b"") for _ in range(20)])
        await txmsg_broker.wait_until_idle_async("other")
        assert {group: len(got) for group, got in seen.items()} == {"stopped": 1, "other": 21}
        await another.start_group("stopped")
        await running.wait_until_idle_async()
        assert len(seen["stopped"]) == 21
    with pytest.raises(MisuseError, match="does not run"):
        await app.stop_group("stopped")


def _appends(got: list[ReceivedMessage]) -> Callable[[ReceivedMessage], Any]:
    async def take(message: ReceivedMessage) -> None:
        got.append(message)

    return take


def _acknowledged(app: Txmsg) -> float:
    figures = Figures(ExportingProcess.APPLICATION)
    app._put_figures(figures)
    (found,) = (
        values for metric, values in figures.series() if metric.name == "txmsg_client_acknowledged_messages_total"
    )
    return sum(value for value in found.values() if isinstance(value, int | float))


async def test_a_handler_that_closes_the_application_finishes_before_its_resources_close(txmsg_broker: Broker) -> None:
    app = Txmsg(txmsg_broker.address, group="g")
    producer = app.async_producer("p")
    seen: list[str] = []

    @app.subscribe("t")
    async def close(message: ReceivedMessage) -> None:
        await app.close()
        await asyncio.sleep(0.2)  # in which a close that does not wait for this handler would close its resources
        await producer.send(Message("after", b""))
        seen.append("handled")

    app.on_shutdown(lambda: seen.append("left"))
    async with asyncio.timeout(30):
        run = asyncio.create_task(app.run_async(started=(started := asyncio.Event()).set))
        await started.wait()
        await producer.send(Message("t", b""))
        await run
    assert seen == ["handled", "left"]
    assert len(txmsg_broker.messages("after")) == 1
    await app.close()


async def test_a_group_not_stopped_in_every_database_is_reported_with_their_brokers(
    txmsg_broker: Broker, txmsg_producer: MakeProducer
) -> None:
    away = f"127.0.0.1:{own_port()}"
    app = Txmsg(f"{txmsg_broker.address};{away}", group="g")
    app.subscribe("t")(_appends([]))
    administration = NotifyAdministration(asker(txmsg_broker.address))
    async with app:
        await asyncio.to_thread(txmsg_producer().send, Message("t", b""))
        await txmsg_broker.wait_until_idle_async("g")
        with pytest.raises(BrokerUnavailable, match=f"is not stopped in 1 of 2 Notify databases, of {away}: "):
            await app.stop_group("g")
        assert (await asyncio.to_thread(administration.show_group, "g")).settings.stopped


def test_a_sync_consumer_can_stop_its_group(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer
) -> None:
    consumer = txmsg_consumer("g")
    consumer.subscribe("t")(lambda message: None)
    with pytest.raises(MisuseError, match="start it first"):
        consumer.stop_group()
    consumer.start()
    txmsg_producer().send(Message("t", b""))
    txmsg_broker.wait_until_idle("g")
    administration = NotifyAdministration(asker(txmsg_broker.address))
    consumer.stop_group()
    assert administration.show_group("g").settings.stopped
    consumer.start_group()
    assert not administration.show_group("g").settings.stopped


def test_waiting_covers_log_handlers_and_messages_they_send(txmsg_app: RunApp, tmp_path: Path) -> None:
    app = Txmsg(log=tmp_path / "log", group="g")
    producer = app.producer("p")
    seen: list[bytes] = []

    @app.subscribe("first", source="log", retry=Retry(delays_s=[0.01]))
    def pass_on(message: ReceivedMessage) -> None:
        if message.attempt == 1:
            raise ValueError("not yet")
        producer.send(Message("second", message.body))

    @app.subscribe("second")
    def take(message: ReceivedMessage) -> None:
        seen.append(message.body)

    with Log(tmp_path / "log") as writer:
        LogProducer(writer).send_many([Message("first", b"1"), Message("first", b"2")])
        with txmsg_app(app) as running:
            running.wait_until_idle()
            assert sorted(seen) == [b"1", b"2"]


def test_unhandled_log_messages_are_listed_and_their_dead_letters_count(txmsg_app: RunApp, tmp_path: Path) -> None:
    app, go = Txmsg(log=tmp_path / "log", group="g"), threading.Event()

    @app.subscribe("t", source="log")
    def wait(message: ReceivedMessage) -> None:
        assert go.wait(60)
        raise Reject("not valid")

    with Log(tmp_path / "log") as writer, txmsg_app(app) as running:
        LogProducer(writer).send(Message("t", b""))
        with pytest.raises(AssertionError, match="topic 't': 1 committed, 0 acknowledged, 1 not yet handled"):
            running.wait_until_idle(timeout_s=0.1)
        go.set()
        with pytest.raises(AssertionError, match=r"has 1 dead letters, 0 were expected(?s:.*)not valid"):
            running.wait_until_idle()
        running.wait_until_idle(dead=1)


def test_faults_can_be_injected_into_an_application(txmsg_app: RunApp, txmsg_broker: Broker, tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    app = Txmsg(group="shop", database=engine)
    mailed: list[int] = []
    placed = Topic("order.placed", dict)

    @app.transactional_message("order.placed")
    def place(session: Session, order_id: int) -> None:
        session.execute(text("select 1"))

    @app.subscribe(placed, group="mailer", retry=Retry(delays_s=[0.01]))
    def mail(order: dict[str, Any]) -> None:
        mailed.append(order["order_id"])

    with txmsg_app(app) as running:
        with broker_away(app), pytest.raises(BrokerUnavailable):
            place(order_id=1)
        with dies_before_commit(app):
            place(order_id=2)
        with handler_fails(app, "order.placed", times=2):
            place(order_id=3)
            running.wait_until_idle()
        with pytest.raises(MisuseError, match=r"no handler for topic 'order\.paid'"):
            with handler_fails(app, "order.paid"):
                pass
    engine.dispose()
    assert mailed == [3]
