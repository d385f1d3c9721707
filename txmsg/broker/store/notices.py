"""How brokers tell each other that something has changed: a NOTIFY, which leaves with the caller's commit."""

from __future__ import annotations

from txmsg.broker.store.delivery import Connection

CHANNEL = "txmsg"
"""On which brokers listen. What they hear is "KIND TEXT"."""


async def notify(conn: Connection, *notices: str) -> None:
    """Tells all brokers that listen, the caller's too."""
    await conn.execute("select pg_notify(%s, n) from unnest(%s::text[]) n", (CHANNEL, list(notices)))
