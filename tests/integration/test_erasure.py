"""Erasable topics: bodies are stored as ciphertext, delivered decrypted, and unreadable once erased."""

from __future__ import annotations

import queue
import re
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.broker_process import BrokerProcess
from tests.integration.cli_harness import json_of, said
from tests.integration.client_harness import WAIT_S, collecting
from tests.waiting import until
from txmsg.broker.store.body_keys import drop_expired
from txmsg.broker.store.connect import upkeep_session
from txmsg.client import BodyKeys, Consumer, Producer
from txmsg.errors import DuplicateId, InvalidMessage
from txmsg.message import Message, ReceivedMessage, TransactionState, message_id, new_transaction_id
from txmsg.message.erasable import ERASED_HEADER, SEALED_HEADER
from txmsg.wire.headers import unpack_headers

SECRET = b'{"name": "ann"}'


def rows(notify_url: str, statement: str, *args: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        cursor = connection.execute(statement.encode(), args)
        return cursor.fetchall() if cursor.description else []


def stored_bodies(notify_url: str) -> list[bytes]:
    """Return all bodies in a table of messages."""
    tables = ("message", "half_message", "scheduled", "retry", "dead_letter")
    return [body for table in tables for (body,) in rows(notify_url, f"select body from txmsg.{table}")]


def create(broker: BrokerProcess, *options: str) -> None:
    said("topic", "create", "t", "--queues", "1", "--erasable", "90d", *options, "--broker", broker.address)


def erase(broker: BrokerProcess, *ids: str) -> list[tuple[int, int]]:
    results = json_of("message", "erase", "--topic", "t", *ids, "--yes", "--broker", broker.address)["messages"]
    return [(result["found"], result["erased"]) for result in results]


def found(broker: BrokerProcess, id_: str) -> tuple[str, dict[str, str]]:
    (message,) = json_of("message", "find", "--id", id_, "--bodies", "--broker", broker.address)["messages"]
    return message["body"], message["headers"]


def test_consumers_and_operators_read_decrypted_bodies_until_they_are_erased(
    broker: BrokerProcess, notify_url: str
) -> None:
    create(broker)
    with Producer(broker.address, group="clinic") as producer:
        plain = producer.send(Message("t", SECRET, key="ann", headers={"h": "1"}))
        half = producer.half([Message("t", SECRET, ordering_key="o")])
        assert SECRET not in stored_bodies(notify_url)
        producer.end(half, TransactionState.COMMIT)
        empty = producer.send(Message("t", b""))
        erased = producer.send(Message("t", SECRET, key="bob"))
        stored = stored_bodies(notify_url)
        assert len(set(stored)) == 4  # equal bodies do not look equal
        assert not any(SECRET in body for body in stored)
        assert found(broker, plain) == (SECRET.decode(), {"h": "1"})
        assert erase(broker, erased) == [(1, 1)]
        assert found(broker, erased) == ("", {ERASED_HEADER: "1"})
        with collecting(broker.address, "t") as got:
            first = [got.get(timeout=WAIT_S) for _ in range(3)]
            until(lambda: lag(broker) == 0, why="the erased message is not passed")
        assert {message.id for message in first} == {plain, message_id(half.transaction_id, 0), empty}
        assert {message.body for message in first} == {SECRET, b""}
        assert next(message.headers for message in first if message.id == plain) == {"h": "1"}
        assert got.empty()


def lag(broker: BrokerProcess) -> int:
    groups = json_of("topic", "show", "t", "--broker", broker.address)["groups"]
    return sum(group["waiting"] + group["retrying"] + group["dead"] for group in groups) if groups else -1


def test_an_erased_message_is_not_stored_again(broker: BrokerProcess) -> None:
    create(broker)
    transaction_id = new_transaction_id()
    with Producer(broker.address, group="clinic") as producer:
        messages = [Message("t", SECRET), Message("t", SECRET)]
        half = producer.half(messages, transaction_id=transaction_id)
        assert producer.half(messages, transaction_id=transaction_id) == half  # a repeat is recognised
        with pytest.raises(DuplicateId):
            producer.half([Message("t", b"other"), messages[1]], transaction_id=transaction_id)
        assert erase(broker, str(transaction_id)) == [(2, 2)]
        assert erase(broker, str(transaction_id)) == [(2, 0)]
        with pytest.raises(DuplicateId, match="erased since"):
            producer.half(messages, transaction_id=transaction_id)
        with pytest.raises(InvalidMessage, match="brokers' own"):
            producer.send(Message("t", SECRET, headers={SEALED_HEADER: "1"}))
        in_clear = producer.send(Message("u", SECRET))
    where = ("--broker", broker.address)
    refused = said("message", "erase", "--topic", "u", in_clear, "--yes", *where, status=1)
    assert f"topic 'u' has no key for {in_clear}" in refused
    assert "cannot keep keys of its bodies for 0 s" in said("topic", "alter", "t", "--erasable", "0", *where, status=1)
    assert "--erasable 1d" in said("topic", "create", "t", "--erasable", "1d", *where, status=1)


def test_retries_are_stored_as_ciphertext_and_skipped_once_erased(broker: BrokerProcess, notify_url: str) -> None:
    create(broker)
    seen: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="ward")

    @consumer.subscribe("t")
    def fail(message: ReceivedMessage) -> None:
        seen.put(message)
        raise ValueError("no bed")

    with Producer(broker.address, group="clinic") as producer, consumer:
        sent = producer.send(Message("t", SECRET))
        assert seen.get(timeout=WAIT_S).body == SECRET
        until(lambda: bool(rows(notify_url, "select 1 from txmsg.retry")), why="no retry is stored")
        (body,) = {bytes(body) for body in stored_bodies(notify_url)}
        assert SECRET not in body
        assert erase(broker, sent) == [(1, 1)]
        rows(notify_url, "update txmsg.retry set due_at = now()")
        until(lambda: not rows(notify_url, "select 1 from txmsg.retry"), why="the erased message is not passed")
        assert seen.empty()


