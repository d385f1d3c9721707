"""A console with a real broker, one for each module, and a browser."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psycopg
import pytest
from playwright.sync_api import Browser, Page

from tests.broker_process import BrokerProcess
from tests.conftest import PostgresServer
from tests.page.conftest import browser
from tests.ports import own_port
from tests.restartable import Restartable
from txmsg.metaq.local import LocalLog

__all__ = ["browser"]

WAIT_MS = 60_000
LAPTOP = (1440, 900)
_numbers = itertools.count(1)


def csrf_in(html: str) -> str:
    """Return the CSRF fields that forms of a page send back."""
    found = re.search(r'name="csrf" value="([^"]+)"', html)
    assert found is not None, html
    return found[1]


class ConsoleProcess(Restartable):
    """`txmsg console` as a child process."""

    def __init__(self, *options: str, log: Path) -> None:
        super().__init__("the console", log)
        self.options = options
        self.address = f"127.0.0.1:{own_port()}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def arguments(self) -> list[str]:
        return ["console", "--listen", self.address, *self.options]


@dataclass(frozen=True)
class ShownConsole:
    """A console, its broker, and their Notify database."""

    console: ConsoleProcess
    broker: BrokerProcess
    storage: str
    log: Path
    """The directory of the log `trades`."""

    @property
    def url(self) -> str:
        return self.console.url

    def execute(self, statement: str) -> None:
        """Fill tables."""
        with psycopg.connect(self.storage, connect_timeout=10) as connection:
            connection.execute(statement.encode())


@pytest.fixture(scope="module")
def shown(
    postgres: PostgresServer, notify_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShownConsole]:
    """The console and broker of the module."""
    name = f"test_console_{next(_numbers)}"
    directory = tmp_path_factory.mktemp("console")
    storage = postgres.create_database(name, template=notify_template)
    broker = BrokerProcess(storage, "--id", "one", log=directory / "broker.log")
    trades = directory / "trades"
    LocalLog(trades, append=True).close()
    console = ConsoleProcess("--broker", broker.address, "--log", f"trades={trades}", log=directory / "console.log")
    try:
        broker.start()
        console.start()
        yield ShownConsole(console, broker, storage, trades)
    finally:
        console.kill()
        broker.kill()
        postgres.drop_database(name)


@dataclass
class Window:
    """A page in its own window, and the errors of its browser."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)


Look = Callable[..., Page]


@pytest.fixture(scope="module")
def client(shown: ShownConsole) -> Iterator[httpx2.Client]:
    """Requests pages and actions of the console's database, as the pages themselves do."""
    own = {"Sec-Fetch-Site": "same-origin"}
    with httpx2.Client(base_url=f"{shown.url}/notify", headers=own, timeout=60, follow_redirects=True) as asking:
        asking.headers["X-Txmsg-Csrf"] = csrf_in(asking.get(f"{shown.url}/login").text)
        yield asking


def page(client: httpx2.Client, path: str, **query: str) -> str:
    """Return a page; fails if it contains foreign text as HTML."""
    answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    assert "<img src=x" not in answer.text
    return answer.text


@pytest.fixture
def look(browser: Browser, shown: ShownConsole) -> Iterator[Look]:
    """Open a page of the console. In the end no browser has reported errors or contacted other hosts."""
    windows: list[Window] = []

    def open_window(path: str, *, size: tuple[int, int] = LAPTOP, locale: str = "en-GB") -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, locale=locale, reduced_motion="reduce"
        )
        context.set_default_timeout(WAIT_MS)
        window = Window(context.new_page())
        windows.append(window)
        window.page.on("pageerror", lambda error: window.complaints.append(str(error)))
        window.page.on(
            "console",
            lambda message: window.complaints.append(message.text) if "Content Security" in message.text else None,
        )
        window.page.on(
            "request",
            lambda request: None if request.url.startswith(shown.url) else window.foreign.append(request.url),
        )
        window.page.goto(f"{shown.url}{path}")
        window.page.wait_for_selector("html[data-ready]")
        return window.page

    yield open_window
    for window in windows:
        window.page.context.close()
    assert [each for window in windows for each in (*window.complaints, *window.foreign)] == []
