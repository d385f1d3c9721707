"""A page with a login, and the headers of every page: without a socket, with simulated brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx2
import pytest

from examples.trade_dashboard.page import PAGE
from tests.console.conftest import csrf_in
from tests.waiting import until_async
from txmsg.administration.access import ConnectionIdentity
from txmsg.errors import BrokerUnavailable, MisuseError, Unauthenticated
from txmsg.ops.page import app as page_app
from txmsg.ops.page.app import new_app
from txmsg.ops.page.feed import BulletinFeed
from txmsg.ops.page.logged_in import LoggedInUser, LoggedInUsers
from txmsg.ops.page.server import PageConfig
from txmsg.ops.page.sessions import LoginSessions

OWN = {"Sec-Fetch-Site": "same-origin"}
WAIT_S = 60.0
TOKEN = "txmsg_of_a_visitor"


@dataclass
class Brokers:
    """Simulated brokers with users."""

    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    authentication: bool = True
    are_away: bool = False
    are_odd: bool = False
    asked: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.go_on.set()

    async def ask(self, token: str) -> ConnectionIdentity:
        self.asked += 1
        await self.go_on.wait()
        if self.are_away:
            raise BrokerUnavailable("nobody answers")
        if self.are_odd:
            raise ValueError("what they answer is no text")
        if token not in self.tokens:
            raise Unauthenticated("the token is not valid here")
        return ConnectionIdentity(name="ann", authentication=self.authentication)


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
async def browser(brokers: Brokers) -> AsyncIterator[httpx2.AsyncClient]:
    feed = BulletinFeed()
    feed.put_bulletin(b'{"n": 1}')
    sessions = LoginSessions[LoggedInUser](lambda: 0.0, LoggedInUsers.leave)
    async with asyncio.TaskGroup() as tasks:
        app = new_app(PAGE, feed, LoggedInUsers(brokers.ask, tasks, check_s=0.01), sessions)
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="https://trades.example"
        ) as client:
            yield client
        sessions.end_all()


async def test_waiting_logins_are_bounded(brokers: Brokers, browser: httpx2.AsyncClient) -> None:
    brokers.go_on.clear()
    logins = [asyncio.create_task(log_in(browser)) for _ in range(32 + 64 + 1)]
    try:
        done, _ = await asyncio.wait(logins, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        brokers.go_on.set()
    assert [login.result().status_code for login in done] == [503]
    assert sorted({login.status_code for login in await asyncio.gather(*logins)}) == [303, 503]


async def log_in(browser: httpx2.AsyncClient, token: str = TOKEN) -> httpx2.Response:
    csrf = csrf_in((await browser.get("/login")).text)
    return await browser.post("/login", headers=OWN, data={"token": token, "next": "/", "csrf": csrf})


async def test_only_static_files_are_served_without_a_token(browser: httpx2.AsyncClient) -> None:
    for path in ("/", "/figures", "/page/page.css"):
        answer = await browser.get(path)
        assert (answer.status_code, answer.text) == (303, "")
    assert (await browser.get("/events", headers={"Accept": "text/event-stream"})).status_code == 401
    assert (await browser.get("/login.css")).status_code == 200
    assert (await log_in(browser, "another")).status_code == 401
    assert (await browser.get("/figures")).status_code == 303
    answer = await log_in(browser)
    assert answer.headers["set-cookie"].startswith("__Host-txmsg-session=")
    assert (await browser.get("/figures")).json() == {"n": 1}
    assert "<live-status" in (await browser.get("/")).text


async def test_revoked_token_ends_the_session(browser: httpx2.AsyncClient, brokers: Brokers) -> None:
    await log_in(browser)
    brokers.are_away = True
    asked = brokers.asked
    await until_async(lambda: brokers.asked > asked + 1)
    assert (await browser.get("/figures")).status_code == 200  # unavailable brokers revoke nothing
    brokers.are_away = False
    brokers.tokens.clear()
    asked = brokers.asked
    await until_async(lambda: brokers.asked > asked)
    assert (await browser.get("/figures")).status_code == 303


async def test_open_pages_are_limited_per_user(browser: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_app, "BROWSERS_OF_USER_MAX", 0)
    await log_in(browser)
    answer = await browser.get("/events", headers={"Accept": "text/event-stream"})
    assert answer.status_code == 503
    assert "0 browsers of ann look already" in answer.text
    assert (await browser.get("/figures")).status_code == 200


async def test_invalid_broker_answer_ends_neither_the_server_nor_the_session(
    browser: httpx2.AsyncClient, brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    await log_in(browser)
    brokers.are_odd = True
    asked = brokers.asked
    await until_async(lambda: brokers.asked > asked + 1)
    assert "what they answer is no text" in caplog.text
    assert (await browser.get("/figures")).status_code == 200


async def test_login_is_refused_if_brokers_do_not_require_tokens(browser: httpx2.AsyncClient, brokers: Brokers) -> None:
    brokers.authentication = False
    answer = await log_in(browser)
    assert answer.status_code == 503
    assert "these brokers ask for no token" in answer.text


def test_login_beyond_localhost_requires_tls() -> None:
    with pytest.raises(MisuseError, match="tokens of --login could be read on their way: give --tls-cert"):
        PageConfig(database="", channel="", listen="0.0.0.0:7780", login=["localhost:7700"])
    PageConfig(database="", channel="", listen="0.0.0.0:7780")  # for everybody


@pytest.mark.parametrize(
    ("url", "is_told"),
    [("https://trades.example", True), ("http://trades.example", False), ("https://localhost:7780", False)],
)
async def test_hsts_header_is_sent_only_over_tls(url: str, is_told: bool) -> None:
    app = new_app(PAGE, BulletinFeed(), None, LoginSessions[LoggedInUser](lambda: 0.0))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=url) as browser:
        headers = (await browser.get("/")).headers
        assert ("strict-transport-security" in headers) == is_told


@pytest.mark.parametrize("path", ["/", "/figures", "/page/page.css", "/assets/base.css", "/nowhere"])
async def test_every_answer_forbids_foreign_scripts_and_frames(path: str) -> None:
    app = new_app(PAGE, BulletinFeed(), None, LoginSessions[LoggedInUser](lambda: 0.0))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://trades.example") as browser:
        headers = (await browser.get(path)).headers
        assert {"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'"} <= set(
            headers["content-security-policy"].split("; ")
        )
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        is_file = path.startswith(("/page/", "/assets/"))
        assert headers["cache-control"] == ("no-cache" if is_file else "no-store")
        for foreign in (
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
            {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
        ):
            assert (await browser.get(path, headers=foreign)).status_code == 403
