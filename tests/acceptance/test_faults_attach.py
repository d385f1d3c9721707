"""Misbehaving attached clients: they never read, never answer, or attach a thousand times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

from tests.acceptance.neighbour import neighbour
from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.integration.client_harness import half_count, message_count
from tests.raw_client import RawClient
from tests.waiting import until
from txmsg.client import Producer
from txmsg.message import Message, ReceivedMessage, TransactionState
from txmsg.wire.v1 import txmsg_pb2 as pb

STREAMS = 1000
CONNECTIONS = 4


class Commits:
    """A listener that answers COMMIT."""

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


@contextmanager
def attached(broker: BrokerProcess, count: int, *, group: str, connections: int = 1) -> Iterator[None]:
    """Open so many Attach streams that send Hello, read the first frame, and then neither read nor write."""
    hello = pb.ClientFrame(hello=pb.Hello(client_id="silent", producer_group=group, checks_unfenced=True))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(broker.address)) for _ in range(connections)]
        for number in range(count):
            clients[number % connections].begin("Notify/Attach", hello.SerializeToString(), flags=0)
        for client in clients:
            while not all(answer.pushed for answer in client.answers.values()):  # attached: the broker's first word
                client.read()
        yield
        for client in clients:
            assert not any(answer.is_whole for answer in client.answers.values())


def test_a_client_that_never_reads_its_checks_does_not_delay_others_of_its_group(
    start_broker: StartBroker, notify_url: str
) -> None:
    broker = start_broker("--first-check-s", "0", "--check-interval-s", "1")
    with attached(broker, 3, group="shop"), neighbour(broker.address) as good:
        good.goes_on()
        with Producer(broker.address, group="shop", check_listener=Commits()) as producer:
            before = message_count(notify_url)
            for number in range(20):
                producer.half([Message("orders", str(number).encode())])  # and no client sends its outcome
            until(lambda: half_count(notify_url) == 0)
        good.goes_on()
        assert message_count(notify_url) - before >= 20
    assert good.errors == []
    assert broker.stop() == 0
    assert "Traceback" not in broker.log.read_text()


def test_a_thousand_silent_attach_streams_cost_little_and_affect_no_other_client(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    with neighbour(broker.address) as good:
        good.goes_on()
        before = process.memory_info().rss
        with attached(broker, STREAMS, group="crowd", connections=CONNECTIONS):
            good.goes_on()
            assert (process.memory_info().rss - before) / STREAMS < 100_000, "bytes of memory for each"
        good.goes_on()
    assert good.errors == []
    assert broker.stop() == 0
