"""Login: a page that asks for a token, the cookie of its session, and a middleware that requires a session.

`sign_in` decides about a token: for the console and for pages, brokers do. The token is not stored here, and is in no
address, log or error.

- GET /login     asks for the token; `next` is the page to go to, `place` the place to log in to
- POST /login    a session with a new id, or the reason why there is none
- POST /logout   ends the session
- GET /login.css style of the page; its icon is the application's /assets/icon.svg
"""

from __future__ import annotations

import asyncio
import html
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from string import Template
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from txmsg.errors import TxmsgError, Unauthenticated, printable
from txmsg.ops.page.connection import STAY_STRANGER
from txmsg.ops.page.page import ASSETS, BilingualText
from txmsg.ops.page.sessions import LoginSession, LoginSessions
from txmsg.runtime.logs import EventLog
from txmsg.wire.access.failures import Failures
from txmsg.wire.table import network_of

_log = EventLog(__name__)

T = TypeVar("T")

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-txmsg-csrf"
SWEEP_S: Final = 5.0
VISIT: Final = "txmsg.visit"
"""The key of a Visit in the scope of a request."""
_FORM_SIZE_BYTES_MAX: Final = 16 * 1024
_PATH_SIZE_MAX: Final = 2048
_CHECKS_MAX: Final = 32
"""Maximum tokens that are checked at a time, so that strangers do not take all connections of brokers."""
_WAITING_MAX: Final = 64
"""Maximum tokens that wait for their check; further ones are answered at once."""
_REFUSING_MAX: Final = 100
"""Maximum delayed refusals; further ones are answered at once."""

_WORDS: Final = {
    "login": BilingualText("Log in", "登录"),
    "token": BilingualText("Token", "令牌"),
    "place": BilingualText("Notify database", "Notify 数据库"),
    "says": BilingualText(
        "Paste your token, as “txmsg user create” or “txmsg user rotate” has printed it.",
        "请粘贴“txmsg user create”或“txmsg user rotate”输出的令牌。",
    ),
    "refused": BilingualText(
        "This token is not valid: it is wrong, expired or revoked.", "此令牌无效：错误、已过期或已撤销。"
    ),
    "busy": BilingualText("Too many logins are being checked. Try again.", "正在检查的登录过多，请重试。"),
    "empty": BilingualText("Give a token.", "请输入令牌。"),
    "old_form": BilingualText("This page was too old. Try again.", "页面已过期，请重试。"),
    "ended": BilingualText("You were logged out: the token is not valid any more.", "已退出登录：令牌已失效。"),
}


@dataclass(frozen=True, kw_only=True)
class LoginForm(Generic[T]):
    """The places to log in to, and the functions of a login."""

    title: str
    sign_in: Callable[[str, str], Awaitable[T]]
    """Returns the login of a token at a place. Raises Unauthenticated, or another of errors.py, which the page then
    shows."""
    is_needed: Callable[[str], Awaitable[bool]]
    """Returns True if a place asks for a login. "" stands for paths below no place."""
    is_over: Callable[[T], bool] = lambda _: False
    """Returns True if a login is no longer valid."""
    places: Sequence[str] = ("",)
    """The places to log in to: first parts of paths. One may be "", for all paths."""
    open_paths: Sequence[str] = ()
    """Prefixes of paths that need no login: files."""
    language: Callable[[Request], str]
    theme: Callable[[Request], str] = lambda _: "system"


