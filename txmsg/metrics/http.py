"""The HTTP endpoint of a process: GET /metrics, /livez and /readyz. Knows no metric and no process.

For one scraper and a few probes, not for the open network: everything that a stranger can use is bounded, the TLS
handshake included, and each connection has one request. /metrics may need a certificate or a token; probes are open,
because supervisors of processes have neither. The reason why a process is not ready may name directories and databases:
it is shown only on its machine, and to readers of /metrics. On loopback the Host is checked: a browser to which a
foreign name resolves to 127.0.0.1 reads nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

from txmsg.errors import MisuseError, printable, shown
from txmsg.metrics.figures import Figures
from txmsg.runtime.logs import EventLog
from txmsg.wire.address import LOCALHOST, host_and_port, host_of, is_local, is_loopback
from txmsg.wire.listening import loopback_end, stop_listening
from txmsg.wire.table import ConnectionPlace, ConnectionTable, ConnectionTableBounds
from txmsg.wire.tls import ServerTls, TlsStream

_log = EventLog(__name__)

TEXT: Final = "text/plain; charset=utf-8"
_END: Final = b"\r\n\r\n"
_TOKEN_SIZE_MIN: Final = 16


class HttpAnswer(NamedTuple):
    """A response."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    asks: str = ""
    """The header that asks for authentication; empty if none is needed."""


class BearerToken:
    """The token of readers of /metrics. Raises MisuseError if the file has none."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._trouble = ""
        self._read()

    def is_in(self, authorization: str) -> bool:
        """Return True if the header `Authorization` has the token.

        The file is read again: it may have been replaced.
        """
        try:
            token = self._read()
        except MisuseError as exc:
            if str(exc) != self._trouble:
                _log.error("metrics.token_unreadable", "/metrics refuses all requests: %(error)s", error=str(exc))
            self._trouble = str(exc)
            return False
        self._trouble = ""
        scheme, _, given = authorization.partition(" ")
        # In constant time: `==` takes longer the more first characters are right.
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())

    def _read(self) -> str:
        try:
            token = self._file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as exc:
            raise MisuseError(f"--http-token-file {shown(str(self._file))} cannot be read as a token: {exc}") from exc
        if len(token) < _TOKEN_SIZE_MIN:
            raise MisuseError(
                f"--http-token-file {shown(str(self._file))} has {len(token)} characters, and a token "
                f"{_TOKEN_SIZE_MIN} at least: write one there by `openssl rand -hex 32`"
            )
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """A process's answers to requests. All run on the loop of the endpoint."""

    figures: Callable[[], Awaitable[Figures]]
    """Returns the figures of /metrics."""
    unready: Callable[[], str]
    """Returns the reason why the process is not ready; empty if it is."""
    dead: Callable[[], str] = lambda: ""
    """Returns the reason to restart the process; empty if it is alive. Any answer shows that its loop runs."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Limits of all clients together."""

    connections: int = 64
    """Open connections. Beyond, the address with most silent connections loses one."""
    scrapes: int = 16
    """Scrapes that wait for the figures at once. Further ones are refused, which leaves room for probes."""
    head_size_bytes: int = 8 * 1024
    first_byte_s: float = 2.0
    """Seconds from the connection to its first byte; with TLS, to the first decrypted one."""
    request_s: float = 5.0
    """Seconds from the connection to the end of the request's head."""
    answer_s: float = 15.0
    """Seconds from there to the answer, and again for its transfer."""
    look_s: float = 10.0
    """Seconds between log lines about closed connections."""


