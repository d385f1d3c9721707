"""RocketMQ's own client for Python through the gateway, beside txmsg's own clients."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.rocketmq.gateway import GatewayProcess, running_gateway
from tests.rocketmq.programs import PYTHON
from txmsg import Consumer, Message, Producer, ReceivedMessage, TransactionState

_GOT_S_MAX = 240.0


@pytest.fixture
def gateway(broker: BrokerProcess, tmp_path: Path) -> Iterator[GatewayProcess]:
    with running_gateway(broker.address, log=tmp_path / "gateway.log") as gateway:
        yield gateway


def _with_topic(broker: BrokerProcess, topic: str = "orders") -> str:
    with Producer(broker.address, group="setup") as producer:
        producer.send(Message(topic, b"first"))
    return topic


def test_messages_of_rocketmq_and_txmsg_clients_are_equivalent(
    broker: BrokerProcess, gateway: GatewayProcess, tmp_path: Path
) -> None:
    _with_topic(broker)
    [sent] = PYTHON.play("send", gateway.address, "orders", home=tmp_path)
    got: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="mail")
    consumer.subscribe("orders", "paid || new 订单")(got.put)
    with consumer:
        message = got.get(timeout=_GOT_S_MAX)
    assert (message.body, message.tag, message.headers["region"]) == (b"hello", "new 订单", "eu")
    assert message.key in {"order-1", "user-7"}  # the first one, of a client that keeps them in a set
    assert f"01{message.id_bytes.hex().upper()}" == sent["id"]

    with Producer(broker.address, group="shop") as producer:
        own = producer.send(Message("orders", b"from txmsg", "key-9", "paid", {"a": "b"}, ordering_key="user-7"))
    received = PYTHON.play("receive", gateway.address, "orders", "both", "3", home=tmp_path)
    assert {each["body"] for each in received} == {"first", "hello", "from txmsg"}
    by_body = {each["body"]: each for each in received}
    of_rocketmq, of_txmsg = by_body["hello"], by_body["from txmsg"]
    assert of_rocketmq == {
        "id": sent["id"],
        "body": "hello",
        "tag": "new 订单",
        "keys": ["order-1", "user-7"],
        "group": None,
        "properties": {"region": "eu"},
        "attempt": 1,
    }
    assert of_txmsg["id"] == f"01{own.partition('.')[0].replace('-', '').upper()}"
    assert (of_txmsg["tag"], of_txmsg["keys"], of_txmsg["group"]) == ("paid", ["key-9"], "user-7")
    assert of_txmsg["properties"] == {"a": "b", "__SHARDINGKEY": "user-7"}


def test_simple_consumer_gets_batches_in_group_order(
    broker: BrokerProcess, gateway: GatewayProcess, tmp_path: Path
) -> None:
    bodies = [str(number) for number in range(20)]
    with Producer(broker.address, group="shop") as producer:
        for body in bodies:
            producer.send(Message("orders", body.encode(), ordering_key="user-7"))
    turns = PYTHON.play("receive_in_turns", gateway.address, "orders", "mail", str(len(bodies)), home=tmp_path)
    brought = [turn["bodies"] for turn in turns if turn["bodies"]]
    assert [body for turn in brought for body in turn] == bodies
    assert [len(turn) for turn in brought] == [16, 4]


def test_python_service_answers_the_check_back_of_a_rocketmq_client(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("--first-check-s", "1")

    class Listener:
        def check(self, message: ReceivedMessage) -> TransactionState:
            return TransactionState.COMMIT if message.body == b"in doubt" else TransactionState.UNKNOWN

    got: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(broker.address, group="mail")
    consumer.subscribe("orders")(got.put)
    with running_gateway(broker.address, log=tmp_path / "gateway.log") as gateway:
        _with_topic(broker)
        [left] = PYTHON.play("half", gateway.address, "orders", home=tmp_path)
        with Producer(broker.address, group="orders", check_listener=Listener()), consumer:
            by_body = {message.body: message for message in (got.get(timeout=_GOT_S_MAX), got.get(timeout=_GOT_S_MAX))}
    assert by_body.keys() == {b"first", b"in doubt"}
    assert f"01{by_body[b'in doubt'].id_bytes.hex().upper()}" == left["id"]
