"""Reads the totals from the page as a browser shows it.

    python -m examples.trade_dashboard.play.browser HOST:PORT orders paid ...

prints them as one JSON object. Needs the Python package `playwright`, and Chromium: Debian's will do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Final

__all__ = ["find_browser", "read_totals"]

LOADED_S_MAX: Final = 60.0
_BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def read_totals(address: str, names: tuple[str, ...]) -> dict[str, int] | None:
    """What the page shows of each `figures.total.NAME`; None where there is no browser.

    In a process of its own, since a browser is driven from an event loop. Raises RuntimeError when it fails.
    """
    if find_browser() is None or find_spec("playwright") is None:
        return None
    command = [sys.executable, "-m", __name__, address, *names]
    run = subprocess.run(command, capture_output=True, text=True, timeout=4 * LOADED_S_MAX, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"the browser could not read the page at {address}:\n{run.stderr[-3000:]}")
    totals: dict[str, int] = json.loads(run.stdout)
    return totals


def find_browser() -> str | None:
    """The path of the Chromium that is installed, if there is one. Playwright's own would be a download."""
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)


def _main(address: str, *names: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to be sandboxed as root
        with playwright.chromium.launch(executable_path=find_browser(), args=sandbox) as browser:
            page = browser.new_page()
            page.set_default_timeout(LOADED_S_MAX * 1000)
            page.goto(f"http://{address}/")
            shown = [page.locator(f'[value="figures.total.{name}"][data-value]').first for name in names]
            totals = {name: each.get_attribute("data-value") for name, each in zip(names, shown, strict=True)}
    print(json.dumps({name: int(value or "") for name, value in totals.items()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
