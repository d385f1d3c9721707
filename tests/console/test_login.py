"""The login of the console without a browser or reachable brokers: accepted and refused visitors."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest
from starlette.requests import Request

from tests.console.conftest import csrf_in
from tests.console.served import IDLE, Asked, Clock, asked_console
from tests.waiting import until_async
from txmsg.administration.cluster import ClusterService, ShowCluster
from txmsg.administration.notify import NotifyAdministration
from txmsg.errors import BrokerUnavailable, Unauthenticated
from txmsg.ops.console.database import DatabaseBrokers
from txmsg.ops.console.identity import UserIdentity
from txmsg.ops.console.page_context import PageContext
from txmsg.ops.console.pages import ACTIONS
from txmsg.ops.console.user_databases import UserDatabases
from txmsg.ops.page.sessions import AGE_S_MAX, IDLE_S, SESSIONS_MAX, SESSIONS_OF_USER_MAX, LoginSessions
from txmsg.wire.access import failures
from txmsg.wire.table import network_of

ANN = "txmsg_a_token_of_ann"
BOB = "txmsg_a_token_of_bob"
AWAY = "txmsg_while_all_are_away"
NOBODY_ASKS = "txmsg_where_nobody_asks"
OWN = {"Sec-Fetch-Site": "same-origin"}
_WHO = {ANN: UserIdentity(name="ann", roles=frozenset({"admin"})), BOB: UserIdentity(name="<b>bob"), NOBODY_ASKS: None}


async def who_am_i(database: DatabaseBrokers) -> UserIdentity | None:
    if database.token == AWAY:
        raise BrokerUnavailable("no <i>broker</i> answers")
    if database.token not in _WHO:
        raise Unauthenticated("the token is not valid here")
    return _WHO[database.token]


def console_of(*databases: str) -> UserDatabases:
    desks = UserDatabases({name: ["127.0.0.1:1"] for name in databases}, IDLE, who_am_i=who_am_i)
    for desk in desks.open.values():
        desk.watch.is_refused, desk.watch.trouble = True, "brokers ask for a token"
    return desks


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def asked(clock: Clock) -> AsyncIterator[Asked]:
    """A console whose brokers require a token."""
    async with asked_console(console_of("notify"), clock=clock) as found:
        yield found


async def log_in(
    asked: Asked, token: str, *, place: str = "notify", there: str = "/notify/topics", csrf: str | None = None
) -> httpx2.Response:
    if csrf is None:
        csrf = csrf_in((await asked.client.get("/login", params={"place": place})).text)
    form = {"token": token, "place": place, "next": there, "csrf": csrf}
    return await asked.client.post("/login", headers=OWN, data=form)


# ---- accepted and refused logins


@pytest.mark.parametrize("path", ["/", "/notify", "/notify/topics?q=a&after=b", "/operations/1", "/nowhere"])
async def test_every_page_without_session_redirects_to_the_login_and_back(asked: Asked, path: str) -> None:
    answer = await asked.client.get(path)
    assert answer.status_code == 303
    page = await asked.client.get(answer.headers["location"])
    assert page.status_code == 200
    answer = await asked.client.post(
        "/login",
        headers=OWN,
        data={"token": ANN, "csrf": csrf_in(page.text), "next": path.replace("&amp;", "&")},
    )
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    assert (await asked.client.get(path)).status_code in {302, 400, 404, 503}


async def test_only_static_files_are_served_without_login(asked: Asked) -> None:
    for path in ("/assets/console.css", "/login.css", "/uplot/uPlot.min.css"):
        assert (await asked.client.get(path)).status_code == 200
    for path, headers in (("/notify/topics", {"Accept": "text/event-stream"}), ("/notify", {"HX-Request": "true"})):
        answer = await asked.client.get(path, headers=headers)
        assert (answer.status_code, answer.text) == (401, "log in\n")
    for path in ("/notify/new/topic", "/preferences", "/operations/1/stop"):
        assert (await asked.client.post(path, headers=OWN)).status_code == 401


async def test_requests_of_a_visitor_use_the_token_of_the_visitor(asked: Asked) -> None:
    await log_in(asked, ANN)
    (session,) = asked.sessions._by_id.values()
    desk = session.at["notify"]
    assert desk.watch.database.token == ANN
    assert asked.desks.open["notify"].watch.database.token == ""
    page = (await asked.client.get("/notify/topics")).text
    assert "<strong>ann</strong> <small>admin</small>" in page
    assert ANN not in page


async def test_token_from_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXMSG_TOKEN", "txmsg_of_the_console_itself")
    database = DatabaseBrokers("notify", ["127.0.0.1:1"])
    with pytest.raises(BrokerUnavailable):
        await database.ask_any(ClusterService.show, ShowCluster())
    (channel,) = database._channels.values()
    assert not channel._token
    await database.close()


@pytest.mark.parametrize(
    ("token", "status", "says"),
    [
        ("", 400, "Give a token."),
        ("txmsg_unknown", 401, "This token is not valid: it is wrong, expired or revoked."),
        (AWAY, 503, "no &lt;i&gt;broker&lt;/i&gt; answers"),
        (NOBODY_ASKS, 503, "cannot tell who you are"),
    ],
)
async def test_refused_login_shows_the_reason(
    asked: Asked, token: str, status: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await log_in(asked, token)
    assert answer.status_code == status
    assert says in answer.text
    assert "set-cookie" not in answer.headers
    assert not asked.sessions
    assert not token or (token not in answer.text and token not in caplog.text)
    assert (await asked.client.get("/notify")).status_code == 303


async def test_login_page_has_the_language_and_theme_of_the_console(asked: Asked) -> None:
    asked.client.cookies.set("txmsg-theme", "dark")
    page = (await asked.client.get("/login", headers={"Accept-Language": "zh-CN"})).text
    assert '<html lang="zh" data-theme="dark">' in page
    assert "<button>登录</button>" in page


@pytest.mark.parametrize("there", ["//evil.example", "https://evil.example", "/\\evil.example", "/login", "x", "/\n"])
async def test_login_redirects_to_pages_of_the_console_only(asked: Asked, there: str) -> None:
    assert (await log_in(asked, ANN, there=there)).headers["location"] == "/"


async def test_login_page_renders_names_and_addresses_as_text(asked: Asked) -> None:
    hostile = '/"><img src=x onerror=alert(1)>'
    page = await asked.client.get("/login", params={"next": hostile, "place": hostile, "note": hostile})
    assert "<img src=x" not in page.text
    await log_in(asked, BOB)
    assert "<strong>&lt;b&gt;bob</strong>" in (await asked.client.get("/notify/new/topic/x")).text


# ---- the session


async def test_session_cookie_is_http_only_and_same_site(asked: Asked) -> None:
    cookie = (await log_in(asked, ANN)).headers["set-cookie"]
    assert cookie.startswith("txmsg-session=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert len(cookie.partition("=")[2].partition(";")[0]) >= 43  # 256 bits
    assert "Max-Age" not in cookie


async def test_session_cookie_over_https_is_secure_and_bound_to_the_host() -> None:
    async with asked_console(console_of("notify"), origin="https://console.example:7790", is_local=False) as asked:
        cookie = (await log_in(asked, ANN)).headers["set-cookie"]
        assert cookie.startswith("__Host-txmsg-session=")
        assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert "Domain" not in cookie
        assert (await asked.client.get("/nowhere")).status_code == 404


async def test_login_creates_a_new_session_id_and_invalidates_the_old_one(asked: Asked) -> None:
    asked.client.cookies.set("txmsg-session", "chosen-by-a-stranger")
    answer = await log_in(asked, ANN)
    first = answer.cookies["txmsg-session"]
    asked.client.cookies.clear()
    asked.client.cookies.set("txmsg-session", first)
    assert first != "chosen-by-a-stranger"
    csrf = csrf_in((await asked.client.get("/nowhere")).text)
    second = (await log_in(asked, BOB, csrf=csrf)).cookies["txmsg-session"]
    assert second != first
    assert len(asked.sessions) == 1
    asked.client.cookies.clear()
    asked.client.cookies.set("txmsg-session", first)
    assert (await asked.client.get("/notify")).status_code == 303


async def test_logging_out_ends_the_session_and_its_connections(asked: Asked) -> None:
    await log_in(asked, ANN)
    (session,) = asked.sessions._by_id.values()
    csrf = csrf_in((await asked.client.get("/nowhere")).text)
    assert (await asked.client.post("/logout", headers=OWN)).status_code == 403
    answer = await asked.client.post("/logout", headers=OWN, data={"csrf": csrf})
    assert answer.headers["location"] == "/login"
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert not session.is_open
    assert not session.at
    assert not asked.sessions
    assert (await asked.client.get("/notify")).status_code == 303


async def test_session_ends_after_idle_time_and_after_maximum_age(asked: Asked, clock: Clock) -> None:
    for step_s, limit_s in ((IDLE_S + 1, IDLE_S + 1), (IDLE_S / 2, AGE_S_MAX + 1)):
        await log_in(asked, ANN)
        begun, last = clock.now, 200
        while clock.now < begun + limit_s:
            assert (await asked.client.get("/nowhere")).status_code == 404
            clock.now += step_s
            last = (await asked.client.get("/nowhere")).status_code
            asked.sessions.end_expired()
        assert last == 303
        assert not asked.sessions


async def test_event_stream_does_not_keep_a_session_alive(asked: Asked, clock: Clock) -> None:
    await log_in(asked, ANN)
    (session,) = asked.sessions._by_id.values()
    clock.now += IDLE_S / 2
    used_at = session.used_at
    assert (await asked.client.get("/nowhere", headers={"Accept": "text/event-stream"})).status_code == 404
    assert session.used_at == used_at
    await asked.client.get("/nowhere")
    assert session.used_at == clock.now


async def test_frequent_logins_of_a_user_end_only_its_own_sessions(asked: Asked, clock: Clock) -> None:
    other = (await log_in(asked, BOB)).cookies["txmsg-session"]
    asked.client.cookies.clear()
    first = (await log_in(asked, ANN)).cookies["txmsg-session"]
    for _ in range(SESSIONS_OF_USER_MAX):
        clock.now += 1
        asked.client.cookies.clear()
        await log_in(asked, ANN)
    assert len(asked.sessions) == SESSIONS_OF_USER_MAX + 1
    assert asked.sessions.find_session(first) is None
    assert asked.sessions.find_session(other) is not None
    await until_async(lambda: len(asked.desks._signed_in) == SESSIONS_OF_USER_MAX + 1)


def test_sessions_are_bounded_and_administrators_lose_theirs_last() -> None:
    now = 0.0
    sessions = LoginSessions[str](lambda: now, user_of=str, is_admin=lambda user: user == "ops")
    first = [sessions.begin_session("", user, None) for user in ("ops", "ann", "ann")]
    for number in range(SESSIONS_MAX):
        now += 1
        sessions.begin_session("", f"user {number}", None)
    assert len(sessions) == SESSIONS_MAX
    assert [each.is_open for each in first] == [True, False, False]


async def test_a_token_that_is_revoked_ends_the_login(asked: Asked) -> None:
    await log_in(asked, ANN)
    (session,) = asked.sessions._by_id.values()
    session.at["notify"].watch.is_refused = True  # as brokers answered its poll
    answer = await asked.client.get("/notify")
    assert answer.status_code == 303
    assert "You were logged out" in (await asked.client.get(answer.headers["location"])).text
    assert not session.at


async def test_each_database_has_its_own_login(clock: Clock) -> None:
    async with asked_console(console_of("orders", "trades"), clock=clock) as asked:
        page = (await asked.client.get("/login", params={"place": "trades"})).text
        assert '<option selected value="trades">' in page
        await log_in(asked, ANN, place="orders")
        assert (await asked.client.get("/orders/nowhere")).status_code == 404
        answer = await asked.client.get("/trades/topics")
        assert answer.headers["location"] == "/login?next=%2Ftrades%2Ftopics&place=trades"
        await log_in(asked, BOB, place="trades")
        for place, name in (("orders", "ann"), ("trades", "&lt;b&gt;bob")):
            assert f"<strong>{name}</strong>" in (await asked.client.get(f"/{place}")).text


async def test_page_requires_the_login_of_its_own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def url(_: Request) -> None:
        raise AssertionError("the Host header, which anybody may make up, belongs to it")

    monkeypatch.setattr(Request, "url", property(url))
    async with asked_console(console_of("orders", "%6frders")) as asked:
        await log_in(asked, ANN, place="orders", there="/orders")
        assert (await asked.client.get("/orders/nowhere?q=%2F")).status_code == 404
        answer = await asked.client.get("/%256frders/nowhere?q=%2F")
        assert answer.headers["location"] == "/login?next=%2F%25256frders%2Fnowhere%3Fq%3D%252F&place=%256frders"
        assert (await asked.client.get("/orders/new/topic")).status_code == 200


async def test_operation_keeps_its_connections_after_logout(asked: Asked) -> None:
    await log_in(asked, ANN)
    (session,) = asked.sessions._by_id.values()
    desk = session.at["notify"]
    assert desk.polling is not None
    look = PageContext(
        desk=desk,
        desks=session.at,
        operations=asked.console.operations,
        renderer=asked.console.renderers["en"],
        path={},
        values={},
    )
    closed = asyncio.Event()
    close = desk.watch.database.close

    async def closing() -> None:
        closed.set()
        await close()

    may_end = threading.Event()

    def steps(_: NotifyAdministration) -> Iterator[int]:
        may_end.wait(60)
        yield 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(desk.watch.database, "close", closing)
        operation = look.start("redrive", 1, steps)
        asked.sessions.end_session(session)
        await until_async(desk.polling.cancelled)  # which leaving begins with
        assert not closed.is_set()
        may_end.set()
        await asyncio.wait_for(closed.wait(), 60)
        assert operation.state == "done"
        await until_async(lambda: desk not in asked.desks._signed_in)


async def test_operations_of_other_users_can_be_neither_seen_nor_stopped(asked: Asked) -> None:
    operations = asked.console.operations
    began = operations.start("secret", database="notify", owner="notify/ann", total=1, steps=lambda: iter(()))
    await log_in(asked, BOB)
    csrf = csrf_in((await asked.client.get("/nowhere")).text)
    path = f"/operations/{began.id}"
    assert (await asked.client.get(path)).status_code == 404
    assert (await asked.client.post(f"{path}/stop", headers=OWN, data={"csrf": csrf})).status_code == 404
    await log_in(asked, ANN, csrf=csrf)
    assert (await asked.client.get(path)).status_code == 200


# ---- requests of others


async def test_failed_logins_are_slowed_down_and_successful_ones_are_not(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_DELAY_S", "DELAY_S_MAX"):
        monkeypatch.setattr(failures, name, 3600.0)
    csrf = csrf_in((await asked.client.get("/login")).text)
    for _ in range(failures.FREE):
        assert (await log_in(asked, "wrong", csrf=csrf)).status_code == 401
    caplog.clear()
    slowed = asyncio.create_task(log_in(asked, "wrong", csrf=csrf))
    await until_async(lambda: "is refused" in caplog.text)
    assert (await log_in(asked, ANN, csrf=csrf)).status_code == 303
    assert not slowed.done()
    slowed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slowed


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8::1%eth0", "2001:0db8:0000:0000"),
        ("", ""),
        ("a unix socket", "a unix socket"),
    ],
)
def test_a_network_of_ipv6_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_every_form_requires_the_csrf_token_of_its_session(asked: Asked) -> None:
    before = csrf_in((await asked.client.get("/login")).text)
    assert (await log_in(asked, ANN, csrf="")).status_code == 403
    await log_in(asked, ANN, csrf=before)
    mine = csrf_in((await asked.client.get("/nowhere")).text)
    assert mine != before
    posts = [path for path in _posts() if not path.startswith("/log")]
    assert len(posts) > 20
    for path in posts:
        for wrong in ("", before):
            answer = await asked.client.post(path, headers=OWN | {"X-Txmsg-Csrf": wrong}, data={"csrf": wrong})
            assert answer.status_code in {403, 404}, path
            assert answer.status_code == 403 or path == "/operations/1/stop", path
        assert (await asked.client.post(path, headers=OWN | {"X-Txmsg-Csrf": mine})).status_code != 403, path


async def test_link_from_another_site_finds_the_session_by_a_redirect(asked: Asked) -> None:
    """Browsers withhold a SameSite=Strict cookie from a link of another site, but not from its redirect."""
    await log_in(asked, ANN)
    cookie = asked.client.cookies["txmsg-session"]
    asked.client.cookies.clear()
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answer = await asked.client.get("/notify/alerts", headers=link)
    assert answer.headers["refresh"] == "0; url=/login?next=%2Fnotify%2Falerts&place=notify"
    asked.client.cookies.set("txmsg-session", cookie)
    answer = await asked.client.get(answer.headers["refresh"].partition("url=")[2], headers=OWN)
    assert answer.headers["location"] == "/notify/alerts"


def _posts() -> list[str]:
    """Yield the address of every route that accepts POST."""
    paths = [f"/notify{action.path}" for action in ACTIONS]
    return [re.sub(r"\{[^}]*\}", "1", path) for path in (*paths, "/preferences", "/operations/1/stop")]