class LoginMiddleware(Generic[T]):
    """A middleware that admits requests if no login is needed, or the browser has a session."""

    def __init__(self, app: ASGIApp, entrance: LoginForm[T], sessions: LoginSessions[T]) -> None:
        self._app = app
        self._entrance = entrance
        self._sessions = sessions
        self._failures = Failures()
        self._refusing = 0
        self._checking = 0
        """The number of tokens that are checked, or wait for it."""
        self._checks = asyncio.Semaphore(_CHECKS_MAX)
        self._csrf = secrets.token_urlsafe(32)
        """The secret of forms before there is a session."""
        self._document = Template((ASSETS / "login.html").read_text(encoding="utf-8"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path = scope["path"]
        is_stream = "text/event-stream" in request.headers.get("accept", "")
        session = self._sessions.find_session(request.cookies.get(cookie_name(scope), ""), is_use=not is_stream)
        scope[VISIT] = BrowserVisit(session, self._csrf if session is None else session.csrf)
        answer: ASGIApp | Response = self._app
        is_open = path.startswith(("/login", *self._entrance.open_paths))
        if session is None and is_open:
            _stay_stranger(scope)
        if path == "/login":
            answer = await (
                self._log_in(request, session) if scope["method"] == "POST" else self._login_page(request, session)
            )
        elif path == "/login.css":
            answer = FileResponse(ASSETS / "login.css")
        elif path == "/logout" and scope["method"] == "POST":
            answer = await self._log_out(request, session)
        elif not path.startswith(tuple(self._entrance.open_paths)):
            refusal = await self._refusal(request, session, is_stream=is_stream)
            if refusal is not None:
                _stay_stranger(scope)
            answer = refusal or self._app
        await answer(scope, receive, send)

    # ---- the gate

    async def _refusal(self, request: Request, session: LoginSession[T] | None, *, is_stream: bool) -> Response | None:
        place = self._place_of(request.scope["path"])
        note = ""
        if session is not None:
            for each in [each for each, login in session.at.items() if self._entrance.is_over(login)]:
                self._sessions.leave(session, each)
                note = "ended" if each == place or not place else note
            if place in session.at or (place not in self._entrance.places and session.at):
                return None
        if not await self._entrance.is_needed(place):
            return None
        if request.headers.get("hx-request"):
            return PlainTextResponse("log in\n", HTTPStatus.UNAUTHORIZED, {"HX-Refresh": "true"})
        if is_stream or request.method not in {"GET", "HEAD"}:
            return PlainTextResponse("log in\n", HTTPStatus.UNAUTHORIZED)
        there = "/login?" + urlencode({"next": asked_for(request), "place": place} | ({"note": note} if note else {}))
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link from elsewhere comes without the cookie (SameSite=Strict); what this answer leads to comes with it.
            return HTMLResponse("", headers={"Refresh": f"0; url={there}"})
        return RedirectResponse(there, HTTPStatus.SEE_OTHER)

    def _place_of(self, path: str) -> str:
        first = path.removeprefix("/").partition("/")[0]
        return first if first in self._entrance.places else ""

    # ---- logging in and out

    async def _login_page(self, request: Request, session: LoginSession[T] | None) -> Response:
        values = request.query_params
        place, there = self._chosen(values.get("place", "")), local_path(values.get("next", ""))
        if session is not None and place in session.at and not self._entrance.is_over(session.at[place]):
            return RedirectResponse(there, HTTPStatus.SEE_OTHER)
        note = _WORDS["ended"] if values.get("note") == "ended" else None
        return self._page(request, place, there, note, HTTPStatus.OK)

    async def _log_in(self, request: Request, session: LoginSession[T] | None) -> Response:
        values = await form_of(request, _FORM_SIZE_BYTES_MAX) or {}
        place, there = self._chosen(values.get("place", "")), local_path(values.get("next", ""))
        address = request.client.host if request.client else ""
        token = values.get("token", "").strip()
        # Before the token is looked at: a foreign page must not log a browser in as another user.
        if not visit_of(request).has_csrf(request, values):
            return self._page(request, place, there, _WORDS["old_form"], HTTPStatus.FORBIDDEN)
        if not token:
            return self._page(request, place, there, _WORDS["empty"], HTTPStatus.BAD_REQUEST)
        if self._checking >= _CHECKS_MAX + _WAITING_MAX:
            return self._page(request, place, there, _WORDS["busy"], HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            login = await self._checked(place, token)
        except Unauthenticated:
            _log.warning("page.login_refused", "a login from %(peer)s is refused: its token is not valid", peer=address)
            await self._slow_down(address)
            return self._page(request, place, there, _WORDS["refused"], HTTPStatus.UNAUTHORIZED)
        except TxmsgError as exc:
            return self._page(request, place, there, BilingualText(str(exc), str(exc)), HTTPStatus.SERVICE_UNAVAILABLE)
        # A new id at each login: one that was planted in the browser before gives access to nothing (session fixation).
        begun = self._sessions.begin_session(place, login, session)
        answer = RedirectResponse(there, HTTPStatus.SEE_OTHER)
        _set_cookie(answer, request, begun.id)
        return answer

    async def _checked(self, place: str, token: str) -> T:
        self._checking += 1
        try:
            async with self._checks:
                return await self._entrance.sign_in(place, token)
        finally:
            self._checking -= 1

    async def _slow_down(self, address: str) -> None:
        """Delay the answer, the longer the more logins of this address have failed, since it may be guessing.

        A token that is valid is never delayed, since all who come through a proxy have one address.
        """
        delay_s = self._failures.delay_s(self._sessions.clock(), network_of(address))
        if self._refusing < _REFUSING_MAX:
            self._refusing += 1
            try:
                await asyncio.sleep(delay_s)
            finally:
                self._refusing -= 1

    async def _log_out(self, request: Request, session: LoginSession[T] | None) -> Response:
        values = await form_of(request, _FORM_SIZE_BYTES_MAX) or {}
        if not visit_of(request).has_csrf(request, values):
            return PlainTextResponse("this page is too old: load it again\n", HTTPStatus.FORBIDDEN)
        if session is not None:
            self._sessions.end_session(session)
        answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        _set_cookie(answer, request, "")
        return answer

    def _chosen(self, place: str) -> str:
        return place if place in self._entrance.places else self._entrance.places[0]

    def _page(
        self, request: Request, place: str, there: str, note: BilingualText | None, status: HTTPStatus
    ) -> Response:
        language = self._entrance.language(request)

        def t(words: BilingualText) -> str:
            # What brokers say stands in it, too.
            return html.escape(printable(words.zh if language == "zh" else words.en, lines=True))

        def quoted(text: str) -> str:
            return html.escape(text)

        choices = "".join(
            f'<option{" selected" if each == place else ""} value="{quoted(each)}">{quoted(printable(each))}</option>'
            for each in self._entrance.places
        )
        several = len(self._entrance.places) > 1
        document = self._document.substitute(
            {key: t(words) for key, words in _WORDS.items()},
            language=language,
            theme=quoted(self._entrance.theme(request)),
            title=quoted(self._entrance.title),
            note="" if note is None else f'<p class="note" id="note" role="alert">{t(note)}</p>',
            describes="" if note is None else ' aria-describedby="note"',
            place=f'<label for="place">{t(_WORDS["place"])}</label><select id="place" name="place">{choices}</select>'
            if several
            else f'<input type="hidden" name="place" value="{quoted(place)}">',
            next=quoted(there),
            csrf=visit_of(request).csrf,
        )
        return HTMLResponse(document, status)


@dataclass(frozen=True, slots=True)
class BrowserVisit:
    """The session of a request, if there is one, and the secret that its forms must send back."""

    session: LoginSession[Any] | None
    csrf: str

    def has_csrf(self, request: Request, values: Mapping[str, str]) -> bool:
        """Return True if a request comes from a form of this session."""
        given = request.headers.get(CSRF_HEADER) or values.get(CSRF_FIELD, "")
        return secrets.compare_digest(given.encode(), self.csrf.encode())


def _stay_stranger(scope: Scope) -> None:
    """Let the connection of this request lose its place to others: the request does not identify the caller."""
    stay = scope.get("state", {}).get(STAY_STRANGER)
    if stay is not None:
        stay()


def visit_of(request: Request) -> BrowserVisit:
    """Return the visit of a request that has passed a gate."""
    visit = request.scope[VISIT]
    assert isinstance(visit, BrowserVisit)
    return visit


async def sweep(sessions: LoginSessions[Any]) -> None:
    """End sessions that have expired, until it is cancelled."""
    while True:
        await asyncio.sleep(SWEEP_S)
        sessions.end_expired()


async def form_of(request: Request, size_bytes_max: int) -> dict[str, str] | None:
    """Return the values that a form posted; None if they are too large. A repeated name has its last value."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > size_bytes_max:
            return None
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))


def asked_for(request: Request) -> str:
    """Return the address of the requested page. Not from `request.url`, which includes the Host header."""
    query = request.scope["query_string"].decode("latin-1")
    return quote(request.scope["path"]) + (f"?{query}" if query else "")


def local_path(text: str) -> str:
    """Return `text` if it is the address of a page of this server, else the first page."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\", "/login"))
    return text if is_path and text.isprintable() and len(text) <= _PATH_SIZE_MAX else "/"


def cookie_name(scope: Scope) -> str:
    """Return the cookie's name. With TLS it has the prefix __Host-: browsers then send it to this host, by
    HTTPS, only.
    """
    return "__Host-txmsg-session" if scope["scheme"] == "https" else "txmsg-session"


def _set_cookie(answer: Response, request: Request, id_: str) -> None:
    """Set the cookie of a session; the browser deletes it when it closes. An empty id deletes it now."""
    answer.set_cookie(
        cookie_name(request.scope),
        id_,
        max_age=None if id_ else 0,
        httponly=True,
        secure=request.scope["scheme"] == "https",
        samesite="strict",
    )
