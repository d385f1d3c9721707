"""The life of messages with a journal: from a dead producer to redriven dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.cli_harness import json_of, said, store_half
from tests.waiting import until
from txmsg.administration.life import MessageLife, message_life
from txmsg.broker.store.connect import open_pool
from txmsg.broker.store.halves import HalfMessages
from txmsg.checker.listener import CheckMessageListener
from txmsg.checker.policy import ParkReason
from txmsg.client import AsyncProducer, Consumer, Producer
from txmsg.client.channel import Brokers
from txmsg.errors import OutcomeExpired
from txmsg.message import Message, ReceivedMessage, TransactionId, TransactionState, new_transaction_id
from txmsg.ops.cli.connections import asker
from txmsg.wire.v1.txmsg_pb2 import ClientFrame, Hello
from txmsg.wire.v1.txmsg_rpc import Notify

TOPIC = "order.placed"


class Committed(CheckMessageListener):
    """A listener that answers COMMIT."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


def lives(broker: BrokerProcess, which: str, topic: str = "") -> list[MessageLife]:
    return list(message_life(asker(broker.address), which, topic=topic).lives)


def life(broker: BrokerProcess, which: str) -> MessageLife:
    (one,) = lives(broker, which)
    return one


def happened(told: MessageLife, group: str, *wanted: tuple[str, int | None]) -> bool:
    """Return True if a group did this in this order. More may have happened: a lease may end on a busy machine."""
    events = iter((event.what, event.attempt) for event in told.events if event.group == group)
    return all(each in events for each in wanted)


def is_done(broker: BrokerProcess, which: str, group: str) -> bool:
    """Return True if the journal has the acknowledgement and the cursor is written."""
    told = life(broker, which)
    states = {each.group: each.state for each in told.groups}
    return states.get(group) == "done" and ("acknowledged", group) in {(each.what, each.group) for each in told.events}


async def park(notify_url: str, transaction_id: str) -> None:
    """Park halves, as a check loop does."""
    pool = open_pool(notify_url)
    async with pool:
        await HalfMessages(pool).park([TransactionId(UUID(transaction_id))], ParkReason.CHECKS_USED_UP)


def switch_on(broker: BrokerProcess, notify_url: str) -> None:
    """Switch the journal of the topic on, and return when the broker records deliveries."""
    where = ("--broker", broker.address)
    json_of("topic", "create", TOPIC, "--queues", "1", *where)
    assert json_of("topic", "alter", TOPIC, "--journal", "on", *where)["journal_since"] is not None
    got: list[str] = []
    consumer = Consumer(broker.address, group="probe")
    consumer.subscribe(TOPIC)(lambda message: got.append(message.id))
    with consumer, Producer(broker.address, group="probe") as producer:

        def is_noted() -> bool:
            id_ = producer.send(Message(TOPIC, b""))
            until(lambda: id_ in got)
            return any(event.what == "delivered" for event in life(broker, id_).events)

        until(is_noted)
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute("delete from txmsg.cursor using txmsg.consumer_group g where group_id = g.id")
        connection.execute("delete from txmsg.consumer_group")


async def test_a_pending_check_ends_when_its_transaction_is_decided(start_broker: StartBroker, notify_url: str) -> None:
    hours = ("--check-timeout-s", "3600", "--check-interval-s", "7200")
    broker = start_broker("--first-check-s", "0", *hours)
    await asyncio.to_thread(switch_on, broker, notify_url)
    brokers = Brokers([broker.address])
    hello = ClientFrame(hello=Hello(client_id="silent", producer_group="shop", checks_unfenced=True))
    silent = await brokers.channel(broker.address).stream(Notify.attach, hello, timeout_s=60)
    async with AsyncProducer(broker.address, group="shop") as shop:
        half = await shop.half([Message(TOPIC, b"x")])
        while (frame := await silent.receive()) is not None and not frame.HasField("check"):
            continue
        assert frame is not None
        await shop.end(half, TransactionState.COMMIT)
    id_ = str(UUID(bytes=frame.check.transaction_id))

    def is_ended() -> bool:
        return "decided meanwhile" in [event.detail for event in life(broker, id_).events if event.what == "check"]

    await asyncio.to_thread(until, is_ended)
    silent.close()
    await brokers.close()


