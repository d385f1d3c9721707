"""Ordering keys and delays of clients, with real brokers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.errors_page import is_documented
from tests.integration.client_harness import WAIT_S, collecting, message_count
from txmsg.client import AsyncProducer, Producer
from txmsg.errors import InvalidMessage, MisuseError, OutcomeExpired
from txmsg.message import Message, MessageId, TransactionState, message_id, new_transaction_id

_HOUR = timedelta(hours=1)


def _pass(notify_url: str, hours: int) -> None:
    """Move all due times back, as if so much time had passed."""
    with psycopg.connect(notify_url, autocommit=True) as connection:
        connection.execute("update txmsg.scheduled set deliver_at = deliver_at - make_interval(hours => %s)", (hours,))


def _due(notify_url: str) -> dict[str, datetime]:
    with psycopg.connect(notify_url) as connection:
        rows: Iterable[tuple[object, int, datetime]] = connection.execute(
            "select transaction_id, n, deliver_at from txmsg.scheduled"
        ).fetchall()
    return {f"{transaction_id}.{n}": deliver_at for transaction_id, n, deliver_at in rows}


def test_delayed_messages_are_delivered_when_due(broker: BrokerProcess, notify_url: str) -> None:
    at = datetime.now(UTC) + 2 * _HOUR
    with Producer(broker.address, group="p") as producer, collecting(broker.address, "t") as got:
        plain = producer.send(Message("t", b"plain", deliver_at=at))
        sent_at = datetime.now(UTC)
        half = producer.half([Message("t", b"half", deliver_after=2 * _HOUR), Message("t", b"at once")])
        producer.end(half, TransactionState.COMMIT)
        assert got.get(timeout=WAIT_S).body == b"at once"
        due = _due(notify_url)
        assert due.keys() == {plain, message_id(half.transaction_id, 0)}
        assert due[plain] == at
        assert abs(due[message_id(half.transaction_id, 0)] - sent_at - 2 * _HOUR) < timedelta(minutes=1)
        soon = producer.send(Message("t", b"soon", deliver_after=timedelta(milliseconds=300)))
        message = got.get(timeout=WAIT_S)
        assert message.id == soon
        assert message.stored_at - message.born_at >= timedelta(milliseconds=299), "it came too early"
        past = producer.send(Message("t", b"past", deliver_at=datetime(1969, 1, 1, tzinfo=UTC)))
        assert got.get(timeout=WAIT_S).id == past


def test_a_starting_broker_delivers_messages_that_became_due(start_broker: StartBroker, notify_url: str) -> None:
    first = start_broker()
    with Producer(first.address, group="p") as producer:
        sent = producer.send(Message("t", b"x", deliver_after=_HOUR))
    first.kill()
    _pass(notify_url, 2)
    with collecting(start_broker().address, "t") as got:
        assert got.get(timeout=WAIT_S).id == sent


async def test_a_recalled_message_is_not_delivered(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="p") as producer:
        sent = producer.send(Message("t", b"x", deliver_after=_HOUR))
        entered = producer.send(Message("t", b"x"))
        assert producer.recall(sent)
        assert producer.recall(sent), "a repeat is answered alike"
        assert not producer.recall(entered)
        half = producer.half([Message("t", b"x", deliver_after=_HOUR)])
        with pytest.raises(MisuseError, match="is a half message") as undecided:
            producer.recall(message_id(half.transaction_id, 0))
        with pytest.raises(OutcomeExpired, match="is unknown: it was never stored") as unknown:
            producer.recall(message_id(new_transaction_id(), 0))
        with pytest.raises(InvalidMessage, match=r"not of the form UUID\.NUMBER"):
            producer.recall(MessageId("x"))
        producer.end(half, TransactionState.COMMIT)
        assert _due(notify_url).keys() == {message_id(half.transaction_id, 0)}
        assert message_count(notify_url) == 1

    async with AsyncProducer(broker.address, group="p") as asynchronous:
        assert await asynchronous.recall(message_id(half.transaction_id, 0))
    assert _due(notify_url) == {}
    assert is_documented(undecided.value)
    assert is_documented(unknown.value)


def test_a_delay_of_more_than_a_year_is_refused_and_others_are_sent(broker: BrokerProcess, notify_url: str) -> None:
    far = datetime.now(UTC) + timedelta(days=367)
    with Producer(broker.address, group="p") as producer:
        for message in (Message("t", b"", deliver_at=far), Message("t", b"", deliver_after=timedelta(days=400))):
            with pytest.raises(InvalidMessage, match="at most 366 are allowed") as caught:
                producer.send(message)
            assert is_documented(caught.value)
        sent = producer.send(Message("t", b"", deliver_after=timedelta(days=366)))
    assert _due(notify_url).keys() == {sent}


def test_messages_of_a_key_are_delivered_in_the_order_of_halves_through_two_brokers(
    start_broker: StartBroker, notify_url: str
) -> None:
    """An order is created, then paid, and the client of the first message is slow to send its outcome."""
    one, two = start_broker(), start_broker()
    with (
        Producer(one.address, group="p") as slow,
        Producer(two.address, group="p") as fast,
        collecting(two.address, "order") as got,
    ):
        created = slow.half([Message("order", b"created", ordering_key="4711")])
        paid = fast.half([Message("order", b"paid", ordering_key="4711")])
        fast.end(paid, TransactionState.COMMIT)
        fast.send(Message("order", b"shipped", ordering_key="4711"))
        fast.send(Message("order", b"other", ordering_key="4712"))
        assert got.get(timeout=WAIT_S).body == b"other"
        slow.end(created, TransactionState.COMMIT)
        came = [got.get(timeout=WAIT_S) for _ in range(3)]
    assert [message.body for message in came] == [b"created", b"paid", b"shipped"]
    assert [message.ordering_key for message in came] == ["4711"] * 3
    assert len({message.queue for message in came}) == 1
