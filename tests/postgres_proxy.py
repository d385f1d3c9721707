"""A proxy in front of a PostgreSQL server that cuts, holds or forwards single requests, for tests.

    with PostgresProxy(database_url) as proxy:
        proxy.on_request = lambda request: CUT_AFTER if request.sql == "COMMIT" else FORWARD
        psycopg.connect(proxy.url)

A request is what a client waits for: a simple Query, or the messages of the extended protocol up to Sync or Flush. The
proxy has a thread and an event loop of its own, so it serves blocking and asyncio tests, and other processes. It
speaks no TLS.
"""

from __future__ import annotations

import asyncio
import math
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url

from txmsg.wire.listening import stop_listening

_CANCEL, _SSL, _GSSENC = 80877102, 80877103, 80877104
_SYNC = b"S\x00\x00\x00\x04"
_WAIT_S = 60.0


class Verdict(Enum):
    FORWARD = auto()
    CUT_BEFORE = auto()
    """The server never sees the request; both sides are closed."""
    CUT_AFTER = auto()
    """The server executes it, its whole reply is dropped, then both sides are closed."""
    HOLD = auto()
    """The request and all later ones of its connection wait for `release`."""


FORWARD, CUT_BEFORE, CUT_AFTER, HOLD = Verdict


@dataclass(frozen=True, slots=True)
class Request:
    number: int
    """Number of the request from 1, over all connections."""
    sql: str
    """The executed statements, one per line, including ones prepared earlier; empty if it only prepares."""
    connection: int
    """Number of the connection from 1."""


