"""A broker is killed while consumers hold ordered messages: queues wait until these report that they hold none.

The visibility timeout is longer than any test may take, so messages that waited for its end would never arrive.
"""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable

from tests.broker_process import BrokerProcess
from tests.waiting import until
from txmsg.client import Consumer, Producer
from txmsg.message import Message, ReceivedMessage

VISIBILITY_S = 3600.0
KEYS = 8


def send(address: str, numbers: range) -> None:
    with Producer(address, group="shop") as producer:
        for n in numbers:
            for key in range(KEYS):
                producer.send(Message("order", b"%d" % n, ordering_key=f"k{key}"))


def consuming(address: str, handle: Callable[[ReceivedMessage], None]) -> Consumer:
    consumer = Consumer(address, group="mailer", visibility_timeout_s=VISIBILITY_S)
    consumer.subscribe("order")(handle)
    return consumer


def test_queues_of_a_killed_broker_continue_when_its_consumers_hold_nothing(broker: BrokerProcess) -> None:
    got: defaultdict[str, list[int]] = defaultdict(list)
    count = queue.Queue[int]()

    def note(message: ReceivedMessage) -> None:
        assert message.ordering_key is not None
        got[message.ordering_key].append(int(message.body))
        count.put(1)

    with consuming(broker.address, note), consuming(broker.address, note):
        send(broker.address, range(3))
        for _ in range(3 * KEYS):
            count.get(timeout=60)
        broker.kill()
        broker.start()
        send(broker.address, range(3, 6))
        until(lambda: all(set(numbers) == set(range(6)) for numbers in got.values()), within_s=100)
    for numbers in got.values():
        assert sorted(numbers, key=numbers.index) == numbers or len(numbers) > 6
        firsts = sorted(set(numbers), key=numbers.index)
        assert firsts == list(range(6)), "in order, but for what came again"


def test_a_message_held_by_a_consumer_blocks_its_queue_until_settled(broker: BrokerProcess) -> None:
    begun, may_end, ended = queue.Queue[str](), threading.Event(), threading.Event()
    later = queue.Queue[bytes]()

    def hold(message: ReceivedMessage) -> None:
        if message.body == b"first" and not ended.is_set():
            begun.put("first")
            may_end.wait(100)
            ended.set()
        else:
            assert ended.is_set(), "the one before it is still in somebody's hands"
            later.put(message.body)

    with consuming(broker.address, hold):
        with Producer(broker.address, group="shop") as producer:
            producer.send(Message("order", b"first", ordering_key="k"))
        begun.get(timeout=60)
        broker.kill()
        broker.start()
        with Producer(broker.address, group="shop") as producer, consuming(broker.address, hold):
            producer.send(Message("order", b"second", ordering_key="k"))
            until(lambda: "ordered messages that were delivered before may be in flight" in broker.log.read_text())
            may_end.set()
            while later.get(timeout=100) != b"second":
                continue
            until(lambda: "no consumer holds messages of it" in broker.log.read_text())
