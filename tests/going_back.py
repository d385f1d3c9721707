"""A Notify database that returns to an earlier state while brokers run, as after a restore or a lost tail.

Brokers reach it through proxies. While it is replaced by a copy they have no connections: they only see broken
connections, as in a quick failover.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import psycopg
from sqlalchemy.engine import make_url

from tests.postgres_proxy import PostgresProxy
from tests.waiting import until

_numbers = itertools.count(1)


class Server(Protocol):
    """The interface of a PostgreSQL server that is needed here."""

    def url(self, dbname: str) -> str: ...
    def create_database(self, name: str, *, template: str | None = None) -> str: ...
    def drop_database(self, name: str) -> None: ...


class GoingBack:
    """The database at `url` of a server: `keep` copies its state, `go_back` returns to the copy, also repeatedly."""

    def __init__(self, server: Server, url: str, proxies: Sequence[PostgresProxy]) -> None:
        name = make_url(url).database
        assert name is not None
        self._server = server
        self._name: str = name
        self._kept = f"kept_{os.getpid()}_{next(_numbers)}"
        self._proxies = proxies

    def keep(self) -> None:
        with self._alone():
            self._server.drop_database(self._kept)
            self._server.create_database(self._kept, template=self._name)

    def go_back(self) -> None:
        with self._alone():
            self._server.drop_database(self._name)
            self._server.create_database(self._name, template=self._kept)

    def close(self) -> None:
        self._server.drop_database(self._kept)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until nobody is connected. Sessions outside the proxies must have ended."""
        for proxy in self._proxies:
            proxy.refuse()
            proxy.cut_all()
        try:
            sessions = "select from pg_stat_activity where datname = any(%s)"
            with psycopg.connect(self._server.url("postgres"), autocommit=True, connect_timeout=10) as connection:
                until(
                    lambda: connection.execute(sessions, [[self._name, self._kept]]).fetchone() is None,
                    why=f"sessions in {self._name} do not end",
                )
            yield
        finally:
            for proxy in self._proxies:
                proxy.accept()
