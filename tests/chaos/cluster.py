"""All processes of a run, and the links between them. Starts and stops them; `faults.py` disturbs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from tests.chaos import business, chain, settings
from tests.chaos.broker import BrokerOrders
from tests.chaos.chain import Chain
from tests.chaos.client import Orders
from tests.chaos.guests import Guests
from tests.chaos.history import DURABILITY, GROUPS, GROUPS_WITH_GUESTS, STORY_TOPIC
from tests.chaos.network import Link, Network
from tests.chaos.plan import BROKERS, CONSUMERS, GATEWAYS, OF_OTHER_SHARD, PRODUCERS
from tests.chaos.plant import Plant
from tests.chaos.process import Process
from tests.chaos.servers import Servers
from tests.chaos.tables import pinned
from tests.ports import own_port
from txmsg.broker import migrate
from txmsg.broker.embedded import EmbeddedPostgres

GUESTS_SHARE = 0.2
"""Rate of RocketMQ producers, as a share of the rate of txmsg's."""


@dataclass(slots=True, eq=False)
class Broker:
    """A broker of the cluster."""

    process: Process
    database: Link
    """Link between it and the Notify database."""
    clients: Link
    """Link between clients and it."""
    role: str
    """Database role of the broker."""
    url: str
    """URL of its database."""
    clock_step_s: float = 0.0
    """Seconds by which the wall clock of its next life is wrong."""


