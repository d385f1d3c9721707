"""SQL filters of RocketMQ consumers: delivered messages, and settlement of the others for the group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.answered_brokers import AnsweredBrokers
from tests.broker_process import BrokerProcess
from txmsg import Message, Producer, ReceivedMessage
from txmsg.administration.notify import NotifyAdministration
from txmsg.client.channel import Brokers
from txmsg.ops.cli.connections import asker
from txmsg.rocketmq.filters import Wanted, wanted_of
from txmsg.rocketmq.ids import Handle
from txmsg.rocketmq.receivers import ClientSubscription, Receivers
from txmsg.rocketmq.sql92 import Filter
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb
from txmsg.wire.method import Method
from txmsg.wire.v1.txmsg_pb2 import DeliveredColumns, Receipt, ReceiveReply, ReceiveRequest

_WAIT_S = 60.0


async def test_messages_rejected_by_a_filter_are_settled_for_their_group(broker: BrokerProcess) -> None:
    brokers = Brokers([broker.address])
    tasks = Tasks()
    receivers = Receivers(brokers, tasks)

    async def receive(group: str, wanted: Wanted, wait_s: float = _WAIT_S) -> list[tuple[ReceivedMessage, Handle]]:
        received = await receivers.receive(
            ClientSubscription(group, "client", "orders"),
            broker.address,
            wanted,
            count=5,
            wait_s=wait_s,
            invisible_s=60,
            renews=True,
        )
        return received.messages

    dear = wanted_of(pb.FilterExpression(type=pb.SQL, expression="price > 20 AND TAGS = 'new'"))
    with Producer(broker.address, group="shop") as producer:
        producer.send_many(
            [Message("orders", b"%d" % price, tag="new", headers={"price": str(price)}) for price in range(20)]
            + [Message("orders", b"21", tag="old", headers={"price": "21"}, ordering_key="k")]
            + [Message("orders", b"22", tag="new", headers={"price": "22"}, ordering_key="k")]
        )
    [(message, handle)] = await receive("mail", dear)  # behind 21 others, more than one call brings
    assert (message.body, message.attempt, receivers.is_renewed(handle)) == (b"22", 1, True)
    await receivers.acknowledge(ClientSubscription("mail", "client", "orders"), [handle])

    with Producer(broker.address, group="shop") as producer:
        waiting = asyncio.create_task(receive("mail", dear))
        producer.send(Message("orders", b"1", tag="new", headers={"price": "1"}))
        producer.send(Message("orders", b"23", tag="new", headers={"price": "23"}))
        [(message, handle)] = await waiting
        assert message.body == b"23"
        await receivers.acknowledge(ClientSubscription("mail", "client", "orders"), [handle])
    group = NotifyAdministration(asker(broker.address))
    async with asyncio.timeout(_WAIT_S):
        while (await asyncio.to_thread(group.show_group, "mail")).waiting:
            assert not await receive("mail", dear, wait_s=0)
    await tasks.close()
    await brokers.close()


class BrokerOfThree(AnsweredBrokers):
    """A broker with three messages that records which stream has ended."""

    def __init__(self) -> None:
        super().__init__(["a:7700"])
        self.line = 0
        self.has_ended = asyncio.Event()

    async def answer(self, address: str, method: Method[Any, Any], request: ReceiveRequest) -> ReceiveReply:
        if request.subscriptions:
            self.line = request.line
            return ReceiveReply(
                batches=[
                    DeliveredColumns(
                        topic="orders",
                        receipt=Receipt(queue_id=1, token=1, epoch=1, offset=range(3)),
                        transaction_id=bytes(3 * 16),
                        body=[b"x"] * 3,
                        born_at_us=[1] * 3,
                        stored_at_us=[1] * 3,
                    )
                ]
            )
        assert request.line == self.line
        self.has_ended.set()
        return ReceiveReply()


async def test_filtering_yields_between_messages_and_a_cancelled_receive_returns_them() -> None:
    looked: list[bool] = []

    def ends(_: Mapping[str, str]) -> bool:
        """A condition that ends the call at its first message."""
        looked.append(True)
        receiving.cancel()
        return True

    broker, tasks = BrokerOfThree(), Tasks()
    receivers = Receivers(broker, tasks)
    wanted = Wanted(sql=Filter(ends))
    receiving = asyncio.create_task(
        receivers.receive(
            ClientSubscription("mail", "client", "orders"),
            "a:7700",
            wanted,
            count=3,
            wait_s=1,
            invisible_s=60,
            renews=True,
        )
    )
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert looked == [True]
    async with asyncio.timeout(_WAIT_S):
        await broker.has_ended.wait()
    await tasks.close()
