"""A browser's connection: uvicorn's HTTP with time limits, and a place in the table of the socket.

uvicorn waits for ever for the head of a request, for its body, and for a client to take an answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from txmsg.wire.listening import connections_allowed
from txmsg.wire.table import SAY_AGAIN_S, ConnectionPlace, ConnectionTable, ConnectionTableBounds

CONNECTIONS_MAX: Final = 1280
"""Maximum connections of browsers: streams of a page's events, and a margin."""
UNREAD_S: Final = 30.0
"""Seconds after which a client that takes nothing of an answer is disconnected."""
_LOOK_S: Final = 1.0
STAY_STRANGER: Final = "txmsg.stay_stranger"
"""The key in a request's scope of a function to call for requests that do not identify the caller."""


def new_table(name: str) -> ConnectionTable:
    """Return the table of a console or a page."""
    connections = connections_allowed(CONNECTIONS_MAX)
    return ConnectionTable(name, ConnectionTableBounds(connections=connections, strangers=connections))


class SeldomLogger(logging.Logger):
    """uvicorn's logger, with warnings of strangers' invalid requests limited to one a minute per text. clock:
    monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("uvicorn.error")
        self._clock = clock
        self._said_at: dict[str, float] = {}

    def warning(self, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as logging does, but each text only once a minute."""
        now, text = self._clock(), str(msg)
        if now - self._said_at.get(text, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._said_at[text] = now
            super().warning(msg, *args, **kwargs)


class Watched:
    """The connections of one server, and the task that ends slow ones."""

    def __init__(self, table: ConnectionTable) -> None:
        self.table = table
        self.logger = SeldomLogger()
        self.connections: set[BrowserConnection] = set()

    async def run(self, look_s: float = _LOOK_S) -> None:
        """Run until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(look_s)
            self.end_slow(loop.time())

    def end_slow(self, now: float) -> None:
        """End connections that take too long."""
        self.table.close_slow_strangers()
        for connection in list(self.connections):
            connection.end_if_slow(now)


class BrowserConnection(H11Protocol):
    """A connection, which is a stranger while a request is awaited, the first or a further one, until it has arrived
    whole.

    Also while its answer is complete and being sent, and during requests that do not identify the caller:
    `STAY_STRANGER`.
    """

    def __init__(self, watched: Watched, **of_uvicorn: Any) -> None:
        of_uvicorn["app_state"] = {**of_uvicorn["app_state"], STAY_STRANGER: self._stay_stranger}
        super().__init__(**of_uvicorn)
        watched.logger.parent, self.logger = self.logger, watched.logger
        self._watched = watched
        self._place: ConnectionPlace | None = None
        self._has_head = False
        self._stays_stranger = False
        """True while a request that does not identify the caller is answered."""
        self._full_at = 0.0
        """The time at which the client last took something."""
        self._full_bytes = 0
        self._is_leaving = False
        """True while an answer is complete and not all of it has been sent."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Implement asyncio.Protocol."""
        super().connection_made(transport)
        self._watched.connections.add(self)
        self._place = self._watched.table.enter(self.client[0] if self.client else "", lambda _: transport.abort())
        if self._place is None:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Implement asyncio.Protocol."""
        if self._place is None or not self._place.is_in:
            return
        self._watched.table.spoken(self._place)
        super().data_received(data)
        self._note_request()

    def on_response_complete(self) -> None:
        """Extend uvicorn's method."""
        self._full_at, self._full_bytes = self.loop.time(), self.transport.get_write_buffer_size()
        self._is_leaving = self._full_bytes > 0
        self._stays_stranger = False
        if not self._is_leaving:
            self._await_request()
        elif self._place is not None:
            self._watched.table.forget_place(self._place, ends_itself=True)
        super().on_response_complete()
        self._note_request()  # one that had come before this answer was complete

    def pause_writing(self) -> None:
        """Implement asyncio.Protocol."""
        super().pause_writing()
        self._full_at, self._full_bytes = self.loop.time(), self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.Protocol."""
        self._watched.connections.discard(self)
        if self._place is not None:
            self._watched.table.leave(self._place)
        super().connection_lost(exc)

    def end_if_slow(self, now: float) -> None:
        """End it if its client takes nothing."""
        if self.flow.write_paused or self._is_leaving:
            size_bytes = self.transport.get_write_buffer_size()
            if size_bytes < self._full_bytes:
                self._full_at = now
            self._full_bytes = size_bytes
            if self._is_leaving and not size_bytes:
                self._is_leaving = False
                self._await_request()
                self._note_request()
            elif now - self._full_at > UNREAD_S:
                self.transport.abort()

    def _should_upgrade(self) -> bool:
        return False  # uvicorn advises another library, in the log, for each request that asks

    def _stay_stranger(self) -> None:
        self._stays_stranger = True
        if self._place is not None and self._is_answering and not self.cycle.more_body:
            self._watched.table.forget_place(self._place, ends_itself=True)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_request(self) -> None:
        self._has_head = False
        if self._place is not None and not self._is_answering:
            self._watched.table.forget_place(self._place)

    def _note_request(self) -> None:
        if self._place is None or not self._place.is_stranger or not self._is_answering or self._is_leaving:
            return
        if self._stays_stranger and not self.cycle.more_body:
            self._watched.table.forget_place(self._place, ends_itself=True)
        elif not self.cycle.more_body:
            self._watched.table.know(self._place)
        elif not self._has_head:
            self._has_head = True
            self._watched.table.renew(self._place)
