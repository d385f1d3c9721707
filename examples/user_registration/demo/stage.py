"""The databases, the broker, the subscribers and the service, as real processes. Knows how to start them, not why.

    postgres/      one embedded PostgreSQL with a database each for the broker ("notify"), the service ("users"), every
                   subscriber (its own name), and the supervisor's book ("attempts")
    logs/          what each process said

These two directories are all that a play leaves on disk.
"""

from __future__ import annotations

import contextlib
import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from examples.user_registration.demo import GROUPS
from examples.user_registration.demo.processes import Child, ChildFailed
from txmsg.broker.migrate import upgrade
from txmsg.embedded import EmbeddedPostgres
from txmsg.wire.v1.txmsg_pb2 import StatsReply, StatsRequest
from txmsg.wire.v1.txmsg_pb2_grpc import AdminStub

__all__ = ["Stage"]

STEP_SHARES = {"red_packet": 0.05, "alipay_account": 0.2, "legality_check": 0.1, "social_import": 1.0}
"""How long each subscriber's work takes, as a share of the slow one's."""

FIRST_CHECK_S = 1.0
CHECK_INTERVAL_S = 2.0


class Stage:
    """Everything but the users. Leaving the context ends all its processes, whatever happened inside."""

    def __init__(self, directory: Path, *, slow_ms: int) -> None:
        self.directory = directory
        self.broker: Child
        self.subscribers: dict[str, Child] = {}
        self._slow_ms = slow_ms
        self._logs = directory / "logs"
        self._exits = contextlib.ExitStack()
        self._broker_address = f"127.0.0.1:{_free_port()}"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self._exits.close)
            self._logs.mkdir(parents=True, exist_ok=True)
            self._postgres = self._exits.enter_context(EmbeddedPostgres(self.directory / "postgres"))
            for database in ("notify", "users", "attempts", *GROUPS):
                self._postgres.create_database(database)
            upgrade(self.url("notify"))
            self._exits.callback(self._stop_subscribers)
            self.start_broker()
            self._exits.callback(self._stop_broker)
            for group in GROUPS:
                self.start_subscriber(group)
            self._create_users_tables()
            self.broker.wait_ready()
            for child in self.subscribers.values():
                child.wait_ready()
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def url(self, database: str) -> str:
        """Conninfo of a database, for psycopg and psql."""
        return self._postgres.url(database)

    def start_broker(self) -> None:
        """Starts the broker; always on the same address, so that clients find it again."""
        self.broker = self._child(
            "broker",
            "txmsg.cli.main",
            "broker",
            "--storage",
            self.url("notify"),
            "--listen",
            self._broker_address,
            "--first-check-s",
            str(FIRST_CHECK_S),
            "--check-interval-s",
            str(CHECK_INTERVAL_S),
        )

    def broker_stats(self) -> StatsReply:
        """What the broker counted since it started."""
        with grpc.insecure_channel(self._broker_address) as channel:
            reply: StatsReply = AdminStub(channel).Stats(StatsRequest(), timeout=10, wait_for_ready=True)
        return reply

    def start_subscriber(self, group: str) -> None:
        self.subscribers[group] = self._child(
            group,
            "examples.user_registration.demo.run_subscriber",
            group,
            DATABASE_URL=self._sqlalchemy_url(group),
            STEP_MS=str(round(self._slow_ms * STEP_SHARES[group])),
        )

    def start_service(self, name: str) -> Child:
        """A process of the registration service. The caller ends it."""
        return self._child(
            name,
            "examples.user_registration.demo.run_service",
            USERS_DATABASE_URL=self._sqlalchemy_url("users"),
            SUBSCRIBERS=json.dumps({group: child.address for group, child in self.subscribers.items()}),
        )

    def _create_users_tables(self) -> None:
        tables = self._child(
            "users-tables", "examples.user_registration.service", USERS_DATABASE_URL=self._sqlalchemy_url("users")
        )
        try:
            if tables.wait(timeout_s=60) != 0:
                raise ChildFailed(f"the tables of the service could not be made:\n{tables.log_tail()}")
        finally:
            tables.stop()

    def _child(self, name: str, *arguments: str, **env: str) -> Child:
        env["TXMSG_BROKERS"] = self._broker_address
        return Child(name, arguments, env=env, log=self._logs / f"{name}.log")

    def _sqlalchemy_url(self, database: str) -> str:
        return self.url(database).replace("postgresql://", "postgresql+psycopg://", 1)

    def _stop_broker(self) -> None:
        self.broker.stop()  # the present one: it may have been started again

    def _stop_subscribers(self) -> None:
        for child in self.subscribers.values():
            child.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
