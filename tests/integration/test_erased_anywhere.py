"""Messages of erasable topics are stored as ciphertext in every table, and are not delivered once erased."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of, said
from tests.integration.client_harness import WAIT_S, collecting
from tests.waiting import until
from txmsg.client import Producer
from txmsg.message import Message, MessageId, ReceivedMessage, TransactionId, TransactionState, new_transaction_id
from txmsg.message.erasable import ERASED_HEADER
from txmsg.testing import Broker, MakeConsumer, MakeProducer

SECRET = b'{"name": "ann"}'
_STORED = """
select body from txmsg.message union all select body from txmsg.half_message union all select body from txmsg.scheduled
union all select body from txmsg.retry union all select body from txmsg.dead_letter
"""


def create(address: str, *options: str) -> None:
    said("topic", "create", "t", "--queues", "1", "--erasable", "90d", "--broker", address)
    if options:
        said("topic", "alter", "t", *options, "--broker", address)


def erase(address: str, id_: MessageId | TransactionId) -> None:
    said("message", "erase", "--topic", "t", str(id_), "--yes", "--broker", address)


def bodies(storage: str) -> list[bytes]:
    """Return all bodies in the tables of messages."""
    with psycopg.connect(storage, connect_timeout=10) as connection:
        return [body for (body,) in connection.execute(_STORED)]


def test_an_erasable_delayed_message_can_be_recalled_and_is_skipped_once_erased(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer
) -> None:
    create(txmsg_broker.address)
    producer, ward = txmsg_producer("clinic"), txmsg_consumer("ward")
    got: list[ReceivedMessage] = []
    ward.subscribe("t")(got.append)
    due = datetime.now(UTC) + timedelta(hours=1)
    kept, gone, back = (producer.send(Message("t", SECRET, deliver_at=due)) for _ in range(3))
    assert SECRET not in bodies(txmsg_broker.storage)
    erase(txmsg_broker.address, gone)
    assert producer.recall(back)
    with ward:
        txmsg_broker.delivered("ward", "t", 2, jump=True)
    assert [(message.id, message.body) for message in got] == [(kept, SECRET)]


def test_an_erased_dead_letter_is_skipped_when_redriven(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer
) -> None:
    create(txmsg_broker.address)
    producer, ward = txmsg_producer("clinic"), txmsg_consumer("ward")
    full = threading.Event()
    full.set()
    got: list[ReceivedMessage] = []

    @ward.subscribe("t")
    def admit(message: ReceivedMessage) -> None:
        if full.is_set():
            raise ValueError("no bed")
        got.append(message)

    kept, gone = (producer.send(Message("t", SECRET)) for _ in range(2))
    with ward:
        txmsg_broker.wait_until_idle("ward", dead=2, jump=True)
        assert SECRET not in bodies(txmsg_broker.storage)
        where = ("--group", "ward", "--broker", txmsg_broker.address)
        erase(txmsg_broker.address, gone)
        for id_, body in ((kept, SECRET.decode()), (gone, "")):
            [letter] = json_of("dead-letter", "show", id_, *where)["dead_letters"]
            assert letter["body"] == body
        full.clear()
        assert json_of("dead-letter", "redrive", *where) == {"redriven": 2}
        txmsg_broker.wait_until_idle("ward", jump=True)
    assert [(message.id, message.body) for message in got] == [(kept, SECRET)]


def test_an_erasure_during_a_handler_prevents_the_next_attempt(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer
) -> None:
    create(txmsg_broker.address)
    producer, ward = txmsg_producer("clinic"), txmsg_consumer("ward")
    got: list[bytes] = []

    @ward.subscribe("t")
    def admit(message: ReceivedMessage) -> None:
        erase(txmsg_broker.address, message.id)
        got.append(message.body)
        raise ValueError("no bed")

    producer.send(Message("t", SECRET))
    with ward:
        txmsg_broker.delivered("ward", "t", jump=True)
        txmsg_broker.wait_until_idle("ward", jump=True)
    assert got == [SECRET]


def test_an_erased_half_is_checked_without_body_and_skipped_after_commit(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer
) -> None:
    create(txmsg_broker.address)
    asked: list[ReceivedMessage] = []

    class Listener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            asked.append(message)
            return TransactionState.COMMIT

    producer, ward = txmsg_producer("clinic", Listener()), txmsg_consumer("ward")
    got: list[ReceivedMessage] = []
    ward.subscribe("t")(got.append)
    half = producer.half([Message("t", SECRET, key="ann")])
    erase(txmsg_broker.address, half.transaction_id)
    producer.end(half, TransactionState.UNKNOWN)
    with ward:
        txmsg_broker.delivered("ward", "t", jump=True)
    assert [(message.key, message.body, message.headers) for message in asked] == [("ann", b"", {ERASED_HEADER: "1"})]
    assert got == []


def test_erasable_messages_in_memory_are_ciphertext(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer
) -> None:
    create(txmsg_broker.address, "--durability", "memory")
    producer, ward = txmsg_producer("clinic"), txmsg_consumer("ward")
    got: list[ReceivedMessage] = []
    ward.subscribe("t")(got.append)
    kept, gone = (producer.send(Message("t", SECRET)) for _ in range(2))
    stored = bodies(txmsg_broker.storage)
    assert len(stored) == 2
    assert SECRET not in stored
    erase(txmsg_broker.address, gone)
    with ward:
        txmsg_broker.delivered("ward", "t", 2)
    assert [(message.id, message.body) for message in got] == [(kept, SECRET)]


@pytest.mark.long
def test_a_repeated_send_uses_the_key_of_a_broker_killed_before_storing(
    broker: BrokerProcess, notify_url: str, tmp_path: Path
) -> None:
    create(broker.address)
    id_ = new_transaction_id()
    done: list[object] = []

    def keys() -> list[tuple[bytes]]:
        with psycopg.connect(notify_url, connect_timeout=10) as connection:
            return connection.execute("select key from txmsg.body_key").fetchall()

    with Producer(broker.address, group="clinic", timeout_s=WAIT_S) as producer:
        sending = threading.Thread(
            target=lambda: done.append(producer.half([Message("t", SECRET)], transaction_id=id_))
        )
        with psycopg.connect(notify_url, connect_timeout=10) as holder:
            holder.execute("lock table txmsg.half_message in exclusive mode")
            sending.start()
            until(lambda: len(keys()) == 1, why="no key is stored")
            broker.kill()
            # A session that outlives the broker must not store the batch that waits for the lock.
            holder.execute(
                "select pg_terminate_backend(pid, 60000) from pg_stat_activity "
                "where datname = current_database() and application_name like 'txmsg%%'"
            )
        stored = keys()
        assert (len(stored), bodies(notify_url)) == (1, [])
        broker.start()
        sending.join(WAIT_S)
        [half] = done
        assert keys() == stored
        assert len(bodies(notify_url)) == 1
        producer.end(half, TransactionState.COMMIT)  # type: ignore[arg-type]
        with collecting(broker.address, "t") as got:
            assert got.get(timeout=WAIT_S).body == SECRET
