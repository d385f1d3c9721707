"""RocketMQ clients, and the gateways through which they reach the first Notify database.

Both are processes. Each gateway has a producer and a consumer, which reach it through a link. Of two languages, each
gateway has a producer in one and a consumer in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import guest_java
from tests.chaos.gateway import GatewayOrders
from tests.chaos.network import Link, Network
from tests.chaos.plan import GATEWAYS
from tests.chaos.process import Process
from tests.ports import own_port

GUEST_PRODUCER, GUEST_CONSUMER = "guest_producer", "guest_consumer"
"""Prefixes of their process names, and their programs."""
PYTHON, JAVA = LANGUAGES = ("python", "java")


@dataclass(slots=True, eq=False)
class Gateway:
    """A gateway of the cluster."""

    process: Process
    clients: Link
    """Link between clients and it."""

    @property
    def address(self) -> str:
        """Return the address that clients use."""
        return f"127.0.0.1:{self.clients.port}"


@dataclass(slots=True, eq=False)
class Guests:
    """Created by a cluster, which gives each client's arguments for its name, its life and the gateway's address."""

    directory: Path
    network: Network
    brokers: Sequence[str]
    plant: str
    orders: Callable[[str, int, str], str]
    languages: Sequence[str]
    """Languages of the clients."""
    gateways: list[Gateway] = field(default_factory=list)
    producers: list[Process] = field(default_factory=list)
    consumers: list[Process] = field(default_factory=list)

    def start(self) -> None:
        """Start gateways, then clients."""
        for number in range(GATEWAYS):
            gateway = self._gateway(number)
            self.gateways.append(gateway)
            gateway.process.start()
        make = {PYTHON: self._python}
        if JAVA in self.languages:
            class_path = guest_java.class_path()
            make[JAVA] = lambda role, number, gateway: self._java(class_path, role, number, gateway)
        for number, gateway in enumerate(self.gateways):
            of_consumer, of_producer = (self.languages[(number + n) % len(self.languages)] for n in (1, 0))
            self.consumers.append(make[of_consumer](GUEST_CONSUMER, number, gateway))
            self.producers.append(make[of_producer](GUEST_PRODUCER, number, gateway))
        clients = (*self.consumers, *self.producers)
        for client in clients:
            client.launch()
        for client in clients:
            client.wait_ready()

    def processes(self) -> list[Process]:
        return [*(each.process for each in self.gateways), *self.producers, *self.consumers]

    def _gateway(self, number: int) -> Gateway:
        port = own_port()
        told = GatewayOrders(brokers=list(self.brokers), listen=f"127.0.0.1:{port}", plant=self.plant)
        name = f"gateway-{number}"
        process = Process(name, "tests.chaos.gateway", lambda _: told.as_argument(), self.directory / f"{name}.log")
        return Gateway(process, self.network.link(("127.0.0.1", port)))

    def _python(self, role: str, number: int, gateway: Gateway) -> Process:
        name = f"{role}-{number}"
        return Process(
            name,
            f"tests.chaos.{role}",
            lambda life: self.orders(name, life, gateway.address),
            self.directory / f"{name}.log",
            environment={"HOME": str(self.directory / name)},  # its client logs there
        )

    def _java(self, class_path: str, role: str, number: int, gateway: Gateway) -> Process:
        name = f"{role}-{JAVA}-{number}"
        return Process(
            name,
            guest_java.PROGRAMS[role],
            lambda life: guest_java.orders_with_world(self.orders(name, life, gateway.address)),
            self.directory / f"{name}.log",
            spawn=guest_java.spawned(class_path, self.directory / name),
        )
