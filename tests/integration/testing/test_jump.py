"""`jump=True` moves the clock of a test only when nothing but a time is waited for."""

from __future__ import annotations

import time

from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.testing import Broker, MakeConsumer, MakeProducer

ANSWER_S = 0.8


class SlowListener:
    """Answers slowly, as with a busy database; the second answer is the outcome."""

    def __init__(self) -> None:
        self.checks = 0

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.checks += 1
        time.sleep(ANSWER_S)
        return TransactionState.COMMIT if self.checks == 2 else TransactionState.UNKNOWN


def test_a_clock_jump_waits_for_the_answer_of_a_check(
    txmsg_broker: Broker, txmsg_producer: MakeProducer, txmsg_consumer: MakeConsumer
) -> None:
    listener = SlowListener()
    consumer = txmsg_consumer("mailer")
    consumer.subscribe("orders")(lambda message: None)
    consumer.start()
    txmsg_producer("shop", listener).half([Message("orders", b"")])
    txmsg_broker.delivered("mailer", "orders", jump=True)
    assert listener.checks == 2


def test_an_unavailable_broker_does_not_check(txmsg_broker: Broker) -> None:
    host = txmsg_broker._host
    txmsg_broker.stop()
    assert not host.is_checking()
    txmsg_broker.kill()
    assert not host.is_checking()
    txmsg_broker.start()
    assert not host.is_checking()
