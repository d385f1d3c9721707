"""The fixtures. Imports nothing heavy: pytest loads this module in every project where txmsg is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from txmsg.checker.listener import CheckMessageListener
    from txmsg.client.app.application import Txmsg
    from txmsg.client.async_consumer import AsyncConsumer
    from txmsg.client.async_producer import AsyncProducer
    from txmsg.client.consumer import Consumer
    from txmsg.client.producer import Producer
    from txmsg.testing.applications import AppRun, Overrides
    from txmsg.testing.broker import Broker
    from txmsg.testing.clock import Clock
    from txmsg.testing.database import NotifyDatabase
    from txmsg.testing.host import BrokerHost
    from txmsg.testing.memory import Memory

_CLOSE_S_MAX = 5.0


class MakeProducer(Protocol):
    """The type of the fixture `txmsg_producer`."""

    def __call__(
        self,
        group: str | None = None,
        check_listener: CheckMessageListener | None = None,
        *,
        timeout_s: float = 5.0,
    ) -> Producer:
        """Return a started Producer at the test's broker. group: default one of its own."""
        ...


class MakeConsumer(Protocol):
    """The type of the fixture `txmsg_consumer`."""

    def __call__(
        self, group: str | None = None, *, concurrency: int = 4, visibility_timeout_s: float = 60.0
    ) -> Consumer:
        """Return a Consumer at the test's broker: subscribe, then start it. group: default one of its own."""
        ...


class MakeAsyncProducer(Protocol):
    """The type of the fixture `txmsg_async_producer`."""

    def __call__(
        self,
        group: str | None = None,
        check_listener: CheckMessageListener | None = None,
        *,
        timeout_s: float = 5.0,
    ) -> AsyncProducer:
        """Return an AsyncProducer at the test's broker, for `async with`. group: default one of its own."""
        ...


class MakeAsyncConsumer(Protocol):
    """The type of the fixture `txmsg_async_consumer`."""

    def __call__(
        self, group: str | None = None, *, concurrency: int = 4, visibility_timeout_s: float = 60.0
    ) -> AsyncConsumer:
        """Return an AsyncConsumer at the test's broker: subscribe, then `async with`. group: default one of its own."""
        ...


class RunApp(Protocol):
    """The type of the fixture `txmsg_app`."""

    def __call__(self, app: Txmsg, *, overrides: Overrides | None = None) -> AppRun:
        """Return the application at the test's broker, for `with` or `async with`. overrides: replacements of functions
        of Depends."""
        ...


def pytest_addoption(parser: pytest.Parser) -> None:
    options = parser.getgroup("txmsg")
    options.addoption(
        "--txmsg-storage",
        metavar="URL",
        help="PostgreSQL for txmsg's fixtures: postgresql://user@host/database, whose user may create databases "
        "(default: one that txmsg brings along)",
    )
    options.addoption(
        "--txmsg-timeout-s",
        metavar="SECONDS",
        type=float,
        default=10.0,
        help="how long txmsg_broker waits for a delivery by default (default: 10)",
    )


@pytest.fixture(scope="session")
def txmsg_address() -> str:
    """HOST:PORT of every test's broker, for applications that read it at import."""
    from txmsg.wire.listening import loopback
    from txmsg.wire.ports import own_port

    return f"{loopback()}:{own_port()}"


@pytest.fixture
def txmsg_memory() -> Iterator[Memory]:
    """The messages sent to "memory:" in this test, without a broker. See txmsg.testing.Memory."""
    from txmsg.testing.memory import Memory

    memory = Memory()
    yield memory
    memory.clear()


@pytest.fixture
def txmsg_broker(
    pytestconfig: pytest.Config, txmsg_address: str, _txmsg_host: BrokerHost, _txmsg_database: NotifyDatabase
) -> Iterator[Broker]:
    """An empty broker, for this test alone. See txmsg.testing.Broker."""
    from txmsg.runtime.postgres import connect
    from txmsg.testing.broker import Broker

    _txmsg_database.empty()
    with connect(_txmsg_database.url) as connection:
        timeout_s = pytestconfig.getoption("--txmsg-timeout-s")
        broker = Broker(_txmsg_host, txmsg_address, _txmsg_database.url, connection, timeout_s=timeout_s)
        broker.start()
        yield broker
        broker.close()


