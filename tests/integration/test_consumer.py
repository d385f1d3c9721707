"""Consumers and the inbox with a real broker."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.business import business_database
from tests.effects import Effect, effects
from tests.integration.client_harness import WAIT_S, collecting, different, nothing_comes
from tests.waiting import until
from txmsg.checker.tables import create_tables, inbox_table
from txmsg.client import AsyncConsumer, AsyncProducer, Consumer, Producer, idempotent
from txmsg.client.fence import purge_inbox
from txmsg.client.receiving import epochs
from txmsg.errors import MisuseError
from txmsg.message import Message, ReceivedMessage


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with business_database(database_url, Effect.metadata) as engine:
        yield engine


@pytest.fixture
def producer(broker: BrokerProcess) -> Iterator[Producer]:
    with Producer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        yield producer


def test_every_group_gets_every_message_and_members_share_them(broker: BrokerProcess, producer: Producer) -> None:
    with (
        collecting(broker.address, "t", group="a") as first,
        collecting(broker.address, "t", group="a") as second,
        collecting(broker.address, "t", group="b") as other,
    ):
        ids = producer.send_many([Message("t", b"x") for _ in range(100)])
        assert different(other, 100) == set(ids)
        got: set[str] = set()
        deadline = time.monotonic() + WAIT_S
        while got != set(ids):
            assert time.monotonic() < deadline, f"only {len(got)} came"
            for each in (first, second):
                with suppress(queue.Empty):
                    got.add(each.get(timeout=0.05).id)
            assert got <= set(ids)


def test_only_subscribed_tags_are_delivered(broker: BrokerProcess, producer: Producer) -> None:
    with collecting(broker.address, "t", tag="a || b") as got:
        producer.send_many([Message("t", tag.encode(), tag=tag) for tag in "abc"])
        assert {got.get(timeout=WAIT_S).body, got.get(timeout=WAIT_S).body} == {b"a", b"b"}
        assert nothing_comes(got)


async def test_no_more_bytes_are_prefetched_than_allowed(broker: BrokerProcess) -> None:
    """At least one message is fetched; the next one is requested when it is settled."""
    running = most = 0
    left = 20
    done = asyncio.Event()
    consumer = AsyncConsumer(broker.address, group="g", prefetch_bytes=1)

    @consumer.subscribe("t")
    async def handle(_: ReceivedMessage) -> None:
        nonlocal running, most, left
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        left -= 1
        if not left:
            done.set()

    async with AsyncProducer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        await producer.send_many([Message("t", b"xy")] * left)
    async with consumer, asyncio.timeout(WAIT_S):
        await done.wait()
    assert most == 1


def test_the_message_of_a_handler_that_outlasts_close_is_redelivered(broker: BrokerProcess, producer: Producer) -> None:
    began, go_on = threading.Event(), threading.Event()
    consumer = Consumer(broker.address, group="c", close_timeout_s=0.2, visibility_timeout_s=2)

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        began.set()
        go_on.wait(WAIT_S)

    consumer.start()
    producer.send(Message("t", b"x"))
    assert began.wait(WAIT_S)
    consumer.close()
    with collecting(broker.address, "t", group="c") as got:
        assert got.get(timeout=WAIT_S).body == b"x"
    go_on.set()


async def test_a_consumer_closed_while_its_broker_is_silent_sends_nothing_more(broker: BrokerProcess) -> None:
    calls: list[int] = []

    try:
        handled = asyncio.Event()
        consumer = AsyncConsumer(broker.address, group="c", close_timeout_s=1)

        @consumer.subscribe("t")
        async def handle(message: ReceivedMessage) -> None:
            broker.pause()
            handled.set()

        async with AsyncProducer(broker.address, group="p", timeout_s=WAIT_S) as producer:
            await producer.send(Message("t", b"x"))
            await consumer.start()
            await asyncio.wait_for(handled.wait(), WAIT_S)
            await consumer.close()
            [shard] = consumer._shards
            [running] = shard.links._all()
            channel = running.link._poller.calls.channel
            channel.call = lambda *_, **__: calls.append(1)  # type: ignore[method-assign, assignment]
            await asyncio.sleep(0.2)  # a flush would come every 5 ms
            broker.resume()
    finally:
        broker.resume()
    assert calls == []


def test_a_consumer_survives_a_restart_of_its_broker(broker: BrokerProcess, producer: Producer) -> None:
    with collecting(broker.address, "t") as got:
        producer.send(Message("t", b"1"))
        assert got.get(timeout=WAIT_S).body == b"1"
        broker.restart(kill=True)
        producer.send(Message("t", b"2"))
        while (body := got.get(timeout=WAIT_S).body) != b"2":
            assert body == b"1", "whose acknowledgement died with the broker"


def test_run_stops_cleanly_on_sigterm(broker: BrokerProcess, producer: Producer) -> None:
    consumer = Consumer(broker.address, group="c")
    before = signal.getsignal(signal.SIGTERM)

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    producer.send(Message("t", b"x"))
    consumer.run()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_during_start_stops_run_cleanly(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first messages may have been handled by then."""
    consumer = Consumer(broker.address, group="c")
    consumer.subscribe("t")(print)
    start = consumer.start

    def start_and_interrupt() -> Consumer:
        start()
        signal.raise_signal(signal.SIGINT)
        return consumer

    monkeypatch.setattr(consumer, "start", start_and_interrupt)
    consumer.run()
    assert consumer._is_closed


