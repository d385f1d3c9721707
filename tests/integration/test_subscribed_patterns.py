"""Subscriptions by pattern with a real broker: topics created while an application runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.consumers.sources import figures_of
from tests.waiting import until_async
from txmsg import Consumer, Message, ReceivedMessage, Start, Txmsg
from txmsg.errors import MisuseError
from txmsg.metaq import PullConsumer
from txmsg.testing import Broker, MakeProducer, RunApp


@dataclass
class Event:
    order_id: int


@pytest.mark.parametrize("start", [None, Start.latest()])
async def test_an_application_handles_topics_created_while_it_runs(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_app: RunApp, start: Start | None
) -> None:
    app, producer, seen = Txmsg(group="g"), txmsg_producer("p"), []

    @app.subscribe("order.*", start=start)
    def handle(event: Event, message: ReceivedMessage) -> None:
        seen.append((message.topic, event.order_id))

    producer.send(Message("order.old", b'{"order_id": 1}'))
    async with txmsg_app(app) as run:
        if start is None:
            await run.wait_until_idle_async()
        await until_async(lambda: txmsg_broker._connection.execute("select from txmsg.consumer_group").fetchall())
        producer.send(Message("order.placed", b'{"order_id": 2}'))
        producer.send(Message("order.paid", b'{"no": 3}'))
        producer.send(Message("invoice", b'{"order_id": 4}'))
        await run.wait_until_idle_async(dead=1)
    old = [] if start else [("order.old", 1)]
    assert seen == [*old, ("order.placed", 2)]
    [dead] = txmsg_broker.dead_letters("g")
    assert (dead.topic, dead.body) == ("order.paid", b'{"no": 3}')
    counted = figures_of(app)["txmsg_handler_seconds"]
    assert {labels[-1] for labels in counted} == {"order.placed", "order.paid", *(topic for topic, _ in old)}


def test_a_consumer_accepts_a_pattern_and_a_log_consumer_refuses_it(txmsg_broker: Broker, tmp_path: object) -> None:
    consumer = Consumer(txmsg_broker.address, group="g")
    consumer.subscribe("order.*")(lambda message: None)
    assert consumer.topics == ("order.*",)
    said = re.escape("'order.*' is a pattern, and a member of a group of a log names its topics when it joins")
    with pytest.raises(MisuseError, match=said):
        PullConsumer(str(tmp_path), "g").subscribe("order.*")
    with pytest.raises(MisuseError, match="names its topics when it joins: name them, as in"):
        Txmsg(group="g").subscribe("order.*", source="log")
