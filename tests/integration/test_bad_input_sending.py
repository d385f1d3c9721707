"""Bad input on its way to a real broker: refused by name, with nothing half done and no harm to its neighbours."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.errors_page import is_documented
from tests.integration.client_harness import WAIT_S, collecting, counts, half_count, message_count, waited_for
from txmsg.checker.fence import FenceCheckListener
from txmsg.checker.tables import create_tables
from txmsg.client import AsyncProducer, Half, Producer, transactional_message
from txmsg.errors import (
    DuplicateId,
    InvalidMessage,
    MessageTooLarge,
    MisuseError,
    OutcomeConflict,
    OutcomeExpired,
    OutcomeUnknown,
    TopicExists,
    TxmsgError,
    UnknownTopic,
)
from txmsg.message import Message, TransactionState, new_transaction_id
from txmsg.ops.cli.main import main

BODY_SIZE_BYTES_MAX = 1000
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@pytest.fixture(scope="module")
def notify_url(postgres: PostgresServer, notify_template: str) -> Iterator[str]:
    """A Notify database shared by the tests of this file, which name their own topics and groups."""
    yield postgres.create_database("bad_input", template=notify_template)
    postgres.drop_database("bad_input")


@pytest.fixture(scope="module")
def broker(notify_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that creates no topics and accepts only small bodies; `known` is a topic."""
    options = ("--no-topic-auto-create", "--body-size-max", str(BODY_SIZE_BYTES_MAX), "--first-check-s", "600")
    with BrokerProcess(notify_url, *options, log=tmp_path_factory.mktemp("broker") / "log") as broker:
        topic(broker, "create", "known")
        yield broker
    assert "Traceback" not in broker.log.read_text()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'business.db'}")
    create_tables(engine)
    with engine.begin() as connection:
        connection.execute(text("create table orders (id text)"))
    yield engine
    engine.dispose()


@pytest.fixture
def producer(broker: BrokerProcess, engine: Engine) -> Iterator[Producer]:
    with Producer(
        broker.address, group="shop", timeout_s=WAIT_S, check_listener=FenceCheckListener(engine)
    ) as producer:
        yield producer


def topic(broker: BrokerProcess, *args: str) -> str:
    """Run `txmsg topic` in this process and return its output or error."""
    result = CliRunner().invoke(main, ["topic", *args, "--broker", broker.address])
    return result.output


def orders(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("select count(*) from orders")).scalar_one())


def refused(kind: type[TxmsgError], words: str, use: Callable[..., object], *args: object, **kwargs: object) -> None:
    with pytest.raises(TxmsgError) as caught:
        use(*args, **kwargs)
    assert type(caught.value) is kind, repr(caught.value)
    assert words in str(caught.value)
    assert is_documented(caught.value), str(caught.value)


# ---- topics


def test_an_unknown_topic_is_refused_with_the_command_that_creates_it(
    broker: BrokerProcess, producer: Producer
) -> None:
    name = f"t-{uuid4()}"
    refused(UnknownTopic, f"`txmsg topic create {name}`, or check the spelling", producer.send, Message(name, b"x"))
    assert topic(broker, "create", name, "--queues", "2") == f"topic {name} created, with 2 queues\n"
    assert producer.send(Message(name, b"x"))


def test_topics_can_be_created_twice_but_keep_their_queues(broker: BrokerProcess) -> None:
    name = f"t-{uuid4()}"
    assert json.loads(topic(broker, "create", name, "--json"))["created"]
    assert topic(broker, "create", name) == f"topic {name} existed already, with 4 queues\n"
    error = topic(broker, "create", name, "--queues", "8")
    assert f"topic '{name}' exists with 4 queues, not 8" in error
    assert f"raise the number with `txmsg topic alter {name} --queues 8`" in error
    assert is_documented(TopicExists(error.removeprefix("Error: ").strip()))
    error = topic(broker, "create", name, "--queues", "2")
    assert f"topic '{name}' exists with 4 queues, not 2: use it as it is, or choose another name" in error
    assert "topic 'a b' is not a valid name: it holds ' '" in topic(broker, "create", "a b")