def test_the_life_of_a_message_is_shown_from_half_message_to_last_acknowledgement(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "0.2", "--check-interval-s", "0.2")
    where = ("--broker", broker.address)
    switch_on(broker, notify_url)
    died = store_half(broker)  # its producer is not there any more
    tries: Counter[str] = Counter()
    with ExitStack() as stack:
        shop = stack.enter_context(Producer(broker.address, group="shop", check_listener=Committed()))
        until(lambda: life(broker, died).state == "stored")

        mail = Consumer(broker.address, group="mail")

        @mail.subscribe(TOPIC)
        def fails_once(message: ReceivedMessage) -> None:
            tries[message.id] += 1
            if message.key == "k1" and tries[message.id] == 1:
                raise RuntimeError("no route to host")

        stats = Consumer(broker.address, group="stats")
        stats.subscribe(TOPIC)(lambda _: None)
        stack.enter_context(mail)
        stack.enter_context(stats)
        until(lambda: is_done(broker, died, "mail") and is_done(broker, died, "stats"))

        delayed = shop.send(Message(TOPIC, b"2", key="later", deliver_after=timedelta(hours=1)))
        undone = shop.half([Message(TOPIC, b"3")])
        shop.end(undone, TransactionState.ROLLBACK)
    told = life(broker, died)
    assert (told.producer_group, told.decided_by, told.unknown) == ("shop", "check-back", [])
    assert told.events[0].what == "half"
    checks = [event for event in told.events if event.what == "check"]
    assert checks[-1].detail == "COMMIT"
    assert checks[-1].by is not None
    assert ("commit", "check-back") in [(event.what, event.by) for event in told.events]
    assert happened(told, "stats", ("delivered", 1), ("acknowledged", 1))
    first = (("delivered", 1), ("refused", 1), ("retry", None))
    assert happened(told, "mail", *first, ("delivered", 2), ("acknowledged", 2))
    assert ["no route to host" in (event.detail or "") for event in told.events if event.what == "refused"] == [True]
    retry = next(event for event in told.events if event.what == "retry")
    assert retry.at is not None
    assert retry.until is not None
    assert timedelta(seconds=0.5) < retry.until - retry.at < timedelta(seconds=2), "the first delay is a second"
    assert [event.at for event in told.events] == sorted(event.at for event in told.events if event.at)

    assert_told_of_others(broker, delayed, str(undone.transaction_id))
    shown = said("message", "trace", died, *where)
    assert "  checked back, attempt 1, group shop, by " in shown
    assert "not known" not in shown


def assert_told_of_others(broker: BrokerProcess, delayed: str, undone: str) -> None:
    """Check the lives of a delayed message, of a transaction rolled back by its client, and of an unknown one."""
    told = life(broker, "later")
    assert (told.id, told.state, told.decided_by) == (delayed, "scheduled", "sender")
    assert [event.what for event in told.events] == ["commit", "delayed"]
    told = life(broker, undone)
    assert (told.state, told.decided_by, told.producer_group) == ("rolled back", "client", "shop")
    assert [(event.what, event.journaled) for event in told.events] == [("half", True), ("rollback", True)]
    never = str(new_transaction_id())
    with pytest.raises(OutcomeExpired, match=f"'{never}' is unknown: it was never stored here"):
        life(broker, never)


def test_a_dead_letter_and_its_redrive_are_journaled_and_a_disabled_journal_is_reported(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker()
    where = ("--broker", broker.address)
    switch_on(broker, notify_url)
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute("insert into txmsg.consumer_group (name, retries_max) values ('strict', 0)")
    doubtful = store_half(broker)
    asyncio.run(park(notify_url, doubtful))
    said("half", "resume", doubtful, *where)
    assert [(event.what, event.by, event.detail) for event in life(broker, doubtful).events] == [
        ("half", None, None),
        ("parked", None, "checks used up"),
        ("resumed", "operator", None),
    ]

    is_mended: list[bool] = []
    consumer = Consumer(broker.address, group="strict")

    @consumer.subscribe(TOPIC)
    def handle(message: ReceivedMessage) -> None:
        if message.key == "bad" and not is_mended:
            raise RuntimeError("cannot parse")

    with consumer, Producer(broker.address, group="shop") as producer:
        bad = producer.send(Message(TOPIC, b"1", key="bad"))

        first = (("delivered", 1), ("refused", 1), ("dead", 1))
        until(lambda: happened(life(broker, bad), "strict", *first))
        is_mended.append(True)
        said("dead-letter", "redrive", "--group", "strict", *where)
        again = (("redriven", None), ("delivered", 1), ("acknowledged", 1))
        until(lambda: happened(life(broker, bad), "strict", *first, *again))
        said("topic", "alter", TOPIC, "--journal", "off", *where)
        told = life(broker, bad)
        assert [each.partition(":")[0] for each in told.unknown] == [
            "each delivery and acknowledgement, and who got it"
        ]
        assert "the journal is off" in told.unknown[0]
        assert told.journal_since is None
        assert happened(told, "strict", *first, *again), "what was journaled before is kept"
