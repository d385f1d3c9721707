"""SQL filters of RocketMQ's consumers, against a real broker: who gets what, and what is done for the group."""

from __future__ import annotations

import asyncio

from tests.broker_process import BrokerProcess
from txmsg import Message, Producer, ReceivedMessage
from txmsg.administration.notify import NotifyAdministration
from txmsg.cli.connections import asker
from txmsg.client.channel import Brokers
from txmsg.rocketmq.filters import Wanted, wanted_of
from txmsg.rocketmq.ids import Handle
from txmsg.rocketmq.receivers import Member, Receivers
from txmsg.rocketmq.tasks import Tasks
from txmsg.rocketmq.v2 import messaging_pb2 as pb

_WAIT_S = 60.0


async def test_what_a_filter_does_not_want_is_done_for_its_group_and_waits_for_no_other(broker: BrokerProcess) -> None:
    brokers = Brokers([broker.address])
    tasks = Tasks()
    receivers = Receivers(brokers, tasks)

    async def receive(group: str, wanted: Wanted, wait_s: float = _WAIT_S) -> list[tuple[ReceivedMessage, Handle]]:
        received = await receivers.receive(
            Member(group, "client", "orders"),
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
    await receivers.acknowledge(Member("mail", "client", "orders"), [handle])

    with Producer(broker.address, group="shop") as producer:
        waiting = asyncio.create_task(receive("mail", dear))
        producer.send(Message("orders", b"1", tag="new", headers={"price": "1"}))
        producer.send(Message("orders", b"23", tag="new", headers={"price": "23"}))
        [(message, handle)] = await waiting
        assert message.body == b"23"
        await receivers.acknowledge(Member("mail", "client", "orders"), [handle])
    group = NotifyAdministration(asker(broker.address))
    async with asyncio.timeout(_WAIT_S):
        while (await asyncio.to_thread(group.show_group, "mail")).waiting:
            assert not await receive("mail", dear, wait_s=0)
    await tasks.close()
    await brokers.close()