class PostgresProxy:
    """A proxy that listens on `url` inside `with`.

    `on_request` runs in the proxy's thread and must not wait. What it raises cuts the connection, and `with` raises it.
    """

    def __init__(self, upstream_url: str) -> None:
        self.on_request: Callable[[Request], Verdict] = lambda request: FORWARD
        self.requests: list[Request] = []
        self.url = ""
        self._upstream_url = upstream_url
        self._seen = threading.Condition()
        self._connections: set[_Connection] = set()
        self._connection_count = 0
        self._to_refuse = 0.0
        self._error: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(_WAIT_S)
        port = self._server.sockets[0].getsockname()[1]
        url = make_url(self._upstream_url).difference_update_query(["host", "port"])
        self.url = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        async def end() -> None:
            self.refuse()
            await stop_listening([self._server])
            for connection in self._connections:
                connection.cut()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), _WAIT_S)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(_WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()
        if self._error is not None and value is None:
            raise self._error

    def wait_for(self, text: str, *, after: int = 0, timeout_s: float = _WAIT_S) -> Request:
        """Block until a request with a number above `after` and this text in its SQL, in any case, was seen."""

        def found() -> Request | None:
            return next((r for r in self.requests if r.number > after and text.lower() in r.sql.lower()), None)

        with self._seen:
            request = self._seen.wait_for(found, timeout_s)
            assert request is not None, f"no request with {text!r} within {timeout_s} s; seen: {self.requests[-20:]}"
            return request

    async def wait_for_async(self, text: str, *, after: int = 0, timeout_s: float = _WAIT_S) -> Request:
        return await asyncio.to_thread(self.wait_for, text, after=after, timeout_s=timeout_s)

    def release(self, verdict: Verdict = FORWARD) -> None:
        """Give every held request its verdict. Later requests are judged as before."""
        self._on_each(lambda connection: connection.release(verdict))

    def cut_all(self) -> None:
        """Close both sides of every connection."""
        self._on_each(lambda connection: connection.cut())

    def refuse(self, count: float = math.inf) -> None:
        """Close so many new connections at once, or all until `accept`."""
        self._to_refuse = count

    def accept(self) -> None:
        self._to_refuse = 0.0

    def _on_each(self, act: Callable[[_Connection], None]) -> None:
        async def on_each() -> None:
            for connection in self._connections:
                act(connection)

        asyncio.run_coroutine_threadsafe(on_each(), self._loop).result(_WAIT_S)

    # ---- in the thread of the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._to_refuse:
            self._to_refuse -= 1
            writer.close()
            return
        self._connection_count += 1
        connection = _Connection(self._connection_count, reader, writer, self._judge)
        self._connections.add(connection)
        try:
            await connection.run(self._upstream_url)
        except Exception as exc:  # noqa: BLE001 - a task's root
            self._error = exc
        finally:
            self._connections.discard(connection)

    def _judge(self, sql: str, connection: int) -> Verdict:
        with self._seen:
            request = Request(len(self.requests) + 1, sql, connection)
            self.requests.append(request)
            self._seen.notify_all()
        return self.on_request(request)


class _Connection:
    """One client and its server process."""

    def __init__(
        self,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        judge: Callable[[str, int], Verdict],
    ) -> None:
        self._number = number
        self._client, self._to_client = reader, writer
        self._to_server: asyncio.StreamWriter | None = None
        self._judge = judge
        self._statements: dict[bytes, str] = {}  # name -> SQL
        self._portals: dict[bytes, str] = {}
        self._requests_sent = 0  # of those that end with ReadyForQuery, as are the next two
        self._replies_received = -1  # the first ReadyForQuery ends the start
        self._cut_after: int | None = None
        self._held: asyncio.Future[Verdict] | None = None

    def cut(self) -> None:
        for writer in (self._to_client, self._to_server):
            if writer is not None:
                writer.close()
        self.release(CUT_BEFORE)

    def release(self, verdict: Verdict) -> None:
        if self._held is not None and not self._held.done():
            self._held.set_result(verdict)

    async def run(self, upstream_url: str) -> None:
        try:
            startup = await self._startup()
            server, self._to_server = await _connect(upstream_url)
            self._to_server.write(startup)
            pumps = [asyncio.create_task(self._pump_requests()), asyncio.create_task(self._pump_replies(server))]
            done, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pending:
                pump.cancel()
            await asyncio.gather(*done)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # either side has closed
        finally:
            self.cut()

    async def _startup(self) -> bytes:
        """Forward the client's first packet; encryption is declined."""
        while True:
            head = await self._client.readexactly(8)
            size, code = struct.unpack("!II", head)
            if code not in (_SSL, _GSSENC):
                return head + await self._client.readexactly(size - 8)
            self._to_client.write(b"N")

    async def _pump_requests(self) -> None:
        assert self._to_server is not None
        waiting, sql = b"", []
        while True:
            kind, message = await _read(self._client)
            waiting += message
            sql += self._executed(kind, message[5:])
            if kind in b"PBDEC":  # parts of a request
                continue
            if kind in b"QFSH":  # anything else (a password, COPY data) just passes
                verdict = self._judge("\n".join(sql), self._number)
                if verdict is HOLD:
                    self._held = asyncio.get_running_loop().create_future()
                    verdict = await self._held
                if verdict is CUT_BEFORE:
                    return
                if verdict is CUT_AFTER:
                    waiting += _SYNC if kind == b"H" else b""  # a Flush brings no ReadyForQuery
                    self._cut_after = self._requests_sent + 1
                self._requests_sent += kind != b"H"
            self._to_server.write(waiting)
            await self._to_server.drain()
            if self._cut_after is not None:
                await asyncio.Future()  # until the reply ends the connection
            waiting, sql = b"", []

    def _executed(self, kind: bytes, body: bytes) -> list[str]:
        names = body.split(b"\0", 2)
        match kind:
            case b"Q":
                return [names[0].decode()]
            case b"P":
                self._statements[names[0]] = names[1].decode()
            case b"B":
                self._portals[names[0]] = self._statements.get(names[1], "")
            case b"E":
                return [self._portals.get(names[0], "")]
        return []

    async def _pump_replies(self, server: asyncio.StreamReader) -> None:
        while True:
            kind, message = await _read(server)
            swallow = self._cut_after is not None and self._replies_received == self._cut_after - 1
            self._replies_received += kind == b"Z"
            if not swallow:
                self._to_client.write(message)
                await self._to_client.drain()
            elif kind == b"Z":
                return


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    target = conninfo_to_dict(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    host, port = str(target.get("host", "localhost")), int(target.get("port") or 5432)
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)
