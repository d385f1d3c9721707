"""`txmsg topic`: settings are changed and topics deleted while messages are in transit, without losing any."""

from __future__ import annotations

import contextlib
import queue
import time
from typing import Any

import psycopg
import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.errors_page import is_documented
from tests.integration.cli_harness import asked, json_of, said, store_half
from tests.integration.client_harness import WAIT_S, collecting, different, nothing_comes
from tests.integration.test_dead_letter_command import bury, processed
from tests.waiting import until
from txmsg.client import Producer
from txmsg.errors import MisuseError, TopicClosed, TopicExists, TxmsgError, UnknownTopic, WrongMessageType
from txmsg.message import Message, MessageId, ReceivedMessage, new_transaction_id
from txmsg.wire.blocking import BlockingChannel
from txmsg.wire.v1 import txmsg_pb2 as pb
from txmsg.wire.v1.txmsg_rpc import Notify


def shown(broker: BrokerProcess, name: str = "t") -> dict[str, Any]:
    found: dict[str, Any] = json_of("topic", "show", name, "--broker", broker.address)
    return found


def altered(broker: BrokerProcess, *options: str, name: str = "t") -> dict[str, Any]:
    found: dict[str, Any] = json_of("topic", "alter", name, *options, "--broker", broker.address)
    return found


def refused(broker: BrokerProcess, *args: str) -> str:
    """Return the error of `txmsg topic`; checks that nothing has changed."""
    before = shown(broker)
    text = said("topic", *args, "--broker", broker.address, status=1).removeprefix("Error: ").strip()
    assert is_documented(MisuseError(text)), text
    assert shown(broker) == before
    return text


def settle(notify_url: str) -> None:
    """Move the last change back, beyond the time in which brokers learn of it."""
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("update txmsg.topic set write_changed_at = now() - interval '11 s'")


def drained(broker: BrokerProcess) -> bool:
    return all(group["waiting"] == 0 for group in shown(broker)["groups"])


def test_segments_are_shown_with_the_number_of_messages_of_the_topic(broker: BrokerProcess, notify_url: str) -> None:
    with Producer(broker.address, group="shop") as producer:
        for body in (b"1", b"2", b"3"):
            producer.send(Message("t", body))
        producer.send(Message("other", b"4"))
        with psycopg.connect(notify_url, connect_timeout=10) as connection:
            connection.execute("select txmsg.rotate((select id from txmsg.segment where state = 'open'))")
        producer.send(Message("t", b"5"))
    segments = shown(broker)["segments"]
    assert [(each["id"], each["messages"], each["closed_at"] is None) for each in segments] == [
        (1, 3, False),
        (2, 1, True),
    ]
    titles = [line.split() for line in said("topic", "show", "t", "--broker", broker.address).splitlines()]
    assert ["Segment", "Opened", "at", "Closed", "at", "Messages"] in titles


