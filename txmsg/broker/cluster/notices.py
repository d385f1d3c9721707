"""Notifications between the brokers of one database: by NOTIFY, with a separate connection that listens.

A notification only makes others look sooner; they find the change without it, too. So a lost one is not repeated.
Never one per message: a NOTIFY takes a global lock when it commits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import AsyncConnection

from txmsg.broker.store.connect import TRANSIENT, Pool, answering_within, connect_listener, notify, session
from txmsg.errors import BrokerUnavailable
from txmsg.logs import EventLog

_log = EventLog(__name__)

_HINT_PAUSE_S = 0.02
"""A broker announces the ends of queues at most 50 times a second."""
_PAYLOAD_LENGTH_MAX = 7000  # PostgreSQL takes 7,999 bytes
_PROBE_S = 5.0
_RECONNECT_PAUSE_S = 1.0


class Notices:
    """Sends and receives notifications. `on`: a callback for each kind; "KIND TEXT" calls on[KIND](TEXT).

    on_connect is called when it begins to listen, also after an interruption, in which notifications were missed.
    """

    def __init__(
        self,
        url: str,
        pool: Pool,
        on: Mapping[str, Callable[[str], None]],
        *,
        on_ends: Callable[[Mapping[int, int]], None],
        on_connect: Callable[[], None],
    ) -> None:
        self._url = url
        self._pool = pool
        self._on = on
        self._on_ends = on_ends
        self._on_connect = on_connect
        self._ends: dict[int, int] = {}
        self._has_ends = asyncio.Event()

    # ---- sending

    async def say(self, kind: str, text: str = "") -> None:
        """Notifies all brokers, including this one. Raises BrokerUnavailable."""
        async with session(self._pool) as conn:
            await notify(conn, f"{kind} {text}")

    def hint(self, ends: Mapping[int, int]) -> None:
        """Announces soon, in one notification, where these queues of other brokers (by id) end."""
        for queue_id, end in ends.items():
            self._ends[queue_id] = max(end, self._ends.get(queue_id, 0))
        if ends:
            self._has_ends.set()

    async def hint_once(self) -> None:
        """Sends what `hint` has collected, in one transaction."""
        ends, self._ends = self._ends, {}
        self._has_ends.clear()
        if ends:
            async with session(self._pool) as conn:
                await notify(conn, *_payloads(ends))

    # ---- running

    async def run(self) -> None:
        """Sends and receives until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._hint(), name="hints")
            tasks.create_task(self._listen(), name="notices")

    async def _hint(self) -> None:
        while True:
            await self._has_ends.wait()
            try:
                await self.hint_once()
            except BrokerUnavailable as exc:
                _log.debug(
                    "cluster.notice_failed",
                    "the ends of queues were not announced to other brokers: %(error)s",
                    error=exc,
                )
            except Exception:  # noqa: BLE001 - the root of a task
                _log.exception("cluster.notice_failed", "the ends of queues were not announced to other brokers")
            await asyncio.sleep(_HINT_PAUSE_S)

    async def _listen(self) -> None:
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
        """Receives for some seconds; then asks whether the database is still there, which silence does not tell."""
        async for notice in connection.notifies(timeout=_PROBE_S):
            self._take(notice)
        with answering_within(connection, _PROBE_S):
            await connection.execute("select 1")

    def _take(self, notice: psycopg.Notify) -> None:
        kind, _, text = notice.payload.partition(" ")
        if kind == "ends":
            self._on_ends(_ends_of(text))
        elif kind in self._on:  # else one of a newer release
            self._on[kind](text)


def _payloads(ends: Mapping[int, int]) -> list[str]:
    """ "ends 7:100 8:20", cut into pieces that fit a notice."""
    payloads: list[str] = []
    payload = ""
    for queue_id, end in ends.items():
        if len(payload) > _PAYLOAD_LENGTH_MAX:
            payloads.append(payload)
            payload = ""
        payload = f"{payload or 'ends'} {queue_id}:{end}"
    return [*payloads, payload]


def _ends_of(text: str) -> dict[int, int]:
    ends: dict[int, int] = {}
    for word in text.split():
        queue_id, _, end = word.partition(":")
        if queue_id.isdecimal() and end.isdecimal():  # other programs may write to the channel
            ends[int(queue_id)] = int(end)
    return ends
