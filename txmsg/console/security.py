"""Who may ask the console for what, while there is no authentication: browsers of this machine, from its own pages.

- Host must name this machine: a foreign name that was made to mean 127.0.0.1 (DNS rebinding) reads nothing.
- What changes something comes from a page of this console, by Sec-Fetch-Site or Origin (CSRF).
- Answers run no script but the console's files, load nothing from elsewhere, and stand in no frame.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from txmsg.errors import MisuseError
from txmsg.wire.address import check_address, host_and_port, host_of, is_loopback

_FILES: Final = ("/assets/", "/uplot/")
_SAFE: Final = {"GET", "HEAD"}
_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)


def check_listen(listen: str) -> str:
    """`listen` if only this machine reaches it. Raises InvalidName, MisuseError."""
    listen = check_address("--listen", listen)
    host, port = host_and_port(listen)
    if not is_loopback(host):
        raise MisuseError(
            f"--listen {listen}: the console has no authentication, and so listens on this machine only: give "
            f"127.0.0.1:{port}, and reach it through `ssh -L {port}:127.0.0.1:{port}`"
        )
    return listen


class Guard:
    """Refuses requests as the module says, and adds its headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS, (b"cache-control", cache)]
            await send(message)

        if scope["type"] != "http":
            return
        # Files may be kept, but are asked for again: a new release is seen at once. Pages are of this moment.
        cache = b"no-cache" if scope["path"].startswith(_FILES) else b"no-store"
        headers = Headers(scope=scope)
        refused = _refusal(scope["method"], headers)
        app = self._app if refused is None else PlainTextResponse(refused[1], refused[0])
        await app(scope, receive, send_with_headers)


def _refusal(method: str, headers: Headers) -> tuple[int, str] | None:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(host_of(hosts[0])):
        return 421, "ask for localhost or 127.0.0.1: the Host of the request is another\n"
    site = headers.get("sec-fetch-site")
    if method in _SAFE:
        # A link may lead here. What a foreign page loads in the background is its own affair.
        if site == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return 403, "this is for pages of the console\n"
        return None
    is_own = headers.get("origin") == f"http://{hosts[0]}" if site is None else site == "same-origin"
    return None if is_own else (403, "this request does not come from a page of the console\n")