@pytest.fixture
def txmsg_clock(txmsg_broker: Broker) -> Clock:
    """The clock of the test's broker, which advances time for waiting messages. See txmsg.testing.Clock."""
    return txmsg_broker.clock


@pytest.fixture
def txmsg_producer(txmsg_broker: Broker) -> Iterator[MakeProducer]:
    """Make producers at the test's broker, and close them. See txmsg.testing.MakeProducer."""
    from txmsg.client.producer import Producer

    made: list[Producer] = []

    def make(
        group: str | None = None, check_listener: CheckMessageListener | None = None, *, timeout_s: float = 5.0
    ) -> Producer:
        producer = Producer(
            txmsg_broker.address, group=group or _new_group(), check_listener=check_listener, timeout_s=timeout_s
        )
        made.append(producer)
        return producer.start()

    yield make
    for producer in made:
        producer.close()


@pytest.fixture
def txmsg_consumer(txmsg_broker: Broker) -> Iterator[MakeConsumer]:
    """Make consumers at the test's broker, and close them. See txmsg.testing.MakeConsumer."""
    from txmsg.client.consumer import Consumer

    made: list[Consumer] = []

    def make(group: str | None = None, *, concurrency: int = 4, visibility_timeout_s: float = 60.0) -> Consumer:
        consumer = Consumer(
            txmsg_broker.address,
            group=group or _new_group(),
            concurrency=concurrency,
            visibility_timeout_s=visibility_timeout_s,
            close_timeout_s=_CLOSE_S_MAX,
        )
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


@pytest.fixture
def txmsg_async_producer(txmsg_broker: Broker) -> MakeAsyncProducer:
    """Make producers for coroutines at the test's broker. See txmsg.testing.MakeAsyncProducer."""
    from txmsg.client.async_producer import AsyncProducer

    def make(
        group: str | None = None, check_listener: CheckMessageListener | None = None, *, timeout_s: float = 5.0
    ) -> AsyncProducer:
        return AsyncProducer(
            txmsg_broker.address, group=group or _new_group(), check_listener=check_listener, timeout_s=timeout_s
        )

    return make


@pytest.fixture
def txmsg_async_consumer(txmsg_broker: Broker) -> MakeAsyncConsumer:
    """Make consumers for coroutines at the test's broker. See txmsg.testing.MakeAsyncConsumer."""
    from txmsg.client.async_consumer import AsyncConsumer

    def make(group: str | None = None, *, concurrency: int = 4, visibility_timeout_s: float = 60.0) -> AsyncConsumer:
        return AsyncConsumer(
            txmsg_broker.address,
            group=group or _new_group(),
            concurrency=concurrency,
            visibility_timeout_s=visibility_timeout_s,
            close_timeout_s=_CLOSE_S_MAX,
        )

    return make


@pytest.fixture
def txmsg_app(txmsg_broker: Broker) -> RunApp:
    """Run applications at the test's broker. See txmsg.testing.RunApp."""
    from txmsg.testing.applications import AppRun

    def run(app: Txmsg, *, overrides: Overrides | None = None) -> AppRun:
        return AppRun(app, txmsg_broker, overrides=overrides)

    return run


@pytest.fixture(scope="session")
def _txmsg_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHost]:
    try:
        import txmsg.testing.database  # noqa: F401 - it needs what the broker's process will need
    except ModuleNotFoundError as exc:
        pytest.fail(f"the fixtures of txmsg need a broker ({exc}): run `pip install 'txmsg[broker]'`", pytrace=False)
    from txmsg.testing.host import BrokerHost

    host = BrokerHost(tmp_path_factory.mktemp("txmsg") / "broker.log")
    yield host
    host.close()


@pytest.fixture(scope="session")
def _txmsg_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NotifyDatabase]:
    from txmsg.testing.database import NotifyDatabase

    storage: str | None = request.config.getoption("--txmsg-storage")
    with NotifyDatabase.made(storage, _directory_of_run(tmp_path_factory) / "txmsg-postgres") as database:
        yield database


def _directory_of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory shared by all processes of pytest-xdist, with one PostgreSQL in it."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


def _new_group() -> str:
    return f"test-{uuid4().hex[:8]}"
