"""A desk without reachable brokers, and the view of its visitor; nothing is polled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from tests.methods import made
from txmsg.administration.cluster import ClusterState, Series
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.ops.console.database_poller import DatabasePoller, DatabaseSnapshot
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.operations import ConsoleOperations
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.render import Renderer
from txmsg.ops.console.user_databases import UserDatabase
from txmsg.wire.method import Method

_NO_BROKERS = ClusterState(
    shard=UUID(int=0), schema_revision="", brokers=(), queues=0, queues_unassigned=0, leases=None
)


class EmptyDatabase(DatabaseBrokers):
    """A database whose brokers give empty replies."""

    async def ask_any(self, method: Method[Any, Any], request: Any) -> Any:
        return made(method.reply)


def snapshot_of(rates: Series) -> DatabaseSnapshot:
    """Return a snapshot with these rates of the database's counters."""
    now = time.monotonic()
    return DatabaseSnapshot(
        taken_at=now,
        at=time.time(),
        cluster=_NO_BROKERS,
        series={},
        silent={},
        rates={},
        database={},
        database_rates=rates,
        database_taken_at=now,
    )


def desk_of(who: UserIdentity | None = None, *, token: str = "", rates: Series | None = None) -> UserDatabase:
    """Return the desk of this visitor. rates: those of its snapshot; None: no broker has answered yet."""
    watch = DatabasePoller(EmptyDatabase("notify", ["127.0.0.1:1"], token=token), who)
    watch.snapshot = None if rates is None else snapshot_of(rates)
    return UserDatabase(watch, None)


def look_at(desk: UserDatabase, path: Mapping[str, str] = {}) -> PageContext:
    """Return the argument of a page's function."""
    return PageContext(
        desk=desk, desks={"notify": desk}, operations=ConsoleOperations(), renderer=Renderer("en"), path=path, values={}
    )
