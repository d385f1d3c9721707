"""Every page and dialog in a browser, with brokers whose every answer is HTML: no script of it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from queue import Queue

import pytest
from playwright.sync_api import Browser, expect

from tests.console.answering import VIEW_PATHS, address, answered_console, answering
from tests.console.conftest import WAIT_MS
from txmsg.ops.console.app import new_app
from txmsg.ops.page.listening import PageServer, listening

pytestmark = pytest.mark.long


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A console on its own thread: the browser's thread has an event loop."""
    answering(monkeypatch)
    ready: Queue[tuple[str, PageServer]] = Queue()

    async def serve() -> None:
        async with answered_console() as found:
            with listening("127.0.0.1:0") as (listener, where):
                server = PageServer(new_app(found.console))
                ready.put((where, server))
                await server.serve(sockets=[listener])
                found.console.live.closing.set()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    where, server = ready.get(timeout=WAIT_MS / 1000)
    yield f"http://{where}"
    server.should_exit = True
    thread.join(WAIT_MS / 1000)
    assert not thread.is_alive()


def test_injected_scripts_do_not_run(browser: Browser, url: str) -> None:
    context = browser.new_context(reduced_motion="reduce", locale="en-GB")
    context.set_default_timeout(WAIT_MS)
    complaints: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"a script of others ran: {dialog.message}"))
    page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
    dialogs = 0
    for path in VIEW_PATHS:
        page.goto(f"{url}{address(path)}")
        page.wait_for_selector("html[data-ready]")
        for button in page.locator("button[hx-get]").all():
            button.click()
            expect(page.locator("#dialog-title")).to_be_visible()
            assert page.locator("#dialog img, #dialog script").count() == 0
            page.keyboard.press("Escape")
            expect(page.locator("#dialog")).to_be_hidden()
            dialogs += 1
        assert page.locator("img[src=x], body script").count() == 0
    context.close()
    assert complaints == []
    assert dialogs > 15
