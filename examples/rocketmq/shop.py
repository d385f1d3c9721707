"""The processes of the shop, and their totals. Starts and kills them; `run.py` decides when."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import LiteralString, NamedTuple

import psycopg

from txmsg.ops.demo.stage import DemoStage
from txmsg.runtime.child import Child, spawn_program
from txmsg.wire.ports import own_port

from . import TOPIC

_HERE = Path(__file__).parent
_PACKAGE = __package__ or ""
_READY_S_MAX = 600.0
"""For Spark on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """The build results described in README.md."""

    jars: Path
    """Directory of RocketMQ's client for Java, with all its dependencies."""
    go: Path
    """The program built by `go build` from totals.go."""
    node: Path
    """Directory in which `npm ci` was run."""


class Total(NamedTuple):
    """The total of one service."""

    orders: int
    cents: int
    repeats: int = 0
    """Repeated deliveries of orders counted before."""


class Shop(DemoStage):
    """One process of each kind: those that can be killed are in `killable`, in the order in which they start."""

    def __init__(self, directory: Path, built: Built, orders: int) -> None:
        super().__init__(directory, "orders", "totals")
        self._built = built
        self._orders = str(orders)
        self._gateway = f"127.0.0.1:{own_port()}"
        self._ledger = directory / "ledger"
        self._notes = {name: directory / f"{name}.jsonl" for name in ("go", "node")}
        self.killable: Mapping[str, Callable[[], Child]] = {
            "broker": self.start_broker,
            "gateway": self._start_gateway,
            "tailer": lambda: self.start_tailer(str(directory / "metaq")),
            "spark": self._start_spark,
            "go": self._start_go,
            "node": self._start_node,
            "java": self._start_java,
            "python": self._start_python,
        }

    def _set_up(self) -> None:
        self.start_broker().wait_ready(_READY_S_MAX)
        self.run("topic", "txmsg.ops.cli.main", "topic", "create", TOPIC, "--broker", self.broker_addresses)
        self.start_all(but="broker")

    def kill_all(self) -> None:
        """Send SIGKILL to each of them."""
        for name in self.killable:
            self.children[name].kill()
        for name in self.killable:
            self.kill(name)

    def start_all(self, *, but: str = "") -> None:
        """Start them in order, on the same addresses and files as before."""
        for name, start in self.killable.items():
            if name != but:
                start().wait_ready(_READY_S_MAX)

    # ---- processes

    def _start_gateway(self) -> Child:
        where = ("--broker", self.broker_addresses, "--listen", self._gateway)
        return self.start_command("gateway", "rocketmq", *where)

    def _start_spark(self) -> Child:
        where = (str(self.directory / "metaq"), self.url("totals"), str(self.directory / "checkpoint"))
        return self.start_program("spark", f"{_PACKAGE}.job", *where, ready="adding up")

    def _start_python(self) -> Child:
        url = self.sqlalchemy_url("orders")
        return self.start("python", f"{_PACKAGE}.service", self._orders, ready="placing", ORDERS_DATABASE_URL=url)

    def _start_java(self) -> Child:
        java = ["java", "-Xmx256m", f"-Duser.home={self.directory}", "-cp", f"{self._built.jars}/*"]
        command = [*java, str(_HERE / "Orders.java"), self._gateway, TOPIC, str(self._ledger), self._orders]
        return self._start_foreign("java", command)

    def _start_go(self) -> Child:
        command = [str(self._built.go), self._gateway, TOPIC, "go", str(self._notes["go"])]
        return self._start_foreign("go", command)

    def _start_node(self) -> Child:
        command = ["node", str(_HERE / "totals.js"), self._gateway, TOPIC, "node", str(self._notes["node"])]
        return self._start_foreign("node", command, NODE_PATH=str(self._built.node / "node_modules"))

    def _start_foreign(self, name: str, command: Sequence[str], **env: str) -> Child:
        """Start a program that is not Python."""
        env = {"HOME": str(self.directory), **env}
        log = self._logs / f"{name}.log"
        make = partial(Child, name, command, env=env, log=log, ready="started", start=spawn_program)
        return self.start_child(name, make)

    # ---- totals

    def totals(self) -> dict[str, Total]:
        """Return the total of the placing services, as "placed", and of each adding service."""
        return {"placed": self._placed(), **{name: self._noted(name) for name in self._notes}, "spark": self._spark()}

    def _placed(self) -> Total:
        lines = self._ledger.read_text().splitlines() if self._ledger.exists() else []
        cents = [int(line.split()[1]) for line in lines]
        rows = self._sum("orders", "select count(*), coalesce(sum(cents), 0) from orders")
        return Total(len(cents) + rows[0], sum(cents) + rows[1])

    def _noted(self, name: str) -> Total:
        path = self._notes[name]
        text = path.read_text() if path.exists() else ""
        orders = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        cents = {order["order_id"]: order["cents"] for order in orders}
        return Total(len(cents), sum(cents.values()), len(orders) - len(cents))

    def _spark(self) -> Total:
        return Total(*self._sum("totals", "select coalesce(sum(orders), 0), coalesce(sum(cents), 0) from totals"))

    def _sum(self, database: str, query: LiteralString) -> tuple[int, int]:
        with psycopg.connect(self.url(database)) as connection:
            try:
                row = connection.execute(query).fetchone()
            except psycopg.errors.UndefinedTable:  # its program has not created it yet
                return 0, 0
        assert row is not None, "an aggregate has one row"
        return int(row[0]), int(row[1])
