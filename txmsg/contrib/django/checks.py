"""The findings of `manage.py check`: faults of TXMSG, and of TXMSG with other settings. Connects to nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.core import checks
from django.db import connections, router

from txmsg.contrib.django.configuration import Configuration, configuration, faults
from txmsg.contrib.django.databases import VENDORS
from txmsg.errors import TxmsgError
from txmsg.message import check_name
from txmsg.wire.address import host_and_port, is_loopback
from txmsg.wire.brokers import MEMORY, shards_of
from txmsg.wire.tls import CA_VARIABLE

FINDINGS: Final[Mapping[str, str]] = {
    "txmsg.E001": "`TXMSG` is missing, or is not a dictionary.",
    "txmsg.E002": "`TXMSG` has no `GROUP`.",
    "txmsg.E003": "`TXMSG` has a name that is none of its settings.",
    "txmsg.E004": "A setting has a value that it does not take.",
    "txmsg.E005": "The producer group of a database, `GROUP.ALIAS`, is not a valid name.",
    "txmsg.E006": "A database in which migrations create txmsg's tables is of a kind that cannot have a fence.",
    "txmsg.E007": "Such a database is of SQLite in memory: a check-back has a connection, so a database, of its own.",
    "txmsg.E008": "`TOKEN` is given, `TLS` is `False`, and a broker is elsewhere: the token would not be sent to it.",
    "txmsg.W001": "The connection pool of a database is smaller than `CONCURRENCY`: handlers wait for each other.",
    "txmsg.W002": "As E008, where the variable `TXMSG_TLS_CA` decides about TLS and is not set here.",
    "txmsg.W003": "`BROKERS` is `memory:`, so nothing leaves the process. Found by `manage.py check --deploy`.",
}
"""The meaning of each finding, by id."""

_POOL_SIZE: Final = 4
"""The default size of a pool of psycopg_pool."""


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Return all findings but those of a deployment. Settings are compared only if each by itself is valid."""
    found = [checks.Error(fault.text, hint=fault.hint, id=fault.id) for fault in faults()]
    if found:
        return found
    chosen = configuration()
    return [*_of_databases(chosen), *_of_token(chosen)]


def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """Return the findings of a deployment: settings that are valid for tests only."""
    if any(faults()) or shards_of(configuration().BROKERS, takes_memory=True) != [[MEMORY]]:
        return []
    return [
        checks.Warning(
            f"TXMSG: messages are kept in this process, as its brokers are {MEMORY!r}",
            hint="name the brokers in BROKERS, or in the variable TXMSG_BROKERS",
            id="txmsg.W003",
        )
    ]


def _of_databases(chosen: Configuration) -> Iterator[checks.CheckMessage]:
    for alias in connections:
        described: dict[str, Any] = connections.settings[alias]
        if described["ENGINE"] == "django.db.backends.dummy" or not router.allow_migrate(alias, "txmsg"):
            continue
        try:
            check_name("producer group", chosen.group_of(alias))
        except TxmsgError as exc:
            yield checks.Error(
                f"the transactions of database {alias!r} need a producer group: {exc}",
                hint="give the database another alias, or TXMSG a shorter GROUP",
                id="txmsg.E005",
            )
        vendor = connections[alias].vendor
        if vendor not in VENDORS:
            yield checks.Error(
                f"database {alias!r} is of {vendor}, which can have no fence",
                hint="use PostgreSQL, MySQL, MariaDB or SQLite, or keep the tables out of it: allow_migrate of a "
                "database router returns False for the app label txmsg",
                id="txmsg.E006",
            )
        if vendor == "sqlite" and str(described["NAME"]) in ("", ":memory:"):
            yield checks.Error(
                f"database {alias!r} is of SQLite in memory, where each connection has a database of its own: "
                "check-backs would not find the fence",
                hint="give its NAME a file, and also the one in TEST",
                id="txmsg.E007",
            )
        size = _pool_size(described["OPTIONS"].get("pool"))
        if size is not None and size < chosen.CONCURRENCY:
            yield checks.Warning(
                f"the pool of database {alias!r} has {size} connections, and TXMSG has CONCURRENCY {chosen.CONCURRENCY}"
                ": the other handlers wait for a connection, and fail when the pool's timeout is over",
                hint="raise max_size of the pool to CONCURRENCY for each subscription that a worker process runs",
                id="txmsg.W001",
            )


def _pool_size(pool: object) -> int | None:
    """Return the largest number of its connections; None without a pool."""
    if not pool:
        return None
    told = pool if isinstance(pool, Mapping) else {}
    smallest = told.get("min_size", _POOL_SIZE)
    largest = told.get("max_size")
    return int(smallest if largest is None else largest)


def _of_token(chosen: Configuration) -> Iterator[checks.CheckMessage]:
    shards = shards_of(chosen.BROKERS, takes_memory=True)
    if chosen.TOKEN in (None, "") or chosen.TLS or shards == [[MEMORY]]:
        return
    hosts = {host_and_port(address)[0] for shard in shards for address in shard}
    far = sorted(host for host in hosts if not is_loopback(host))
    if not far or (chosen.TLS is None and os.environ.get(CA_VARIABLE)):
        return
    text = f"TXMSG has a TOKEN, which is not sent to {far[0]} without TLS, where others could read it"
    if chosen.TLS is False:
        yield checks.Error(text, hint="let TLS be True, or the file of the authority of the brokers", id="txmsg.E008")
    else:
        yield checks.Warning(
            text, hint=f"give TLS, unless processes in production have the variable {CA_VARIABLE}", id="txmsg.W002"
        )
