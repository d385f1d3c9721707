"""The login in a browser with an authenticating broker: login, denied actions, hostile text, revocation, logout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.console.conftest import WAIT_MS, ConsoleProcess
from tests.integration.cli_harness import json_of
from tests.wire.certificates import Authority

HOSTILE = "/\"><img src=x onerror=alert(1)>'{{7*7}}</script><script>alert(1)</script>"
_numbers = itertools.count(1)

expect.set_options(timeout=WAIT_MS)
pytestmark = pytest.mark.long


@dataclass(frozen=True)
class ConsoleWithLogin:
    """A console with HTTPS, its authenticating broker, and their database."""

    console: ConsoleProcess
    broker: BrokerProcess
    storage: str

    @property
    def url(self) -> str:
        return f"https://{self.console.address}"

    def user(self, *words: str) -> Any:
        """Return the output of `txmsg user`, run on a thread: that of the browser has an event loop already."""
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(json_of, "user", *words, "--storage", self.storage).result()


@pytest.fixture(scope="module")
def guarded(
    postgres: PostgresServer, notify_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConsoleWithLogin]:
    name = f"test_login_{next(_numbers)}"
    directory = tmp_path_factory.mktemp("login")
    storage = postgres.create_database(name, template=notify_template)
    certificate, key = Authority(directory / "authority").issue("127.0.0.1")
    broker = BrokerProcess(storage, "--id", "one", "--auth", log=directory / "broker.log")
    console = ConsoleProcess(
        "--broker", broker.address, "--tls-cert", str(certificate), "--tls-key", str(key), log=directory / "console.log"
    )
    try:
        broker.start()
        console.start()
        yield ConsoleWithLogin(console, broker, storage)
        assert "Traceback" not in console.log.read_text()
    finally:
        console.kill()
        broker.kill()
        postgres.drop_database(name)


@pytest.fixture
def page(browser: Browser, guarded: ConsoleWithLogin) -> Iterator[Page]:
    """A browser page. In the end no injected script has run, and the browser has reported no errors."""
    context = browser.new_context(ignore_https_errors=True, reduced_motion="reduce", locale="en-GB")
    context.set_default_timeout(WAIT_MS)
    complaints: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"a script of others ran: {dialog.message}"))
    page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
    yield page
    context.close()
    assert complaints == []


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")


def test_admin_can_log_in_work_and_log_out(guarded: ConsoleWithLogin, page: Page) -> None:
    token = guarded.user("create", "ann", "--role", "admin")["token"]
    page.goto(f"{guarded.url}/notify/topics")
    expect(page.get_by_label("Token")).to_be_focused()
    log_in(page, "txmsg_unknown")
    expect(page.get_by_role("alert")).to_contain_text("This token is not valid")
    log_in(page, token)
    page.wait_for_url("**/notify/topics")
    expect(page.locator(".who")).to_contain_text("ann admin")
    expect(page.locator(".pill")).to_have_text("Live")
    page.wait_for_selector("html[data-ready]")
    page.get_by_role("button", name="Create").click()
    page.get_by_label("Name", exact=True).fill("of.ann")
    page.locator("#dialog button.primary").click()
    expect(page.locator("#toasts")).to_contain_text("of.ann")
    expect(page.locator("#live")).to_contain_text("of.ann")
    (cookie,) = page.context.cookies()
    assert cookie["name"] == "__Host-txmsg-session"
    assert cookie["httpOnly"]
    assert cookie["secure"]
    assert cookie["sameSite"] == "Strict"
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.goto(f"{guarded.url}/notify/topics")
    expect(page.get_by_label("Token")).to_be_visible()
    assert token not in guarded.console.log.read_text() + guarded.broker.log.read_text()


def test_page_shows_the_permission_that_brokers_deny(guarded: ConsoleWithLogin, page: Page) -> None:
    page.goto(f"{guarded.url}/notify/brokers")
    log_in(page, guarded.user("create", "bob")["token"])
    expect(page.locator(".who")).to_contain_text("bob")
    for path, lacks in (("/brokers", "cluster"), ("", "cluster"), ("/topics/t", "topic:t"), ("/groups/g", "group:g")):
        page.goto(f"{guarded.url}/notify{path}")
        expect(page.locator("#live")).to_contain_text("This cannot be shown.")
        expect(page.locator("#live")).to_contain_text(f"user bob may not describe {lacks}")
        expect(page.locator("#away")).to_have_count(0)  # the broker answers
    page.goto(f"{guarded.url}/notify/brokers/one/drain")
    expect(page.locator("body")).to_contain_text("user bob may not")


def test_revoked_token_redirects_to_the_login(guarded: ConsoleWithLogin, page: Page) -> None:
    page.goto(f"{guarded.url}/notify/brokers")
    log_in(page, guarded.user("create", "carl", "--role", "admin")["token"])
    expect(page.locator("tbody tr")).to_have_count(1)
    guarded.user("revoke", "carl")
    expect(page.get_by_label("Token")).to_be_visible()  # without a click


def test_login_page_renders_hostile_text_as_text(guarded: ConsoleWithLogin, page: Page) -> None:
    for values in ({"next": HOSTILE}, {"place": HOSTILE}, {"note": HOSTILE}, {"next": f"/notify/topics?q={HOSTILE}"}):
        page.goto(f"{guarded.url}/login?{urlencode(values)}")
        log_in(page, HOSTILE)
        expect(page.get_by_role("alert")).to_contain_text("This token is not valid")
        assert page.locator("img[src=x], script").count() == 0
