"""A browser that looks at a page, or takes a picture of it.

    python -m txmsg.ops.demo.browser http://HOST:PORT/ FILE.png

takes a picture as soon as the page is live. Needs the Python package `playwright`, and Chromium: Debian's will do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOADED_S_MAX: Final = 60.0
_BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Return the path of the installed Chromium, if there is one. Playwright's own would be a download."""
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def has_browser() -> bool:
    """Return True if pages can be opened."""
    return find_browser() is not None and find_spec("playwright") is not None


@contextmanager
def page_at(url: str, **look: Any) -> Iterator[Page]:
    """The page in a browser. look: as Playwright's new_page takes it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to be sandboxed as root
        with playwright.chromium.launch(executable_path=find_browser(), args=sandbox) as browser:
            page = browser.new_page(**look)
            page.set_default_timeout(LOADED_S_MAX * 1000)
            page.goto(url)
            yield page


def taking_picture(url: str, path: Path) -> subprocess.Popen[bytes]:
    """A process that takes a picture, since a browser is driven from an event loop."""
    return subprocess.Popen([sys.executable, "-P", "-m", __name__, url, str(path)], stderr=subprocess.PIPE)


def _main(url: str, path: str) -> None:
    with page_at(url, viewport={"width": 1440, "height": 900}, color_scheme="light", reduced_motion="reduce") as page:
        page.wait_for_selector(':root[data-state="live"] [data-value]')
        page.screenshot(path=path)


if __name__ == "__main__":
    _main(*sys.argv[1:])
