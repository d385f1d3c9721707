"""RocketMQ clients while producers, brokers and gateways are killed."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.broker_process import BrokerProcess
from tests.conftest import StartBroker
from tests.restartable import Restartable
from tests.rocketmq.gateway import GatewayProcess, running_gateway
from tests.rocketmq.programs import GO, JAVA, NODE, PYTHON, Language, Running, each
from tests.waiting import until
from txmsg import Consumer, Message, Producer, ReceivedMessage

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # what clients need is fetched and compiled, once

_WITHIN_S = 400.0
_LOAD = 100
"""Messages between two kills."""
_TOPIC = "orders"


class Site:
    """A broker that checks early, often and without end, a gateway, and programs, all killed in the end."""

    def __init__(self, broker: BrokerProcess, gateway: GatewayProcess, running: ExitStack, home: Path) -> None:
        self.broker = broker
        self.gateway = gateway
        self._running = running
        self._home = home

    def run(self, language: Language, program: str, *words: str) -> Running:
        """Run a program on the topic of the test."""
        program_running = Running(language, program, self.gateway.address, _TOPIC, *words, home=self._home)
        return self._running.enter_context(program_running)

    def kill_and_start(self, *processes: Restartable) -> None:
        """Kill all at once, and restart them in the order of their names here."""
        for process in processes:
            process.kill()
        for process in processes:
            process.start()


@pytest.fixture
def site(start_broker: StartBroker, tmp_path: Path) -> Iterator[Site]:
    options = {"first-check": 1, "check-interval": 2, "check-timeout": 1.5}
    broker = start_broker(*(f"--{name}-s={s}" for name, s in options.items()), "--checks-max=100000")
    with Producer(broker.address, group="setup") as producer:
        producer.send(Message(_TOPIC, b"first"))
    with running_gateway(broker.address, log=tmp_path / "gateway.log") as gateway, ExitStack() as running:
        yield Site(broker, gateway, running, tmp_path)


def _holders() -> list[ParameterSet]:
    """Return clients and killed processes of the test. Killed Java producers are covered in chaos."""
    return [
        pytest.param(*language.values, killed, id=f"{language.id}-{killed}", marks=language.marks)
        for language in each(PYTHON, JAVA)
        for killed in ("producer", "broker", "gateway", "all")
        if language.id == PYTHON.name or killed in {"broker", "gateway"}
    ]


@pytest.mark.parametrize(("language", "killed"), _holders())
def test_transaction_is_resolved_after_its_gateway_or_client_was_killed(
    language: Language, killed: str, site: Site
) -> None:
    """By its producer if that lives and is asked; Python's is not asked for minutes after the gateway was killed."""
    holder = site.run(language, "hold")
    [left] = until(lambda: holder.said, within_s=_WITHIN_S)
    if killed in {"producer", "all"}:
        holder.kill()
    processes: dict[str, list[Restartable]] = {
        "producer": [], "broker": [site.broker], "gateway": [site.gateway], "all": [site.broker, site.gateway]
    }  # fmt: skip
    site.kill_and_start(*processes[killed])
    if killed == "broker" or (killed == "gateway" and language is JAVA):
        holder.tell("it has committed")
    else:
        site.run(PYTHON, "answer")

    got: queue.Queue[ReceivedMessage] = queue.Queue()
    consumer = Consumer(site.broker.address, group="mail")
    consumer.subscribe(_TOPIC)(got.put)
    with consumer:
        by_body = {message.body: message for message in (got.get(timeout=_WITHIN_S), got.get(timeout=_WITHIN_S))}
    assert by_body.keys() == {b"first", b"in doubt"}
    assert f"01{by_body[b'in doubt'].id_bytes.hex().upper()}" == left["id"]


@pytest.mark.parametrize("language", each(PYTHON, JAVA, GO, NODE))
def test_push_consumer_continues_after_the_gateway_was_killed(language: Language, site: Site) -> None:
    consumer = site.run(language, "consume", "mail")

    def wait_for(*bodies: str) -> None:
        until(lambda: {line["body"] for line in consumer.said} == set(bodies), within_s=_WITHIN_S)

    wait_for("first")
    site.gateway.kill()
    with Producer(site.broker.address, group="shop") as producer:
        producer.send(Message(_TOPIC, b"while it is away"))
        site.gateway.start()
        wait_for("first", "while it is away")
        producer.send(Message(_TOPIC, b"after"))
        wait_for("first", "while it is away", "after")


@pytest.mark.parametrize("producing", each(JAVA))
@pytest.mark.parametrize("consuming", each(GO, NODE))
def test_messages_arrive_in_group_order_although_all_processes_are_killed_under_load(
    producing: Language, consuming: Language, site: Site
) -> None:
    """At least once; transactions too, which have no order."""
    groups = 3
    consumer = site.run(consuming, "consume", "mail")
    producer = site.run(producing, "produce", str(groups))
    for processes in ((site.broker,), (site.gateway,), (site.broker, site.gateway), ()):
        sent_before = len(producer.said)
        until(lambda: len(producer.said) >= sent_before + _LOAD, within_s=_WITHIN_S)  # noqa: B023 - it is waited for here
        site.kill_and_start(*processes)
    sent = {line["sent"] for line in producer.said}
    producer.kill()

    until(lambda: sent <= {line["body"] for line in consumer.said}, within_s=_WITHIN_S)
    handled = [line["body"].partition(":") for line in consumer.said if line["body"] != "first"]
    for group in range(groups):
        numbers = list(dict.fromkeys(int(number) for of, _, number in handled if of == str(group)))
        assert numbers == list(range(len(numbers)))