def test_error_messages_of_erasable_topics_are_not_stored(broker: BrokerProcess, notify_url: str) -> None:
    create(broker)
    where = ("--broker", broker.address)
    said("topic", "alter", "t", "--journal", "on", *where)
    consumer = Consumer(broker.address, group="ward")

    @consumer.subscribe("t")
    def fail(message: ReceivedMessage) -> None:
        engine = create_engine("sqlite://")
        try:
            with engine.connect() as connection:
                connection.execute(text("insert into nowhere values (:name)"), {"name": message.body.decode()})
        finally:
            engine.dispose()

    with Producer(broker.address, group="clinic") as producer, consumer:
        sent = producer.send(Message("t", SECRET))
        until(lambda: bool(rows(notify_url, "select 1 from txmsg.retry")), why="no retry is stored")
        until(
            lambda: "REFUSED" in str(json_of("message", "trace", sent, *where)).upper(), why="no entry in the journal"
        )
        tables = rows(notify_url, "select quote_ident(tablename) from pg_tables where schemaname = 'txmsg'")
        assert len(tables) > 20
        kept = [line for (table,) in tables for (line,) in rows(notify_url, f"select t::text from txmsg.{table} t")]
        assert [line for line in kept if "OperationalError" in line]
        assert [line for line in kept if re.search(r"\bann\b", line)] == []
        (retry,) = json_of("group", "retries", "ward", *where)["retries"]
    first, frame, *_ = retry["last_error"].splitlines()
    assert first == "OperationalError: its words are not kept, as they may quote the body"
    assert frame.startswith("  at fail, ")


def test_a_check_listener_gets_the_decrypted_body(broker: BrokerProcess) -> None:
    create(broker)
    asked: queue.Queue[ReceivedMessage] = queue.Queue()

    class Listener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            asked.put(message)
            return TransactionState.COMMIT

    with Producer(broker.address, group="clinic", check_listener=Listener()) as producer:
        half = producer.half([Message("t", SECRET)])
        producer.end(half, TransactionState.UNKNOWN)
        checked = asked.get(timeout=WAIT_S)
    assert (checked.body, checked.headers) == (SECRET, {})


def test_readers_of_a_log_decrypt_with_keys_from_a_broker(broker: BrokerProcess, notify_url: str) -> None:
    create(broker)
    with Producer(broker.address, group="clinic") as producer:
        kept, gone = producer.send(Message("t", SECRET)), producer.send(Message("t", SECRET))
        in_clear = ReceivedMessage("u", b"clear")
    erase(broker, gone)
    stored = [
        ReceivedMessage("t", bytes(body), headers=unpack_headers(headers), id_bytes=each.bytes, n=n)
        for each, n, headers, body in rows(
            notify_url, "select transaction_id, n, headers, body from txmsg.message order by queue_offset"
        )
    ]
    assert [message.id for message in stored] == [kept, gone]
    keys = BodyKeys(broker.address)
    opened = keys.decrypt_all([*stored, in_clear])
    assert [message.body for message in opened] == [SECRET, b"", b"clear"]
    assert [message.headers for message in opened] == [{}, {ERASED_HEADER: "1"}, {}]
    assert keys.decrypt(stored[0]).body == SECRET


async def test_a_topic_in_use_can_become_erasable_and_its_keys_expire(broker: BrokerProcess, notify_url: str) -> None:
    where = ("--broker", broker.address)
    said("topic", "create", "t", "--queues", "1", *where)
    with Producer(broker.address, group="clinic") as producer:
        before = producer.send(Message("t", SECRET))
        settings = json_of("topic", "alter", "t", "--erasable", "1h", *where)
        assert settings["erasable_s"] == 3600
        during = producer.send(Message("t", SECRET))  # brokers that do not know yet may have to deliver it
        rows(notify_url, "update txmsg.topic set erasable_since = now(), version = version + 1")

        def is_sealed() -> bool:
            producer.send(Message("t", SECRET))
            return SECRET not in (bytes(body) for body in stored_bodies(notify_url)[-1:])

        until(is_sealed, why="bodies are not encrypted")
    assert found(broker, before)[0] == found(broker, during)[0] == SECRET.decode()
    ((last,),) = rows(notify_url, "select transaction_id from txmsg.message order by queue_offset desc limit 1")
    assert found(broker, f"{last}.0") == (SECRET.decode(), {})
    rows(notify_url, "update txmsg.body_key set expires_at = now() - interval '1 s' where transaction_id = %s", last)
    async with upkeep_session(notify_url) as connection:
        assert await drop_expired(connection) == 1
    assert found(broker, f"{last}.0") == ("", {ERASED_HEADER: "1"})
