"""Receives the notifications of the brokers of one database, with a separate connection that listens.

A notification only makes others poll sooner; they find the change without it, too. So a lost one is not repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import AsyncConnection

from txmsg.broker.cluster.hints import KIND, ends_of
from txmsg.broker.store.connect import TRANSIENT, answering_within, connect_listener
from txmsg.errors import BrokerUnavailable
from txmsg.runtime.logs import EventLog

_log = EventLog(__name__)

_PROBE_S = 5.0
_RECONNECT_PAUSE_S = 1.0


class Notices:
    """Receives notifications. `on`: a callback for each kind; "KIND TEXT" calls on[KIND](TEXT).

    on_ends is called with the ends of queues, by id, that another broker announces (see hints.py). on_connect is called
    when it begins to listen, also after an interruption, in which notifications were missed.
    """

    def __init__(
        self,
        url: str,
        on: Mapping[str, Callable[[str], None]],
        *,
        on_ends: Callable[[Mapping[int, int]], None],
        on_connect: Callable[[], None],
    ) -> None:
        self._url = url
        self._on = on
        self._on_ends = on_ends
        self._on_connect = on_connect

    async def run(self) -> None:
        """Receive until cancelled."""
        is_away = False
        while True:
            try:
                connection = await connect_listener(self._url)
                is_away = False
                try:
                    self._on_connect()
                    while True:
                        await self._hear(connection)
                finally:
                    await connection.close()
            except (*TRANSIENT, BrokerUnavailable) as exc:
                _log.log(
                    logging.DEBUG if is_away else logging.INFO,
                    "cluster.not_listening",
                    "notifications of other brokers are not received, their changes are found by polling: %(error)s",
                    error=" ".join(str(exc).split()),
                )
                is_away = True
            except Exception:  # noqa: BLE001 - the root of a task
                _log.exception("cluster.listening_failed", "listening to other brokers failed; it is tried again")
            await asyncio.sleep(_RECONNECT_PAUSE_S)

    async def _hear(self, connection: AsyncConnection[Any]) -> None:
        """Receive for some seconds; then check that the database still answers, which silence does not tell."""
        async for notice in connection.notifies(timeout=_PROBE_S):
            self._dispatch_notice(notice)
        with answering_within(connection, _PROBE_S):
            await connection.execute("select 1")

    def _dispatch_notice(self, notice: psycopg.Notify) -> None:
        kind, _, text = notice.payload.partition(" ")
        if kind == KIND:
            self._on_ends(ends_of(text))
        elif kind in self._on:  # other kinds are of a newer release
            self._on[kind](text)