class Cluster:
    """Everything that runs, inside `with`.

    Two Notify databases: the first on servers of its own, which `servers` kills, promotes and restores; the second
    beside the business database. `business_url`: a database on a server that no fault reaches; default: one of its own.
    `guests`: what the clients of RocketMQ are written in, if there are any.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        rate_per_s: float,
        business_url: str | None,
        plant: Plant | None,
        is_hostile: bool,
        keeps: bool = False,
        guests: Sequence[str] = (),
    ) -> None:
        self.groups = GROUPS_WITH_GUESTS if guests else GROUPS
        self.guests: Guests | None = None
        self.directory = directory
        self.journals = directory / "journals"
        self.chain = Chain(directory, self._orders_of_service)
        self.settings = settings.draw(seed) if is_hostile else {}
        self.brokers: list[Broker] = []
        self.producers: list[Process] = []
        self.consumers: list[Process] = []
        self.business_url = business_url or ""
        self.notify_url = ""
        """URL of the first database, on the server that has it now."""
        self.other_url = ""
        self.business: Link
        self.network = Network()
        self.servers = Servers(directory, self.network)
        self._seed, self._rate_per_s, self._plant, self._keeps = seed, rate_per_s, plant, keeps
        self._languages = guests
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.journals.mkdir()
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def processes(self) -> list[Process]:
        guests = self.guests.processes() if self.guests else []
        services = self.chain.services
        return [*(each.process for each in self.brokers), *self.producers, *self.consumers, *services, *guests]

    @property
    def all_groups(self) -> Mapping[str, Mapping[str, str]]:
        """Return all groups, including those of the chain, which only have to make progress."""
        return {**self.groups, **chain.GROUPS}

    def start_producers(self) -> None:
        """Start the producers of txmsg, and the chain: load begins. Those of RocketMQ have started already."""
        self.chain.start()
        for producer in self.producers:
            producer.start()

    def all_producers(self) -> list[Process]:
        """Return all producers, including those of RocketMQ."""
        return [*self.producers, *(self.guests.producers if self.guests else ())]

    def twin_of(self, broker: int) -> Process:
        """Start another process with the id of a broker, on a port that no client knows."""
        return self._process(f"twin-{broker}", "broker", lambda life: self._orders_of_broker(broker, 0.0))

    # ---- starting

    def _start(self, stack: ExitStack) -> None:
        stack.enter_context(self.network)
        stack.callback(self.servers.stop)
        if not self.business_url:
            server = stack.enter_context(EmbeddedPostgres(self.directory / "business"))
            self.business_url = server.create_database("business")
        business.create_tables(self.business_url)
        self.business = self.network.link(_target(self.business_url))
        self._create_notify()
        self._create_other()
        stack.callback(self._drop_other)
        self.chain.prepare(stack, self.business_url)
        stack.callback(self._kill_all)
        for number in range(BROKERS + 1):
            self._add_broker(number)
        for broker in self.brokers:
            broker.process.start()
        self.producers = [self._client("producer", number) for number in range(PRODUCERS)]
        self.consumers = [self._client("consumer", number) for number in range(CONSUMERS)]
        for consumer in self.consumers:
            consumer.start()
        if self._languages:
            brokers = [f"127.0.0.1:{broker.clients.port}" for broker in self.brokers[:BROKERS]]
            plant = self._plant.name if self._plant else ""
            self.guests = Guests(self.directory, self.network, brokers, plant, self._orders_of_guest, self._languages)
            self.guests.start()

    def _create_notify(self) -> None:
        url = self.servers.start()
        roles = [f"broker_{number}" for number in range(BROKERS)]
        with psycopg.connect(url, autocommit=True) as connection:
            for role in roles:
                connection.execute(sql.SQL("create role {} superuser login").format(sql.Identifier(role)))
        settings.impose(url, self.settings, seed=self._seed, roles=roles)
        migrate.upgrade(url)
        _create_topics(url, {**DURABILITY, **dict.fromkeys(chain.TOPICS, chain.DURABILITY)})
        chain.create_groups(pinned(url))
        if self._plant is not None:
            self._plant.install(url)
        self.servers.add_standby()
        self.notify_url = _through(self.servers.link(), url)

    def _create_other(self) -> None:
        name = f"{make_url(self.business_url).database}_notify"
        with psycopg.connect(self.business_url, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        self.other_url = make_url(self.business_url).set(database=name).render_as_string(hide_password=False)
        settings.impose(self.other_url, self.settings, seed=self._seed)
        migrate.upgrade(self.other_url)
        # It has no standby.
        _create_topics(self.other_url, {**DURABILITY, "settlement": "sync"})

    def _drop_other(self) -> None:
        name = make_url(self.other_url).database
        assert name is not None
        with psycopg.connect(self.business_url, autocommit=True) as connection:
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def _add_broker(self, number: int) -> None:
        address = ("127.0.0.1", own_port())  # which it keeps over a kill and restart
        is_other = number == OF_OTHER_SHARD
        database = self.network.link(_target(self.other_url)) if is_other else self.servers.link()
        clients = self.network.link(address)
        process = self._process(
            f"broker-{number}",
            "broker",
            lambda life: self._orders_of_broker(
                number, self.brokers[number].clock_step_s, f"{address[0]}:{address[1]}"
            ),
        )
        url = self.other_url if is_other else self.notify_url
        role = make_url(url).username if is_other else f"broker_{number}"
        self.brokers.append(Broker(process, database, clients, role or "", url))

    def _orders_of_broker(self, number: int, clock_step_s: float, listen: str = "127.0.0.1:0") -> str:
        broker = self.brokers[number]
        told = BrokerOrders(
            broker_id=f"broker-{number}",
            storage=_through(broker.database, broker.url, username=broker.role),
            listen=listen,
            advertise=f"127.0.0.1:{broker.clients.port}",
            clock_step_s=clock_step_s,
            plant=self._plant.name if self._plant else "",
        )
        return told.as_argument()

    def _client(self, role: str, number: int) -> Process:
        """Return a client process; the first two producers know only the first shard."""
        addresses = [f"127.0.0.1:{broker.clients.port}" for broker in self.brokers]
        shards = [addresses[:BROKERS], addresses[BROKERS:]]

        def argument(life: int) -> str:
            name = f"{role}-{number}.{life}"
            told = Orders(
                name=name,
                brokers=shards[:1] if role == "producer" and number < 2 else shards,
                business_url=_through(self.business, self.business_url),
                journal=str(self.journals / f"{name}.jsonl"),
                seed=self._seed,
                rate_per_s=self._rate_per_s / PRODUCERS,
                threads=number == 1 or (number == 2 and self._seed % 2 == 0),
                keeps=self._keeps,
                answers=bool(self._languages) and number == 0,
                guests=bool(self._languages),
                plant=self._plant.name if self._plant else "",
            )
            return told.as_argument()

        return self._process(f"{role}-{number}", role, argument)

    def _orders_of_service(self, name: str, life: int, url: str) -> str:
        told = Orders(
            name=f"{name}.{life}",
            brokers=[[f"127.0.0.1:{broker.clients.port}" for broker in self.brokers[:BROKERS]]],
            business_url=_through(self.business, url) if url.startswith("postgresql") else url,
            journal=str(self.journals / f"{name}.{life}.jsonl"),
            seed=self._seed,
            rate_per_s=self._rate_per_s * chain.SHARE,
            step=name,
            plant=self._plant.name if self._plant else "",
        )
        return told.as_argument()

    def _orders_of_guest(self, name: str, life: int, gateway: str) -> str:
        told = Orders(
            name=f"{name}.{life}",
            brokers=[],
            business_url=_through(self.business, self.business_url),
            journal=str(self.journals / f"{name}.{life}.jsonl"),
            seed=self._seed,
            rate_per_s=self._rate_per_s * GUESTS_SHARE / GATEWAYS,
            gateway=gateway,
        )
        return told.as_argument()

    def _process(self, name: str, program: str, argument: Any) -> Process:
        return Process(name, f"tests.chaos.{program}", argument, self.directory / f"{name}.log")

    def _kill_all(self) -> None:
        for process in self.processes():
            process.kill()


def _create_topics(url: str, durability: Mapping[str, str]) -> None:
    with psycopg.connect(pinned(url), autocommit=True) as connection:
        for name, how in durability.items():
            queues = 4 if name == STORY_TOPIC else 2
            connection.execute(
                "with made as (insert into txmsg.topic (name, queue_count, ordered_queues, durability) "
                "values (%s, %s, %s, %s) returning id) "
                "insert into txmsg.queue (topic_id, number) select id, generate_series(0, %s - 1) from made",
                (name, queues, queues, how, queues),
            )
        connection.execute(
            "select txmsg.begin_memory(array_agg(q.id)) from txmsg.queue q join txmsg.topic t on t.id = q.topic_id "
            "where t.durability = 'memory'"
        )


def _target(url: str) -> tuple[str, int] | Path:
    """Return the address of a server."""
    parsed = make_url(url)
    host = str(parsed.query.get("host") or parsed.host or "localhost")
    port = parsed.port or 5432
    return Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)


def _through(link: Link, url: str, **changes: Any) -> str:
    parsed = make_url(url).difference_update_query(["host", "port"])
    return parsed.set(host="127.0.0.1", port=link.port, **changes).render_as_string(hide_password=False)
