"""Refuses foreign requests to a web server, and adds headers to all answers. For the console and for pages.

- On loopback, Host must name this machine: a foreign name that is made to mean 127.0.0.1 (DNS rebinding) reads nothing.
- What changes something comes from a page of this server, by Sec-Fetch-Site or Origin (CSRF). Foreign pages may link
  here, but load nothing, streams of events included.
- Answers run no script but the server's files, load nothing from elsewhere, and stand in no frame.
- Over TLS, browsers are told to come by TLS only from then on (HSTS). Not on loopback, whose name all programs of a
  machine share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txmsg.wire.address import host_of, is_loopback

SAFE_METHODS: Final = {"GET", "HEAD"}
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_ONLY_TLS: Final = ((b"strict-transport-security", b"max-age=31536000"),)


class RequestGuard:
    """A middleware that refuses requests by the module's rules, and adds its headers to every answer.

    files: paths that are the same for all visitors, and may be cached. only_loopback: True if Host is checked.
    """

    def __init__(self, app: ASGIApp, *, files: Sequence[str], only_loopback: bool) -> None:
        self._app = app
        self._files = tuple(files)
        self._only_loopback = only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS, *only_tls, (b"cache-control", cache)]
            await send(message)

        if scope["type"] != "http":
            return
        # Files may be kept, but are asked for again: a new release is seen at once. Pages are of this moment.
        cache = b"no-cache" if scope["path"].startswith(self._files) else b"no-store"
        headers = Headers(scope=scope)
        is_remote = not is_loopback(host_of(headers.get("host", "")))
        only_tls = _ONLY_TLS if scope["scheme"] == "https" and is_remote else ()
        refused = self._refusal(scope, headers)
        app = self._app if refused is None else PlainTextResponse(refused[1], refused[0])
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or (self._only_loopback and not is_loopback(host_of(hosts[0]))):
            return 421, "ask for localhost or 127.0.0.1: the Host of the request is another\n"
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        own = f"{scope['scheme']}://{hosts[0]}"
        if scope["method"] in SAFE_METHODS:
            # A link may lead here. What a foreign page loads in the background is its own affair.
            is_foreign = site in {"cross-site", "same-site"} if site is not None else origin not in {None, own}
            if is_foreign and headers.get("sec-fetch-mode") != "navigate":
                return 403, "this is for pages of this server\n"
            return None
        is_own = origin == own if site is None else site == "same-origin"
        return None if is_own else (403, "this request does not come from a page of this server\n")
