"""The HTTP endpoint of a process: GET /metrics, /livez and /readyz. Knows no metric and no process.

Made for one scraper and a few probes, not for the open network: everything a stranger may take is bounded, each
connection has one request, and it listens on loopback only, as long as there is no authentication. The Host is checked:
a browser that was told that a foreign name is 127.0.0.1 reads nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from txmsg.errors import MisuseError, printable
from txmsg.logs import EventLog
from txmsg.metrics.figures import Figures
from txmsg.wire.address import LOCALHOST, check_address, host_and_port, host_of, is_loopback

_log = EventLog(__name__)

TEXT: Final = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What a process answers. Each is awaited on the loop of the endpoint."""

    figures: Callable[[], Awaitable[Figures]]
    """What /metrics says."""
    unready: Callable[[], str]
    """Why the process is not ready; empty if it is."""
    dead: Callable[[], str] = lambda: ""
    """Why the process should be restarted; empty if it is alive. That this answers at all shows that its loop runs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take of the process, together."""

    connections: int = 16
    """More are closed as soon as they are made."""
    head_size_bytes: int = 8 * 1024
    request_s: float = 5.0
    """From the connection to the end of the request's head."""
    answer_s: float = 15.0
    """From there to the answer, and as long again to take it."""


class Endpoint:
    """Listens between `start` and `close`."""

    def __init__(self, probes: Probes, limits: Limits = Limits()) -> None:
        # Only here: who serves no metrics needs no prometheus-client.
        from txmsg.metrics.text import CONTENT_TYPE, text_of

        self._text_of, self._content_type = text_of, CONTENT_TYPE
        self._probes = probes
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._scrape: asyncio.Future[bytes] | None = None

    async def start(self, listen: str) -> str:
        """Listens at HOST:PORT of this machine; returns it with the port that was taken for 0. Raises MisuseError."""
        host, port = _loopback(listen)
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=self._limits.head_size_bytes)
        except OSError as exc:
            raise MisuseError(
                f"cannot listen on {listen} ({exc.strerror or exc}): look with `ss -ltnp`, or give another "
                "--http-listen HOST:PORT (port 0: a free one)"
            ) from exc
        address = f"{listen.rpartition(':')[0]}:{self._server.sockets[0].getsockname()[1]}"
        _log.info("metrics.served", "metrics are at http://%(address)s/metrics", address=address)
        return address

    async def close(self) -> None:
        """Ends the requests under way. Closing twice, or before `start`, is fine."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        tasks: list[asyncio.Future[Any]] = [*self._open, *([self._scrape] if self._scrape else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= self._limits.connections:
            writer.transport.abort()
            return
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has gone, or takes too long
        except asyncio.CancelledError:
            pass  # by `close`; Python 3.11 would log a task of a connection that is cancelled
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_head = False
        try:
            async with asyncio.timeout(self._limits.request_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            page = Page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too large\n")
        else:
            request = _request_of(head)
            is_head = isinstance(request, _Request) and request.method == "HEAD"
            page = await self._page_of(request) if isinstance(request, _Request) else request
        async with asyncio.timeout(self._limits.answer_s):
            writer.write(_bytes_of(page, with_body=not is_head))
            await writer.drain()
            writer.write_eof()
            with suppress(asyncio.LimitOverrunError):
                while await reader.read(self._limits.head_size_bytes):  # closed now, it might lose what was not read
                    pass

    async def _page_of(self, request: _Request) -> Page:
        match request.path:
            case "/metrics":
                return await self._metrics()
            case "/livez":
                return _verdict(self._probes.dead())
            case "/readyz":
                return _verdict(self._probes.unready())
            case _:
                return Page(HTTPStatus.NOT_FOUND, b"there are /metrics, /livez and /readyz\n")

    async def _text(self) -> bytes:
        figures = await self._probes.figures()
        # The text of thousands of series takes 15 ms: not on the loop, where messages would wait for it.
        return await asyncio.to_thread(self._text_of, figures)

    async def _metrics(self) -> Page:
        # Those who ask at the same time are told the same: scrapes cost the process no more for being many.
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.ensure_future(self._text())
        try:
            async with asyncio.timeout(self._limits.answer_s):
                body = await asyncio.shield(self._scrape)
        except TimeoutError:
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, b"the figures were not read in time\n")
        except Exception:  # noqa: BLE001 - whatever it is, the process goes on
            _log.exception("metrics.failed", "the figures could not be read")
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, b"the figures could not be read; the log says why\n")
        return Page(HTTPStatus.OK, body, self._content_type)


@asynccontextmanager
async def serving(listen: str, probes: Probes) -> AsyncIterator[str]:
    """Serves within the block, at the address that it is given; nothing for an empty `listen`. Raises MisuseError."""
    if not listen:
        yield ""
        return
    endpoint = Endpoint(probes)
    try:
        yield await endpoint.start(listen)
    finally:
        await endpoint.close()


@contextmanager
def serving_on_thread(listen: str, probes: Probes) -> Iterator[str]:
    """The same for a process without a loop: serves on one of its own, on a thread."""
    if not listen:
        yield ""
        return
    check_loopback(listen)
    endpoint = Endpoint(probes)
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


class _Request(NamedTuple):
    method: str
    path: str


def _request_of(head: bytes) -> _Request | Page:
    """What is asked for, or the answer to a request that is none of ours."""
    line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    words = line.split(" ")
    fields = [text.partition(":") for text in lines]
    if len(words) != 3 or words[2] not in {"HTTP/1.1", "HTTP/1.0"} or any(not name.strip() for name, _, _ in fields):
        return Page(HTTPStatus.BAD_REQUEST, b"this is no request of HTTP/1.1\n")
    method, target, _ = words
    if method not in {"GET", "HEAD"}:
        return Page(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are answered\n")
    values = {name.lower(): value.strip() for name, _, value in fields}
    if values.get("content-length", "0") != "0" or "transfer-encoding" in values:
        return Page(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"a request has no body\n")
    hosts = [value.strip() for name, _, value in fields if name.lower() == "host"]
    if len(hosts) != 1 or not is_loopback(host_of(hosts[0])):
        return Page(
            HTTPStatus.MISDIRECTED_REQUEST, b"ask for localhost or 127.0.0.1: the Host of the request is another\n"
        )
    return _Request(method, target.partition("?")[0])


def _bytes_of(page: Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (page.body if with_body else b"")


def _verdict(trouble: str) -> Page:
    if trouble:
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, f"{printable(trouble)}\n".encode())
    return Page(HTTPStatus.OK, b"ok\n")


def check_loopback(listen: str) -> str:
    """`listen` if it is an address of this machine that only it reaches. Raises InvalidName, MisuseError."""
    listen = check_address("--http-listen", listen)
    _loopback(listen)
    return listen


def _loopback(listen: str) -> tuple[str, int]:
    host, port = host_and_port(listen)
    if not is_loopback(host):
        raise MisuseError(
            f"--http-listen {listen}: metrics are served without authentication, and so on this machine only: give "
            f"127.0.0.1:{port}, and let a scraper on this machine, or a proxy that authenticates, read it there"
        )
    return "127.0.0.1" if host == LOCALHOST else host, port
