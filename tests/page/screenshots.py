"""Takes the pictures of the page that docs/images holds, while a day of trades is played.

    python -m tests.page.screenshots docs/images

They are for people; what the page has to look like is in test_browser.py. The fonts are those of this machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final, Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser

from tests.page.chromium import HOW_TO_INSTALL, chromium
from txmsg.demo.trades.browser import find_browser

_DAY: Final = ("demo", "trades", "--rate", "300", "--seconds", "150", "--no-browser")
_SAYS: Final = "the page is at "
_ORDERS: Final = 10_000
"""Pictures are taken when so many are there: midnight is over, and the day goes on."""
_WAIT_MS_MAX: Final = 300_000


class _Picture(NamedTuple):
    name: str
    size: tuple[int, int]
    scheme: Literal["dark", "light"]
    locale: str


_PICTURES: Final = (
    _Picture("trades-dark", (1920, 1080), "dark", "en-GB"),
    _Picture("trades-light", (1366, 768), "light", "zh-CN"),
)


def main() -> int:
    """The exit status of the day."""
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    path = find_browser()
    assert path is not None, HOW_TO_INSTALL
    with subprocess.Popen([sys.executable, "-m", "txmsg.cli.main", *_DAY], stdout=subprocess.PIPE, text=True) as day:
        assert day.stdout is not None
        url = next(line.removeprefix(_SAYS).strip() for line in day.stdout if line.startswith(_SAYS))
        with chromium(path) as browser:
            for picture in _PICTURES:
                _take(browser, url, picture, target / f"{picture.name}.png")
        day.stdout.read()
        return day.wait()


def _take(browser: Browser, url: str, picture: _Picture, target: Path) -> None:
    width, height = picture.size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=picture.scheme,
        locale=picture.locale,
        reduced_motion="reduce",
    )
    context.set_default_timeout(_WAIT_MS_MAX)
    page = context.new_page()
    page.goto(url)
    page.wait_for_function(
        "count => Number(document.querySelector('[value=\"figures.total.orders\"]')?.dataset.value) >= count",
        arg=_ORDERS,
    )
    page.wait_for_selector(':root[data-state="live"] part-state[part="broker"][data-state="up"]')
    page.screenshot(path=target)
    context.close()
    with Image.open(target) as taken:  # a palette: a third of the size
        taken.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            target, optimize=True
        )


if __name__ == "__main__":
    sys.exit(main())