def test_topics_are_listed_by_name_up_to_a_limit(broker: BrokerProcess) -> None:
    for name in ("list.b", "list.a"):
        topic(broker, "create", name)
    listed = json.loads(topic(broker, "list", "--json"))
    names = [each["topic"] for each in listed["topics"]]
    assert names == sorted(names)
    assert {"list.a", "list.b", "known"} <= set(names)
    assert listed["next"] is None
    assert "only the first 1: go on with --page known" in topic(broker, "list", "--limit", "1")


# ---- neighbours


async def test_an_invalid_message_does_not_affect_others_of_its_batch(broker: BrokerProcess) -> None:
    large = b"x" * (BODY_SIZE_BYTES_MAX + 1)

    async with AsyncProducer(broker.address, group="crowd", timeout_s=WAIT_S) as producer:
        sends = [
            producer.send(message)
            for good in (Message("known", b"x" * BODY_SIZE_BYTES_MAX), Message("known", b""))
            for message in (good, Message("nowhere", b"x"), good, Message("known", large), good)
        ]
        results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(result) for result in results] == [str, UnknownTopic, str, MessageTooLarge, str] * 2
    assert f"body of 1001 bytes for topic 'known' is over the limit of {BODY_SIZE_BYTES_MAX}" in str(results[3])
    assert "start the brokers with a higher --body-size-max" in str(results[3])
    assert all(is_documented(result) for result in results if isinstance(result, Exception))


def test_one_invalid_message_refuses_its_whole_transaction(producer: Producer, notify_url: str) -> None:
    before = message_count(notify_url), half_count(notify_url)
    mixed = [Message("known", b"1"), Message("nowhere", b"2")]
    refused(UnknownTopic, "topic 'nowhere' is unknown", producer.send_many, mixed)
    refused(UnknownTopic, "topic 'nowhere' is unknown", producer.half, mixed)
    refused(MessageTooLarge, "1001 bytes", producer.half, [Message("known", b""), Message("known", b"x" * 1001)])
    assert (message_count(notify_url), half_count(notify_url)) == before


def test_an_id_reused_with_different_content_changes_nothing(producer: Producer) -> None:
    half = producer.half([Message("known", b"first")])
    refused(
        DuplicateId,
        "was stored before with another content",
        producer.half,
        [Message("known", b"second")],
        transaction_id=half.transaction_id,
    )
    producer.end(half, ROLLBACK)


# ---- decorated functions


BAD_CALLS: dict[str, tuple[Any, type[TxmsgError], str]] = {
    "bytes": (b"\xff", InvalidMessage, "is a bytes that JSON cannot represent (there is no JSON for bytes)"),
    "a set": ({1}, InvalidMessage, "is a set that JSON cannot represent (there is no JSON for set)"),
    "an object in a list": (
        [object()],
        InvalidMessage,
        "is a list that JSON cannot represent (there is no JSON for object)",
    ),
    "not a number": (float("nan"), InvalidMessage, "is a float that JSON cannot represent (Out of range float"),
    "infinity": ({"a": float("inf")}, InvalidMessage, "is a dict that JSON cannot represent (Out of range float"),
    "a complex number": (1j, InvalidMessage, "is a complex that JSON cannot represent"),
    "a lone surrogate": (
        "\udce9",
        InvalidMessage,
        "is a str that JSON cannot represent (it holds the lone surrogate '\\udce9'",
    ),
    "a dict with odd keys": ({(1, 2): 3}, InvalidMessage, "is a dict that JSON cannot represent (keys must be str"),
    "an endless number": (10**5000, InvalidMessage, "is an int that JSON cannot represent (Exceeds the limit"),
    "a large body": ("x" * 2000, MessageTooLarge, f"over the limit of {BODY_SIZE_BYTES_MAX}"),
}


