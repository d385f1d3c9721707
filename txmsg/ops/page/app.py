"""The HTTP application: the page, its assets, the stream of bulletins, and the newest one.

- GET /          the page
- GET /events    server-sent events, each a bulletin; one at least every second, so that silence means a lost connection
- GET /figures   the newest bulletin alone, for programs; 503 before the first
- GET /assets, /page   what the page loads

With a login, everything but /assets needs a session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from txmsg.ops.page.feed import BulletinFeed
from txmsg.ops.page.guard import RequestGuard
from txmsg.ops.page.language import language_of
from txmsg.ops.page.logged_in import LoggedInUser, LoggedInUsers
from txmsg.ops.page.login import VISIT, LoginForm, LoginMiddleware
from txmsg.ops.page.page import ASSETS, Page
from txmsg.ops.page.sessions import LoginSession, LoginSessions

BROWSERS_MAX: Final = 1000
"""Maximum browsers at a time; more are told to retry."""
BROWSERS_OF_USER_MAX: Final = 100
"""Maximum browsers of one user who has logged in."""
_RETRY_MS: Final = 1000
_FILES: Final = ("/assets/", "/page/")


def new_app(
    page: Page, feed: BulletinFeed, visitors: LoggedInUsers | None, sessions: LoginSessions[LoggedInUser]
) -> ASGIApp:
    """Return the application. visitors: None admits all."""
    api = _PageApi(page, feed)
    app: ASGIApp = Starlette(
        routes=[
            Route("/", api.page),
            Route("/events", api.events),
            Route("/figures", api.figures),
            Mount("/assets", StaticFiles(directory=ASSETS)),
            Mount("/page", StaticFiles(directory=page.directory)),
        ],
    )
    if visitors is not None:
        entrance = LoginForm(
            title=page.words["title"].en,
            sign_in=visitors.sign_in,
            is_needed=_always,
            is_over=lambda visitor: visitor.is_over,
            open_paths=("/assets/",),
            language=lambda request: language_of(request.headers.get("accept-language", "")),
        )
        app = LoginMiddleware(app, entrance, sessions)
    # Any Host: a page for many has names that it does not know; with a login, the cookie is of one of them.
    return RequestGuard(app, files=_FILES, only_loopback=False)


def _is_over(session: LoginSession[LoggedInUser]) -> bool:
    return not session.is_open or any(each.is_over for each in session.at.values())


async def _always(_: str) -> bool:
    return True


class _PageApi:
    def __init__(self, page: Page, feed: BulletinFeed) -> None:
        self._html = page.html()
        self._feed = feed
        self._of_users: Counter[str] = Counter()
        """Numbers of browsers with open pages, by user."""

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
        visit = request.scope.get(VISIT)
        session = None if visit is None else visit.session
        user = "" if session is None else next((visitor.name for visitor in session.at.values()), "")
        if user and self._of_users[user] >= BROWSERS_OF_USER_MAX:
            return _later(f"{self._of_users[user]} browsers of {user} look already: close some")
        # A proxy that collects what it passes on would make live figures old ones.
        return StreamingResponse(
            self._events(session, user), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def _events(self, session: LoginSession[LoggedInUser] | None, user: str) -> AsyncIterator[bytes]:
        self._feed.readers += 1
        self._of_users[user] += 1
        try:
            yield b"retry: %d\n\n" % _RETRY_MS
            async for bulletin in self._feed.bulletins():
                if session is not None and _is_over(session):
                    return  # the browser asks again, and is led to the login
                yield b"data: %b\n\n" % bulletin
        finally:
            self._feed.readers -= 1
            self._of_users[user] -= 1
            if not self._of_users[user]:
                del self._of_users[user]


def _later(why: str) -> Response:
    return JSONResponse({"error": why}, status_code=503, headers={"Retry-After": "1"})