def test_settings_are_shown_listed_and_changed_one_by_one(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    said("topic", "create", "t", "--queues", "4", *where)
    topic = shown(broker)
    queues = [{"number": n, "begin": 0, "end": 0} for n in range(4)]
    assert (topic["queues_kept"], topic["groups"], topic["halves"], topic["scheduled"]) == (queues, [], 0, 0)
    assert [(each["id"], each["messages"], each["closed_at"]) for each in topic["segments"]] == [(1, 0, None)]
    assert topic["retention_s"] == 7 * 86_400
    assert (topic["permission"], topic["durability"], topic["unread"]) == ("rw", "sync", "keep")
    settings = {key: topic[key] for key in altered(broker, "--queues", "4")}
    for options, changed in (
        (("--queues", "6"), {"queues": 6, "write_queues": 6, "read_queues": 6}),
        (("--permission", "r"), {"permission": "r"}),
        (("--durability", "async"), {"durability": "async"}),
        (("--unread", "drop"), {"unread": "drop"}),
        (("--send-rate", "2.5"), {"send_rate_max": 2.5}),
        (("--send-rate", "0", "--permission", "rw"), {"send_rate_max": None, "permission": "rw"}),
        (("--write-queues", "5"), {"write_queues": 5}),
        (("--queues", "8", "--unread", "keep"), {"queues": 8, "read_queues": 8, "unread": "keep"}),
    ):
        settings |= changed
        assert altered(broker, *options) == settings
    assert json_of("topic", "list", *where) == {"topics": [settings | {"kept": 0, "entered": 0}], "next": None}
    assert "durability" in said("topic", "alter", "t", "--durability", "sync", *where)
    assert "name what to change" in said("topic", "alter", "t", *where, status=2)
    text = said("topic", "alter", "nowhere", "--queues", "2", *where, status=1).removeprefix("Error: ").strip()
    assert is_documented(UnknownTopic(text)), text


def kinds(topic: str) -> dict[str, pb.SendRequest]:
    """Return a message of each type."""
    later = round((time.time() + 3600) * 1_000_000)
    fields: dict[str, dict[str, Any]] = {
        "normal": {},
        "fifo": {"ordering_key": ["k"]},
        "delay": {"deliver_at_us": [later]},
        "transaction": {"ordering_key": ["k"]},
    }
    return {
        kind: pb.SendRequest(
            group="shop",
            half=kind == "transaction",
            batches=[
                pb.MessageColumns(
                    topic=topic, transaction_id=new_transaction_id().bytes, body=[b"1"], born_at_us=[1], **columns
                )
            ],
        )
        for kind, columns in fields.items()
    }


def test_a_topic_of_one_message_type_refuses_others_until_it_allows_any(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    types = ("normal", "fifo", "delay", "transaction")

    def taken(name: str) -> set[str]:
        with BlockingChannel(broker.address) as channel:
            replies = {
                kind: channel.call(Notify.send, request, timeout_s=WAIT_S) for kind, request in kinds(name).items()
            }
        for reply in replies.values():
            assert {error.code for error in reply.errors} <= {"wrong_message_type"}
        return {kind for kind, reply in replies.items() if not reply.errors}

    for kind in types:
        assert json_of("topic", "create", kind, "--type", kind, *where)["created"]
        assert shown(broker, kind)["message_type"] == kind
        assert taken(kind) == {kind}
    assert not json_of("topic", "create", "fifo", *where)["created"]
    text = said("topic", "create", "fifo", "--type", "delay", *where, status=1).removeprefix("Error: ").strip()
    assert "exists for messages of type fifo: change that with `txmsg topic alter fifo --type delay`" in text
    assert is_documented(TopicExists(text)), text

    with Producer(broker.address, group="shop") as producer:
        refusal = (
            "'delay' takes messages of type delay, and this one is normal: .* `txmsg topic alter delay --type any`"
        )
        with pytest.raises(WrongMessageType, match=refusal) as refused:
            producer.send(Message("delay", b"1"))
        assert is_documented(refused.value)
        assert altered(broker, "--type", "any", name="delay")["message_type"] == "any"
        until(lambda: taken("delay") == set(types))
        producer.send(Message("delay", b"1"))


def test_topics_are_listed_in_pages_and_by_part_of_their_name(broker: BrokerProcess) -> None:
    where = ("--broker", broker.address)
    for name in ("Order.paid", "order.placed", "order.shipped", "user"):
        said("topic", "create", name, *where)
    with Producer(broker.address, group="shop") as producer:
        for _ in range(3):
            producer.send(Message("order.placed", b"1"))
    search = ("topic", "list", "--contains", "ORDER", "--limit", "2", *where)
    first = json_of(*search)
    assert [(topic["topic"], topic["kept"]) for topic in first["topics"]] == [("Order.paid", 0), ("order.placed", 3)]
    assert first["next"] == "order.placed"
    last = json_of(*search, "--page", first["next"])
    assert ([topic["topic"] for topic in last["topics"]], last["next"]) == (["order.shipped"], None)
    assert said("topic", "list", "--contains", "%", *where) == "no topics match\n"


def test_an_invalid_change_is_refused_and_changes_nothing(broker: BrokerProcess) -> None:
    said("topic", "create", "t", "--queues", "4", "--broker", broker.address)
    assert "which are never removed: lower --write-queues to 2" in refused(broker, "alter", "t", "--queues", "2")
    assert "write_queues 5 of topic 't': 1 to 4" in refused(broker, "alter", "t", "--write-queues", "5")
    text = refused(broker, "alter", "t", "--unread", "drop", "--read-queues", "2")
    assert "read_queues 2 must not be below write_queues 4" in text
    assert "cannot change while it accepts messages" in refused(broker, "alter", "t", "--ordered-queues", "2")
    assert "still accepts messages: run `txmsg topic alter t --permission none`" in refused(
        broker, "delete", "t", "--yes"
    )


def test_the_queues_of_a_topic_can_be_reduced_without_losing_messages(broker: BrokerProcess, notify_url: str) -> None:
    said("topic", "create", "t", "--queues", "4", "--broker", broker.address)
    with collecting(broker.address, "t", group="slow"):
        until(lambda: len(shown(broker)["groups"]) == 1)
    with Producer(broker.address, group="shop") as producer:
        sent = {producer.send(Message("t", b"%d" % n)) for n in range(40)}
    assert min(each["end"] for each in shown(broker)["queues_kept"]) > 0
    altered(broker, "--permission", "r")
    assert "brokers may still use the settings of topic 't' before" in refused(
        broker, "alter", "t", "--ordered-queues", "1"
    )
    settle(notify_url)
    text = refused(broker, "alter", "t", "--ordered-queues", "1")
    assert "cannot change before the queues from number 0 on are drained: group slow has 40 messages left" in text
    with collecting(broker.address, "t", group="slow") as got:
        assert different(got, len(sent)) == sent
    until(lambda: drained(broker))
    topic = altered(broker, "--ordered-queues", "1", "--write-queues", "1", "--permission", "rw")
    assert (topic["queues"], topic["write_queues"], topic["read_queues"], topic["ordered_queues"]) == (4, 1, 4, 1)
    assert "brokers may still use" in refused(broker, "alter", "t", "--read-queues", "1")
    settle(notify_url)
    ends = [each["end"] for each in shown(broker)["queues_kept"]]
    topic = altered(broker, "--read-queues", "1")
    assert (topic["write_queues"], topic["read_queues"]) == (1, 1)
    assert [each["end"] for each in shown(broker)["queues_kept"]] == ends


def test_read_queues_stay_while_halves_are_undecided_or_retries_wait_above(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "600")
    (id_,) = processed(broker, Message("t", b"1"))
    half = store_half(broker)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("update txmsg.half_message set queue = (select max(q.id) from txmsg.queue q "
                           "join txmsg.topic t on t.id = q.topic_id where t.name = 't')")  # fmt: skip
        connection.execute("update txmsg.topic set write_queues = 1, ordered_queues = 1")
    settle(notify_url)
    assert "1 halves are undecided" in refused(broker, "alter", "t", "--read-queues", "3")
    said("half", "rollback", half, "--yes", "--broker", broker.address)
    bury(notify_url, [id_], ordering_key="k", blocks_key=True)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("update txmsg.dead_letter set queue_id = (select max(q.id) from txmsg.queue q "
                           "join txmsg.topic t on t.id = q.topic_id where t.name = 't')")  # fmt: skip
    text = refused(broker, "alter", "t", "--read-queues", "3")
    assert "group collector has 0 messages left and 1 that hold back ordering keys" in text
    said("dead-letter", "purge", "--group", "collector", "--yes", "--broker", broker.address)
    until(lambda: drained(broker))
    assert altered(broker, "--read-queues", "3")["read_queues"] == 3


def test_a_topic_in_use_is_deleted_only_by_force_and_then_completely(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "600")
    where = ("--broker", broker.address)
    dead, _ = processed(broker, Message("order.placed", b"1"), Message("order.placed", b"2"))
    bury(notify_url, [dead])
    half = store_half(broker)
    altered(broker, "--permission", "none", name="order.placed")
    delete = ("topic", "delete", "order.placed", *where)
    assert "brokers may still use" in said(*delete, "--yes", status=1)
    settle(notify_url)
    assert "1 halves are undecided, group collector has " in said(*delete, "--dry-run", status=1)
    dry = json_of(*delete, "--dry-run", "--force")
    assert (dry["messages"], dry["halves"], dry["dry_run"]) == (2, 1, True)
    assert dry["unread"].keys() == {"collector"}
    assert "nothing has changed" in said(*delete, "--dry-run", "--yes", "--force")
    assert "delete topic order.placed with 2 messages in 4 queues, for good?" in asked(*delete, "--force")
    text = said(*delete, "--yes", status=1).removeprefix("Error: ").strip()
    assert "1 halves are undecided, group collector has " in text
    assert " and 1 dead letters; --force deletes all of it" in text
    assert is_documented(MisuseError(text)), text
    assert said(*delete, "--yes", "--force") == "topic order.placed deleted\n"
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        for table in ("topic", "queue", "cursor", "dead_letter", "half_message"):
            assert connection.execute(f"select count(*) from txmsg.{table}".encode()).fetchone() == (0,), table
        rolled_back = connection.execute("select transaction_id::text from txmsg.rolled_back").fetchall()
    assert rolled_back == [(half,)], "a late commit of its client is refused, not forgotten"
    assert "is unknown" in said(*delete, "--yes", status=1)


def test_a_topic_with_undecided_transactions_in_other_topics_cannot_be_deleted(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "600")
    store_half(broker, count=2)
    said("topic", "create", "t", "--broker", broker.address)
    with psycopg.connect(notify_url, connect_timeout=10) as connection:
        connection.execute("update txmsg.half_message set queue = (select min(q.id) from txmsg.queue q "
                           "join txmsg.topic t on t.id = q.topic_id where t.name = 't') where n = 0")  # fmt: skip
    altered(broker, "--permission", "none")
    settle(notify_url)
    text = refused(broker, "delete", "t", "--force", "--yes")
    assert "1 undecided transactions have messages for other topics, too" in text


def test_a_deleted_topic_is_recreated_by_the_next_send_and_read_by_waiting_consumers(
    broker: BrokerProcess, notify_url: str
) -> None:
    where = ("--broker", broker.address)
    with Producer(broker.address, group="shop") as producer, collecting(broker.address, "t") as got:
        old = producer.send(Message("t", b"old"))
        assert got.get(timeout=WAIT_S).id == old
        until(lambda: drained(broker))
        altered(broker, "--permission", "none")
        until(lambda: is_closed(producer))
        settle(notify_url)
        said("topic", "delete", "t", "--yes", "--force", *where)  # the consumer recreates it at once
        new = sent_when_open(producer)
        while got.get(timeout=WAIT_S).id != new:
            pass  # one that was sent before the topic was closed
    topic = shown(broker)
    assert (topic["permission"], sum(each["end"] for each in topic["queues_kept"])) == ("rw", 1)


def test_a_send_to_a_deleted_topic_is_refused_without_auto_create(start_broker: StartBroker, notify_url: str) -> None:
    broker = start_broker("--no-topic-auto-create")
    said("topic", "create", "t", "--broker", broker.address)
    with Producer(broker.address, group="shop") as producer:
        producer.send(Message("t", b"1"))
        altered(broker, "--permission", "r")
        until(lambda: is_closed(producer))
        settle(notify_url)
        said("topic", "delete", "t", "--yes", "--broker", broker.address)
        until(lambda: refusal(producer) is UnknownTopic)
        said("topic", "create", "t", "--broker", broker.address)
        sent_when_open(producer)


def test_messages_of_an_unreadable_topic_wait_until_it_is_readable_again(broker: BrokerProcess) -> None:
    with Producer(broker.address, group="shop") as producer, collecting(broker.address, "t") as got:
        first = producer.send(Message("t", b"1"))
        assert got.get(timeout=WAIT_S).id == first
        altered(broker, "--permission", "w")
        until(lambda: nothing_of(producer, got))
        later = producer.send(Message("t", b"2"))
        assert nothing_comes(got)
        altered(broker, "--permission", "rw")
        waiting = set()
        while later not in waiting:
            waiting.add(got.get(timeout=WAIT_S).id)


def refusal(producer: Producer) -> type[Exception] | None:
    try:
        producer.send(Message("t", b"x"))
    except TxmsgError as exc:
        return type(exc)
    return None


def is_closed(producer: Producer) -> bool:
    return refusal(producer) is TopicClosed


def nothing_of(producer: Producer, got: queue.Queue[ReceivedMessage]) -> bool:
    """Return True if a message sent now is not delivered; removes earlier ones."""
    while not got.empty():
        got.get()
    producer.send(Message("t", b"x"))
    return nothing_comes(got)


def sent_when_open(producer: Producer) -> MessageId:
    """Return the id of a message that is sent as soon as the topic accepts messages."""
    sent: list[MessageId] = []

    def send() -> bool:
        with contextlib.suppress(TopicClosed, UnknownTopic):
            sent.append(producer.send(Message("t", b"new")))
        return bool(sent)

    until(send)
    return sent[0]