def test_a_consumer_logs_its_subscriptions_and_its_pause(
    broker: BrokerProcess, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "txmsg")
    mended = threading.Event()
    consumer = Consumer(broker.address, group="c", concurrency=4)
    consumer.subscribe("u", "a || b")(print)

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        if not mended.is_set():
            raise ValueError("no stamps")

    def told(event: str) -> list[str]:
        records = [record for record in caplog.records if getattr(record, "txmsg", {}).get("event") == event]
        return [record.getMessage() for record in records]

    producer.send_many([Message("t", b"x") for _ in range(300)])
    with consumer:
        until(lambda: bool(told("consumer.paused")), why="the consumer did not tell of the pause")
        mended.set()
        until(lambda: bool(told("consumer.resumed")), why="the consumer did not tell of the end")
    assert told("consumer.started") == ["group c reads u (a || b), t, with up to 4 handlers at once"]
    assert told("consumer.paused") == [
        f"group c is paused at broker {broker.address}: everything fails, so it gets single messages until one is "
        "processed"
    ]
    assert len(told("consumer.resumed")) == len(told("consumer.stopped")) == 1
    assert f"group c is attached to broker {broker.address}" in told("attach.attached")


def test_a_repeated_message_has_its_effect_once(broker: BrokerProcess, producer: Producer, engine: Engine) -> None:
    """The handler's work commits, but its acknowledgement is lost: the message is delivered again."""
    seen: queue.Queue[int] = queue.Queue()
    consumer = Consumer(broker.address, group="c")

    @idempotent(sessionmaker(engine), group="c")
    def effect(session: Session, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        effect(message)
        seen.put(message.attempt)
        if message.attempt == 1:
            raise ValueError("dies after its commit")

    with consumer:
        sent = producer.send(Message("t", b"x"))
        assert [seen.get(timeout=WAIT_S), seen.get(timeout=WAIT_S)] == [1, 2]
    assert effects(engine) == {sent: 1}


def test_two_groups_in_one_database_have_their_own_effects(
    broker: BrokerProcess, producer: Producer, engine: Engine
) -> None:
    done: queue.Queue[str] = queue.Queue()
    consumers = [Consumer(broker.address, group=group) for group in ("a", "b")]
    for consumer in consumers:

        @consumer.subscribe("t")
        @idempotent(sessionmaker(engine))
        def handle(session: Session, message: ReceivedMessage) -> None:
            session.add(Effect(message_id=message.id))
            done.put(message.id)

    with consumers[0], consumers[1]:
        sent = producer.send(Message("t", b"x"))
        assert [done.get(timeout=WAIT_S), done.get(timeout=WAIT_S)] == [sent, sent]
    assert effects(engine) == {sent: 2}


def test_a_failed_handler_leaves_no_inbox_row(broker: BrokerProcess, producer: Producer, engine: Engine) -> None:
    done = threading.Event()
    consumer = Consumer(broker.address, group="c")

    @consumer.subscribe("t")
    @idempotent(sessionmaker(engine))
    def handle(session: Session, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))
        session.flush()
        if message.attempt == 1:
            raise ValueError("not yet")
        done.set()

    with consumer:
        sent = producer.send(Message("t", b"x"))
        assert done.wait(WAIT_S)
    assert effects(engine) == {sent: 1}


async def test_async_handlers_have_an_inbox(broker: BrokerProcess, engine: Engine) -> None:
    async_engine = create_async_engine(engine.url)
    sessions = async_sessionmaker(async_engine)
    consumer = AsyncConsumer(broker.address, group="c")
    again: asyncio.Queue[int] = asyncio.Queue()

    @idempotent(sessions, group="c")
    async def effect(session: AsyncSession, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))

    @consumer.subscribe("t")
    async def handle(message: ReceivedMessage) -> None:
        await effect(message)
        again.put_nowait(message.attempt)
        if message.attempt == 1:
            raise ValueError("dies after its commit")

    async with consumer, AsyncProducer(broker.address, group="p", timeout_s=WAIT_S) as producer:
        await producer.send(Message("t", b"x"))
        async with asyncio.timeout(WAIT_S):
            assert [await again.get(), await again.get()] == [1, 2]
    await async_engine.dispose()
    assert effects(engine).total() == 1


