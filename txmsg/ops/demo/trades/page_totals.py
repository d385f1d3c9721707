"""Reads the totals from the page as a browser shows it: what a person sees, where it is shown in full.

    python -m txmsg.ops.demo.trades.page_totals HOST:PORT orders paid ...

prints them as one JSON object. A total that is shown short (12.3K) is read from its element's `data-value`. Needs the
Python package `playwright`, and Chromium: Debian's will do.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from txmsg.ops.demo.browser import LOADED_S_MAX, has_browser, page_at
from txmsg.runtime.child import ChildFailed

if TYPE_CHECKING:
    from playwright.sync_api import Locator

ROLLED_S_MAX: Final = 10.0
"""Digits roll to their places within a second."""
LOOK_MS: Final = 100


def read_totals(address: str, names: tuple[str, ...]) -> dict[str, int] | None:
    """Return what the page shows of each `figures.total.NAME`; None where there is no browser.

    In a process of its own, since a browser is driven from an event loop. Raises ChildFailed when it fails.
    """
    if not has_browser():
        return None
    command = [sys.executable, "-P", "-m", __name__, address, *names]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=4 * LOADED_S_MAX, check=True)
    except subprocess.SubprocessError as exc:
        said = getattr(exc, "stderr", None) or exc
        raise ChildFailed(f"the browser could not read the page at {address}:\n{str(said)[-3000:]}") from exc
    totals: dict[str, int] = json.loads(run.stdout)
    return totals


_SEEN: Final = """element => {
    if (element.getAttribute("format").endsWith("_short")) return element.dataset.value;
    if (element.localName !== "rolling-number") return element.textContent;
    const place = (strip) => (parseFloat(strip.style.transform.slice("translateY(".length)) / -100) * 11;
    return [...element.children].map((child) => {
        return child.className === "digit" ? Math.round(place(child.firstChild)) % 10 : child.textContent;
    }).join("");
}"""
"""The text of an element; of a counter that rolls the digits that are to be seen."""


def _main(address: str, *names: str) -> None:
    with page_at(f"http://{address}/") as page:
        shown = {name: page.locator(f'[value="figures.total.{name}"][data-value]').first for name in names}
        counted = {name: int(element.get_attribute("data-value") or "") for name, element in shown.items()}
        deadline = time.monotonic() + ROLLED_S_MAX
        while (read := {name: seen(element) for name, element in shown.items()}) != counted:
            if time.monotonic() > deadline:
                break  # the page shows something else than it was told, and this tells what
            page.wait_for_timeout(LOOK_MS)
    print(json.dumps(read))


def seen(element: Locator) -> int:
    """The number that an element shows."""
    return int(re.sub(r"[^0-9-]", "", element.evaluate(_SEEN)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