class Endpoint:
    """The HTTP server. Listens between `start` and `close`."""

    def __init__(
        self,
        probes: Probes,
        limits: EndpointLimits = EndpointLimits(),
        *,
        tls: ServerTls | None = None,
        token: BearerToken | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Imported only here: a process that serves no metrics needs no prometheus-client.
        from txmsg.metrics.text import CONTENT_TYPE, text_of

        self._text_of, self._content_type = text_of, CONTENT_TYPE
        self._probes = probes
        self._limits = limits
        self._tls = tls
        self._token = token
        self._is_local = True
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._table = ConnectionTable(
            "the endpoint of /metrics",
            ConnectionTableBounds(connections=limits.connections, strangers=limits.connections),
            clock=clock,
        )
        self._looking: asyncio.TimerHandle | None = None
        self.scrapes = 0
        """Scrapes that wait for the figures now."""
        self._scrape: asyncio.Future[bytes] | None = None

    async def start(self, listen: str) -> str:
        """Listen at HOST:PORT. Return the address with the port that was chosen for 0. Raises MisuseError."""
        host, port = host_and_port(listen)
        self._is_local = is_local(listen)
        try:
            self._server = await asyncio.start_server(
                self._serve,
                loopback_end()[1] if host == LOCALHOST else host,
                port,
                limit=self._limits.head_size_bytes,
            )
        except OSError as exc:
            raise MisuseError(
                f"cannot listen on {listen} ({exc.strerror or exc}): look with `ss -ltnp`, or give another "
                "--http-listen HOST:PORT (port 0: a free one)"
            ) from exc
        self._close_strangers()
        address = f"{listen.rpartition(':')[0]}:{self._server.sockets[0].getsockname()[1]}"
        scheme = "http" if self._tls is None else "https"
        _log.info("metrics.served", "metrics are at %(scheme)s://%(address)s/metrics", scheme=scheme, address=address)
        return address

    async def close(self) -> None:
        """Stop listening and end the requests in progress. May be called twice, or before `start`."""
        server, self._server = self._server, None
        if server is not None:
            await stop_listening([server])
        if self._looking is not None:
            self._looking.cancel()
        tasks: list[asyncio.Future[Any]] = [*self._open, *([self._scrape] if self._scrape else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _close_strangers(self) -> None:
        self._table.say_closed()  # Only logs: each connection bounds its own times.
        self._looking = asyncio.get_running_loop().call_later(self._limits.look_s, self._close_strangers)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername")
        place = self._table.enter(str(peer[0]) if peer else "", lambda _: writer.transport.abort())
        if place is None:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._answer(_Client(reader, writer, self._tls, self._limits.first_byte_s), place)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone, or takes too long
        except asyncio.CancelledError:
            pass  # by `close`; Python 3.11 would log a task of a connection that is cancelled
        finally:
            self._open.discard(task)
            self._table.leave(place)
            writer.transport.abort()

    async def _answer(self, client: _Client, place: ConnectionPlace) -> None:
        is_head = False
        async with asyncio.timeout(self._limits.request_s):
            head = await client.head(self._limits.head_size_bytes)
        if head is None:
            page = HttpAnswer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too large\n")
        else:
            request = _request_of(head, is_local=self._is_local)
            is_head = isinstance(request, _MetricsRequest) and request.method == "HEAD"
            if isinstance(request, _MetricsRequest) and request.path == "/metrics":
                await self._answer_scrape(request, client, place)
                return
            if isinstance(request, _MetricsRequest):
                says_why = is_loopback(place.address) or self._may_read(request, client)
                page = self._page_of(request, says_why=says_why)
            else:
                page = request
        async with asyncio.timeout(self._limits.answer_s):
            await client.answer(_bytes_of(page, with_body=not is_head))

    async def _answer_scrape(self, request: _MetricsRequest, client: _Client, place: ConnectionPlace) -> None:
        if not self._may_read(request, client):
            page = _NOT_YOU
        elif self.scrapes >= self._limits.scrapes:
            page = HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE, b"others read the figures at this moment: try again\n")
        else:
            self.scrapes += 1
            self._table.know(place)
            try:
                page = await self._metrics()
            finally:  # Before the transfer: a client that never reads its answer must not keep others from the figures.
                self.scrapes -= 1
                self._table.forget_place(place)
        async with asyncio.timeout(self._limits.answer_s):
            await client.answer(_bytes_of(page, with_body=request.method != "HEAD"))

    def _page_of(self, request: _MetricsRequest, *, says_why: bool) -> HttpAnswer:
        match request.path:
            case "/livez":
                return _verdict(self._probes.dead(), says_why=says_why)
            case "/readyz":
                return _verdict(self._probes.unready(), says_why=says_why)
            case _:
                return HttpAnswer(HTTPStatus.NOT_FOUND, b"there are /metrics, /livez and /readyz\n")

    def _may_read(self, request: _MetricsRequest, client: _Client) -> bool:
        asks_certificates = self._tls is not None and self._tls.asks_clients
        if self._token is None and not asks_certificates:
            return True
        has_token = self._token is not None and self._token.is_in(request.authorization)
        return has_token or client.has_certificate

    async def _text(self) -> bytes:
        figures = await self._probes.figures()
        if self._tls is not None:
            figures.put("txmsg_tls_certificate_remaining_seconds", self._tls.remaining_s())
        # The text of thousands of series takes 15 ms: not on the loop, where messages would wait for it.
        return await asyncio.to_thread(self._text_of, figures)

    async def _metrics(self) -> HttpAnswer:
        # Concurrent scrapes share one reading, so that their number does not matter to the process.
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.ensure_future(self._text())
        try:
            async with asyncio.timeout(self._limits.answer_s):
                body = await asyncio.shield(self._scrape)
        except TimeoutError:
            return HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE, b"the figures were not read in time\n")
        except Exception:  # noqa: BLE001 - a failed scrape must not end the process
            _log.exception("metrics.failed", "the figures could not be read")
            return HttpAnswer(HTTPStatus.INTERNAL_SERVER_ERROR, b"the figures could not be read; the log says why\n")
        return HttpAnswer(HTTPStatus.OK, body, self._content_type)


@asynccontextmanager
async def serving(
    listen: str, probes: Probes, tls: ServerTls | None = None, token_file: Path | None = None
) -> AsyncIterator[str]:
    """Serve within the block, and yield the address; serves nothing for an empty `listen`. Raises MisuseError."""
    if not listen:
        yield ""
        return
    endpoint = Endpoint(probes, tls=tls, token=None if token_file is None else BearerToken(token_file))
    try:
        yield await endpoint.start(listen)
    finally:
        await endpoint.close()


@contextmanager
def serving_on_thread(
    listen: str, probes: Probes, tls: ServerTls | None = None, token_file: Path | None = None
) -> Iterator[str]:
    """`serving` for a process without a loop: serves on a loop of its own, on a thread."""
    if not listen:
        yield ""
        return
    endpoint = Endpoint(probes, tls=tls, token=None if token_file is None else BearerToken(token_file))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="txmsg-metrics", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(endpoint.start(listen), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(endpoint.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Client:
    """One connection, with TLS or without. Failures of TLS are those of a connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tls: ServerTls | None, first_byte_s: float
    ) -> None:
        self._reader, self._writer, self._first_byte_s = reader, writer, first_byte_s
        self._tls: TlsStream | None = None
        if tls is not None:
            tls.renew()
            self._tls = TlsStream(tls.lenient_context)

    @property
    def has_certificate(self) -> bool:
        return self._tls is not None and self._tls.has_certificate

    async def head(self, size_bytes_max: int) -> bytes | None:
        """Return the head of its request; None if it is too large."""
        said = bytearray()
        async with asyncio.timeout(self._first_byte_s) as waiting:
            while (end := said.find(_END)) < 0 and len(said) <= size_bytes_max:
                data = await self._reader.read(size_bytes_max)
                if not data:
                    raise asyncio.IncompleteReadError(bytes(said), None)
                said += self._decrypted(data)
                if said:
                    waiting.reschedule(None)
        return bytes(said[: end + len(_END)]) if 0 <= end <= size_bytes_max else None

    async def answer(self, content: bytes) -> None:
        """Send the response and the end of the stream, and wait until the client has closed."""
        if self._tls is not None:
            self._tls.encrypt_pieces([content])
            self._tls.end_sending()
            content = self._tls.leaving()
        self._writer.write(content)
        await self._writer.drain()
        self._writer.write_eof()
        with suppress(asyncio.LimitOverrunError):
            while await self._reader.read(4096):  # Closing with unread data sends RST, which may discard the answer.
                pass

    def _decrypted(self, data: bytes) -> bytes:
        if self._tls is None:
            return data
        try:
            return self._tls.receive(data)
        finally:
            self._writer.write(self._tls.leaving())  # of the handshake; or why it is refused


class _MetricsRequest(NamedTuple):
    method: str
    path: str
    authorization: str


def _request_of(head: bytes, *, is_local: bool) -> _MetricsRequest | HttpAnswer:
    """Return the request, or the response that refuses it."""
    line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = line.split(" ")
    fields = [text.partition(":") for text in lines]
    if len(words) != 3 or words[2] not in {"HTTP/1.1", "HTTP/1.0"} or any(not name.strip() for name, _, _ in fields):
        return HttpAnswer(HTTPStatus.BAD_REQUEST, b"this is not an HTTP/1.1 request\n")
    method, target, _ = words
    if method not in {"GET", "HEAD"}:
        return HttpAnswer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are answered\n")
    values = {name.lower(): value.strip() for name, _, value in fields}
    if values.get("content-length", "0") != "0" or "transfer-encoding" in values:
        return HttpAnswer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"a request has no body\n")
    hosts = [value.strip() for name, _, value in fields if name.lower() == "host"]
    # HTTP requires exactly one Host. On loopback, a foreign one comes from a browser, as the head of this module
    # says.
    if len(hosts) != 1 or (is_local and not is_loopback(host_of(hosts[0]))):
        return HttpAnswer(
            HTTPStatus.MISDIRECTED_REQUEST, b"ask for localhost or 127.0.0.1: the Host of the request is another\n"
        )
    return _MetricsRequest(method, target.partition("?")[0], values.get("authorization", ""))


def _bytes_of(page: HttpAnswer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{page.asks}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (page.body if with_body else b"")


def _verdict(trouble: str, *, says_why: bool) -> HttpAnswer:
    if trouble:
        told = printable(trouble) if says_why else "the log of the process says why"
        return HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE, f"{told}\n".encode())
    return HttpAnswer(HTTPStatus.OK, b"ok\n")


_NOT_YOU: Final = HttpAnswer(
    HTTPStatus.UNAUTHORIZED,
    b"metrics are for those with the token of --http-token-file, or a certificate of --tls-client-ca\n",
    asks="WWW-Authenticate: Bearer\r\n",
)
