"""Takes the screenshots of the page in docs/images during a simulated day of trades.

    python -m tests.page.screenshots docs/images

They are for people; what the page has to look like is in test_browser.py. The fonts are those of this machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from tests.page.pictures import Picture, camera, take

_DAY: Final = ("demo", "trades", "--rate", "300", "--seconds", "150", "--no-browser")
_SAYS: Final = "the page is at "
_ORDERS: Final = 10_000
"""Number of orders at which the screenshots are taken: after midnight, during the day."""


_PICTURES: Final = (
    Picture("trades-dark", (1920, 1080), "dark"),
    Picture("trades-light", (1366, 768), "light", "zh-CN"),
)


def main() -> int:
    """Run the day; return its exit status."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with (
        camera() as browser,
        subprocess.Popen([sys.executable, "-m", "txmsg.ops.cli.main", *_DAY], stdout=subprocess.PIPE, text=True) as day,
    ):
        assert day.stdout is not None
        url = next(line.removeprefix(_SAYS).strip() for line in day.stdout if line.startswith(_SAYS))
        for picture in _PICTURES:
            take(browser, url.rstrip("/"), picture, target, _wait_shown)
        day.stdout.read()
        return day.wait()


def _wait_shown(page: Page) -> None:
    page.wait_for_function(
        "count => Number(document.querySelector('[value=\"figures.total.orders\"]')?.dataset.value) >= count",
        arg=_ORDERS,
    )
    page.wait_for_selector(':root[data-state="live"] part-state[part="broker"][data-state="up"]')


if __name__ == "__main__":
    sys.exit(main())
