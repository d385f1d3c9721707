"""The HTTP application: the page, its assets, the stream of bulletins, and the newest one.

- GET /          the page
- GET /events    server-sent events, each a bulletin; one at least every second, so that silence means a lost connection
- GET /figures   the newest bulletin alone, for programs; 503 before the first
- GET /assets, /page   what the page loads
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txmsg.page.feed import Feed
from txmsg.page.page import ASSETS, Page

BROWSERS_MAX: Final = 1000
"""Maximum browsers at a time; more are told to retry."""
_RETRY_MS: Final = 1000
_HEADERS: Final = (
    (b"cache-control", b"no-cache"),  # a release that is new is seen at once; unchanged assets answer 304
    (b"content-security-policy", b"default-src 'self'; img-src 'self' data:"),
    (b"x-content-type-options", b"nosniff"),
)


def new_app(page: Page, feed: Feed) -> Starlette:
    """The application, to be served."""
    api = _Api(page, feed)
    return Starlette(
        routes=[
            Route("/", api.page),
            Route("/events", api.events),
            Route("/figures", api.figures),
            Mount("/assets", StaticFiles(directory=ASSETS)),
            Mount("/page", StaticFiles(directory=page.directory)),
        ],
        middleware=[Middleware(_Headers)],
    )


class _Api:
    def __init__(self, page: Page, feed: Feed) -> None:
        self._html = page.html()
        self._feed = feed

    async def page(self, request: Request) -> Response:
        return HTMLResponse(self._html)

    async def figures(self, request: Request) -> Response:
        newest = self._feed.newest
        if newest is None:
            return _later("nothing was read yet: ask again in a second")
        return Response(newest, media_type="application/json")

    async def events(self, request: Request) -> Response:
        if self._feed.readers >= BROWSERS_MAX:
            return _later(f"{self._feed.readers} browsers look already: ask again later")
        # A proxy that collects what it passes on would make live figures old ones.
        return StreamingResponse(self._events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def _events(self) -> AsyncIterator[bytes]:
        self._feed.readers += 1
        try:
            yield b"retry: %d\n\n" % _RETRY_MS
            async for bulletin in self._feed.bulletins():
                yield b"data: %b\n\n" % bulletin
        finally:
            self._feed.readers -= 1


def _later(why: str) -> Response:
    return JSONResponse({"error": why}, status_code=503, headers={"Retry-After": "1"})


class _Headers:
    """Adds _HEADERS to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)
