"""A browser for tests of a page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_START_MS_MAX = 120_000

HOW_TO_INSTALL = (
    "Chromium is not installed: `apt-get install --no-install-recommends chromium-headless-shell fonts-wqy-microhei` "
    "(Debian), or another that is called chromium or google-chrome"
)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Run a headless browser. It occupies this thread's event loop, so asyncio.run does not work meanwhile."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to be sandboxed as root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox, timeout=_START_MS_MAX)
        try:
            yield browser
        finally:
            browser.close()
