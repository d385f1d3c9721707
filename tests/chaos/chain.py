"""A chain of three services: an order is paid, and shipped. Each consumes, writes and sends on in one transaction.

Each service is a process with a business database of its own, of a kind of its own. Its table has no key: what is
written twice is to be seen, not stopped. Brokers of the first Notify database carry the messages, so whatever befalls
that one befalls the chain. What must be true in the end, `chain_verdict.py` says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from sqlalchemy import NullPool, create_engine, make_url, text

from tests import mariadb_server
from tests.chaos.chain_verdict import STEPS, SentOn, Written
from tests.chaos.history import Loss
from tests.chaos.process import Process
from txmsg.checker.tables import metadata

TOPIC_OF: Final[Mapping[str, str]] = {"order": "cart", "payment": "ordered", "shipping": "paid"}
"""Topic consumed by each service; each sends to the topic of the next."""
LAST_TOPIC: Final = "shipped"
TOPICS: Final = (*TOPIC_OF.values(), LAST_TOPIC)
DURABILITY: Final = "sync"
"""Durability of the topics. Replicated ones would wait for a standby during most minutes with promotions."""
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {step: {topic: "*"} for step, topic in TOPIC_OF.items()}
"""As history.GROUPS. The group of each service has its name."""
RETRIES_MAX: Final = 10_000
"""Retries of these groups: failures while a database or all brokers are down must not become dead letters."""
SHARE: Final = 0.05
"""Orders for each send of the producers."""
IS_ASYNC: Final = frozenset({"payment"})
"""Services with `async def` handlers; the others are `def`."""


def next_topic(step: str) -> str:
    return TOPICS[TOPICS.index(TOPIC_OF[step]) + 1]


@dataclass(slots=True, eq=False)
class Chain:
    """The databases of the chain, which exist within `prepare`'s stack, and its processes.

    argument: what the next life of a service is told, given its name, the number of its life, and its database.
    """

    directory: Path
    argument: Callable[[str, int, str], str]
    urls: dict[str, str] = field(default_factory=dict)
    """Database URL of each step, without links."""
    services: list[Process] = field(default_factory=list)

    def prepare(self, stack: ExitStack, business_url: str) -> None:
        """Creates the databases: SQLite, PostgreSQL on the server of business_url, and MariaDB if it is installed."""
        self.urls["order"] = f"sqlite:///{self.directory / 'order.db'}"
        self.urls["payment"] = _created_beside(business_url, stack).replace("postgresql://", "postgresql+psycopg://", 1)
        if mariadb_server.is_installed():
            server = stack.enter_context(mariadb_server.PrivateMariaDB(self.directory / "mariadb"))
            self.urls["shipping"] = server.create_database("shipping")
        else:
            self.urls["shipping"] = f"sqlite:///{self.directory / 'shipping.db'}"
        for step, url in self.urls.items():
            engine = create_engine(url, poolclass=NullPool)
            with engine.begin() as connection:
                connection.execute(
                    text(
                        f"create table {step}_done "
                        "(order_id varchar(60), amount int, at double precision, attempt varchar(60))"
                    )
                )
                metadata.create_all(connection)
        self.services = [
            Process(step, "tests.chaos.service", self._argument_of(step), self.directory / f"{step}.log")
            for step in STEPS
        ]

    def _argument_of(self, step: str) -> Callable[[int], str]:
        return lambda life: self.argument(step, life, self.urls[step])

    def start(self) -> None:
        for service in self.services:
            service.launch()
        for service in self.services:
            service.wait_ready()

    def written(self) -> dict[str, list[Written]]:
        """Return all rows of each step."""
        found = {}
        for step, url in self.urls.items():
            engine = create_engine(url, poolclass=NullPool)
            with engine.begin() as connection:
                rows = connection.execute(text(f"select order_id, amount, at, attempt from {step}_done")).all()
            found[step] = [Written(*row) for row in rows]
        return found


def body_of(step: str, order_id: str, amount: int, attempt: object = "") -> Mapping[str, Any]:
    """Return the body that a step sends. Each attempt has its own body, so that attempts can be told apart."""
    return {"order_id": order_id, "amount": amount, "by": step, "attempt": str(attempt)}


def read_body(body: str) -> SentOn | None:
    """Parse a body; None if it is not one of the chain."""
    if not body.startswith("{"):
        return None
    value = json.loads(body)
    return SentOn(value["by"], value["order_id"], value["attempt"])


def taken(losses: Sequence[Loss]) -> set[SentOn]:
    """Return the messages lost with a database, by the evidence of losses.py."""
    found = {read_body(body) for loss in losses for body in loss.gone}
    return {each for each in found if each is not None}


def create_groups(url: str) -> None:
    """Create the groups with their retry limits, before brokers create them without."""
    with psycopg.connect(url, autocommit=True) as connection:
        for step in STEPS:
            connection.execute(
                "insert into txmsg.consumer_group (name, retries_max) values (%s, %s)", (step, RETRIES_MAX)
            )


def _created_beside(business_url: str, stack: ExitStack) -> str:
    """Create another database on the same server; drop it at the end."""
    name = f"{make_url(business_url).database}_payment"

    def execute(statement: str) -> None:
        with psycopg.connect(business_url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))

    execute("create database {}")
    stack.callback(execute, "drop database {} with (force)")
    return make_url(business_url).set(database=name).render_as_string(hide_password=False)