@pytest.mark.parametrize("bad", BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_call_whose_message_is_invalid_does_not_run(
    producer: Producer, engine: Engine, notify_url: str, bad: tuple[Any, type[TxmsgError], str]
) -> None:
    content, kind, words = bad
    before = counts(notify_url)
    ran = []

    @transactional_message(producer, topic="known", key="order_id", session=sessionmaker(engine))
    def place(session: Session, order_id: UUID, content: object) -> None:
        ran.append(content)
        session.execute(text("insert into orders values (:id)"), {"id": str(order_id)})

    with pytest.raises(TxmsgError) as caught:
        place(uuid4(), content)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert kind is MessageTooLarge or f"argument 'content' of {place.__qualname__}() is a" in str(caught.value)
    assert is_documented(caught.value)
    assert ran == []
    assert counts(notify_url) == before
    place(uuid4(), {"price": Decimal("1.10")})  # the same function, session factory and producer continue to work
    assert ran == [{"price": Decimal("1.10")}]
    assert (orders(engine), *counts(notify_url)) == (1, 0, before[1] + 1)


def test_a_key_that_has_no_text_or_too_much_refuses_the_call(producer: Producer, engine: Engine) -> None:
    @transactional_message(producer, topic="known", key="order", session=sessionmaker(engine))
    def place(session: Session, order: object) -> None:
        raise AssertionError("must not run")

    refused(InvalidMessage, "is a float, which has no short text form", place, 1.5)
    refused(InvalidMessage, "is an int, which has no short text form", place, 10**1000)
    with pytest.raises(InvalidMessage, match="is 513 bytes long in UTF-8: at most 512"):
        place("x" * 513)


@pytest.mark.parametrize(
    ("built", "kind", "words"),
    [
        (None, MisuseError, "returned None of type NoneType: return the body as bytes, a Message, or a list"),
        ("text", MisuseError, "returned 'text' of type str"),
        ([], MisuseError, "returned no message: give one"),
        ([Message("known", b""), "x"], MisuseError, "returned 'x' of type str"),
        (Message("nowhere", b""), UnknownTopic, "topic 'nowhere' is unknown"),
    ],
    ids=repr,
)
def test_a_builder_that_returns_no_message_refuses_the_call(
    producer: Producer, engine: Engine, built: Any, kind: type[TxmsgError], words: str
) -> None:
    @transactional_message(producer, topic="known", session=sessionmaker(engine), message=lambda order: built)
    def place(session: Session, order: int) -> None:
        raise AssertionError("must not run")

    refused(kind, words, place, 1)


def test_a_late_transaction_with_an_invalid_message_is_rolled_back(
    producer: Producer, engine: Engine, notify_url: str
) -> None:
    before = counts(notify_url)
    for bad in (Message("nowhere", b""), Message("known", b"x" * 1001), "no message"):
        with sessionmaker(engine)() as session, pytest.raises(TxmsgError) as caught:
            place_late(producer, session, bad)
        assert is_documented(caught.value), str(caught.value)
    assert (orders(engine), *counts(notify_url)) == (0, *before)


def place_late(producer: Producer, session: Session, message: Any) -> None:
    with producer.transaction(session) as tx:
        session.execute(text("insert into orders values ('1')"))
        tx.send(Message("known", b"good"))
        tx.send(message)


# ---- outcomes


def test_a_conflicting_or_unknown_outcome_is_refused(producer: Producer) -> None:
    committed, rolled_back = producer.half([Message("known", b"")]), producer.half([Message("known", b"")])
    producer.end(committed, COMMIT)
    producer.end(rolled_back, ROLLBACK)
    unknown = Half(new_transaction_id().bytes, committed.shard)
    refused(
        OutcomeConflict,
        f"{rolled_back.transaction_id} already has the other outcome, which is final: it is rolled back",
        producer.end,
        rolled_back,
        COMMIT,
    )
    refused(
        OutcomeConflict,
        f"{committed.transaction_id} already has the other outcome, which is final: it is committed",
        producer.end,
        committed,
        ROLLBACK,
    )
    refused(OutcomeExpired, f"{unknown.transaction_id} is not known", producer.end, unknown, COMMIT)
    refused(OutcomeExpired, f"{unknown.transaction_id} is not known", producer.end, unknown, ROLLBACK)
    for half in (committed, rolled_back, unknown):
        producer.end(half, UNKNOWN)  # UNKNOWN has no effect
    elsewhere = Half(committed.id_bytes, uuid4().bytes)
    refused(InvalidMessage, "send their outcomes to a broker of their own database", producer.end, elsewhere, COMMIT)


def decide_meanwhile(notify_url: str, transaction_id: UUID, how: str) -> None:
    """Decide a half message, as an operator or retention would, while its local transaction runs."""
    with psycopg.connect(notify_url, autocommit=True, connect_timeout=10) as connection:
        connection.execute("delete from txmsg.half_message where transaction_id = %s", (transaction_id,))
        if how == "rolled back":
            connection.execute(
                "insert into txmsg.rolled_back (segment, transaction_id) select id, %s from txmsg.segment "
                "where state = 'open'",
                (transaction_id,),
            )


@pytest.mark.parametrize("how", ["rolled back", "expired"])
def test_a_refused_commit_is_logged_as_an_error_and_the_call_succeeds(
    producer: Producer, engine: Engine, notify_url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def halves() -> set[UUID]:
        with psycopg.connect(notify_url, connect_timeout=10) as connection:
            return {row[0] for row in connection.execute("select transaction_id from txmsg.half_message")}

    before = halves()
    mine: list[UUID] = []

    @transactional_message(producer, topic="known", session=sessionmaker(engine), wait=True)
    def place(session: Session, order_id: str) -> str:
        session.execute(text("insert into orders values (:id)"), {"id": order_id})
        mine.extend(halves() - before)
        decide_meanwhile(notify_url, mine[0], how)
        return "done"

    assert place("1") == "done"
    assert orders(engine) == 1
    [record] = [record for record in caplog.records if str(mine[0]) in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert f"transaction {mine[0]} COMMITTED in its own database, but the broker" in record.getMessage()
    assert ("LOST" if how == "rolled back" else "does not know it") in record.getMessage()


def test_a_conflict_reported_after_the_caller_left_is_logged(
    broker: BrokerProcess, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    halves = [producer.half([Message("known", b"")]) for _ in range(3)]
    for half in halves:
        producer.end(half, ROLLBACK)
    broker.pause()
    try:
        with pytest.raises(OutcomeUnknown, match=r"no answer within 0\.01 s; it is still being tried"):
            producer.end(halves[0], COMMIT, timeout_s=0.01)
        producer._end_soon(halves[1], COMMIT)
    finally:
        broker.resume()
    refused(OutcomeConflict, "already has the other outcome", producer.end, halves[2], COMMIT)
    for half in halves[:2]:
        waited_for(caplog, f"transaction {half.transaction_id} COMMITTED")
    assert f"transaction {halves[2].transaction_id} COMMITTED" not in caplog.text  # its caller was told


# ---- receiving


def test_a_consumer_of_an_unknown_topic_logs_an_error_and_receives_when_it_exists(
    broker: BrokerProcess, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"t-{uuid4()}"
    with collecting(broker.address, name, group="early") as got:
        while not (errors := [record for record in caplog.records if record.levelno == logging.ERROR]):
            with pytest.raises(TxmsgError):
                producer.send(Message(name, b"early"))
        assert f"create it with `txmsg topic create {name}`" in errors[0].getMessage()
        assert "group early gets nothing from broker" in errors[0].getMessage()
        topic(broker, "create", name)
        producer.send(Message(name, b"x"))
        assert got.get(timeout=WAIT_S).body == b"x"