@pytest.mark.parametrize("dialect_name", ["postgresql", "mariadb"])
def test_groups_whose_names_differ_in_case_have_separate_inboxes(
    request: pytest.FixtureRequest, dialect_name: str
) -> None:
    url: str = request.getfixturevalue("mariadb_url" if dialect_name == "mariadb" else "database_url")
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    create_tables(engine)
    handled = []
    for group in ("mailer", "Mailer", "mailer", "MAILER"):

        @idempotent(sessionmaker(engine), group=group)
        def handle(session: Session, message: ReceivedMessage, group: str = group) -> None:
            handled.append(group)

        handle(ReceivedMessage("t", b"x"))
    assert handled == ["mailer", "Mailer", "MAILER"]
    engine.dispose()


def write_old_and_new_row(engine: Engine) -> None:
    with engine.begin() as connection:
        for number, age_days in enumerate((1, 30)):
            row = {"group_name": "g", "message_id": str(number), "generation": 0}
            handled_at = func.now() - func.make_interval(0, 0, 0, age_days)
            connection.execute(inbox_table.insert().values(**row, handled_at=handled_at))


def rows_left(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(inbox_table.c.message_id).order_by(inbox_table.c.message_id)))


def test_purging_removes_only_old_rows(engine: Engine) -> None:
    write_old_and_new_row(engine)
    assert purge_inbox(engine) == 1
    assert rows_left(engine) == ["0"]


def test_purging_on_a_connection_belongs_to_its_transaction(engine: Engine) -> None:
    write_old_and_new_row(engine)
    with engine.connect() as connection:
        assert purge_inbox(connection) == 1
        connection.rollback()
    assert rows_left(engine) == ["0", "1"]


async def test_purging_accepts_an_async_engine_or_its_connection(engine: Engine) -> None:
    write_old_and_new_row(engine)
    async_engine = create_async_engine(engine.url)
    async with async_engine.connect() as connection:
        assert await purge_inbox(connection) == 1
        await connection.rollback()
    assert await purge_inbox(async_engine) == 1
    await async_engine.dispose()
    assert rows_left(engine) == ["0"]


def test_purging_refuses_other_objects(engine: Engine) -> None:
    with pytest.raises(MisuseError, match=r"of type sessionmaker: give the Engine"):
        purge_inbox(sessionmaker(engine))  # type: ignore[arg-type]


def test_an_inbox_without_a_group_is_refused(engine: Engine) -> None:
    @idempotent(sessionmaker(engine))
    def handle(session: Session, message: ReceivedMessage) -> None: ...

    with pytest.raises(MisuseError, match=r"above @idempotent"):
        handle(None)  # type: ignore[arg-type]


def test_a_redelivered_message_of_another_generation_is_handled_again(engine: Engine) -> None:
    @idempotent(sessionmaker(engine), group="c")
    def handle(session: Session, message: ReceivedMessage) -> None:
        session.add(Effect(message_id=message.id))

    message = ReceivedMessage("t", b"x")
    for each in (message, message, message._replace(generation=1), message._replace(generation=1)):
        handle(each)
    assert effects(engine) == {message.id: 2}


def test_ordering_key_and_generation_reach_the_handler(
    broker: BrokerProcess, producer: Producer, notify_url: str
) -> None:
    got: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="c")

    @consumer.subscribe("t")
    def handle(message: ReceivedMessage) -> None:
        got.put(message)
        if message.attempt == 1:
            with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
                connection.execute(
                    "create or replace function txmsg.redelivered() returns trigger language plpgsql as "
                    "$$ begin new.generation := 2; new.ordering_key := 'k'; return new; end $$"
                )
                connection.execute(
                    "create or replace trigger redelivered before insert on txmsg.retry "
                    "for each row execute function txmsg.redelivered()"
                )
            raise ValueError("not yet")

    with consumer:
        producer.send(Message("t", b"x"))
        first, second = got.get(timeout=WAIT_S), got.get(timeout=WAIT_S)
    assert (first.ordering_key, first.generation) == (None, 0)
    assert (second.ordering_key, second.generation, second.attempt) == ("k", 2, 2)


def test_a_consumer_continues_after_promotion_of_a_standby_without_the_last_epochs(
    broker: BrokerProcess, notify_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "OUSTED_S_MAX", 0.0)
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute("update txmsg.lease_epoch set epoch = 1000")
        with (
            Producer(broker.address, group="shop", timeout_s=WAIT_S) as producer,
            collecting(broker.address, "t") as got,
        ):
            producer.send(Message("t", b"before"))
            assert got.get(timeout=WAIT_S).body == b"before"
            broker.stop()
            for table in ("lease_epoch", "queue_lease", "cursor"):
                connection.execute(f"update txmsg.{table} set epoch = 0".encode())
            broker.start()
            producer.send(Message("t", b"after"))
            assert got.get(timeout=WAIT_S).body == b"after"
